"""Several processes for one run: how they start, who speaks, and that all end, whatever happens to one of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .conftest import RECIPE, preheat

ENDLESS = RECIPE.replace('"60 steps"', '"200_000 steps"').replace('until = "60%"', 'until = "99%"').replace('every = "20 steps"', "")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "2")
PREHEAT = (sys.executable, "-m", "preheat")


@pytest.fixture(scope="module")
def endless(mini: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recipe that does not end by itself, and a run folder of it that was stopped."""
    folder = tmp_path_factory.mktemp("endless")
    recipe, run = folder / "endless.toml", folder / "run"
    recipe.write_text(ENDLESS)
    with running(recipe, mini[1], run) as process:
        process.send_signal(signal.SIGTERM)
        out, _ = ended(process, code=75)
    assert "the same command continues" in out
    return recipe, run


@contextmanager
def running(
    recipe: Path, data: Path, run: Path, *options: str, launcher: tuple[str, ...] = PREHEAT, steps: int = 3
) -> Iterator[subprocess.Popen[str]]:
    """A run of two processes that has done some steps."""
    before = lines(run)
    own = ("--nproc", "2") if launcher is PREHEAT else ()
    launch = launcher if launcher is PREHEAT else (*launcher, "-m", "preheat")
    command = [*launch, "train", str(recipe), "--data", str(data), "--run-folder", str(run), *own, *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        wait_for(lambda: lines(run) >= before + steps or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(condition: Callable[[], bool], at_most_s: float = 100) -> None:
    deadline = time.monotonic() + at_most_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lines(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def ended(process: subprocess.Popen[str], code: int, within_s: float = 100) -> tuple[str, str]:
    """What a launcher wrote until it ended; by then its workers have."""
    workers = children(process.pid)
    out, err = process.communicate(timeout=within_s)
    assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
    assert not any(alive(worker) for worker in workers)
    return out, err


def children(pid: int) -> list[int]:
    """Processes that a process started, rank 0 first."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    """Whether a process is there and runs, and is not only waited for by nobody."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.fixture
def stopped(endless: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """A recipe and a copy of its run folder."""
    shutil.copytree(endless[1], tmp_path / "run", symlinks=True)
    return endless[0], tmp_path / "run"


def test_a_stopped_run_saved_and_goes_on(mini: tuple[Path, Path], stopped: tuple[Path, Path]) -> None:
    """SIGTERM to one worker only: all of them stop after the same step."""
    recipe, run = stopped
    done = lines(run)
    assert (run / "checkpoints" / f"step-{done:08d}").is_dir()
    with running(recipe, mini[1], run) as process:
        os.kill(children(process.pid)[1], signal.SIGTERM)
        out, err = ended(process, code=75)
    assert "the same command continues" in out
    assert f"continues after step {done:_}" in err
    assert "failed" not in err
    assert (run / "checkpoints" / f"step-{lines(run):08d}").is_dir()


def test_a_worker_that_is_killed(mini: tuple[Path, Path], stopped: tuple[Path, Path]) -> None:
    with running(stopped[0], mini[1], stopped[1]) as process:
        os.kill(children(process.pid)[1], signal.SIGKILL)
        _, err = ended(process, code=1, within_s=60)
    assert "error: rank 1 was killed by signal 9 (Killed)" in err
    assert err.index("rank 1 was killed") < err.find("Traceback") or "Traceback" not in err


@pytest.mark.parametrize(("does", "code"), [("os._exit(75)", 75), ("kill(SIGUSR1)", 75), ("kill(SIGTERM)", 75), ("kill(SIGKILL)", 1)])
def test_none_waits_for_one_that_ended_before_it_came(does: str, code: int) -> None:
    """All others are at the start, where they would wait for it for minutes: they end with it, and not after the time of grace."""
    worker = "import os, time; from signal import *; kill = lambda n: os.kill(os.getpid(), n); "
    worker += f"{does} if os.environ['RANK'] == '1' else time.sleep(60)"
    launcher = f"import sys; from preheat.launch import start_workers; sys.exit(start_workers([sys.executable, '-c', {worker!r}], 3))"
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", launcher], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == code
    assert time.monotonic() - begin < 20
    assert ("rank 1 was killed" in done.stderr) == (code == 1)


def test_an_exception_in_one_worker(mini: tuple[Path, Path], stopped: tuple[Path, Path], tmp_path: Path) -> None:
    """Its own error is shown, and not that of the other one, whose partner is gone."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if os.environ.get('RANK') == '1':\n"
        "    import torch\n"
        "    step, calls = torch.optim.AdamW.step, []\n"
        "    def fail(*arguments):\n"
        "        calls.append(1)\n"
        "        if len(calls) == 5:\n"
        "            raise ArithmeticError('the sum is wrong')\n"
        "        return step(*arguments)\n"
        "    torch.optim.AdamW.step = fail\n"
    )
    recipe, run = stopped
    command = [*PREHEAT, "train", str(recipe), "--data", str(mini[1]), "--run", str(run), "--nproc", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == 1
    assert "rank 1 failed first:\nTraceback" in done.stderr
    assert "ArithmeticError: the sum is wrong" in done.stderr
    assert done.stderr.count("Traceback") == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_is_stuck_is_named(mini: tuple[Path, Path], stopped: tuple[Path, Path], rank: int) -> None:
    with running(stopped[0], mini[1], stopped[1], "--patience", "3") as process:
        workers = children(process.pid)
        os.kill(workers[rank], signal.SIGSTOP)
        wait_for(lambda: not alive(workers[1 - rank]))
        time.sleep(0.5)  # for the launcher to see who ended first
        os.kill(workers[rank], signal.SIGKILL)  # which the launcher does after its time of grace
        _, err = ended(process, code=1)
    who = "rank 0, which keeps the store, did not answer" if rank == 0 else "rank 1 did not arrive"
    assert f"{who} [run.stuck]" in err
    assert err.count("run.stuck") == 1


def test_torchrun_restarts_what_was_killed(mini: tuple[Path, Path], undisturbed: Path, tmp_path: Path) -> None:
    """From the newest checkpoint, to the end that one undisturbed process comes to."""
    run = tmp_path / "run"
    with running(mini[0], mini[1], run, "--json", launcher=TORCHRUN, steps=10) as process:
        os.kill(children(process.pid)[1], signal.SIGKILL)
        out, err = ended(process, code=0)
    assert json.loads(out)["complete"]  # one process speaks
    assert "step 7: resume: continues after step 7 of 60" in err
    ours, theirs = ([json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()] for folder in (run, undisturbed))
    assert [record["step"] for record in ours] == list(range(1, 61))
    assert [record["loss"] for record in ours] == pytest.approx([record["loss"] for record in theirs], rel=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--nproc", "3", "--set", "parallel.tensor=2", "--set", "model.kv_heads=2"), "[train.layout]"),
        (("--nproc", "3"), "a batch of 2 samples; 3 replicas"),
    ],
)
def test_a_layout_that_does_not_divide_the_processes(
    mini: tuple[Path, Path], tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    """One clear message, from one process, and nothing written."""
    done = preheat("train", *mini_arguments(mini), "--run", tmp_path / "run", *options, code=2)
    assert message in done.stderr
    assert done.stderr.count("error: ") == 1
    assert "failed first" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_nproc_under_a_launcher_that_started_another_number(
    mini: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    done = preheat("train", *mini_arguments(mini), "--run", tmp_path / "run", "--nproc", "4", code=2)
    assert "--nproc 4; the launcher started 2" in done.stderr


def test_workers_do_not_outlive_their_launcher(mini: tuple[Path, Path], stopped: tuple[Path, Path]) -> None:
    with running(stopped[0], mini[1], stopped[1], "--patience", "5") as process:
        workers = children(process.pid)
        process.kill()
        wait_for(lambda: not any(alive(worker) for worker in workers))


def mini_arguments(mini: tuple[Path, Path]) -> tuple[Path, str, Path]:
    return mini[0], "--data", mini[1]

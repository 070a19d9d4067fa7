"""A run that is asked to stop, in whatever it is busy with, loses no finished step and says that it wants to go on. Cases K04, K05."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.distributed import HashStore, PrefixStore

from preheat.errors import PreheatError
from preheat.launch import REQUEUE, parse_limit
from preheat.train import checkpoint
from preheat.train.ranks import first_deadline

from .conftest import RECIPE, preheat
from .test_resume import assert_same, metrics

ASKS = """
import os, signal, sys
from preheat.train import checkpoint, loop, start
from preheat.data import SampleOrder
from preheat.parallel import Engine

where, number = sys.argv[1], int(sys.argv[2])
owner, name = {
    "start": (sys.modules["preheat.train.start"], "environment"),
    "step": (loop.Trainer, "_train_step"),
    "data": (SampleOrder, "batch"),
    "measurement": (Engine, "score"),
    "save": (checkpoint, "write_tensors"),
}[where]
original, calls = getattr(owner, name), [0]

def asks(*arguments, **named):
    calls[0] += 1
    if calls[0] == number:
        os.kill(os.getpid(), signal.SIGTERM)
    return original(*arguments, **named)

setattr(owner, name, asks)
sys.argv = ["preheat", *sys.argv[3:]]
from preheat.cli import main
main()
"""


def test_sigterm_in_every_phase(mini: tuple[Path, Path], undisturbed: Path, tmp_path: Path) -> None:
    """In the start and in the first step nothing is to be saved, so nothing is done; a measurement is left, and made at the next start."""
    run = tmp_path / "run"
    arguments = ["train", str(mini[0]), "--data", str(mini[1]), "--run", str(run)]
    stopped = []
    for where, number in [("start", 1), ("step", 1), ("data", 5), ("save", 1), ("measurement", 2), ("measurement", 1), ("step", 3)]:
        done = subprocess.run(
            [sys.executable, "-c", ASKS, where, str(number), *arguments], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == REQUEUE == os.EX_TEMPFAIL, f"{where}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        newest, damaged = checkpoint.newest(run / "checkpoints")
        assert not damaged
        stopped.append(newest.step if newest is not None else 0)
    assert stopped[:2] == [0, 0]
    assert 0 < stopped[2] < 7 <= stopped[3] < 20
    assert stopped[4:] == [20, 20, 23]
    # The line of step 20 came with its measurement, when that was made.
    assert [line["step"] for line in metrics(run)] == list(range(1, 24))
    preheat(*arguments)
    assert_same(run, undisturbed)


def test_a_time_limit_saves_before_it(mini: tuple[Path, Path], tmp_path: Path) -> None:
    recipe, run = tmp_path / "endless.toml", tmp_path / "run"
    recipe.write_text(RECIPE.replace('"60 steps"', '"2_000_000 steps"').replace('until = "60%"', 'until = "99%"'))
    begin = time.monotonic()
    arguments = ("train", recipe, "--data", mini[1], "--run", run, "--json")
    done = preheat(*arguments, "--time-limit", "10s", code=REQUEUE)
    assert time.monotonic() - begin < 30  # a busy machine starts Python late
    assert not json.loads(done.stdout)["complete"]
    newest, _ = checkpoint.newest(run / "checkpoints")
    assert [line["step"] for line in metrics(run)][-1:] == ([newest.step] if newest is not None else [])


def test_the_end_of_a_slurm_job_is_a_time_limit(mini: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is over already: nothing is trained."""
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 1))
    done = preheat("train", mini[0], "--data", mini[1], "--run", tmp_path / "run", code=REQUEUE)
    assert "the time limit is near" in done.stdout
    assert not (tmp_path / "run" / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3h50m", 13_800), ("90m", 5_400), ("45s", 45), ("1d12h", 129_600), ("03:50:00", 13_800), ("1-12:00:00", 129_600)],
)
def test_time_limits(text: str, seconds: float) -> None:
    assert parse_limit(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "0m", "3h 50m", "50m3h", "-1h", "1e3s", "3:50"])
def test_what_is_no_time_limit(text: str) -> None:
    with pytest.raises(PreheatError, match=r"train\.time-limit"):
        parse_limit(text)


def test_a_restarted_attempt_has_the_deadline_of_the_first() -> None:
    store = HashStore()
    assert first_deadline(PrefixStore("attempt0", store), 100.5) == 100.5
    assert first_deadline(PrefixStore("attempt1", store), 3700.0) == 100.5
    assert first_deadline(None, 7.0) == 7.0

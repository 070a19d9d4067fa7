"""A run that is killed at any moment ends with the bits of one that is not."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from preheat.train import checkpoint

from .conftest import RECIPE, preheat

SPEED = {"step_time_s", "tokens_per_s", "mfu"}
"""What a clock measured; everything else in a metrics line is a function of recipe and data."""


def metrics(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in json.loads(line).items() if k not in SPEED} for line in (run / "metrics.jsonl").read_text().splitlines()]


def weights(run: Path) -> dict[str, bytes]:
    newest, damaged = checkpoint.newest(run / "checkpoints")
    assert newest is not None
    assert not damaged
    return {name: (newest.path / name).read_bytes() for name in ("rank-00000.safetensors",)}


def assert_same(run: Path, whole: Path) -> None:
    assert metrics(run) == metrics(whole)
    assert weights(run) == weights(whole)
    left = [path.name for path in (run / "checkpoints").iterdir() if path.name.startswith(".")]
    assert not left, "no orphans of interrupted saves"


def test_the_undisturbed_run_is_what_the_recipe_says(undisturbed: Path) -> None:
    lines = metrics(undisturbed)
    assert [line["step"] for line in lines] == list(range(1, 61))
    assert [line["stage"] for line in lines] == ["main"] * 36 + ["long"] * 24
    assert {(line["batch_size"], line["seq_len"], line["rope_theta"]) for line in lines} == {(2, 32, 1e4), (4, 32, 1e4), (2, 64, 5e4)}
    assert lines[0]["lr"] == pytest.approx(1e-2 / 5)
    assert lines[4]["lr"] == 1e-2
    assert lines[-1]["lr"] == pytest.approx(1e-3)
    assert lines[-1]["tokens"] == 16 * 64 + 20 * 128 + 24 * 128
    assert [line["step"] for line in lines if "held_out" in line] == [20, 36, 40, 60]
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.5
    events = [json.loads(line) for line in (undisturbed / "events.jsonl").read_text().splitlines()]
    kinds = [event["kind"] for event in events]
    assert kinds.count("stage") == 2
    read = [re.findall(r"(\w+) ([\d_]+) tokens", event["evidence"]) for event in events if event["kind"] == "stage-end"]
    assert [sum(int(tokens) for _, tokens in sources) for sources in read] == [16 * 64 + 20 * 128, lines[-1]["tokens"]]
    usage = json.loads((undisturbed / "plan.json").read_text())["sources"]
    assert {name: int(tokens) for name, tokens in read[-1]} == {name: own["tokens"] for name, own in usage.items()}
    assert kinds[0] == "start"
    assert kinds[-1] == "finish"


def test_sources_that_repeat_or_give_nothing_are_told_at_the_start(mini: tuple[Path, Path], tmp_path: Path) -> None:
    # Cases D04 and D05: json is read by a stage more often than once, mail has a weight too small for a sample.
    recipe, run = tmp_path / "mini.toml", tmp_path / "run"
    batch = RECIPE.replace("global_size = 4\nmicro_size = 2", "global_size = 128\nmicro_size = 64").replace("ramp =", "# ramp =")
    recipe.write_text(batch.replace("mix = { mail = 0.7, json = 0.3 }", "mix = { mail = 1e-5, json = 1 }").replace("global_size = 2\n", ""))
    preheat("train", recipe, "--data", mini[1], "--run", run)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    epochs = json.loads((run / "plan.json").read_text())["sources"]["json"]["epochs"]
    assert epochs > 1
    told = [event["cause"] for event in events if event["kind"] == "mixture"]
    assert sorted(told) == [f"json is read {epochs:.2f} times", "mail gives no sample"]


def test_running_a_finished_run_again_changes_nothing(mini: tuple[Path, Path], undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    preheat("train", mini[0], "--data", mini[1], "--run", run)
    assert_same(run, undisturbed)


@pytest.mark.parametrize("seed", range(3))
def test_kill_dash_nine_at_random_moments(mini: tuple[Path, Path], undisturbed: Path, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    run = tmp_path / "run"
    command = [sys.executable, "-m", "preheat", "train", str(mini[0]), "--data", str(mini[1]), "--run", str(run)]
    for _ in range(4):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        target = rng.randrange(0, 60)
        while process.poll() is None and time.monotonic() < deadline and len(_lines(run)) <= target:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    preheat("train", mini[0], "--data", mini[1], "--run", run)
    assert_same(run, undisturbed)


def _lines(run: Path) -> list[str]:
    path = run / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("point", ["replace", "fsync", "rename", "rmtree"])
def test_kill_at_every_file_operation_of_a_save(mini: tuple[Path, Path], undisturbed: Path, tmp_path: Path, point: str) -> None:
    """The process dies just before and just after its n-th call of an operation on files, for several n."""
    run = tmp_path / "run"
    program = (
        "import os, pathlib, shutil, signal, sys\n"
        "owner, name, n, after = {'replace': (os, 'replace'), 'fsync': (os, 'fsync'), 'rename': (pathlib.Path, 'rename'),"
        " 'rmtree': (shutil, 'rmtree')}[sys.argv[1]] + (int(sys.argv[2]), sys.argv[3] == 'after')\n"
        "original, calls = getattr(owner, name), [0]\n"
        "def deadly(*a, **k):\n"
        "    calls[0] += 1\n"
        "    if calls[0] == n and not after: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    result = original(*a, **k)\n"
        "    if calls[0] == n: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return result\n"
        "setattr(owner, name, deadly)\n"
        "sys.argv = ['preheat', *sys.argv[4:]]\n"
        "from preheat.cli import main\n"
        "main()\n"
    )
    for number, when in [(1, "before"), (2, "after"), (4, "before"), (7, "after")]:
        arguments = ["train", str(mini[0]), "--data", str(mini[1]), "--run", str(run)]
        subprocess.run([sys.executable, "-c", program, point, str(number), when, *arguments], capture_output=True, check=False, timeout=120)
    preheat("train", mini[0], "--data", mini[1], "--run", run)
    assert_same(run, undisturbed)


def test_sigterm_saves_the_last_finished_step(mini: tuple[Path, Path], undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "preheat", "train", str(mini[0]), "--data", str(mini[1]), "--run", str(run)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(_lines(run)) < 3:
        time.sleep(0.001)
    process.terminate()
    assert process.wait(60) == 75
    done = metrics(run)[-1]["step"]
    newest, _ = checkpoint.newest(run / "checkpoints")
    assert newest is not None
    assert newest.step == done < 60
    preheat("train", mini[0], "--data", mini[1], "--run", run)
    assert_same(run, undisturbed)


def test_a_damaged_checkpoint_is_named_and_passed_over(mini: tuple[Path, Path], undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    broken = run / "checkpoints" / "step-00000060" / "rank-00000.safetensors"
    content = bytearray(broken.read_bytes())
    content[-1] ^= 1
    broken.write_bytes(content)
    preheat("train", mini[0], "--data", mini[1], "--run", run)
    assert_same(run, undisturbed)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    [passed_over] = [event for event in events if event["kind"] == "checkpoint-damaged"]
    assert passed_over["evidence"] == "step-00000060"
    assert "checksum" in passed_over["cause"]


def test_a_half_written_metrics_line_is_taken_back(mini: tuple[Path, Path], undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    shutil.rmtree(run / "checkpoints" / "step-00000060")
    path = run / "metrics.jsonl"
    path.write_text(path.read_text()[:-40])
    preheat("train", mini[0], "--data", mini[1], "--run", run)
    assert_same(run, undisturbed)


def test_the_peak_is_measured_again_on_another_machine(mini: tuple[Path, Path], undisturbed: Path, tmp_path: Path) -> None:
    """Once: what MFU refers to is of the machine that trains."""
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run, symlinks=True)
    file = run / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"device": "Abacus", "matmul_peak_flops": 1.0}))
    for _ in range(2):
        preheat("train", mini[0], "--data", mini[1], "--run", run)
    now = json.loads(file.read_text())
    assert now["device"] != "Abacus"
    assert now["matmul_peak_flops"] > 1e6
    (event,) = [e for e in map(json.loads, (run / "events.jsonl").read_text().splitlines()) if e["kind"] == "environment"]
    assert "device: Abacus -> " in event["evidence"]
    assert "peak rate of matrix multiplication: 1 -> " in event["evidence"]


def test_the_best_checkpoints_stay_and_are_measured_at_every_save(mini: tuple[Path, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    preheat("train", mini[0], "--data", mini[1], "--run", run, "--set", "checkpoint.keep_best=3", "--set", "checkpoint.keep=1")
    lines = {line["step"]: line for line in metrics(run)}
    saves = [7, 14, 21, 28, 35, 36, 42, 49, 56, 60]
    assert [step for step, line in lines.items() if "held_out" in line] == sorted({*saves, 20, 40})
    losses = {step: sum(s["loss"] * s["tokens"] for s in lines[step]["held_out"].values()) for step in saves}
    best = sorted(saves, key=lambda step: (losses[step], -step))[:3]
    kept = [int(path.name.removeprefix("step-")) for path in checkpoint.published(run / "checkpoints")]
    assert kept == sorted({*best, 36, 60}, reverse=True)

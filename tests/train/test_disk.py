"""Disks that fill up, turn read-only, vanish or are slow. Cases E01, E05."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from preheat.errors import RunFailed
from preheat.launch import REQUEUE
from preheat.train import checkpoint
from preheat.train.checkpoint import Part, Region
from preheat.train.saver import Saver

from .conftest import preheat
from .test_resume import assert_same, metrics

AT_STEP_30 = """
import os, subprocess, sys
from pathlib import Path
from preheat.train import loop
step, happens, where = loop.Trainer._train_step, sys.argv[1], Path(sys.argv[2])
def watched(trainer, moment):
    if moment.number == 30:
        trainer._finish_save()
        if happens == "full":
            (where / "filler").write_bytes(bytes(os.statvfs(where).f_bavail * os.statvfs(where).f_frsize - 100_000))
        elif happens == "read-only":
            subprocess.run(["mount", "-o", "remount,ro", where], check=True)
        else:
            where.rename(where.with_name("away"))
    return step(trainer, moment)
loop.Trainer._train_step = watched
sys.argv = ["preheat", *sys.argv[3:]]
from preheat.cli import main
main()
"""


@pytest.fixture
def small_disk(mini: tuple[Path, Path], tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB for the checkpoints of a run that has not done a step."""
    run = tmp_path / "run"
    preheat("train", mini[0], "--data", mini[1], "--run", run, "--time-limit", "1s", code=REQUEUE)
    place = run / "checkpoints"
    if shutil.which("mount") is None or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], check=False).returncode:
        pytest.skip("only root may mount a file system")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def events(run: Path, kind: str) -> list[dict[str, str]]:
    return [event for event in map(json.loads, (run / "events.jsonl").read_text().splitlines()) if event["kind"] == kind]


def train(happens: str, where: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", AT_STEP_30, happens, str(where), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("happens", ["full", "read-only"])
def test_a_disk_that_fails_on_the_way(happens: str, small_disk: Path, mini: tuple[Path, Path], undisturbed: Path) -> None:
    """Training goes on without saving, its end fails, and all that was good is good. Then the disk is mended."""
    disk, run = small_disk, small_disk.parent
    arguments = ("train", mini[0], "--data", mini[1], "--run", run)
    done = train(happens, disk, *arguments)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    why = "it needs" if happens == "full" else "Read-only file system"
    assert why in done.stderr
    assert [line["step"] for line in metrics(run)] == list(range(1, 61))
    assert len(events(run, "checkpoint-failed")) == len({35, 36, 42, 49, 56, 60})
    newest, damaged = checkpoint.newest(run / "checkpoints")
    assert newest is not None
    assert (newest.step, damaged) == (28, [])
    if happens == "full":
        (disk / "filler").unlink()
    else:
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    preheat(*arguments)
    assert_same(run, undisturbed)


def test_a_disk_that_vanishes_is_not_made_anew(mini: tuple[Path, Path], tmp_path: Path) -> None:
    """Where `on_failure` says stop, the run does at its next save, with exit code 1."""
    run = tmp_path / "run"
    arguments = ("train", mini[0], "--data", mini[1], "--run", run, "--set", "checkpoint.on_failure=stop")
    done = train("vanished", run / "checkpoints", *arguments)
    assert done.returncode == 1
    assert "checkpoint of step 35 was not written" in done.stderr
    assert "No such file or directory" in done.stderr
    assert not (run / "checkpoints").exists()
    newest, damaged = checkpoint.newest(run / "away")
    assert newest is not None
    assert (newest.step, damaged) == (28, [])


def parts(size: int = 100_000) -> dict[str, Part]:
    return {"model/w": Part(torch.arange(float(size)), (size,), Region((0,), (size,)))}


def test_a_file_that_the_system_cuts_off(tmp_path: Path) -> None:
    """A quota, here of bytes per file: the process of the save gets the system's own words, and leaves nothing."""
    checkpoint.save(tmp_path, 1, 1, parts(1000), "f")
    before = sorted(tmp_path.rglob("*"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(RunFailed, match="File too large"):
            checkpoint.save(tmp_path, 2, 2, parts(), "f")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(tmp_path.rglob("*")) == before
    assert checkpoint.verify(tmp_path / "step-00000001") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_the_right_to_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunFailed, match="Permission denied"):
        checkpoint.save(tmp_path, 1, 1, parts(), "f")
    tmp_path.chmod(0o700)


def test_a_slow_disk_does_not_hold_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = checkpoint.write_tensors

    def slow(*arguments: object) -> object:
        time.sleep(0.5)
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint, "write_tensors", slow)
    saver = Saver(tmp_path, lambda _: None, "f", writes_plain=True)
    weights = {"model/w": torch.zeros(1000)}
    begin = time.monotonic()
    buffers = {"model/b": torch.zeros(10)}
    saver.begin(1, 1, buffers, weights, {})
    buffers["model/b"].add_(1)  # a forward pass
    saver.copied()
    weights["model/w"].add_(1)  # the optimizer's step
    assert time.monotonic() - begin < 0.25
    saved = saver.finish()
    assert saved is not None
    assert saved.seconds > 0.5
    out = {"model/w": torch.ones(1000), "model/b": torch.ones(10)}
    checkpoint.Contents(saved.checkpoint).fill(out)
    assert not out["model/w"].any(), "the copies were taken before"
    assert not out["model/b"].any()


def test_old_checkpoints_that_stay_are_told(tmp_path: Path) -> None:
    """What does not work after a save is no failure of the save."""

    def fails(_: Path) -> None:
        raise PermissionError("not mine")

    saver = Saver(tmp_path, fails, "f", writes_plain=True)
    saver.begin(1, 1, {}, {"model/w": torch.zeros(10)}, {})
    saved = saver.finish()
    assert saved is not None
    assert saved.trouble is not None
    assert "not mine" in saved.trouble.got
    assert checkpoint.verify(saved.checkpoint.path) is None

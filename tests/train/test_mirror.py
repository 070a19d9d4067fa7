"""The second copy of a run elsewhere: whole or not there, of one run, and enough to go on from."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
import torch

from preheat.errors import PreheatError
from preheat.train import checkpoint
from preheat.train.checkpoint import Part, Region
from preheat.train.mirror import Mirror

from .conftest import preheat
from .test_resume import assert_same


def save(run: Path, step: int) -> None:
    values = torch.arange(6.0) + step
    checkpoint.save(run / "checkpoints", step, step, {"model/w": Part(values, (6,), Region((0,), (6,)))}, "f")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "recipe.json").write_text(json.dumps({"id": "one", "name": "mini"}))
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    save(run, 1)
    save(run, 2)
    return run


@pytest.fixture
def place(tmp_path: Path) -> str:
    return f"memory://{tmp_path}/copy"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def test_what_is_gone_comes_back(run: Path, place: str, tmp_path: Path) -> None:
    Mirror(place).update(run)
    before = {name: content for name, content in contents(run).items() if "step-00000001" not in name and "latest" not in name}
    shutil.rmtree(run)
    assert Mirror(place).restore(run) == "step-00000002"
    assert contents(run) == before
    assert Mirror(place).restore(run) is None, "what is here is not overwritten"


def test_it_follows_what_is_kept_here(run: Path, place: str) -> None:
    mirror = Mirror(place)
    mirror.update(run)
    save(run, 3)
    checkpoint.retain(run / "checkpoints", 2)
    mirror.update(run)
    files = fsspec.filesystem("memory").find(place.removeprefix("memory://"))
    assert {file.split("/")[-2] for file in files if "step-" in file} == {"step-00000002", "step-00000003"}
    assert not [file for file in files if "partial" in file]


def test_a_copy_that_broke_off_is_none(run: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = Mirror(place)
    mirror.update(run)
    save(run, 3)
    put, calls = mirror._files.put_file, []

    def breaks(*arguments: object, **named: object) -> None:
        calls.append(arguments)
        if len(calls) == 3:
            raise ConnectionResetError("the line is dead")
        put(*arguments, **named)

    monkeypatch.setattr(mirror._files, "put_file", breaks)
    with pytest.raises(OSError, match=r"memory://.*ConnectionResetError: the line is dead"):
        mirror.update(run)
    monkeypatch.undo()
    shutil.rmtree(run)
    assert Mirror(place).restore(run) == "step-00000002"


def test_a_damaged_checkpoint_is_not_copied_nor_taken(run: Path, place: str) -> None:
    Mirror(place).update(run)
    save(run, 3)
    tensors = run / "checkpoints" / "step-00000003" / "rank-00000.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    with pytest.raises(OSError, match=r"step-00000003 is not copied: rank-00000.safetensors has"):
        Mirror(place).update(run)
    memory = fsspec.filesystem("memory")
    (there,) = memory.glob(f"{place.removeprefix('memory://')}/checkpoints/step-00000002/rank-00000.safetensors")
    memory.pipe_file(there, memory.cat_file(there)[:-4] + b"oops")
    shutil.rmtree(run)
    assert Mirror(place).restore(run) == "step-00000001"


def test_a_mirror_has_one_run(run: Path, place: str) -> None:
    Mirror(place).update(run)
    Mirror(place).refuse_other_run({"id": "one", "name": "mini"})
    with pytest.raises(PreheatError, match="mirror of another run, mini one"):
        Mirror(place).refuse_other_run({"id": "two", "name": "mini"})
    with pytest.raises(PreheatError, match=r"run\.mirror"):
        Mirror("nowhere://bucket")


def test_a_run_whose_folder_is_lost_goes_on_from_its_mirror(mini: tuple[Path, Path], undisturbed: Path, tmp_path: Path) -> None:
    """It is killed after its save at step 21, and the machine is gone with its disk."""
    run = tmp_path / "run"
    arguments = ("train", mini[0], "--data", mini[1], "--run", run, "--mirror", f"file://{tmp_path}/copy")
    dies = (
        "import os, signal, sys\nfrom preheat.train import loop\nstep = loop.Trainer._train_step\n"
        "def deadly(trainer, moment):\n"
        "    trainer._finish_save()\n"
        "    if moment.number == 25: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return step(trainer, moment)\n"
        "loop.Trainer._train_step = deadly\nsys.argv[0] = 'preheat'\nfrom preheat.cli import main\nmain()\n"
    )
    subprocess.run([sys.executable, "-c", dies, *map(str, arguments)], capture_output=True, timeout=120, check=False)
    assert (run / "checkpoints" / "step-00000021").is_dir()
    shutil.rmtree(run)
    preheat(*arguments)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [event["cause"] for event in events if event["kind"] == "mirror"] == ["step-00000021 came back from the mirror"]
    assert_same(run, undisturbed)
    assert contents(tmp_path / "copy" / "checkpoints") == {
        name: content for name, content in contents(run / "checkpoints").items() if "latest" not in name
    }

"""What must be refused before anything is changed: exit code 2, one clear message, nothing overwritten."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from preheat.errors import PreheatError
from preheat.recipe import load
from preheat.train import RunFolder
from preheat.train.refusals import refuse_layout

from .conftest import RECIPE, preheat


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def refused(*arguments: str | Path) -> str:
    error = preheat(*arguments, code=2).stderr
    assert "Traceback" not in error
    assert "error: " in error
    return error


def test_a_run_folder_of_another_recipe(mini: tuple[Path, Path], undisturbed: Path) -> None:
    before = snapshot(undisturbed)
    message = refused("train", mini[0], "--data", mini[1], "--run", undisturbed, "--set", "schedule.peak_lr=2e-2")
    assert "schedule.peak_lr: 0.01 -> 0.02" in message
    assert snapshot(undisturbed) == before


def test_a_run_folder_with_other_data(mini: tuple[Path, Path], undisturbed: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mini.toml"
    recipe.write_text(RECIPE.replace('"stdlib:json/*.py", ', ""))
    preheat("data", "prepare", recipe, "--data", tmp_path / "data")
    before = snapshot(undisturbed)
    assert "run of another recipe" in refused("train", recipe, "--data", tmp_path / "data", "--run", undisturbed)
    assert "run.other-data" in refused("train", mini[0], "--data", tmp_path / "data", "--run", undisturbed)
    assert snapshot(undisturbed) == before


def test_a_folder_that_is_no_run(mini: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    assert "holds no run" in refused("train", mini[0], "--data", mini[1], "--run", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_data_that_was_not_prepared(mini: tuple[Path, Path], tmp_path: Path) -> None:
    message = refused("train", mini[0], "--data", tmp_path / "nowhere", "--run", tmp_path / "run")
    assert "preheat data prepare" in message
    assert not (tmp_path / "run").exists()


def test_a_corpus_smaller_than_one_batch(mini: tuple[Path, Path], tmp_path: Path) -> None:
    sets = ["--set", "batch.global_size=100000", "--set", "batch.micro_size=1", "--set", "batch.ramp=[]"]
    message = refused("train", mini[0], "--data", mini[1], "--run", tmp_path / "run", *sets)
    assert "one batch of 100000 x 32 takes 3_200_000" in message
    assert not (tmp_path / "run").exists()


def test_an_empty_corpus(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    recipe = tmp_path / "r.toml"
    recipe.write_text(RECIPE.replace("stdlib:email/*.py", "empty.txt"))
    refused("data", "prepare", recipe, "--data", tmp_path / "data")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".data.partial", "empty.txt", "r.toml"]
    for number in range(20):
        text = "".join(f"def f{number}_{line}(x):\n    return x + {line * number}\n\n" for line in range(20))
        (tmp_path / f"{number}.txt").write_text(text)
    recipe.write_text(RECIPE.replace("stdlib:email/*.py", "*.txt"))
    preheat("data", "prepare", recipe, "--data", tmp_path / "data")
    assert {path.name for path in tmp_path.iterdir()} & {"data", ".data.partial"} == {"data"}


def test_text_that_matches_no_file(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(RECIPE.replace("stdlib:email/*.py", "nothing/*.txt"))
    assert "nothing/*.txt" in refused("data", "prepare", recipe, "--data", tmp_path / "data")


@pytest.mark.parametrize("layout", ["parallel.pipeline=2", "parallel.context=2"])
def test_a_layout_that_the_processes_cannot_be_split_into(mini: tuple[Path, Path], tmp_path: Path, layout: str) -> None:
    options = ["--data", mini[1], "--run", tmp_path / "run", "--set", layout, "--nproc", "3"]
    assert "3 ranks are not divisible by tensor 1 x pipeline" in refused("train", mini[0], *options)
    assert not (tmp_path / "run").exists()


def test_a_run_may_grow_past_its_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case C06: four replicas can't share a batch of 2, and need not once the batch is 4, after step 16."""
    (tmp_path / "r.toml").write_text(RECIPE.replace("global_size = 2", "global_size = 4"))
    recipe = load(str(tmp_path / "r.toml")).recipe
    monkeypatch.setenv("WORLD_SIZE", "4")
    for done in (0, 15):
        with pytest.raises(PreheatError, match="a batch of 2 samples; 4 replicas"):
            refuse_layout(recipe, done)
    refuse_layout(recipe, 16)


def test_what_is_not_trained_over_several_processes(mini: tuple[Path, Path], tmp_path: Path) -> None:
    options = ["--data", mini[1], "--run", tmp_path / "run", "--nproc", "2", "--set", "optimizer.state_precision=bf16"]
    assert "[engine.optimizer]" in refused("train", mini[0], *options)
    assert not (tmp_path / "run").exists()


def test_a_recipe_with_errors_is_not_trained(mini: tuple[Path, Path], tmp_path: Path) -> None:
    message = refused("train", mini[0], "--data", mini[1], "--run", tmp_path / "run", "--set", "model.heads=5")
    assert "[model.head-dim]" in message


def test_evaluating_what_is_no_run(tmp_path: Path) -> None:
    assert "no run folder" in refused("evaluate", tmp_path)
    assert "no run folder" in refused("sample", tmp_path)
    refused("report", tmp_path)


def test_two_processes_in_one_folder(mini: tuple[Path, Path], undisturbed: Path) -> None:
    lock = RunFolder(undisturbed).lock()
    try:
        for processes in ("1", "2"):  # of several one says so
            message = refused("train", mini[0], "--data", mini[1], "--run", undisturbed, "--nproc", processes)
            assert message.count("another process is training in") == 1
    finally:
        os.close(lock)


def test_a_new_folder_has_one_owner(mini: tuple[Path, Path], tmp_path: Path) -> None:
    """Of two processes that find no run there, the second does not write its own over the first's."""
    loaded = load(str(mini[0]))
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    first.path.mkdir()
    lock = second.lock()  # killed before it wrote anything
    with pytest.raises(PreheatError, match=r"run\.busy"):
        first.open(loaded, "data")
    assert [path.name for path in first.path.iterdir()] == ["lock"]
    os.close(lock)
    assert first.open(loaded, "data") is None
    before = first.identity()
    with pytest.raises(PreheatError, match=r"run\.busy"):
        RunFolder(first.path).open(loaded, "data")
    assert first.identity() == before
    os.close(first.lock())


@pytest.mark.parametrize("content", [b"", b'{"schema": ', b"[1]", b"\xff", b"{}"])
def test_a_damaged_record_is_named(undisturbed: Path, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "recipe.json"
    file.write_bytes(content)
    with pytest.raises(PreheatError, match=r"recipe\.json: it (is damaged|has schema None)"):
        RunFolder(tmp_path).identity()
    assert RunFolder(undisturbed).identity()["name"] == "mini"


def test_damaged_records_of_a_run(mini: tuple[Path, Path], undisturbed: Path, tmp_path: Path) -> None:
    """What follows from recipe and data is written anew; what a run was started with must be there to be compared."""
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run, symlinks=True)
    whole = (run / "plan.json").read_bytes()
    (run / "plan.json").write_bytes(whole[:100])
    (run / "environment.json").write_bytes(b"{")
    assert "environment.json: it is damaged" in refused("train", mini[0], "--data", mini[1], "--run", run)
    (run / "environment.json").unlink()
    preheat("train", mini[0], "--data", mini[1], "--run", run)
    assert (run / "plan.json").read_bytes() == whole

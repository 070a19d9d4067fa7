"""`preheat tune`: what it tries, how it knows that memory ran out, and what it chooses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from preheat.recipe import Recipe, load
from preheat.train import tune
from preheat.train.trial import Result
from preheat.train.tune import Try, best_try, setting, with_setting

from .conftest import RECIPE, preheat


def attempt(size: int, speed: float | None, memory: int = 0, kind: str = "none") -> Try:
    return Try(size, kind, Result(1.0, speed, 0.5, memory, None) if speed is not None else None)


@pytest.mark.parametrize(
    ("done", "chosen"),
    [
        ([attempt(1, 100.0), attempt(2, 180.0), attempt(4, None)], 1),
        ([attempt(1, 100.0, 10), attempt(2, 101.0, 20), attempt(4, 99.5, 40)], 0),  # alike: the least memory
        ([attempt(1, 100.0, 10), attempt(2, None), attempt(1, 70.0, 5, "full"), attempt(2, 110.0, 9, "full")], 3),
        ([attempt(1, None)], None),
    ],
)
def test_the_choice_is_the_fastest_and_then_the_smallest(done: list[Try], chosen: int | None) -> None:
    assert best_try(done) == (None if chosen is None else done[chosen])


def test_what_is_chosen_can_be_set(tmp_path: Path) -> None:
    """The printed settings make the recipe that was tried, also where the first stage has a size of its own."""
    for name, text in (("whole", RECIPE), ("staged", RECIPE.replace('until = "60%"', 'until = "60%"\nmicro_size = 1'))):
        file = tmp_path / f"{name}.toml"
        file.write_text(text)
        recipe = load(str(file)).recipe
        told = load(str(file), tuple(setting(recipe, attempt(4, 1.0, kind="full")))).recipe
        tried = with_setting(recipe, 4, "full")
        assert told.parallel == tried.parallel
        assert (told.stage[0].micro_size or told.batch.micro_size) == tried.stage[0].micro_size == 4


def sizes_tried(monkeypatch: pytest.MonkeyPatch, recipe: Recipe, limit: int | None, fits: int) -> list[int]:
    """The sizes that are tried where `fits` is the largest that fits, of which one sample alone takes 100 MB."""
    monkeypatch.setattr(
        tune,
        "run_try",
        lambda recipe, *_: Result(1.0, 1.0, 0.5, 10**8, limit) if (recipe.stage[0].micro_size or 0) <= fits else None,
    )
    return [attempt.micro_size for attempt in tune.tries(recipe, ["none"], 1, None)]


def test_sizes_far_below_what_should_fit_are_left_out(mini: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    shape = ("batch.global_size=256", "batch.ramp=[]", "batch.seq_len=64")
    recipe = load(str(mini[0]), shape).recipe
    assert sizes_tried(monkeypatch, recipe, 10**12, 256) == [1, 64, 128, 256], "a quarter of a batch that fits whole"
    assert sizes_tried(monkeypatch, recipe, 10**12, 20) == [1, 64, 32, 16], "it was too much: back to the first that fits"
    assert sizes_tried(monkeypatch, recipe, 10**12, 0) == [1]
    assert sizes_tried(monkeypatch, recipe, 10**8, 4) == [1, 2, 4, 8], "nothing more should fit"
    assert sizes_tried(monkeypatch, recipe, None, 256) == [2**power for power in range(9)], "nobody knows"


def test_sizes_are_tried_until_memory_runs_out(mini: tuple[Path, Path]) -> None:
    """Feed-forward activations of 4,096 tokens x 2,048 x 4 bytes are 32 MiB, of which a layer keeps several: 64 sequences are gigabytes."""
    shape = ["batch.seq_len=4096", "batch.global_size=64", "batch.ramp=[]", "model.ffn_hidden=2048", "model.layers=1"]
    options = [part for entry in shape for part in ("--set", entry)]
    report = json.loads(preheat("tune", mini[0], *options, "--memory-limit", "1", "--steps", "1", "--json").stdout)
    sizes = [entry["micro_size"] for entry in report["tries"]]
    fitting = [entry for entry in report["tries"] if entry["fits"]]
    assert sizes[0] == 1
    assert len(fitting) > 1
    assert all(size & (size - 1) == 0 for size in sizes)
    assert len(set(sizes)) == len(sizes)
    assert min(entry["micro_size"] for entry in report["tries"] if not entry["fits"]) == 2 * max(entry["micro_size"] for entry in fitting)
    assert all(entry["peak_bytes"] > 2**27 and entry["tokens_per_s"] > 0 for entry in fitting)
    assert report["set"][0].removeprefix("batch.micro_size=") in [str(entry["micro_size"]) for entry in fitting]


def test_nothing_fits(mini: tuple[Path, Path]) -> None:
    done = preheat("tune", mini[0], "--memory-limit", "0.2", "--set", "model.ffn_hidden=100000", "--steps", "1", code=1)
    assert "micro-batches of 1 do not fit into 0.2 GiB" in done.stderr
    assert "Traceback" not in done.stderr


def test_another_failure_is_shown(mini: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if sys.argv[0] == '-m' and 'preheat.train.trial' in sys.orig_argv:\n"
        "    import torch\n"
        "    def fail(*arguments, **keywords):\n"
        "        raise ArithmeticError('the sum is wrong')\n"
        "    torch.nn.functional.linear = fail\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = preheat("tune", mini[0], code=1)
    assert "ArithmeticError: the sum is wrong" in done.stderr
    assert "micro-batches of 1 ended with exit code 1" in done.stderr


def test_a_recipe_that_is_not_trained_is_not_tried(mini: tuple[Path, Path]) -> None:
    assert "[engine.not-trained]" in preheat("tune", mini[0], "--set", "model.dropout=0.1", code=2).stderr

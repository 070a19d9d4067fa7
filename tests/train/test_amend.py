"""A run goes on with something else only where somebody says why, and only where its past stays true. Cases B02, B06, D06, D12, D13."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from preheat.errors import PreheatError
from preheat.recipe import Recipe, load
from preheat.train.amend import refuse_unfit

from .conftest import RECIPE, preheat
from .test_refusals import refused, snapshot


@pytest.fixture
def half_way(undisturbed: Path, tmp_path: Path) -> Path:
    """The run at the end of its first stage, step 36 of 60."""
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run, symlinks=True)
    for number in (56, 60):
        shutil.rmtree(run / "checkpoints" / f"step-{number:08d}")
    (run / "checkpoints" / "latest").unlink()
    return run


def test_a_changed_schedule_is_taken_from_the_next_step_on(mini: tuple[Path, Path], half_way: Path) -> None:
    arguments = ("train", mini[0], "--data", mini[1], "--run", half_way, "--set", "schedule.peak_lr=2e-2")
    before = snapshot(half_way)
    assert "--amend" in refused(*arguments)
    assert snapshot(half_way) == before
    preheat(*arguments, "--amend", "the loss is flat")
    lines = [json.loads(line) for line in (half_way / "metrics.jsonl").read_text().splitlines()]
    assert [line["lr"] for line in lines[34:38]] == [1e-2, 1e-2, 2e-2, 2e-2]
    assert lines[-1]["lr"] == pytest.approx(1e-3)
    (event,) = [e for e in map(json.loads, (half_way / "events.jsonl").read_text().splitlines()) if e["kind"] == "amend"]
    assert event["cause"] == "the loss is flat"
    assert "schedule.peak_lr: 0.01 -> 0.02" in event["evidence"]
    assert "learning rate of step 37: 0.01 -> 0.02" in event["evidence"]
    identity = json.loads((half_way / "recipe.json").read_text())
    (amendment,) = identity["amendments"]
    assert (amendment["step"], amendment["before"]["recipe"]["schedule"]["peak_lr"]) == (36, 1e-2)
    assert amendment["before"]["fingerprint"] != identity["fingerprint"]
    # The same command again, as a requeued job gives it, amends nothing.
    preheat(*arguments, "--amend", "the loss is flat")
    assert len(json.loads((half_way / "recipe.json").read_text())["amendments"]) == 1
    assert "run of another recipe" in refused("train", mini[0], "--data", mini[1], "--run", half_way)


def test_other_data_is_named_with_both_fingerprints(mini: tuple[Path, Path], half_way: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(mini[1], data)
    manifest = json.loads((data / "manifest.json").read_text())
    ours = manifest["fingerprint"]
    theirs = "0" * len(ours)
    (data / "manifest.json").write_text(json.dumps(manifest | {"fingerprint": theirs}))
    arguments = ("train", mini[0], "--data", data, "--run", half_way)
    message = refused(*arguments)
    assert "[run.other-data]" in message
    assert f"{ours[:12]} and {theirs[:12]}" in message
    preheat(*arguments, "--amend", "two files had to go")
    (amendment,) = json.loads((half_way / "recipe.json").read_text())["amendments"]
    assert amendment["changes"] == [f"data: {ours[:12]} -> {theirs[:12]}"]


def recipe(tmp_path: Path, *changes: tuple[str, str]) -> Recipe:
    text = RECIPE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    file = tmp_path / "r.toml"
    file.write_text(text)
    return load(str(file)).recipe


PAST = "by the new recipe would have read"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hidden = 32", "hidden = 64", "run.amend-shapes"),
        ("layers = 2", "layers = 3", "run.amend-shapes"),
        ("vocab_size = 320", "vocab_size = 384", "run.amend-shapes"),
        ("[batch]", '[optimizer]\nname = "muon"\n[batch]', "run.amend-optimizer"),
        ("[batch]", '[optimizer]\nstate_precision = "bf16"\n[batch]', "run.amend-optimizer"),
        ("seed = 3", "seed = 4", "run.amend-seed"),
        ('length = "60 steps"', 'length = "38 steps"', "ends at step 38"),
        ("seq_len = 64", "seq_len = 128", "the longest sequence: 64 -> 128"),
        # What was read must have been read: batches, ramp, mixtures and where stages ended.
        ("{ at = \"1000 tokens\", size = 4 }", "{ at = \"2000 tokens\", size = 4 }", PAST),
        ("mail = 0.7, json = 0.3", "mail = 0.6, json = 0.4", PAST),
        ('length = "60 steps"', 'length = "100 steps"', PAST),  # the first stage is 60 % of it
        ("seq_len = 32", "seq_len = 16", PAST),
    ],
)  # fmt: skip
def test_what_can_never_change(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(PreheatError, match=message):
        refuse_unfit(recipe(tmp_path), recipe(tmp_path, (old, new)), 38)


@pytest.mark.parametrize(
    ("old", "new", "rates"),
    [
        ("peak_lr = 1e-2", "peak_lr = 3e-2", ["learning rate of step 39: 0.01 -> 0.03"]),
        ("mix = { json = 1 }", "mix = { json = 1 }  # the same", []),
        ('decay = "wsd"\ndecay_length = "20 steps"\ndecay_shape = "1-sqrt"', 'decay = "constant"', []),
        ("[batch]", "[optimizer]\nweight_decay = 0.3\n[batch]", []),
        ("mail = 0.7, json = 0.3", "mail = 7, json = 3", []),  # the same shares
    ],
)
def test_what_may_change(tmp_path: Path, old: str, new: str, rates: list[str]) -> None:
    assert refuse_unfit(recipe(tmp_path), recipe(tmp_path, (old, new)), 38) == rates


def test_a_longer_run_whose_stages_stand_in_steps(tmp_path: Path) -> None:
    """The finished run goes on: 60 -> 80 steps, with the first stage where it was."""
    fixed = ('until = "60%"', 'until = "36 steps"')
    assert refuse_unfit(recipe(tmp_path, fixed), recipe(tmp_path, fixed, ('length = "60 steps"', 'length = "80 steps"')), 60) == []


def test_before_the_first_checkpoint_everything_may_change(tmp_path: Path) -> None:
    assert refuse_unfit(recipe(tmp_path), recipe(tmp_path, ("layers = 2", "layers = 3"), ("seed = 3", "seed = 4")), 0) == []


def test_an_amendment_says_why(mini: tuple[Path, Path], undisturbed: Path) -> None:
    assert "[train.amend]" in refused("train", mini[0], "--data", mini[1], "--run", undisturbed, "--amend", " ")

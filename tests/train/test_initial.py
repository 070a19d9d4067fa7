"""A run that begins with given weights: out to Hugging Face's format, in again, and on with training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import preheat


@pytest.fixture(scope="module")
def weights(undisturbed: Path, mini: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    preheat("export", "hf", undisturbed, "--out", folder / "hf")
    preheat("import", "hf", folder / "hf", "--out", folder / "start")
    return folder / "start"


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def train(mini: tuple[Path, Path], run: Path, *more: str | Path, code: int = 0) -> str:
    sets = ["--set", "stage.main.rope_theta=50000", "--set", "seed=8"]
    return preheat("train", mini[0], "--data", mini[1], "--run", run, *sets, *more, code=code).stderr


def test_it_goes_on_from_where_the_weights_stand(mini: tuple[Path, Path], weights: Path, tmp_path: Path) -> None:
    """The first batch costs less than it costs a run that begins with ln 320 = 5.77 a token."""
    run, anew = tmp_path / "run", tmp_path / "anew"
    train(mini, run, "--init-from", weights)
    train(mini, anew)
    first, fresh = (lines(folder / "metrics.jsonl")[0]["loss"] for folder in (run, anew))
    assert isinstance(first, float)
    assert fresh == pytest.approx(5.77, abs=0.1)
    assert first < fresh - 0.5
    (event,) = (event for event in lines(run / "events.jsonl") if event["kind"] == "initial-weights")
    assert str(weights) in str(event["cause"])
    # What a run began with is a part of what it is.
    message = train(mini, run, "--init-from", weights / "nowhere", code=2)
    assert "no manifest of initial weights" in message
    train(mini, run)


def test_weights_of_another_model_are_refused(mini: tuple[Path, Path], weights: Path, tmp_path: Path) -> None:
    message = train(mini, tmp_path / "run", "--init-from", weights, "--set", "model.layers=3", code=2)
    assert "[initial.model]" in message
    assert "model.layers: 2 and 3" in message
    assert not (tmp_path / "run").exists()

"""A run that begins with given weights: out to Hugging Face's format, in again, and on with training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from preheat.data import Manifest
from preheat.recipe import load
from preheat.train.planned import sample_order

from .conftest import preheat


@pytest.fixture(scope="module")
def weights(undisturbed: Path, mini: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    preheat("export", "hf", undisturbed, "--out", folder / "hf")
    preheat("import", "hf", folder / "hf", "--out", folder / "start")
    return folder / "start"


SETS = ("stage.main.rope_theta=50000", "seed=8")
"""Of the run that begins with the weights: the rotary base with which the other one ended, and other samples."""


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def train(mini: tuple[Path, Path], run: Path, *more: str | Path, code: int = 0) -> str:
    sets = [part for entry in SETS for part in ("--set", entry)]
    return preheat("train", mini[0], "--data", mini[1], "--run", run, *sets, *more, code=code).stderr


def test_it_goes_on_from_where_the_weights_stand(mini: tuple[Path, Path], weights: Path, tmp_path: Path) -> None:
    """The first loss is the one that `transformers` has for these weights on this batch, far from ln 320 = 5.77."""
    run = tmp_path / "run"
    train(mini, run, "--init-from", weights)
    first = lines(run / "metrics.jsonl")[0]
    order, timeline = sample_order(load(str(mini[0]), SETS).recipe, Manifest.load(mini[1]), mini[1])
    inputs_BT, labels_BT = map(torch.from_numpy, order.batch(0, 0, timeline.step(1).segment.batch_size))
    with torch.no_grad():
        logits_BTV = LlamaForCausalLM.from_pretrained(weights.parent / "hf", dtype=torch.float32)(inputs_BT).logits
    expected = cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten()).item()
    assert first["loss"] == pytest.approx(expected, rel=1e-5)
    assert expected < 5.3
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

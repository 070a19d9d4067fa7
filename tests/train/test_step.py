"""The optimizer step: what accumulates, what is decayed, and what is never done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from preheat.model import build
from preheat.recipe import Optimizer, load
from preheat.train.optimizer import build_optimizer, set_rate

from .conftest import preheat


def test_micro_batches_add_up_to_the_batch(mini: tuple[Path, Path], tmp_path: Path) -> None:
    """The same run in passes of one sample and of a whole batch: the mean over all tokens of the step, up to rounding."""
    for size, sets in (("one", ["batch.micro_size=1"]), ("whole", ["batch.micro_size=4", "stage.long.micro_size=2"])):
        arguments = [part for entry in sets for part in ("--set", entry)]
        preheat("train", mini[0], "--data", mini[1], "--run", tmp_path / size, *arguments)
    runs = [
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (tmp_path / "one", tmp_path / "whole")
    ]
    for one, whole in list(zip(*runs, strict=True))[:5]:  # later the rounding has grown
        assert one["loss"] == pytest.approx(whole["loss"], rel=1e-5)
        assert one["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-4)


def test_weight_decay_reaches_matrices_only() -> None:
    """With a zero gradient AdamW moves a decayed parameter by -lr * decay * value, and another one not at all."""
    model = build(load("tiny").recipe.model.model_copy(update={"layers": 1, "bias": True}), seed=0)
    optimizer = build_optimizer(model, Optimizer(weight_decay=0.5))
    set_rate(optimizer, 0.1)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 1 - 0.1 * 0.5 if parameter.dim() >= 2 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor, rtol=1e-6, atol=0)


def test_a_loss_that_is_not_finite_stops_the_run_before_the_optimizer(mini: tuple[Path, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    rates = ["--set", "schedule.peak_lr=1e18", "--set", "schedule.final_lr=1e17"]
    done = preheat("train", mini[0], "--data", mini[1], "--run", run, *rates, code=1)
    assert "[run.non-finite]" in done.stderr
    assert "Traceback" not in done.stderr
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert events[-1]["kind"] == "non-finite"
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] < 60
    assert "null" not in lines[-1]

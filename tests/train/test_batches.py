"""Reading ahead changes when a batch is read, never what is in it."""

import threading
from pathlib import Path

import pytest
import torch

from preheat.arithmetic import Timeline
from preheat.data import Manifest, SampleOrder
from preheat.recipe import load
from preheat.train.batches import Batches
from preheat.train.planned import sample_order


@pytest.fixture
def run(mini: tuple[Path, Path]) -> tuple[SampleOrder, Timeline]:
    recipe, data = mini
    return sample_order(load(str(recipe)).recipe, Manifest.load(data), data)


@pytest.mark.parametrize("steps", [range(1, 61), [5, 6, 2, 2, 60, 59, 60], range(60, 0, -1)], ids=["in order", "with jumps", "backwards"])
def test_every_step_gets_its_own_samples(run: tuple[SampleOrder, Timeline], steps: list[int]) -> None:
    order, timeline = run
    batches = Batches(timeline, order, lambda size: slice(size // 2, size), torch.device("cpu"))
    for number in steps:
        step = timeline.step(number)
        size = step.segment.batch_size
        inputs, labels = order.batch(step.segment.stage_index, step.first_stage_sample + size // 2, size - size // 2)
        read = batches.of(step)
        assert torch.equal(read[0], torch.from_numpy(inputs))
        assert torch.equal(read[1], torch.from_numpy(labels))
    batches.close()


def test_the_next_batch_is_read_while_the_step_computes(run: tuple[SampleOrder, Timeline], monkeypatch: pytest.MonkeyPatch) -> None:
    order, timeline = run
    read, whole = threading.Event(), order.batch

    def batch(stage: int, first: int, size: int) -> object:
        if first == timeline.step(2).first_stage_sample:
            read.set()
        return whole(stage, first, size)

    monkeypatch.setattr(order, "batch", batch)
    batches = Batches(timeline, order, lambda size: slice(0, size), torch.device("cpu"))
    batches.of(timeline.step(1))
    assert read.wait(10)
    batches.close()


def test_an_error_while_reading_reaches_the_step_that_needs_the_batch(
    run: tuple[SampleOrder, Timeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    order, timeline = run
    batches, whole = Batches(timeline, order, lambda size: slice(0, size), torch.device("cpu")), order.batch

    def batch(stage: int, first: int, size: int) -> object:
        if first == timeline.step(2).first_stage_sample:
            raise OSError("gone")
        return whole(stage, first, size)

    monkeypatch.setattr(order, "batch", batch)
    batches.of(timeline.step(1))
    with pytest.raises(OSError, match="gone"):
        batches.of(timeline.step(2))
    batches.close()

"""This rank's part of each batch, read ahead: while a step computes, a thread reads the batch of the next."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from preheat.arithmetic import Step, Timeline
from preheat.data import SampleOrder, Usage

Batch = tuple[Tensor, Tensor]


class Batches:
    """The batches of a run. `own` says which samples of a batch of some size are this rank's.

    What is read depends on the step alone, so a batch read ahead and not asked for is only work done in vain. The order is read from one
    thread: its caches know no other.
    """

    def __init__(self, timeline: Timeline, order: SampleOrder, own: Callable[[int], slice], device: torch.device) -> None:
        self._timeline, self._order, self._own, self._device = timeline, order, own, device
        self._reader = ThreadPoolExecutor(1, "batches")
        self._ahead: tuple[int, Future[Batch] | None] = (0, None)

    def of(self, step: Step) -> Batch:
        """Inputs and labels of a step on the device, each int64 of shape (samples, seq_len)."""
        number, reading = self._ahead
        if reading is None or number != step.number:
            reading = self._reader.submit(self._read, step)
        inputs_BT, labels_BT = reading.result()
        if step.end != self._timeline.end:
            following = self._timeline.step(step.number + 1)
            self._ahead = following.number, self._reader.submit(self._read, following)
        return inputs_BT.to(self._device, non_blocking=True), labels_BT.to(self._device, non_blocking=True)

    def used(self, step: Step) -> dict[str, Usage]:
        """What all ranks together have taken from each source when a step is done."""
        return self._order.used(step.segment.stage_index, step.first_stage_sample + step.segment.batch_size)

    def close(self) -> None:
        """Wait for the read under way and end the thread."""
        self._reader.shutdown(cancel_futures=True)

    def _read(self, step: Step) -> Batch:
        segment = step.segment
        own = self._own(segment.batch_size)
        inputs, labels = self._order.batch(segment.stage_index, step.first_stage_sample + own.start, own.stop - own.start)
        batch = torch.from_numpy(inputs), torch.from_numpy(labels)
        return (batch[0].pin_memory(), batch[1].pin_memory()) if self._device.type == "cuda" else batch

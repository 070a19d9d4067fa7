"""The training loop: get the batch, step, judge, tell the sinks, save. State beyond weights and optimizer is the step number."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from preheat.arithmetic import Rope, Step, Timeline, flops_per_token
from preheat.data import SampleOrder
from preheat.errors import Problem, RunFailed
from preheat.model import Transformer
from preheat.monitor import model_flops_utilization
from preheat.recipe import Recipe, fingerprint
from preheat.train import checkpoint
from preheat.train.device import Device
from preheat.train.optimizer import set_rate
from preheat.train.run_folder import RunFolder

Record = dict[str, Any]


class Sink(Protocol):
    """Something that wants to know: a file, TensorBoard, the console."""

    def step(self, record: Record) -> None: ...
    def event(self, record: Record) -> None: ...
    def close(self) -> None: ...


class Judge(Protocol):
    """Looks at a step's numbers and says what is odd about them, or None."""

    def judge(self, record: Record) -> Record | None: ...


Evaluator = Callable[[Transformer, Step], Record]
"""(model, step) -> per source `{"loss", "bits_per_byte", ...}`."""


@dataclass
class Trainer:
    """Everything that one run needs, put together by `start`."""

    recipe: Recipe
    timeline: Timeline
    order: SampleOrder
    model: Transformer
    optimizer: torch.optim.Optimizer
    device: Device
    folder: RunFolder
    peak_flops: float
    sinks: Sequence[Sink]
    judge: Judge
    evaluate: Evaluator
    stop_requested: Callable[[], bool]
    done: int = 0
    """Steps that are behind."""

    def run(self) -> bool:
        """Train to the end of the timeline, or to the first step after a stop was requested. True when the run is complete."""
        self.model.train()
        while self.done < self.timeline.end.steps and not self.stop_requested():
            step = self.timeline.step(self.done + 1)
            if step.first_stage_sample == 0:
                self._announce_stage(step)
            record = self._train_step(step)
            self.done = step.number
            if self._measurement_due(step):
                record["held_out"] = self.evaluate(self.model, step)
            self._tell(record)
            if self._save_due(step):
                self._save(step)
        if self.done and self.done < self.timeline.end.steps:
            self._save(self.timeline.step(self.done))
        return self.done == self.timeline.end.steps

    def event(self, kind: str, cause: str, evidence: str = "", action: str = "") -> None:
        """Tell the sinks that something happened at the present clock."""
        tokens = self.timeline.step(self.done).end.tokens if self.done else 0
        record = {
            "time": time.time(),
            "tokens": tokens,
            "step": self.done,
            "kind": kind,
            "cause": cause,
            "evidence": evidence,
            "action": action,
        }
        for sink in self.sinks:
            sink.event(record)

    def _train_step(self, step: Step) -> Record:
        begin = time.perf_counter()
        segment = step.segment
        inputs_BT, labels_BT = (
            torch.from_numpy(part) for part in self.order.batch(segment.stage_index, step.first_stage_sample, segment.batch_size)
        )
        tokens = segment.batch_size * segment.seq_len
        loss = torch.zeros((), device=self.device.torch_device)
        for first in range(0, segment.batch_size, segment.micro_size):
            part = slice(first, first + segment.micro_size)
            loss += self._backward(inputs_BT[part], labels_BT[part], segment.rope, tokens)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.clip_grad_norm)
        record: Record = {"tokens": step.end.tokens, "step": step.number, "stage": segment.stage.name, "lr": step.lr, "loss": loss.item()}
        record |= {"grad_norm": norm.item(), "batch_size": segment.batch_size, "seq_len": segment.seq_len, "rope_theta": segment.rope_theta}
        self._refuse_non_finite(record)
        set_rate(self.optimizer, step.lr)
        self.optimizer.step()
        self.optimizer.zero_grad()
        seconds = time.perf_counter() - begin
        flops = flops_per_token(self.recipe.model, segment.seq_len).causal
        rate = tokens / seconds
        return record | {"step_time_s": seconds, "tokens_per_s": rate, "mfu": model_flops_utilization(rate, flops, self.peak_flops)}

    def _backward(self, inputs_BT: Tensor, labels_BT: Tensor, rope: Rope | None, tokens: int) -> Tensor:
        """Add the gradients of a micro-batch; returns its part of the mean loss over the `tokens` tokens of the step."""
        device = self.device.torch_device
        with self.device.autocast():
            losses = self.model(inputs_BT.to(device), labels_BT.to(device), rope=rope, z_loss=self.recipe.optimizer.z_loss)
        (losses.total / tokens).backward()
        return losses.cross_entropy.detach() / tokens

    def _refuse_non_finite(self, record: Record) -> None:
        if math.isfinite(record["loss"]) and math.isfinite(record["grad_norm"]):
            return
        got = f"step {record['step']}: loss {record['loss']}, gradient norm {record['grad_norm']}"
        self.event("non-finite", "loss or gradient is not finite", got, "stopped before the optimizer step")
        raise RunFailed(Problem("run.non-finite", got, "", "The last checkpoint is untouched; lower schedule.peak_lr or look at the data"))

    def _tell(self, record: Record) -> None:
        for sink in self.sinks:
            sink.step(record)
        verdict = self.judge.judge(record)
        if verdict is not None:
            self.event(**verdict)

    def _announce_stage(self, step: Step) -> None:
        segment = step.segment
        mix = ", ".join(f"{name} {float(weight):g}" for name, weight in segment.stage.mix.items())
        shape = (
            f"batch {segment.batch_size} x {segment.seq_len} tokens, rope base {segment.rope_theta:_g}"
            if segment.rope_theta
            else f"batch {segment.batch_size} x {segment.seq_len} tokens"
        )
        self.event("stage", f"stage {segment.stage.name} begins", f"{mix}; {shape}")

    def _measurement_due(self, step: Step) -> bool:
        every = self.recipe.evaluation.every
        return self._ends_stage(step) or (every is not None and self.timeline.due(step, every))

    def _save_due(self, step: Step) -> bool:
        return step.end == self.timeline.end or self.timeline.due(step, self.recipe.checkpoint.every)

    def _ends_stage(self, step: Step) -> bool:
        last = step.end == self.timeline.end
        return last or self.timeline.step(step.number + 1).first_stage_sample == 0

    def _save(self, step: Step) -> None:
        saved = checkpoint.save(self.folder.checkpoints, step.number, step.end.tokens, self.model, self.optimizer, fingerprint(self.recipe))
        checkpoint.retain(self.folder.checkpoints, self.recipe.checkpoint.keep)
        self.event("checkpoint", "saved", saved.path.name)

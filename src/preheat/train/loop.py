"""The training loop: get the batch, step, judge, tell the sinks, save. State beyond weights and optimizer is the step number.

All ranks run it alike and decide alike: what they decide by is either a function of the clock or a number that all of them have.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from preheat.arithmetic import Step, Timeline, flops_per_token
from preheat.errors import Problem, RunFailed, Where
from preheat.launch import Interrupted, Stop
from preheat.model import Losses
from preheat.monitor import model_flops_utilization
from preheat.parallel import Engine, Objective
from preheat.recipe import Recipe
from preheat.train.batches import Batches
from preheat.train.device import Device
from preheat.train.optimizer import set_rate
from preheat.train.ranks import any_rank, exchange
from preheat.train.run_folder import RunFolder
from preheat.train.saver import Saver
from preheat.train.state import run_state, settled
from preheat.train.watchdog import Watchdog

Record = dict[str, Any]


class Sink(Protocol):
    """Something that wants to know: a file, TensorBoard, the console."""

    def step(self, record: Record) -> None: ...
    def event(self, record: Record) -> None: ...
    def close(self) -> None: ...


class Judge(Protocol):
    """Looks at a step's numbers and says what is odd about them, or None."""

    def judge(self, record: Record) -> Record | None: ...
    def memory(self) -> Record: ...


Evaluator = Callable[[Engine, Step, Callable[[], None]], Record]
"""(engine, step, pause) -> per source `{"loss", "bits_per_byte", "tokens", ...}`. It calls `pause` often, which may raise `Interrupted`."""


@dataclass
class Trainer:
    """Everything that one run needs, put together by `start`."""

    recipe: Recipe
    timeline: Timeline
    batches: Batches
    engine: Engine
    optimizer: torch.optim.Optimizer
    device: Device
    folder: RunFolder
    peak_flops: float
    sinks: Sequence[Sink]
    judge: Judge
    evaluate: Evaluator
    stop: Stop
    watchdog: Watchdog
    saver: Saver
    eod: int | None = None
    """The end-of-document token, where documents are masked."""
    done: int = 0
    """Steps that are behind."""
    saved: int = 0
    """Steps whose outcome is in a checkpoint."""
    unmeasured: Record | None = None
    """The metrics of the last step, where the run was stopped in the measurement after it."""
    _saving: Step | None = None
    """The step whose save is under way."""
    _longest_turn_s: float = 0.0
    _longest_save_s: float = 0.0

    def run(self) -> bool:
        """Train to the end of the timeline, or until the run is to stop; it is saved then. True when the run is complete."""
        try:
            if self.unmeasured is not None:
                self._conclude(self.timeline.step(self.done), self.unmeasured)
            while self.done < self.timeline.end.steps and not self._stops(self._longest_turn_s):
                begin = time.perf_counter()
                step = self.timeline.step(self.done + 1)
                if step.first_stage_sample == 0:
                    self._finish_save()  # a new shape may take minutes to compile: nothing is to be lost by then
                    self._announce_stage(step)
                record = self._train_step(step)
                self.done, self.stop.nothing_to_lose = step.number, False
                self._conclude(step, record)
                self._longest_turn_s = max(self._longest_turn_s, time.perf_counter() - begin)
        except Interrupted:
            pass  # with the metrics of its step in `unmeasured`
        finally:
            self.batches.close()
        self._finish_save()
        if self.saved < self.done:
            self._save(self.timeline.step(self.done), {})
            self._finish_save()
        return self.done == self.timeline.end.steps and self.unmeasured is None

    def _conclude(self, step: Step, record: Record) -> None:
        """What comes after a step: measure, tell, save."""
        self.unmeasured = record
        if self._measurement_due(step):
            record["held_out"] = self.evaluate(self.engine, step, self._pause)
        self._tell(record)
        self.unmeasured = None
        if self._ends_stage(step):
            used = self.batches.used(step).items()
            read = ", ".join(f"{name} {usage.tokens:_} tokens ({usage.epochs:.3g} epochs)" for name, usage in used)
            self.event("stage-end", f"stage {step.segment.stage.name} ends", read)
        if self._save_due(step) and self.saved < step.number:
            self._save(step, record.get("held_out", {}))
        self.watchdog.beat()

    def _stops(self, turn_s: float) -> bool:
        """Whether some rank is to stop, so that all do: a signal came, or the time left is little more than a turn and a save take."""
        stops = any_rank(self.stop.wanted(1.25 * turn_s + 2 * self._longest_save_s))
        if stops and self.stop.reason is None:
            self.stop.reason = "another process was asked to"
        return stops

    def _pause(self) -> None:
        if self._stops(0.0):
            raise Interrupted

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
        self._tell_sinks(lambda sink: sink.event(record))

    def _train_step(self, step: Step) -> Record:
        begin = time.perf_counter()
        segment = step.segment
        inputs_BT, labels_BT = self.batches.of(step)
        objective = self._objective(step)
        losses = self.engine.accumulate(inputs_BT, labels_BT, segment.micro_size, objective)
        norm = self.engine.clip(self.recipe.optimizer.clip_grad_norm)
        loss = losses.cross_entropy.item() / objective.tokens
        record: Record = {"tokens": step.end.tokens, "step": step.number, "stage": segment.stage.name, "lr": step.lr, "loss": loss}
        record |= {"grad_norm": norm, "batch_size": segment.batch_size, "seq_len": segment.seq_len, "rope_theta": segment.rope_theta}
        self._refuse_non_finite(record)
        self.saver.copied()
        set_rate(self.optimizer, step.lr)
        self.optimizer.step()
        self.optimizer.zero_grad()
        record |= self._model_record(losses, objective) | self._balance_record(step)
        seconds = time.perf_counter() - begin
        flops = flops_per_token(self.recipe.model, segment.seq_len).causal
        rate = objective.tokens / seconds
        return record | {"step_time_s": seconds, "tokens_per_s": rate, "mfu": model_flops_utilization(rate, flops, self.peak_flops)}

    def _objective(self, step: Step) -> Objective:
        segment, mtp = step.segment, self.recipe.model.mtp
        weight = self.timeline.in_force(mtp.loss_weight, step.start.tokens) if mtp is not None else None
        return Objective(
            tokens=segment.batch_size * segment.seq_len,
            rope=segment.rope,
            eod=self.eod,
            prediction_weight=weight.weight if weight is not None else 0.0,
            z_loss=self.recipe.optimizer.z_loss,
        )

    def _model_record(self, losses: Losses, objective: Objective) -> Record:
        """The parts of the loss beside the cross-entropy, where the recipe has them, as means over the tokens."""
        parts = {
            "z_loss": (losses.z, objective.z_loss > 0),
            "balance_loss": (losses.balance, self.recipe.model.experts is not None),
            "prediction_loss": (losses.prediction, objective.prediction_weight > 0),
        }
        return {name: value.item() / objective.tokens for name, (value, there) in parts.items() if there}

    def _balance_record(self, step: Step) -> Record:
        """Let the routers take the step into account; over all layers the fullest expert and the largest share of dropped choices."""
        experts = self.recipe.model.experts
        if experts is None:
            return {}
        rate = self.timeline.in_force(experts.bias_update_rate, step.start.tokens)
        balances = self.engine.finish_step(rate.rate if rate is not None else 0.0)
        own = [max((max(getattr(balance, what), default=0.0) for balance in balances), default=0.0) for what in ("fullest", "dropped")]
        fullest, dropped = (max(values) for values in zip(*exchange(own), strict=True))
        return {"expert_fullest": fullest} | ({"expert_dropped": dropped} if experts.capacity_factor is not None else {})

    def _refuse_non_finite(self, record: Record) -> None:
        if math.isfinite(record["loss"]) and math.isfinite(record["grad_norm"]):
            return
        got = f"step {record['step']}: loss {record['loss']}, gradient norm {record['grad_norm']}"
        self.event("non-finite", "loss or gradient is not finite", got, "stopped before the optimizer step")
        raise RunFailed(Problem("run.non-finite", got, "", "The last checkpoint is untouched; lower schedule.peak_lr or look at the data"))

    def _tell(self, record: Record) -> None:
        self._tell_sinks(lambda sink: sink.step(record))
        verdict = self.judge.judge(record)
        if verdict is not None:
            self.event(**verdict)

    def _tell_sinks(self, tell: Callable[[Sink], None]) -> None:
        try:
            for sink in self.sinks:
                tell(sink)
        except OSError as error:
            got = f"step {self.done}: the run's records can't be written: {error}"
            raise RunFailed(Problem("run.records", got, "", "Make room; the same command goes on", Where(str(self.folder.path)))) from error

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
        wanted_by_save = self.recipe.checkpoint.keep_best > 0 and self._save_due(step)
        return self._ends_stage(step) or wanted_by_save or (every is not None and self.timeline.due(step, every))

    def _save_due(self, step: Step) -> bool:
        return self._ends_stage(step) or self.timeline.due(step, self.recipe.checkpoint.every)

    def _ends_stage(self, step: Step) -> bool:
        last = step.end == self.timeline.end
        return last or self.timeline.step(step.number + 1).first_stage_sample == 0

    def _save(self, step: Step, held_out: Record) -> None:
        """Begin to save; the save before is waited for."""
        self._finish_save()
        notes: Record = {"judge": self.judge.memory()} | ({"unmeasured": self.unmeasured} if self.unmeasured is not None else {})
        if held_out:
            notes["held_out_loss"] = _mean_loss(held_out)
        state = run_state(self.engine, self.optimizer, once=True)
        still = settled(self.engine, state)
        self.saver.begin(step.number, step.end.tokens, {name: state[name] for name in state.keys() - still.keys()}, still, notes)
        self._saving = step

    def _finish_save(self) -> None:
        """Wait for the save under way, and tell how it went. All ranks come here after the same step, so that they decide alike.

        Raises:
            RunFailed: it failed, and the recipe says that the run stops then.
        """
        step = self._saving
        if step is None:
            return
        self._saving = None
        begin, self.watchdog.waits_for = time.perf_counter(), f"the checkpoint of step {step.number:_} is still being written"
        try:
            saved = self.saver.finish()
        except RunFailed as error:
            self._tell_failure(step, error.problems[0])
            return
        finally:
            self.watchdog.waits_for = ""
        assert saved is not None
        self.saved, self.stop.nothing_to_lose = step.number, self.done == step.number
        self._longest_save_s = max(self._longest_save_s, saved.seconds)
        waited = f"training waited {time.perf_counter() - begin:.1f} s"
        self.event("checkpoint", f"step {step.number:_} saved", saved.checkpoint.path.name, waited)
        if saved.trouble is not None:
            self._tell_failure(step, saved.trouble)

    def _tell_failure(self, step: Step, problem: Problem) -> None:
        """A save did not do all that it should.

        Raises:
            RunFailed: the recipe says that the run stops then, or this is its end.
        """
        self.event("checkpoint-failed", problem.got, "", self.recipe.checkpoint.on_failure)
        if self.recipe.checkpoint.on_failure == "stop" or step.end == self.timeline.end:
            raise RunFailed(problem)


def _mean_loss(held_out: Record) -> float:
    """Nats per token over all sources."""
    return sum(score["loss"] * score["tokens"] for score in held_out.values()) / sum(score["tokens"] for score in held_out.values())

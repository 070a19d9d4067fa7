"""Spikes of the loss and of the gradient norm, judged against the recent past by median and median absolute deviation.

Mean and standard deviation go blind after the first outlier: in the BLOOM spike of 12 April 2022 (step 31,219: loss 5.10 after 2.20) the
next loss, 3.49, is within six standard deviations of a window that holds the 5.10. Here a flagged value stays out of the window, and
the median would hardly move if it did not.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

WINDOW = 128
"""Steps of history; as in OLMo-core and llm.c."""
MIN_HISTORY = 64
"""No verdict before this many steps of a stage; as in OLMo-core."""
THRESHOLD = 6.0
"""Standard deviations above the median; as in OLMo-core."""
NORM_STREAK = 2
"""Steps on end with a flagged gradient norm that make an event while the loss is calm."""
NEW_LEVEL = 64
"""A value that has been flagged for so many steps on end is no spike but the new level. BLOOM's spike was over after 30."""
_SIGMA_PER_MAD = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation: 1 / 0.6745."""

Kind = Literal["loss", "grad_norm"]
_NAMES = {"loss": "loss", "grad_norm": "gradient norm"}


@dataclass(frozen=True)
class Verdict:
    """A step whose `value` is far above what the recent past lets expect."""

    kind: Kind
    value: float
    """NaN where the step's value was not finite."""
    expected: float
    """The median of the window; NaN before there is a history."""
    score: float
    """How many standard deviations above it."""
    streak: int
    """1 at the first step of the spike, 2 at the next."""

    def __str__(self) -> str:
        if math.isnan(self.value):
            return f"{_NAMES[self.kind]} is not finite, expected {self.expected:.4g}"
        return f"{_NAMES[self.kind]} {self.value:.4g}, expected {self.expected:.4g} ({self.score:.1f} standard deviations above)"


class SpikeDetector:
    """Judges each step's loss and gradient norm. What it remembers is some hundred numbers: `memory`.

    A stage has a history of its own, since another mixture has another loss. The gradient norm is judged by its logarithm: it is a
    scale, and its spread is a factor.
    """

    def __init__(self, memory: dict[str, Any] | None = None) -> None:
        """Go on from a `memory`, to the same verdicts; without one from the beginning."""
        memory = memory or {"stage": None, "alarmed": False, "loss": {}, "log_norm": {}}
        self._stage, self._alarmed = memory["stage"], memory["alarmed"]
        self._loss = _Series(floor=0.01, **memory["loss"])
        self._log_norm = _Series(floor=0.05, **memory["log_norm"])

    def memory(self) -> dict[str, Any]:
        """All that verdicts to come depend on, as JSON."""
        return {"stage": self._stage, "alarmed": self._alarmed, "loss": self._loss.memory(), "log_norm": self._log_norm.memory()}

    def observe(self, record: dict[str, Any]) -> tuple[Verdict, ...]:
        """Judge a step's `loss` and `grad_norm` (null or NaN where not finite) within its `stage`, and remember them."""
        if record["stage"] != self._stage:
            self._stage = record["stage"]
            self._loss.forget()
            self._log_norm.forget()
        loss, norm = _number(record["loss"]), _number(record["grad_norm"])
        found = []
        if finding := self._loss.judge(loss):
            found.append(Verdict("loss", loss, finding.expected, finding.score, finding.streak))
        if finding := self._log_norm.judge(math.log(max(norm, 1e-30)) if math.isfinite(norm) else math.nan):
            found.append(Verdict("grad_norm", norm, math.exp(finding.expected), finding.score, finding.streak))
        self._alarmed = any(verdict.kind == "loss" or verdict.streak >= NORM_STREAK for verdict in found)
        return tuple(found)

    def judge(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """Observe a step; where a spike begins, the `kind`, `cause`, `evidence` and `action` of the event to log.

        A single step with a large gradient is no event: small batches have them by the dozen, and clipping takes care of them. A spike
        is a loss that jumps, or a gradient norm that stays up for `NORM_STREAK` steps.
        """
        before = self._alarmed
        verdicts = self.observe(record)
        if before or not self._alarmed:
            return None
        cause = " and ".join(_NAMES[verdict.kind] for verdict in verdicts)
        evidence = "; ".join(map(str, verdicts))
        return {"kind": "spike", "cause": f"spike of the {cause}", "evidence": evidence, "action": "none, training goes on"}


def _number(value: float | None) -> float:
    return math.nan if value is None or not math.isfinite(value) else value


@dataclass(frozen=True)
class _Finding:
    expected: float
    score: float
    streak: int


class _Series:
    """The recent values of one quantity, in order of time and in order of size."""

    def __init__(self, floor: float, window: Sequence[float] = (), flagged: Sequence[float] = (), streak: int = 0) -> None:
        """`floor` is the smallest standard deviation to assume, so that a very steady past makes no spike of nothing."""
        self._floor = floor
        self._window, self._sorted = deque(window), sorted(window)
        self._flagged, self._streak = list(flagged), streak

    def memory(self) -> dict[str, Any]:
        return {"window": list(self._window), "flagged": self._flagged.copy(), "streak": self._streak}

    def forget(self) -> None:
        self._window.clear()
        self._sorted.clear()
        self._flagged, self._streak = [], 0

    def judge(self, value: float) -> _Finding | None:
        """A finding if `value` lies too far above the window or is NaN; otherwise it joins the window."""
        expected = median(self._sorted) if self._sorted else math.nan
        if math.isnan(value):
            # Counts towards no new level: there is none to learn.
            self._streak += 1
            return _Finding(expected, math.inf, self._streak)
        if len(self._window) >= MIN_HISTORY:
            spread = _SIGMA_PER_MAD * median(sorted(abs(other - expected) for other in self._sorted))
            score = (value - expected) / max(spread, self._floor)
            if score > THRESHOLD:
                self._flagged.append(value)
                self._streak += 1
                finding = _Finding(expected, score, self._streak)
                if len(self._flagged) == NEW_LEVEL:
                    self._start_over(self._flagged)
                return finding
        self._flagged, self._streak = [], 0
        self._append(value)
        return None

    def _start_over(self, values: list[float]) -> None:
        self.forget()
        for value in values:
            self._append(value)

    def _append(self, value: float) -> None:
        self._window.append(value)
        bisect.insort(self._sorted, value)
        if len(self._window) > WINDOW:
            del self._sorted[bisect.bisect_left(self._sorted, self._window.popleft())]

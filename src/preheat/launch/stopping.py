"""When a run ends before it is complete: somebody asks it to, or its time is up. It then saves, and its exit code says `REQUEUE`."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping
from types import FrameType

from preheat.errors import refuse
from preheat.launch.workers import REQUEUE, STOPPING

_UNITS_S = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_LIMIT = re.compile(r"(?:(?P<d>\d+)d)?(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m)?(?:(?P<s>\d+)s)?")
_SPARE_SHARE = 0.05
_MOST_SPARE_S = 120.0
_BEGUN = time.time()


class Interrupted(Exception):
    """A measurement was left because the run is to stop."""


class Stop:
    """Ctrl-C, SIGTERM or SIGUSR1 (which Slurm can send ahead of time), or a time limit: finish the step, save and stop.

    While nothing would be lost (before the first step, in its compilation) a signal ends the process at once. Ctrl-C twice always does.
    """

    def __init__(self, limit: str | None = None) -> None:
        """Listen from now on.

        Args:
            limit: how long the run may take from the start of this process, as `parse_limit` reads it.
        """
        self.reason: str | None = None
        self.nothing_to_lose = True
        self.deadline, self._spare_s = _deadline(parse_limit(limit) if limit is not None else None, os.environ)
        for number in STOPPING:
            signal.signal(number, self._receive)

    def wanted(self, needed_s: float) -> bool:
        """Whether the run is to stop now: a signal came, or `needed_s` more would not leave time to save."""
        if self.reason is None and self.deadline is not None and time.time() + needed_s + self._spare_s >= self.deadline:
            self.reason = "the time limit is near"
        return self.reason is not None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.reason is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.reason = f"{signal.Signals(number).name} came"
        if self.nothing_to_lose:
            raise SystemExit(REQUEUE)


def parse_limit(text: str) -> float:
    """Seconds of a time limit: `3h50m`, `90m`, `1d12h`, `45s`; or as Slurm writes it: `03:50:00`, `1-12:00:00`.

    Raises:
        PreheatError: it is none of these, or no time at all.
    """
    match = _LIMIT.fullmatch(text)
    clock = re.fullmatch(r"(?:(?P<d>\d+)-)?(?P<h>\d+):(?P<m>\d\d):(?P<s>\d\d)", text)
    found = clock or match
    seconds = sum(_UNITS_S[unit] * int(count or 0) for unit, count in found.groupdict().items()) if found else 0
    if not seconds:
        refuse("train.time-limit", f"--time-limit {text[:40]}", "a time such as 3h50m, 90m, 45s or 1-12:00:00", "Write it so")
    return float(seconds)


def _deadline(limit_s: float | None, environment: Mapping[str, str]) -> tuple[float | None, float]:
    """When the time is up, in seconds since 1970, and how much of it is kept in reserve: a twentieth, at most two minutes.

    Slurm tells the end of the job in the environment; the earlier of the two counts.
    """
    ends = [_BEGUN + limit_s] if limit_s is not None else []
    slurm = environment.get("SLURM_JOB_END_TIME", "")
    if slurm.isdecimal() and slurm != "0":
        ends.append(float(slurm))
    if not ends:
        return None, 0.0
    return min(ends), min(_MOST_SPARE_S, _SPARE_SHARE * max(0.0, min(ends) - _BEGUN))

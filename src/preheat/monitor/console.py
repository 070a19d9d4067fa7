"""The live line of a run: a progress bar on a terminal, a plain line every ten seconds anywhere else."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console as RichConsole
from rich.live import Live
from rich.text import Text

from preheat.monitor.throughput import Pace, Smoothed
from preheat.units import duration, rounded

PLAIN_INTERVAL_S = 10.0
_BAR_WIDTHS = (8, 40)
"""Fewest and most characters of the bar; on a narrow terminal the end of the line is cut and not the bar."""
_QUIET_EVENTS = frozenset({"checkpoint", "stage", "stage-end"})
"""Events that the line itself shows, or that come too often to be read."""


class Console:
    """The sink for the eye. Loss and speed are smoothed over about 20 steps; the ETA counts measurements and saves."""

    def __init__(self, total_tokens: int, console: RichConsole | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = total_tokens
        self._console = console or RichConsole(stderr=True)
        self._clock = clock
        self._loss, self._speed, self._mfu = Smoothed(20), Smoothed(20), Smoothed(20)
        self._pace = Pace(total_tokens)
        self._stage: str | None = None
        self._last_plain_s = -math.inf
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(Text("starting"), console=self._console, refresh_per_second=5)
            self._live.start()

    def step(self, record: dict[str, Any]) -> None:
        """Show a step; on a plain stream only every ten seconds, at a change of stage, after a measurement and at the end."""
        now = self._clock()
        self._pace.update(now, record["tokens"])
        loss = record["loss"]
        self._loss.update(math.nan if loss is None else loss)
        self._speed.update(record["tokens_per_s"])
        self._mfu.update(record["mfu"])
        if self._live:
            self._live.update(self._line(record))
        elif record["stage"] != self._stage or now - self._last_plain_s >= PLAIN_INTERVAL_S or record["tokens"] >= self._total:
            self._plain(f"{record['tokens'] / self._total:6.1%}  {record['stage']}  {self._numbers(record)}")
            self._last_plain_s = now
        self._stage = record["stage"]
        if held_out := record.get("held_out"):
            text = ", ".join(f"{source} {measured['bits_per_byte']:.3f}" for source, measured in held_out.items())
            self._plain(f"step {record['step']:,}: held-out bits per byte: {text}")

    def event(self, record: dict[str, Any]) -> None:
        """Print what happened, unless the line shows it."""
        if record["kind"] in _QUIET_EVENTS:
            return
        tail = "; ".join(str(record[key]) for key in ("evidence", "action") if record.get(key))
        self._plain(f"step {record['step']:,}: {record['kind']}: {record['cause']}" + (f" ({tail})" if tail else ""))

    def close(self) -> None:
        """Leave the last state of the line on the screen."""
        if self._live:
            self._live.stop()

    def _line(self, record: dict[str, Any]) -> Text:
        share = min(1.0, record["tokens"] / self._total)
        head, tail = f"{record['stage']} ", f" {share:4.0%}  {self._numbers(record)}"
        fewest, most = _BAR_WIDTHS
        width = max(fewest, min(most, self._console.width - len(head) - len(tail)))
        done = round(share * width)
        full, empty = ("━", "─") if self._console.encoding.startswith("utf") else ("#", "-")
        return Text.assemble(
            (head, "bold"), (full * done, "green"), (empty * (width - done), "dim"), tail, no_wrap=True, overflow="ellipsis"
        )

    def _numbers(self, record: dict[str, Any]) -> str:
        left = self._pace.seconds_left
        parts = [f"{duration(left)} left"] if left is not None and record["tokens"] < self._total else []
        parts += [f"loss {self._loss.value:.3f}", f"lr {record['lr']:.2e}"]
        parts += [f"{rounded(self._speed.value)} tokens/s", f"MFU {self._mfu.value:.0%}"]
        return "  ".join(parts)

    def _plain(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

"""`metrics.jsonl` and `events.jsonl`: the source of truth of a run, one JSON object a line, readable while it is written."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preheat.errors import refuse


@dataclass(frozen=True)
class Lines:
    """What a file of JSON lines holds."""

    records: list[dict[str, Any]]
    torn: bool
    """The last line was only half written and is not among the records."""


def read_lines(path: Path) -> Lines:
    """Read a file that may still be growing or was cut off in its last line; an absent file has no lines.

    Raises:
        PreheatError: a line other than the last is no JSON object.
    """
    records: list[dict[str, Any]] = []
    torn = False
    for _, record in _scan(path):
        if record is None:
            torn = True
        else:
            records.append(record)
    return Lines(records, torn)


class JsonLines:
    """The sink that writes both files of a run folder. Every line is flushed, so that a killed process loses none it finished.

    A number that is not finite is written as null, for JSON has no NaN.
    """

    def __init__(self, folder: Path) -> None:
        self._metrics_path = folder / "metrics.jsonl"
        self._events_path = folder / "events.jsonl"
        self._open()

    def truncate_after(self, step: int) -> int:
        """Take back the metrics of steps after `step`, and a half-written last line of either file, before a resume.

        Each file is replaced in one rename. Events stay: they tell what really happened, redone steps included.

        Returns:
            How many lines of metrics were taken back, a half-written one included.
        """
        self.close()
        cut = _rewrite(self._metrics_path, step)
        _rewrite(self._events_path, None)
        self._open()
        return cut

    def step(self, record: dict[str, Any]) -> None:
        """Append a line to `metrics.jsonl`."""
        self._metrics.write(_line(record))
        self._metrics.flush()

    def event(self, record: dict[str, Any]) -> None:
        """Append a line to `events.jsonl`."""
        self._events.write(_line(record))
        self._events.flush()

    def close(self) -> None:
        """Close both files."""
        self._metrics.close()
        self._events.close()

    def _open(self) -> None:
        self._metrics = self._metrics_path.open("ab")
        self._events = self._events_path.open("ab")


def _line(record: dict[str, Any]) -> bytes:
    return (json.dumps(_finite(record), allow_nan=False, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value


def _scan(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Each line's bytes with its object; None for a last line that was cut off."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            record = _parse(line)
            if record is None and line.endswith(b"\n"):
                refuse(
                    "run.broken-line",
                    f"{path} is damaged: line {number} is no JSON object",
                    "",
                    "Take the file from a backup",
                    file=path,
                    line=number,
                )
            yield line, record


def _parse(line: bytes) -> dict[str, Any] | None:
    """The object of a whole line. One without its newline is torn even where it parses: `{"step": 1}` may be all there is of it."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _rewrite(path: Path, last_step: int | None) -> int:
    """Keep the whole lines up to a step (all of them for None); returns how many lines went."""
    kept, cut = [], 0
    for number, (line, record) in enumerate(_scan(path), start=1):
        if record is None or (last_step is not None and _step(record, path, number) > last_step):
            cut += 1
        else:
            kept.append(line)
    if cut:
        partial = path.with_name(path.name + ".partial")
        with partial.open("wb") as file:
            file.writelines(kept)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    return cut


def _step(record: dict[str, Any], path: Path, line: int) -> int:
    step = record.get("step")
    if not isinstance(step, int):
        refuse("run.broken-line", f"line {line} has no step", "", "Take the file from a backup", file=path, line=line)
    return step

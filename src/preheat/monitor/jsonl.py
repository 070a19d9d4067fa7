"""`metrics.jsonl` and `events.jsonl`: the source of truth of a run, one JSON object a line, readable while it is written."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from preheat.errors import refuse

_BLOCK = 2**16


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
        self._metrics = self._metrics_path.open("ab")
        self._events = self._events_path.open("ab")

    def truncate_after(self, step: int) -> int:
        """Take back the metrics of steps after `step`, and a half-written last line of either file, before a resume.

        Both files are read from their ends and cut there: it takes no longer after a million steps. Events stay: they tell what really
        happened, redone steps included.

        Returns:
            The step of the last line that is left, 0 where none is.

        Raises:
            PreheatError: the line of that very step may be one that is damaged; nothing is changed.
        """
        end, last = _end_of(self._metrics_path, step)
        self._metrics.truncate(end)
        self._events.truncate(_whole(self._events_path))
        for file in (self._metrics, self._events):
            os.fsync(file.fileno())
        return last

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


def last_line(path: Path) -> dict[str, Any] | None:
    """The last whole line of a file, however long it is."""
    with path.open("rb") as file:
        return next((record for _, line in _backwards(file) if (record := _parse(line)) is not None), None)


def _backwards(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines of a file from the last to the first, each with the place where it ends."""
    at = end = file.seek(0, os.SEEK_END)
    rest, size = b"", _BLOCK
    while at:
        size = min(at, size)
        at -= size
        file.seek(at)
        lines = BytesIO(file.read(size) + rest).readlines()
        size = 2 * size if len(lines) == 1 else _BLOCK  # a file without lines takes no time squared
        for line in reversed(lines[1 if at else 0 :]):
            yield end, line
            end -= len(line)
        rest = lines[0]


def _end_of(path: Path, step: int) -> tuple[int, int]:
    """Where the line of the last step up to `step` ends, and which step that is; (0, 0) where there is none."""
    if not step:
        return 0, 0
    found, broken = (0, 0), False
    with path.open("rb") as file:
        for end, line in _backwards(file):
            record = _parse(line)
            number = record.get("step") if record is not None else None
            if isinstance(number, int) and number <= step:
                found = end, number
                break
            broken |= line.endswith(b"\n") and not isinstance(number, int)
    if broken and found[1] < step:
        got = f"a line after that of step {found[1]:_} is no JSON object with a step"
        refuse("run.broken-line", got, f"the checkpoint is of step {step:_}", "Take the file from a backup, or remove that line", file=path)
    return found


def _whole(path: Path) -> int:
    """Where the last whole line ends."""
    with path.open("rb") as file:
        return next((end for end, line in _backwards(file) if line.endswith(b"\n")), 0)

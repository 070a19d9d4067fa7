"""The runs below a folder, each in one line: what it trains, where it stands, and whether a process is at it."""

from __future__ import annotations

import fcntl
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TAIL_BYTES = 2**16
"""A metrics line is far shorter: the last whole one is in this much of the file's end."""
RECENT = 20
"""Steps whose mean speed the estimate of the time left goes by."""


@dataclass(frozen=True)
class RunState:
    """Where a run stands."""

    path: Path
    name: str
    state: str
    """training, stopped, complete, or unreadable."""
    stage: str | None
    step: int
    total_steps: int | None
    tokens: int
    loss: float | None
    seconds_left: float | None
    """At the speed of its last steps; only while it trains."""
    amendments: int = 0
    """How often the recipe or the data was changed on the way."""


def run_states(root: Path) -> list[RunState]:
    """Every run folder below `root`, at most two folders down, by path."""
    files = sorted({*root.glob("recipe.json"), *root.glob("*/recipe.json"), *root.glob("*/*/recipe.json")})
    return [_state(file.parent) for file in files]


def _state(folder: Path) -> RunState:
    try:
        identity = json.loads((folder / "recipe.json").read_text("utf-8"))
        name, amendments = str(identity["name"]), len(identity.get("amendments", ()))
        plan = json.loads((folder / "plan.json").read_text("utf-8")) if (folder / "plan.json").is_file() else {}
        lines = _last_lines(folder / "metrics.jsonl")
        last: dict[str, Any] = lines[-1] if lines else {}
        total, step = plan.get("total_steps"), int(last.get("step", 0))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return RunState(folder, folder.name, "unreadable", None, 0, None, 0, None, None)
    busy = _is_locked(folder / "lock")
    state = "training" if busy else "complete" if total is not None and step >= total else "stopped"
    times = [line["step_time_s"] for line in lines[-RECENT:] if isinstance(line.get("step_time_s"), float)]
    left = (total - step) * sum(times) / len(times) if busy and total is not None and times else None
    return RunState(folder, name, state, last.get("stage"), step, total, int(last.get("tokens", 0)), last.get("loss"), left, amendments)


def _last_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines at the end of a file that may be growing."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL_BYTES))
        parts = file.read().split(b"\n")
    # The first part may be the end of a line, and the last one the beginning of one.
    whole = parts[1 if size > TAIL_BYTES else 0 : -1]
    return [json.loads(part) for part in whole if part.strip()]


def _is_locked(path: Path) -> bool:
    """Whether a process trains in the folder: it holds this lock until it ends."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False

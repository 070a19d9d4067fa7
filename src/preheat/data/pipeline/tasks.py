"""A task writes a folder that is there whole or not at all, and is not done again as long as what it depends on is the same.

The folder `STAGE/NUMBER` of the work folder holds the task's files and `record.json`: a hash of everything they depend on, and their sizes
and checksums. It is written under another name, and renamed when the record is in it. So whatever is killed, and whoever does a task twice
at the same time, nothing half-written is ever taken for whole.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

from preheat.data.pipeline.plan import RULES_VERSION, Plan, fingerprint
from preheat.disk import sha256
from preheat.errors import Problem, RunFailed

RECORD = "record.json"
LAYOUT = 2
"""Counts up when tasks leave other files than before, which a later task would not find in the work of an earlier version."""

T = TypeVar("T")
_ONE_AT_A_TIME = RLock()
"""What is done before is looked at by several threads, which make nothing twice."""
Reference = tuple[str, int]
"""A stage and the number of a task in it."""


@dataclass(frozen=True)
class Stage:
    """A step of the preparation: `count` tasks, each of which depends on `settings` of the plan and on the tasks in `needs`: on all whose
    outputs it reads, because outputs that come out the same as before do not pass a change on.
    """

    name: str
    count: Callable[[Plan], int]
    run: Callable[[Context, int, Path], None]
    """Fill the folder given last with the outputs of a task."""
    settings: Callable[[Context, int], object]
    needs: Callable[[Plan, int], list[Reference]]


@dataclass(frozen=True)
class Context:
    """Where a task finds its plan and the outputs of others."""

    work: Path
    plan: Plan
    _known: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)

    def once(self, name: object, make: Callable[[], T]) -> T:
        """What `make` gives, the first time; outputs of a finished step do not change while others are done."""
        with _ONE_AT_A_TIME:
            if name not in self._known:
                self._known[name] = make()
            found: T = self._known[name]
        return found

    def folder(self, stage: str, number: int = 0) -> Path:
        """The outputs of another task."""
        return self.work / stage / f"{number:05}"


def perform(context: Context, stage: Stage, number: int) -> None:
    """Do a task, unless its outputs are there and whole."""
    if is_done(context, stage, number):
        return
    final = context.folder(stage.name, number)
    with _appearing(final) as folder:
        depends_on = _key(context, stage, number)
        stage.run(context, number, folder)
        files = {path.name: {"size": path.stat().st_size, "sha256": sha256(path)} for path in sorted(folder.iterdir())}
        (folder / RECORD).write_text(json.dumps({"key": depends_on, "files": files}, indent=1), "utf-8")


def is_done(context: Context, stage: Stage, number: int) -> bool:
    """Whether the outputs of a task are there, depend on what they would depend on now, and have not changed since."""
    folder = context.folder(stage.name, number)
    record = _record(folder)
    if record is None or record["key"] != _key(context, stage, number):
        return False
    return all(
        (folder / name).is_file() and (folder / name).stat().st_size == entry["size"] and sha256(folder / name) == entry["sha256"]
        for name, entry in record["files"].items()
    )


def entries(context: Context, stage: str, number: int) -> dict[str, dict[str, str | int]]:
    """Size and checksum of each output of a task that is done."""
    record = _record(context.folder(stage, number))
    assert record is not None
    files: dict[str, dict[str, str | int]] = record["files"]
    return files


@contextmanager
def _appearing(final: Path) -> Iterator[Path]:
    """A folder to write into that becomes `final` when the block ends without an error."""
    final.parent.mkdir(exist_ok=True)
    folder = final.parent / f".{final.name}.{uuid.uuid4().hex}"
    folder.mkdir()
    try:
        yield folder
        try:
            folder.rename(final)
        except OSError:
            # Something is in the way: outputs of another plan, or damaged ones.
            old = final.parent / f".{final.name}.{uuid.uuid4().hex}"
            final.rename(old)
            folder.rename(final)
            shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _key(context: Context, stage: Stage, number: int) -> str:
    """A hash of everything that the outputs of a task depend on."""
    needed = [[name, other, _digest(context.folder(name, other))] for name, other in stage.needs(context.plan, number)]
    return fingerprint({"rules": RULES_VERSION, "layout": LAYOUT, "settings": stage.settings(context, number), "needs": needed})


def _digest(folder: Path) -> str:
    """A hash of the outputs of a task.

    Raises:
        RunFailed: the task was not done.
    """
    record = _record(folder)
    if record is None:
        got = f"the task {folder.parent.name} {int(folder.name)} was not done"
        raise RunFailed(Problem("data.task", got, "", "See why it failed, and prepare again: what is done stays done"))
    return fingerprint(record["files"])


def _record(folder: Path) -> dict[str, Any] | None:
    try:
        stamp = (folder / RECORD).stat()
    except OSError:
        return None
    return _read_record(folder, stamp.st_ino, stamp.st_mtime_ns)


@lru_cache(4096)
def _read_record(folder: Path, *_: int) -> dict[str, Any] | None:
    try:
        record = json.loads((folder / RECORD).read_bytes())
        record["key"], record["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(record)

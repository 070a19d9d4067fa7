"""A folder that appears whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from preheat.errors import refuse


@contextmanager
def workspace(out: Path) -> Iterator[Path]:
    """An empty folder to write into; it becomes `out` when the block ends without an error, and is gone if there is one.

    It lies in `.NAME.partial` next to `out`. What a killed process left there is wiped by the next one; a lock keeps two live ones apart.

    Raises:
        PreheatError: another process is preparing the same folder, or something has appeared in `out` meanwhile.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    work = out.parent / f".{out.name}.partial"
    lock = _locked(work, out)
    try:
        content = work / "content"
        shutil.rmtree(content, ignore_errors=True)
        content.mkdir()
        yield content
        for path in [*content.rglob("*"), content]:
            _flush(path)
        if out.is_dir() and any(out.iterdir()):
            refuse("data.out", "the folder was filled by someone else meanwhile", "", "Choose another folder", file=out)
        content.rename(out)
        _flush(out.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(lock)


def _locked(work: Path, out: Path) -> int:
    """A descriptor that holds the lock of the work folder until it is closed or the process ends."""
    while True:
        work.mkdir(exist_ok=True)
        path = work / "lock"
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            continue  # The one before us has just removed the folder.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            refuse("data.out", "another process is preparing this folder", "", "Wait for it, or choose another folder", file=out)
        if path.exists() and path.stat().st_ino == os.fstat(lock).st_ino:
            return lock
        os.close(lock)


def _flush(path: Path) -> None:
    """Make a file or the entries of a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

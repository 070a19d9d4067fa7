"""A folder that appears whole or not at all, and the work on it, which survives an interruption."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from preheat.disk import sync
from preheat.errors import refuse

CONTENT = "content"


def work_folder(out: Path) -> Path:
    """Where the work on `out` lies until it is done: `.NAME.partial` next to it."""
    return out.parent / f".{out.name}.partial"


def made_work_folder(out: Path) -> Path:
    """The work folder of `out`, made if it is not there.

    Raises:
        PreheatError: nothing can be made there. A full disk remains the system's error: there the same command will do.
    """
    work = work_folder(out)
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        refuse("data.out", f"the folder cannot be made: {error.strerror}", "", "Choose another folder, or correct what is there", file=out)
    return work


@contextmanager
def workspace(out: Path) -> Iterator[Path]:
    """The work folder of `out`. Its `content`, emptied at the beginning, becomes `out` when the block ends without an error.

    After an error, or when the process is killed, the rest of the folder is there for the next one to go on with. A lock keeps two live
    ones apart.

    Raises:
        PreheatError: another process is preparing the same folder, nothing can be made there, or something has appeared in `out` meanwhile.
    """
    work = work_folder(out)
    lock = _locked(out)
    try:
        content = work / CONTENT
        shutil.rmtree(content, ignore_errors=True)
        content.mkdir()
        yield work
        for path in [*content.rglob("*"), content]:
            sync(path)
        if out.is_dir() and any(out.iterdir()):
            refuse("data.out", "the folder was filled by someone else meanwhile", "", "Choose another folder", file=out)
        content.rename(out)
        sync(out.parent)
        shutil.rmtree(work, ignore_errors=True)
    finally:
        os.close(lock)


def _locked(out: Path) -> int:
    """A descriptor that holds the lock of the work folder until it is closed or the process ends."""
    while True:
        path = made_work_folder(out) / "lock"
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

"""Saving while training goes on: the state is copied before the next step changes it, and written beside training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from preheat.errors import Problem, RunFailed, Where
from preheat.train import checkpoint
from preheat.train.checkpoint import Checkpoint, State
from preheat.train.mirror import Mirror
from preheat.train.ranks import is_first, together


@dataclass(frozen=True)
class Saved:
    """A save that worked."""

    checkpoint: Checkpoint
    seconds: float
    """From the copy to the renamed folder."""
    trouble: Problem | None
    """What did not work after it: removing old ones, or the copy elsewhere."""


class Saver:
    """One save at a time. The ranks' writers agree through a process group of their own, for the default one is training's."""

    def __init__(
        self,
        folder: Path,
        retain: Callable[[Path], None],
        recipe_fingerprint: str,
        *,
        writes_plain: bool,
        mirror: Mirror | None = None,
        records: Path | None = None,
    ) -> None:
        """See `checkpoint.save`; after it the first rank calls `retain` with the folder, and brings the mirror up to date."""
        self.folder, self.retain, self.mirror = folder, retain, mirror
        self.recipe_fingerprint, self.writes_plain, self.records = recipe_fingerprint, writes_plain, records
        self.group = dist.new_group(backend="gloo") if dist.is_initialized() else None
        self._room: dict[str, Tensor] = {}
        self._copied = threading.Event()
        self._copied.set()
        self._thread: threading.Thread | None = None
        self._result: Saved | BaseException | None = None

    def begin(self, step: int, tokens: int, changing: State, settled: State, notes: Mapping[str, Any]) -> None:
        """Copy the state and write the copy in the background. `finish` must have been called for the save before.

        Args:
            changing: what is copied at once.
            settled: what is copied while training goes on, until `copied`: nothing but the optimizer's step changes it.
        """
        assert self._thread is None
        at_once, later = (checkpoint.stage(state, self.writes_plain, self._room) for state in (changing, settled))
        parts = at_once.copy()
        self._copied.clear()

        def write() -> None:
            try:
                begin = time.perf_counter()
                try:
                    parts.update(later.copy())
                finally:
                    self._copied.set()
                saved = checkpoint.save(self.folder, step, tokens, parts, self.recipe_fingerprint, self.group, notes, self.records)
                self._result = Saved(saved, time.perf_counter() - begin, self._tidy(step))
            except BaseException as error:  # it is raised where training notices, in `finish`
                self._result = error

        self._thread = threading.Thread(target=write, name="saver")
        self._thread.start()

    def copied(self) -> None:
        """Wait until all is copied: the optimizer's step may then change it."""
        self._copied.wait()

    def finish(self) -> Saved | None:
        """Wait for the save under way; what was saved, None if there was nothing to wait for.

        Raises:
            RunFailed: it failed; earlier checkpoints are intact.
        """
        if self._thread is None:
            return None
        self._thread.join()
        result, self._thread, self._result = self._result, None, None
        if isinstance(result, Saved):
            return result
        assert isinstance(result, BaseException)
        raise result

    def _tidy(self, step: int) -> Problem | None:
        """Remove old checkpoints and copy new ones; what did not work, the same on all ranks."""

        def tidy() -> None:
            if is_first():
                self.retain(self.folder)
                if self.mirror is not None:
                    self.mirror.update(self.folder.parent)

        def failed(why: str) -> Problem:
            got = f"the checkpoint of step {step} is saved, but old ones were not removed or new ones not copied: {why}"
            return Problem("checkpoint.tidy", got, "", "The next save tries again", Where(str(self.folder)))

        try:
            together(tidy, failed, self.group)
        except RunFailed as error:
            return error.problems[0]
        return None

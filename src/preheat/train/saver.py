"""Saving while training goes on: a copy is taken between two steps, and written beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from preheat.errors import RunFailed
from preheat.train import checkpoint
from preheat.train.checkpoint import Checkpoint, State
from preheat.train.ranks import is_first


class Saver:
    """One save at a time. The ranks' writers agree through a process group of their own, for the default one is training's."""

    def __init__(self, folder: Path, keep: int, stays: Callable[[int], bool], recipe_fingerprint: str, *, writes_plain: bool) -> None:
        """See `checkpoint.save` and `checkpoint.retain`."""
        self.folder, self.keep, self.stays = folder, keep, stays
        self.recipe_fingerprint, self.writes_plain = recipe_fingerprint, writes_plain
        self.group = dist.new_group(backend="gloo") if dist.is_initialized() else None
        self._thread: threading.Thread | None = None
        self._result: Checkpoint | RunFailed | BaseException | None = None

    def begin(self, step: int, tokens: int, state: State) -> None:
        """Copy the state and write the copy in the background. `finish` must have been called for the save before."""
        assert self._thread is None
        parts = checkpoint.stage(state, self.writes_plain)

        def write() -> None:
            try:
                self._result = checkpoint.save(self.folder, step, tokens, parts, self.recipe_fingerprint, self.group)
                if is_first():
                    checkpoint.retain(self.folder, self.keep, self.stays)
            except BaseException as error:  # it is raised where training notices, in `finish`
                self._result = error

        self._thread = threading.Thread(target=write, name="saver")
        self._thread.start()

    def finish(self) -> Checkpoint | None:
        """Wait for the save under way; what was saved, None if there was nothing to wait for.

        Raises:
            RunFailed: it failed; earlier checkpoints are intact.
        """
        if self._thread is None:
            return None
        self._thread.join()
        result, self._thread, self._result = self._result, None, None
        if isinstance(result, Checkpoint):
            return result
        assert isinstance(result, BaseException)
        raise result

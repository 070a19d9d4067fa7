"""What ends a run whose processes wait for one that does not come, and says which."""

from __future__ import annotations

import os
import sys
import threading
import time

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store


class Watchdog:
    """Every rank tells the others at each step that it lives. Where one has waited too long it names those that are behind, and ends.

    A rank that hangs in a collective cannot be woken; so the process ends without saving, and the run goes on from the last checkpoint.
    """

    def __init__(self, store: Store | None, patience_s: float) -> None:
        self.store, self.patience_s = store, patience_s
        self.beats, self.seen = 0, time.monotonic()
        if store is not None:
            threading.Thread(target=self._watch, daemon=True).start()

    def beat(self) -> None:
        """This rank finished a step."""
        self.beats, self.seen = self.beats + 1, time.monotonic()
        if self.store is not None:
            self.store.set(f"beat/{dist.get_rank()}", str(self.beats))

    def _watch(self) -> None:
        while time.monotonic() - self.seen < self.patience_s:
            time.sleep(min(1.0, self.patience_s / 10))
        assert self.store is not None
        beats = [int(self.store.get(f"beat/{rank}")) if self.store.check([f"beat/{rank}"]) else 0 for rank in range(dist.get_world_size())]
        behind = [str(rank) for rank, count in enumerate(beats) if count < max(beats)]
        who = f"rank {', '.join(behind)} did not arrive" if behind else "all ranks are at the same step"
        print(
            f"error[run.stuck]: no step for {self.patience_s:g} s after step {self.beats} of this start: {who}", file=sys.stderr, flush=True
        )
        os._exit(1)

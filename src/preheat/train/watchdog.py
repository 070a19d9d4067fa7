"""What ends a run whose processes wait for one that does not come, and says which."""

from __future__ import annotations

import os
import sys
import threading
import time

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from preheat.launch import LAUNCHER
from preheat.train.ranks import first_failure


class Watchdog:
    """Every rank tells the others when it did a step. Where one has waited too long it calls the roll, names who is missing, and ends.

    A rank that hangs in a collective cannot be woken; so the process ends without saving, and the run goes on from the last checkpoint.
    Every rank answers the roll from a thread of its own: one that is stopped or gone does not, one that computes for too long does, and is
    told by its steps.
    """

    def __init__(self, store: Store | None, patience_s: float) -> None:
        self.store, self.patience_s = store, patience_s
        self.tick_s = min(5.0, patience_s / 10)
        self.beats, self.seen = 0, time.monotonic()
        self.verdict = "rank 0, which keeps the store, did not answer"
        self.waits_for = ""
        """What this process does that is not a step and may take long."""
        if store is not None:
            self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
            threading.Thread(target=self._watch, daemon=True).start()
            threading.Thread(target=self._answer, args=(store,), daemon=True).start()

    def beat(self) -> None:
        """This rank finished a step."""
        self.beats, self.seen = self.beats + 1, time.monotonic()
        if self.store is not None:
            self.store.set(f"beat/{self.rank}", str(self.beats))

    def _watch(self) -> None:
        launcher = os.environ.get(LAUNCHER)
        while time.monotonic() - self.seen < self.patience_s:
            if launcher is not None and str(os.getppid()) != launcher:
                print("error: the process that started this one is gone", file=sys.stderr, flush=True)
                os._exit(1)
            time.sleep(self.tick_s)
        # A store that hangs with its host would hold this thread too.
        call = threading.Thread(target=self._call_roll, daemon=True)
        call.start()
        call.join(4 * self.tick_s + 1)
        if call.is_alive() or first_failure(1)[0]:
            after = f"after step {self.beats} of this start"
            print(f"error: no step for {self.patience_s:g} s {after}: {self.verdict} [run.stuck]", file=sys.stderr, flush=True)
        os._exit(1)

    def _answer(self, store: Store) -> None:
        try:
            while not store.check(["roll"]):
                time.sleep(self.tick_s)
            store.set(f"present/{self.rank}", "")
        except RuntimeError:
            return  # the store is gone, and with it the run

    def _call_roll(self) -> None:
        assert self.store is not None
        store = self.store
        store.set("roll", "")
        time.sleep(3 * self.tick_s)
        missing = [rank for rank in range(self.ranks) if not store.check([f"present/{rank}"])]
        beats = [int(store.get(f"beat/{rank}")) if store.check([f"beat/{rank}"]) else 0 for rank in range(self.ranks)]
        behind = [rank for rank, count in enumerate(beats) if count < max(beats)]
        names = ", ".join(map(str, missing or behind))
        self.verdict = f"rank {names} did not arrive" if names else self.waits_for or "all ranks are at the same step"

"""The processes of one run, started as torchrun would start them, so that all of them can be killed at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from preheat.launch import REQUEUE, shared_environment

GRACE_S = 5.0
"""How long the others may go on after one process failed."""


class Ranks:
    """`python -m preheat ...` in several processes on the CPU; whatever is left of them is killed at the end of the `with` block."""

    def __init__(self, arguments: Sequence[str | Path], processes: int, log: Path) -> None:
        """Start them; what rank R says goes to `log`-R.txt."""
        self.logs = [log.with_name(f"{log.name}-{rank}.txt") for rank in range(processes)]
        environment = shared_environment(processes) | {
            "OMP_NUM_THREADS": "1",  # a twin's matrices are too small to share
            "CUDA_VISIBLE_DEVICES": "",
        }
        self.stopping = False
        self.workers: list[subprocess.Popen[bytes]] = []
        for rank, file in enumerate(self.logs):
            own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            with file.open("w") as out:
                command = [sys.executable, "-m", "preheat", *map(str, arguments)]
                self.workers.append(
                    subprocess.Popen(command, env=own, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
                )

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def wait(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Until something is the case, or until all ended or one failed. True when it is the case."""
        while any(worker.poll() is None for worker in self.workers) and self.failed is None:
            if until():
                return True
            time.sleep(0.01)
        end = time.monotonic() + GRACE_S
        while any(worker.poll() is None for worker in self.workers) and time.monotonic() < end:
            time.sleep(0.01)
        return until()

    def stop(self) -> None:
        """Ask the first process to finish its step, save and end, and with it all. They do so with exit code `REQUEUE`."""
        self.stopping = True
        self.workers[0].send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End all at once, without a chance to save."""
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.wait()

    @property
    def failed(self) -> int | None:
        """The first process that ended with an error: neither complete nor stopped when asked to."""
        fine = (None, 0, REQUEUE) if self.stopping else (None, 0)
        return next((rank for rank, worker in enumerate(self.workers) if worker.poll() not in fine), None)

    def last_words(self, rank: int) -> str:
        """The end of what a process said."""
        return self.logs[rank].read_text(errors="replace").strip()[-2000:]

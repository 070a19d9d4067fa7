"""Several processes on this machine for one run: started, watched, and ended together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

GRACE_S = 30.0
"""How long processes may go on after one of them failed, before they are killed: those that wait for it cannot end by themselves."""


def start_workers(command: Sequence[str], processes: int) -> int:
    """Run a command in so many processes with the environment that torchrun would give them; returns the exit code.

    Rank 0 speaks; what others write to stderr is shown only of the one that failed first, before the end. Signals that ask to stop are
    passed on.
    """
    environment = os.environ | {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes))),
    }
    with tempfile.TemporaryDirectory(prefix="preheat-") as folder:
        errors = [Path(folder) / f"rank-{rank}.stderr" for rank in range(processes)]
        workers = []
        for rank, file in enumerate(errors):
            own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            with file.open("w") as stderr:
                quiet = {"stdout": subprocess.DEVNULL, "stderr": stderr} if rank else {}
                workers.append(subprocess.Popen(command, env=own, start_new_session=True, **quiet))  # type: ignore[call-overload]
        _pass_on_signals(workers)
        first = _wait(workers)
        if first is None:
            return 0
        if first > 0:
            sys.stderr.write(f"rank {first} failed first:\n{errors[first].read_text(errors='replace')}")
        code: int = workers[first].returncode
        return code if code > 0 else 1


def _wait(workers: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Until all ended: the rank that failed first, or None."""
    first, since = None, 0.0
    while any(worker.poll() is None for worker in workers):
        if first is None:
            failed = [rank for rank, worker in enumerate(workers) if worker.poll() not in (None, 0)]
            if failed:
                first, since = failed[0], time.monotonic()
        elif time.monotonic() - since > GRACE_S:
            for worker in workers:
                worker.kill()
        time.sleep(0.05)
    return next((rank for rank, worker in enumerate(workers) if worker.returncode), None) if first is None else first


def _pass_on_signals(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    def pass_on(number: int, _: FrameType | None) -> None:
        for worker in workers:
            worker.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, pass_on)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])

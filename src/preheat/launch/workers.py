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
from contextlib import ExitStack
from types import FrameType
from typing import IO

GRACE_S = 30.0
"""How long processes may go on after one of them failed, before they are killed: those that wait for it cannot end by themselves."""
REQUEUE = 75
"""The exit code of a run that was asked to stop or whose time was up: EX_TEMPFAIL of BSD's sysexits.h. The same command goes on with it."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Signals that ask a run to stop."""
LAUNCHER = "PREHEAT_LAUNCHER"
"""The environment variable by which a worker knows the process that started it."""


def start_workers(command: Sequence[str], processes: int) -> int:
    """Run a command in so many processes with the environment that torchrun would give them; returns the exit code.

    Rank 0 speaks; what others write to stderr is shown only of the one that failed first, as soon as it did. Signals that ask to stop are
    passed on.
    """
    environment = shared_environment(processes) | {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes))),
        LAUNCHER: str(os.getpid()),
    }
    with ExitStack() as files:
        errors = [files.enter_context(tempfile.TemporaryFile()) for _ in range(processes)]  # without a name: nothing is left of them
        workers: list[subprocess.Popen[bytes]] = []
        asked = _pass_on_signals(workers)
        for rank, stderr in enumerate(errors):
            own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            quiet = {"stdout": subprocess.DEVNULL, "stderr": stderr} if rank else {}
            workers.append(subprocess.Popen(command, env=own, start_new_session=True, **quiet))  # type: ignore[call-overload]
            for number in tuple(asked):  # while not all were there
                workers[-1].send_signal(number)
        return _wait(workers, errors)


def shared_environment(processes: int) -> dict[str, str]:
    """This process's environment with what torchrun tells all processes of one machine; each is then told its RANK and LOCAL_RANK."""
    return os.environ | {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }


def _wait(workers: Sequence[subprocess.Popen[bytes]], errors: Sequence[IO[bytes]]) -> int:
    """Until all ended: 0, or the exit code of the rank that failed first; `REQUEUE` where that was asked to stop."""
    first, since, code = None, 0.0, 0
    while True:
        codes = [worker.poll() for worker in workers]
        if first is None:
            first = next((rank for rank, code in enumerate(codes) if code), None)
            if first is not None:
                since, code = time.monotonic(), workers[first].returncode
                if code == REQUEUE or code < 0:  # others may wait for it to start
                    for worker in workers:
                        worker.send_signal(signal.SIGTERM)
                if not _was_asked(code):
                    sys.stderr.write(_last_words(first, code, errors[first]))
                    sys.stderr.flush()
        elif time.monotonic() - since > GRACE_S:
            for worker in workers:
                worker.kill()
        if None not in codes:
            if first is None:
                return 0
            return REQUEUE if _was_asked(code) else max(1, code)
        time.sleep(0.05)


def _was_asked(code: int) -> bool:
    """Whether a worker ended because it was asked to, if only because a signal came before it could listen."""
    return code == REQUEUE or -code in STOPPING


def _last_words(rank: int, code: int, errors: IO[bytes]) -> str:
    """What there is to say of a rank that ended; nothing of one that was asked to stop, or that has spoken for itself."""
    errors.seek(0)
    said = errors.read().decode(errors="replace")
    if code < 0:
        return f"error: rank {rank} was killed by signal {-code} ({signal.strsignal(-code)})\n{said}"
    return f"rank {rank} failed first:\n{said}" if said else ""


def _pass_on_signals(workers: Sequence[subprocess.Popen[bytes]]) -> set[int]:
    """What is asked of this process is asked of its workers; the result collects the signals that came."""
    asked: set[int] = set()

    def pass_on(number: int, _: FrameType | None) -> None:
        asked.add(number)
        for worker in workers:
            worker.send_signal(number)

    for number in STOPPING:
        signal.signal(number, pass_on)
    return asked


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])

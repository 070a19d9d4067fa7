"""Processes that run a function as the ranks of a process group.

Starting Python with torch takes seconds, so a server that has imported it all is started once and forks the ranks of each call, which takes
a tenth of one. They do not stay for the next call: PyTorch's tensors over ranks remember meshes in many caches, and would find groups of an
earlier call in them.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

PRELOAD = ["torch.distributed.pipelining", "torch._dynamo", "preheat.parallel"]


class RankFailed(AssertionError):
    """What the first rank to fail said, or who had not answered in time."""


class RankPool:
    """As many ranks as it takes; `folder` is where they find each other."""

    def __init__(self, folder: Path) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self._folder = folder
        self._calls = 0

    def run(self, ranks: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = 120) -> list[Any]:
        """What `function(*arguments)` returns on each rank. It and its arguments are pickled; one rank runs without a process group.

        Raises:
            RankFailed: a function raised or warned, a process died, or the time is over; whatever still runs is killed.
        """
        self._calls += 1
        processes, connections = [], []
        for rank in range(ranks):
            here, there = self._context.Pipe()
            call = (there, rank, ranks, str(self._folder / str(self._calls)), function, arguments)
            processes.append(self._context.Process(target=_work, args=call, daemon=True))
            processes[-1].start()
            there.close()
            connections.append(here)
        try:
            return _answers(processes, connections, time.monotonic() + timeout_s)
        finally:
            for process, connection in zip(processes, connections, strict=True):
                process.kill()
                process.join()
                process.close()
                connection.close()


def _answers(processes: list[Any], connections: list[Connection], until: float) -> list[Any]:
    waiting = dict(zip(connections, range(len(connections)), strict=True))
    answers: list[Any] = [None] * len(connections)
    while waiting:
        ready = wait(list(waiting), timeout=max(0.0, until - time.monotonic()))
        if not ready:
            raise RankFailed(f"ranks {sorted(waiting.values())} of {len(answers)} did not answer in time")
        for connection in ready:
            rank = waiting.pop(connection)  # type: ignore[call-overload]
            try:
                failure, answers[rank] = connection.recv()  # type: ignore[union-attr]
            except EOFError:
                processes[rank].join()
                failure = f"its process ended with exit code {processes[rank].exitcode}"
            if failure:
                raise RankFailed(f"rank {rank} of {len(answers)} failed first:\n{failure}")
    return answers


def _work(connection: Connection, rank: int, ranks: int, store: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """A rank's life. It waits to be killed: a process in which a DeviceMesh lives may abort when it ends by itself."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    failure, answer = "", None
    complaints = _Complaints()
    try:
        if ranks > 1:
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
        with warnings.catch_warnings(), complaints:
            warnings.simplefilter("error")
            answer = function(*arguments)
        if complaints.said:
            failure = "it logged warnings:\n" + "\n".join(complaints.said)
    except BaseException:
        failure = traceback.format_exc()
    connection.send((failure, answer))
    connection.poll(None)  # until it is killed, or who would kill it has died
    os._exit(0)


class _Complaints(logging.Handler):
    """Collects what is logged as a warning or worse while it is entered."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(f"{record.name}: {record.getMessage()}")

    def __enter__(self) -> None:
        for logger in self._tops():
            logger.addHandler(self)

    def __exit__(self, *_: object) -> None:
        for logger in self._tops():
            logger.removeHandler(self)

    @staticmethod
    def _tops() -> list[logging.Logger]:
        """The loggers that do not pass on to others: torch has several."""
        every = [logger for logger in logging.Logger.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
        return [logging.getLogger(), *(logger for logger in every if not logger.propagate)]

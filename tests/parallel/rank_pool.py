"""Worker processes that live as long as the test session, and run functions as the ranks of a process group.

Starting Python with torch takes seconds and a test a fraction of one, so the workers stay. Each call gets a process group of its own, so
that nothing is left of the call before. A rank that fails leaves the others waiting: then all are killed, and new ones start on demand.
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

PRELOAD = ["torch", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.distributed.pipelining", "torch._dynamo"]


class RankFailed(AssertionError):
    """What the first rank to fail said, or who had not answered in time."""


class RankPool:
    """Processes that can be the ranks of a group, as many as it takes; `folder` is where they find each other."""

    def __init__(self, folder: Path) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self._workers: list[tuple[Any, Connection]] = []
        self._folder = folder
        self._calls = 0

    def run(self, ranks: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = 120) -> list[Any]:
        """What `function(*arguments)` returns on each rank. It and its arguments are pickled; one rank runs without a process group.

        Raises:
            RankFailed: a function raised, a process died, or the time is over.
        """
        while len(self._workers) < ranks:
            self._start()
        self._calls += 1
        store = self._folder / str(self._calls)
        for rank, (_, connection) in enumerate(self._workers[:ranks]):
            connection.send((rank, ranks, str(store), function, arguments))
        try:
            return self._answers(ranks, time.monotonic() + timeout_s)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill all workers."""
        for process, connection in self._workers:
            process.kill()
            process.join()
            process.close()
            connection.close()
        self._workers.clear()

    def _start(self) -> None:
        here, there = self._context.Pipe()
        process = self._context.Process(target=_work, args=(there,), daemon=True)
        process.start()
        there.close()
        self._workers.append((process, here))

    def _answers(self, ranks: int, until: float) -> list[Any]:
        waiting = {connection: rank for rank, (_, connection) in enumerate(self._workers[:ranks])}
        answers: list[Any] = [None] * ranks
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, until - time.monotonic()))
            if not ready:
                raise RankFailed(f"ranks {sorted(waiting.values())} of {ranks} did not answer in time")
            for connection in ready:
                rank = waiting.pop(connection)  # type: ignore[call-overload]
                try:
                    failure, answers[rank] = connection.recv()  # type: ignore[union-attr]
                except EOFError:
                    process = self._workers[rank][0]
                    process.join()
                    failure = f"its process ended with exit code {process.exitcode}"
                if failure:
                    raise RankFailed(f"rank {rank} of {ranks} failed first:\n{failure}")
        return answers


def _work(connection: Connection) -> None:
    """A worker's life. It ends by being killed: a process in which a DeviceMesh lives may abort when it ends by itself."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    while True:
        try:
            rank, ranks, store, function, arguments = connection.recv()
        except EOFError:
            os._exit(0)
        failure, answer = "", None
        complaints = _Complaints()
        try:
            if ranks > 1:
                dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
            with warnings.catch_warnings(), complaints:
                warnings.simplefilter("error")
                answer = function(*arguments)
            if ranks > 1:
                dist.barrier()
                dist.destroy_process_group()
            if complaints.said:
                failure = "it logged warnings:\n" + "\n".join(complaints.said)
        except BaseException:
            failure = traceback.format_exc()
        connection.send((failure, answer))


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

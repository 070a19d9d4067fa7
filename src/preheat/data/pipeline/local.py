"""Tasks on the processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from preheat.data.pipeline.answers import raise_answer
from preheat.data.pipeline.plan import Plan
from preheat.data.pipeline.reading import READ
from preheat.data.pipeline.stages import BY_NAME
from preheat.data.pipeline.tasks import Context, perform
from preheat.errors import Problem, RunFailed

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1") | {"TOKENIZERS_PARALLELISM": "false"}
"""A process a core; libraries that start threads of their own would only get in each other's way."""


class InProcess:
    """One task after the other, in this process: for small data, where starting others takes longer than it saves."""

    description, at_once = "1 process", 1

    def run(self, context: Context, stage: str, numbers: Sequence[int]) -> Iterator[int]:
        """Do tasks of a stage; the number of each as it is done."""
        for number in numbers:
            perform(context, BY_NAME[stage], number)
            yield number

    def close(self) -> None:
        """Nothing is open."""


class Processes:
    """Several worker processes, which live until `close`."""

    def __init__(self, count: int) -> None:
        self.description = f"{count} process{'es' * (count != 1)}"
        self.at_once = count
        self._workers: list[subprocess.Popen[str]] = []
        self._idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        self._pool: ThreadPoolExecutor | None = None

    def run(self, context: Context, stage: str, numbers: Sequence[int]) -> Iterator[int]:
        """Do tasks of a stage; the number of each as it is done.

        Raises:
            RunFailed: a worker died, or a task failed.
            PreheatError: a task found something wrong with the input.
        """
        pool = self._pool or self._start(context.work)
        tasks: dict[Future[None], int] = {pool.submit(self._delegate, context, stage, number): number for number in numbers}
        try:
            for done in as_completed(tasks):
                done.result()
                yield tasks[done]
        finally:
            for task in tasks:
                task.cancel()

    def close(self) -> None:
        """End the workers, in the middle of a task if need be."""
        for worker in self._workers:
            assert worker.stdin is not None
            with suppress(OSError):
                worker.stdin.close()
        if self._pool:
            self._pool.shutdown()
        for worker in self._workers:
            worker.__exit__(None, None, None)

    def _start(self, work: Path) -> ThreadPoolExecutor:
        command = [sys.executable, "-m", "preheat.data.pipeline.worker", str(work)]
        environment = os.environ | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self._pool = ThreadPoolExecutor(self.at_once)
        for _ in range(self.at_once):
            worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, encoding="utf-8")
            self._workers.append(worker)
            self._idle.put(worker)
        return self._pool

    def _delegate(self, context: Context, stage: str, number: int) -> None:
        """Let an idle worker do a task."""
        worker = self._idle.get()
        try:
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(f"{stage} {number}\n")
            worker.stdin.flush()
            answer = worker.stdout.readline()
        except OSError:
            answer = ""
        finally:
            self._idle.put(worker)
        if not answer:
            got = f"the worker process that did the task {stage} {number} died{_death(worker)}{_read_by(context.plan, stage, number)}"
            fix = "Look for a lack of memory or take the damaged file out, and prepare again: what is done stays done"
            raise RunFailed(Problem("data.worker", got, "", fix))
        raise_answer(json.loads(answer))


def _death(worker: subprocess.Popen[str]) -> str:
    with suppress(subprocess.TimeoutExpired):
        code = worker.wait(5)
        return f" of {signal.Signals(-code).name}" if code < 0 else f" with exit code {code}"
    return ""


def _read_by(plan: Plan, stage: str, number: int) -> str:
    """Of which files a task of the first step reads."""
    if stage != READ.name:
        return ""
    first, *others = plan.shards[number].files
    return f"; it read {first.path}" + (f" and {len(others):,} other files, the last is {others[-1].path}" if others else "")

"""Tasks on a Ray cluster whose nodes see the same folder (extra `ray`)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import ray

from preheat.data.pipeline.answers import attempt, raise_answer
from preheat.data.pipeline.plan import FILE_NAME, Plan
from preheat.data.pipeline.tasks import Context
from preheat.errors import Problem, RunFailed

TRIES = 3
"""How often a task is started when its node or its process goes away; a task that fails by itself is not tried again."""


class RayCluster:
    """The cluster at `address`, as `ray.init` takes it; `auto` is the one that this process belongs to. A task takes one CPU."""

    def __init__(self, address: str = "auto") -> None:
        self._ours = not ray.is_initialized()
        if self._ours:
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
        self.at_once = int(ray.cluster_resources().get("CPU", 0))
        nodes = sum(node["Alive"] for node in ray.nodes())
        self.description = f"Ray, {self.at_once} CPUs on {nodes} nodes"

    def run(self, context: Context, stage: str, numbers: Sequence[int]) -> Iterator[int]:
        """Do tasks of a stage; the number of each as it is done.

        Raises:
            RunFailed: a task failed, or its process died again and again.
            PreheatError: a task found something wrong with the input.
        """
        work = str(context.work.absolute())
        written = (context.work / FILE_NAME).stat().st_mtime_ns
        waiting = {_perform.remote(work, written, sys.path, stage, number): number for number in numbers}
        while waiting:
            ready, _ = ray.wait(list(waiting))
            for reference in ready:
                number = waiting.pop(reference)
                try:
                    answer: dict[str, Any] = ray.get(reference)
                except ray.exceptions.RayError as error:
                    got = f"the task {stage} {number} was lost: {str(error).splitlines()[0]}"
                    raise RunFailed(Problem("data.worker", got, "", "Prepare again: what is done stays done")) from None
                raise_answer(answer)
                yield number

    def close(self) -> None:
        """Leave the cluster, if we joined it."""
        if self._ours:
            ray.shutdown()


@ray.remote(max_retries=TRIES, num_cpus=1)  # type: ignore[untyped-decorator, unused-ignore]
def _perform(work: str, written: int, path: list[str], stage: str, number: int) -> dict[str, Any]:
    sys.path[:] = path
    return attempt(_context(Path(work), written), stage, number)


@lru_cache(1)
def _context(work: Path, written: int) -> Context:
    """What tasks of the same preparation share in a process; the time at which its plan was written tells it from others."""
    return Context(work, Plan.load(work))

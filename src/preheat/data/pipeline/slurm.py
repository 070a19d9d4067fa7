"""A preparation as Slurm job arrays: one array a step, each waiting for the one before. The script is there to be read, then submitted."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from preheat.data.pipeline.stages import in_order
from preheat.data.pipeline.tasks import Context

ARRAY_LIMIT = 1000
"""Slurm's usual `MaxArraySize` is 1001: a step with more tasks gives several to each job of the array."""


def script(context: Context, finish: str, *, at_once: int, options: str) -> str:
    """A shell script that submits every step, and at the end `finish`: the command that puts the result together.

    `at_once` limits the jobs of a step that run at the same time; `options` are passed to every `sbatch`. All nodes must see the work
    folder. If a task fails, Slurm starts nothing that depends on it; submitted again, the script does only what is missing.
    """
    work = context.work.absolute()
    worker = shlex.join([sys.executable, "-m", "preheat.data.pipeline.worker", str(work)])
    lines = [
        "#!/bin/sh",
        "# Prepares data as a chain of Slurm job arrays. Submit it again after a failure: what is done stays done.",
        "set -eu",
        f"mkdir -p {shlex.quote(str(work / 'logs'))}",
        "after=",
    ]
    for stage in in_order(context.plan):
        count = stage.count(context.plan)
        if not count:
            continue
        jobs = min(count, ARRAY_LIMIT)
        # Job 0 does the tasks 0, jobs, 2 * jobs, ...: seq stops at the last one there is.
        tasks = f"{worker} {stage.name} $(seq $SLURM_ARRAY_TASK_ID {jobs} {count - 1})"
        array = f"--array=0-{jobs - 1}%{at_once}"
        lines.append(_submission(f"preheat-{stage.name}", [array, *shlex.split(options)], work / "logs" / f"{stage.name}-%a.txt", tasks))
    lines.append(_submission("preheat-finish", shlex.split(options), work / "logs" / "finish.txt", finish))
    lines.append('echo "submitted; the last job is ${after#--dependency=afterok:}"')
    return "\n".join(lines) + "\n"


def _submission(name: str, options: list[str], log: Path, command: str) -> str:
    fixed = ["sbatch", "--parsable", "--kill-on-invalid-dep=yes", f"--job-name={name}", f"--output={log}", *options]
    return f"after=--dependency=afterok:$({shlex.join(fixed)} $after --wrap={shlex.quote(command)})"

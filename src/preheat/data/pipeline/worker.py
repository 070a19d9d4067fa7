"""A process that does tasks: `python -m preheat.data.pipeline.worker WORK STAGE NUMBER...`, or those told on standard input.

There come lines of a stage and a number, and for each goes a line of JSON to standard output: `{}`, or what went wrong. Unlike the
processes of `multiprocessing`, it does not run the caller's script again, and it ends when its caller does, however that ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from preheat.data.pipeline.answers import attempt, raise_answer
from preheat.data.pipeline.plan import Plan
from preheat.data.pipeline.tasks import Context
from preheat.errors import PreheatError


def main() -> None:
    """Do the tasks that the arguments name, or those that come on standard input until it ends."""
    work = Path(sys.argv[1])
    context = Context(work, Plan.load(work))
    if len(sys.argv) > 2:
        try:
            for task in map(int, sys.argv[3:]):
                raise_answer(attempt(context, sys.argv[2], task))
        except PreheatError as error:
            sys.exit(f"error: {error}")
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The caller, interrupted by the same key, closes the pipe.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # A library that prints does not get between the answers.
    tasks: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(tasks,), daemon=True).start()
    while True:
        stage, number = tasks.get().split()
        answer = json.dumps(attempt(context, stage, int(number)))
        with suppress(BrokenPipeError):  # Whoever asked is gone, and so are we in a moment.
            answers.write(answer + "\n")


def _listen(tasks: SimpleQueue[str]) -> None:
    """Pass on what comes; when the caller is gone, so is the worker, in the middle of a task as well."""
    for line in sys.stdin:
        tasks.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()

"""A process that reads and cleans for another one: tasks come on its standard input, results go to its standard output, both pickled.

Unlike the processes of `multiprocessing`, it does not run the caller's script again, and it ends when its caller does, however that ended.
"""

from __future__ import annotations

import pickle
import signal
import sys

from preheat.data.gather import work


def main() -> None:
    """Work until there are no more tasks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The caller, interrupted by the same key, closes the pipe.
    tasks, results = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            task = pickle.load(tasks)
        except EOFError:
            return
        pickle.dump(work(task), results)
        results.flush()


if __name__ == "__main__":
    main()

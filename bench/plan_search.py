"""How long a search takes from the shell, and how much memory: `python bench/plan_search.py [ROUNDS] [SECONDS] [MEGABYTES]`.

Prints the fastest and the median of ROUNDS runs (default 3) of `preheat plan RECIPE --gpus ... --search --json` on one core, the largest
resident memory, and how many layouts were considered. Ends with code 1 where the 405B search takes more than SECONDS (default 2) at its
fastest or more than MEGABYTES (default 300), or loads torch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from statistics import median

SEARCHES = (("llama3.1-405b", "16384xH100"), ("llama3-70b", "64xH100"), ("mixtral-8x7b", "64xH100"), ("deepseek-v3", "2048xH800"))
WITHOUT_TORCH = "import sys; from preheat.cli import main; sys.argv[0] = 'preheat'\ntry: main()\nfinally: assert 'torch' not in sys.modules"


def measured(command: list[str]) -> tuple[float, float, bytes]:
    """Seconds of wall time, megabytes, and what it printed; of a process on one core."""
    reader, writer = os.pipe()
    begin = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        os.dup2(writer, 1)
        os.closerange(3, 64)
        os.execv(command[0], command)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        printed = stream.read()
    _, status, usage = os.wait4(pid, 0)
    seconds = time.perf_counter() - begin
    if os.waitstatus_to_exitcode(status):
        sys.exit(f"{' '.join(command)} ended with code {os.waitstatus_to_exitcode(status)}")
    return seconds, usage.ru_maxrss / 1024, printed


def main() -> None:
    """Measure, print, judge."""
    rounds, limit, megabytes = map(float, [*sys.argv[1:], *("3", "2", "300")[len(sys.argv) - 1 :]])
    print(f"{'recipe':16} {'cluster':12} {'fastest':>8} {'median':>8} {'MB':>6} {'layouts':>8}")
    over = False
    for name, gpus in SEARCHES:
        command = [sys.executable, "-c", WITHOUT_TORCH, "plan", name, "--gpus", gpus, "--search", "--json"]
        runs = [measured(command) for _ in range(int(rounds))]
        seconds, memory = sorted(run[0] for run in runs), max(run[1] for run in runs)
        considered = json.loads(runs[0][2])["considered"]
        print(f"{name:16} {gpus:12} {seconds[0]:7.2f}s {median(seconds):7.2f}s {memory:6.0f} {considered:8,}")
        over |= name == "llama3.1-405b" and (seconds[0] > limit or memory > megabytes)
    sys.exit(int(over))


if __name__ == "__main__":
    main()

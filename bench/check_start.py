"""How long `preheat check` takes from the shell, for every recipe of the catalog: `python bench/check_start.py [ROUNDS] [LIMIT]`.

Prints the fastest and the median of ROUNDS runs (default 5) in seconds of wall time, and the fastest as a multiple of a bare interpreter
and of `import pydantic`. Ends with code 1 when a fastest run is above LIMIT seconds (default 0.3) or loads torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import median

from preheat.recipe import catalog

WITHOUT_TORCH = "import sys; from preheat.cli import main; sys.argv[0] = 'preheat'\ntry: main()\nfinally: assert 'torch' not in sys.modules"


AS_INSTALLED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""With compiled modules, as an installation has them; without this setting the first run leaves them."""


def seconds(command: list[str], rounds: int) -> list[float]:
    """Wall time of each of `rounds` runs, after one that warms the file cache."""
    found = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, check=False, env=AS_INSTALLED)
        found.append(time.perf_counter() - start)
        if done.returncode:
            sys.exit(f"{' '.join(command)} ended with code {done.returncode}: {done.stderr.decode()}")
    return sorted(found[1:])


def main() -> None:
    """Measure, print, judge."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    limit = float(sys.argv[2]) if len(sys.argv) > 2 else 0.3
    python = [sys.executable, "-c"]
    bare, pydantic = (
        seconds([*python, code], rounds)[0] for code in ("pass", "from pydantic import BaseModel\nclass A(BaseModel): a: int")
    )
    print(f"bare interpreter {bare:.3f} s, a first pydantic model {pydantic:.3f} s\n")
    print(f"{'recipe':22} {'fastest':>8} {'median':>8} {'x bare':>7} {'x pydantic':>11}")
    slow = []
    for name in catalog():
        found = seconds([*python, WITHOUT_TORCH, "check", name], rounds)
        print(f"{name:22} {found[0]:8.3f} {median(found):8.3f} {found[0] / bare:7.1f} {found[0] / pydantic:11.2f}")
        if found[0] > limit:
            slow.append(name)
    if slow:
        sys.exit(f"above {limit:g} s: {', '.join(slow)}")


if __name__ == "__main__":
    main()

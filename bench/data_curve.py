"""Seconds, memory and disk of `preheat data prepare` over the size of the text, from 5 to 500 MB.

    python bench/data_curve.py [--mb 5 20 50 100 200 500] [--tiny 1000000] [--workers 2] [--policy reference] [--repeat 1]

The text is speeches, the factbook and code (of the policy `web` speeches alone, because it keeps little of the others); where these do not
suffice, their sentences are put together anew: enlarged text that is not a copy. One document in ten is there twice, slightly changed.
`--tiny` adds that many documents of about 60 characters: what is held for each document shows there. Everything runs: reading, cleaning,
near-duplicates, GPT-2's tokenizer, the files. Prints a row of the table in docs/data.md for each size:

- MB/s of text, of the fastest of `--repeat` runs; a straight line has the same in every row.
- the largest resident memory of a process, and of all processes together (shared pages count once for each), measured by the kernel as the
  peak of each process (VmHWM), and by sampling the whole.
- the most that lay on the disk at a time: the work folder and the result.

Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from near_duplicates import documents, with_copies

from preheat import recipe
from preheat.data import prepare

SYLLABLES = [a + b + c for a in "bcdfgst" for b in "aeiou" for c in ("", "n", "r", "l", "m")]
EVERY, DISK_EVERY = 0.05, 1.0
"""Seconds between two looks at the memory, and at the disk."""
MEBIBYTE = 1 << 20


def write(size: float, tiny: int, policy: str, path: Path) -> None:
    """Write text as JSON lines."""
    generator = random.Random(3)
    texts = (
        (" ".join(generator.choices(SYLLABLES, k=18)) for _ in range(tiny))
        if tiny
        else with_copies(documents(int(size * 1e6 / 1.1), prose=policy == "web"))
    )
    with path.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps({"text": text}) + "\n" for text in texts)


def prepared(source: Path, out: Path, workers: int, policy: str, tiny: bool) -> None:
    """Prepare what a folder holds."""
    spec = {"name": "all", "paths": ["*.jsonl"], "format": "jsonl", "policy": policy}
    if tiny:  # All of them stay.
        spec |= {"policy": "reference", "thresholds": {"length.min_characters": 1}}
    data = recipe.Data.model_validate({"source": [spec]})
    prepare(data, recipe.Tokenizer(kind="gpt2"), 50_304, folder=source, out=out, progress=lambda line: None, workers=workers)


class Watch:
    """The memory of a process and of those that it started, and the size of a folder, while it runs."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.largest, self.together, self.disk = 0, 0, 0
        looked = 0.0
        while process.poll() is None:
            peaks, now = zip(*_memory(process.pid), strict=True)
            self.largest, self.together = max(self.largest, *peaks), max(self.together, sum(now))
            if time.perf_counter() - looked > DISK_EVERY:
                self.disk, looked = max(self.disk, _size(folder)), time.perf_counter()
            time.sleep(EVERY)
        self.disk = max(self.disk, _size(folder))


def _memory(process: int) -> Iterator[tuple[int, int]]:
    """Bytes of the largest and of the present resident memory of a process and its descendants."""
    lines: list[str] = []
    with suppress(OSError):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    found = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines) if name in ("VmHWM", "VmRSS")}
    yield found.get("VmHWM", 0), found.get("VmRSS", 0)
    children: list[str] = []
    with suppress(OSError):
        children = [child for task in Path(f"/proc/{process}/task").iterdir() for child in (task / "children").read_text().split()]
    for child in children:
        yield from _memory(int(child))


def _size(folder: Path) -> int:
    """Bytes that the files of a folder take."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # Work comes and goes.
                total += 512 * os.stat(os.path.join(place, name)).st_blocks  # noqa: PTH116, PTH118
    return total


def row(options: argparse.Namespace, size: float, tiny: int) -> str:
    """Prepare one size in processes of their own, whose memory has nothing to do with ours. Its line of the table."""
    best, watched = float("inf"), []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        source.mkdir()
        command = [sys.executable, __file__, "--workers", str(options.workers), "--policy", options.policy, "--one", str(size), str(tiny)]
        subprocess.run([*command, str(source), ""], check=True)
        for turn in range(options.repeat):
            out = Path(folder) / f"runs-{turn}" / "out"
            out.parent.mkdir()
            start = time.perf_counter()
            process = subprocess.Popen([*command, str(source), str(out)])
            watched.append(Watch(process, out.parent))
            if process.returncode:
                sys.exit(f"the preparation of {size:g} MB failed")
            best = min(best, time.perf_counter() - start)
        funnel = json.loads((out / "manifest.json").read_text("utf-8"))["sources"][0]["funnel"]
    megabytes = funnel["bytes"] / 1e6
    peaks = [max(getattr(watch, name) for watch in watched) / MEBIBYTE for name in ("largest", "together", "disk")]
    cells = [f"{megabytes:.0f}", f"{funnel['documents']:,}", f"{funnel['kept']:,}", f"{best:.1f}", f"{megabytes / best:.1f}"]
    return " | ".join(["", *cells, *(f"{peak:.0f}" for peak in peaks), ""]).strip()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, nargs="*", default=[5, 20, 50, 100, 200, 500])
    parser.add_argument("--tiny", type=int, nargs="*", default=[1_000_000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--policy", default="reference", choices=["reference", "web"])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--one", nargs=4, metavar=("MB", "TINY", "SOURCE", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        size, tiny, source, out = options.one
        if out:
            prepared(Path(source), Path(out), options.workers, options.policy, bool(int(tiny)))
        else:
            write(float(size), int(tiny), options.policy, Path(source) / "0.jsonl")
        return
    head = ("MB", "documents", "kept", "seconds", "MB/s", "largest process, MiB", "all processes, MiB", "disk, MiB")
    print(f"| {' | '.join(head)} |\n|{'--:|' * len(head)}")
    for size, tiny in [*((size, 0) for size in options.mb), *((0.0, tiny) for tiny in options.tiny)]:
        print(row(options, size, tiny), flush=True)


if __name__ == "__main__":
    main()

"""Seconds and memory of `preheat data prepare` over the size of the text, from 5 to 500 MB.

    python bench/data_curve.py [--mb 5 10 20 50 100 200 500] [--workers 2]

Where the real documents (speeches, the factbook, code) do not suffice, their sentences are put together anew: enlarged text that is not a
copy. Everything runs: reading, cleaning, near-duplicates, GPT-2's tokenizer, the files. Prints a row for each size: seconds, MB/s, and the
largest memory of a process; a straight line has the same MB/s in every row.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from near_duplicates import documents

from preheat import recipe
from preheat.data import prepare


def prepared(source: Path, out: Path, workers: int) -> dict[str, float]:
    """Seconds and MiB that a preparation takes."""
    spec = {"name": "all", "paths": [str(source / "*.jsonl")], "format": "jsonl", "policy": "reference"}
    data = recipe.Data.model_validate({"source": [spec]})
    start = time.perf_counter()
    manifest = prepare(data, recipe.Tokenizer(kind="gpt2"), 50_304, folder=source, out=out, progress=lambda line: None, workers=workers)
    seconds = time.perf_counter() - start
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    tokens = sum(source.train.tokens + source.held_out.tokens for source in manifest.sources)
    return {"seconds": seconds, "mib": peak, "tokens": tokens}


def main() -> None:
    """Prepare each size in a process of its own, so that its peak is its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, nargs="+", default=[5, 10, 20, 50, 100, 200, 500])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--one", nargs=2, metavar=("SOURCE", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(prepared(Path(options.one[0]), Path(options.one[1]), options.workers)))
        return
    print(f"{'MB':>7}{'seconds':>10}{'MB/s':>8}{'MiB':>7}{'tokens':>14}")
    for size in options.mb:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "source"
            source.mkdir()
            texts = documents(int(size * 1e6))
            (source / "0.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
            real = sum(len(text.encode()) for text in texts) / 1e6
            del texts
            command = [sys.executable, __file__, "--workers", str(options.workers), "--one", str(source), str(Path(folder) / "out")]
            row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"{real:7.1f}{row['seconds']:10.1f}{real / row['seconds']:8.2f}{row['mib']:7.0f}{row['tokens']:14,}", flush=True)


if __name__ == "__main__":
    main()

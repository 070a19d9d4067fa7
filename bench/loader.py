"""The loader by itself: `python bench/loader.py [FOLDER]` needs 1 GB of disk in FOLDER for a while.

Tokens per second that one process reads, at several sequence lengths and for a rank that reads every 64th batch; the time to open 100
sources of 100B tokens (an index of 20 million documents each, the tokens in a sparse file) and to read a first batch at clock 0 and after
10T tokens; and the share of a step of toy-124m on this machine that reading its batch takes. Ends with code 1 when a bar is missed: 20M
tokens a second, 2 seconds, 2 %.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from statistics import median

import numpy as np
import torch

from preheat.data import IndexedDataset, SampleOrder, StageSamples
from preheat.data.indexed import CODES, MAGIC, VERSION, write
from preheat.model import build
from preheat.recipe import load

SOURCES, DOCUMENTS, DOCUMENT = 100, 20_000_000, 5_000
BARS = {"rate": 20e6, "resume": 2.0, "share": 0.02}


def seconds(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def rates(folder: Path) -> dict[str, float]:
    """Tokens per second over 400M tokens of documents of about a thousand tokens each."""
    random = np.random.default_rng(0)
    lengths = random.lognormal(6.5, 1, 250_000).astype(np.int64) + 1
    write(folder / "text", (np.zeros(length, np.int64) for length in lengths), np.dtype("<u2"))
    found = {}
    for length, apart in ((1024, 1), (8192, 1), (8192, 64), (131_072, 1)):
        order = SampleOrder({"text": IndexedDataset(folder / "text")}, [StageSamples({"text": Fraction(1)}, length, 10**9)], 0)
        size = max(1, 262_144 // length)
        begin, tokens, step = time.perf_counter(), 0, 0
        while time.perf_counter() < begin + 5:
            order.batch(0, step * size * apart, size)
            tokens += size * length
            step += 1
        found[f"{length:_} tokens a sample, one of {apart} ranks"] = tokens / (time.perf_counter() - begin)
    return found


def large_source(prefix: Path) -> None:
    """An index whose tokens, all zero, take no room on the disk."""
    with Path(f"{prefix}.idx").open("wb") as stream:
        stream.write(MAGIC + np.array(VERSION, "<u8").tobytes() + bytes([next(code for code, kind in CODES.items() if kind is np.uint16)]))
        stream.write(np.array([DOCUMENTS, DOCUMENTS + 1], "<u8").tobytes())
        np.full(DOCUMENTS, DOCUMENT, "<i4").tofile(stream)
        (np.arange(DOCUMENTS, dtype="<i8") * (2 * DOCUMENT)).tofile(stream)
        np.arange(DOCUMENTS + 1, dtype="<i8").tofile(stream)
    with Path(f"{prefix}.bin").open("wb") as stream:
        stream.truncate(2 * DOCUMENTS * DOCUMENT)


def resumes(folder: Path) -> dict[str, float]:
    """Seconds from nothing to the first batch of 4M tokens."""
    large_source(folder / "source")
    for number in range(SOURCES):
        for ending in ("bin", "idx"):
            os.link(folder / f"source.{ending}", folder / f"source{number}.{ending}")
    mix = {f"source{number}": Fraction(100 + number % 7, 10_000) for number in range(SOURCES)}

    def first_batch(sample: int) -> None:
        sources = {name: IndexedDataset(folder / name) for name in mix}
        SampleOrder(sources, [StageSamples(mix, 8192, 10**10)], 0).batch(0, sample, 512)

    clocks = {"clock 0": 0, "10T tokens": 10**13 // 8192}
    return {name: median(seconds(lambda sample=sample: first_batch(sample)) for _ in range(3)) for name, sample in clocks.items()}


def share(folder: Path) -> tuple[float, float]:
    """Seconds of a batch of toy-124m and of the step that it feeds, on 4 of its 512 samples."""
    recipe = load("toy-124m").recipe
    order = SampleOrder({"text": IndexedDataset(folder / "text")}, [StageSamples({"text": Fraction(1)}, 1024, 10**6)], 0)
    model = build(recipe.model, recipe.seed)
    inputs, labels = (torch.from_numpy(part) for part in order.batch(0, 0, 4))

    def step() -> None:
        model(inputs, labels).total.backward()

    step()
    read = median(seconds(lambda i=i: order.batch(0, 4 * i, 4)) for i in range(1, 50))
    return read, median(seconds(step) for _ in range(3))


def main() -> int:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        folder = Path(name)
        rate = rates(folder)
        for what, tokens in rate.items():
            print(f"{tokens / 1e6:8.1f}M tokens/s  {what}")
        resume = resumes(folder)
        for what, took in resume.items():
            print(f"{took:8.3f} s to the first batch of 4M tokens of {SOURCES} sources of 100B tokens, at {what}")
        read, step = share(folder)
        print(f"{read / step:8.3%} of a step of toy-124m ({read * 1e3:.2f} ms of {step:.2f} s on 4 samples)")
    kept = min(rate.values()) >= BARS["rate"] and max(resume.values()) <= BARS["resume"] and read / step <= BARS["share"]
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

"""The published quality filters here and in datatrove: speed on the same text with one process each, and whether the verdicts agree.

Needs preheat[data], `pip install datatrove spacy orjson`, and text: jsonl files with a field `text`, one document a line.

    python bench/filters_vs_datatrove.py FILE.jsonl... [--documents 5000] [--show 10]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from datatrove.data import Document
from datatrove.pipeline.filters import C4QualityFilter, FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter

from preheat.data.clean import POLICIES, Policy, apply

THEIRS = {
    "gopher": (GopherRepetitionFilter, GopherQualityFilter),
    "c4": (C4QualityFilter,),
    "fineweb": (FineWebQualityFilter,),
}


def main() -> None:
    """Print a table: a row a policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--show", type=int, default=0, help="documents of differing verdict to show")
    arguments = parser.parse_args()
    texts = [json.loads(line)["text"] for file in arguments.files for line in file.open(encoding="utf-8")]
    texts = random.Random(1).sample(texts, min(arguments.documents, len(texts)))
    size = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{len(texts):,} documents, {size:.1f} MB; seconds of processor time, one process each, first sight of every text")
    print(f"{'policy':8} {'kept here':>9} {'there':>6} {'agree':>7} {'MB/s here':>10} {'there':>6} {'ratio':>6}")
    totals = [0.0, 0.0]
    for name, filters in THEIRS.items():
        ours, here = _timed(lambda text, policy=POLICIES[name]: _here(text, policy), texts)
        theirs, there = _timed(_datatrove([kind() for kind in filters]), texts)
        totals = [totals[0] + here, totals[1] + there]
        agree = sum(bool(a) == bool(b) for a, b in zip(ours, theirs, strict=True)) / len(texts)
        _row(name, ours.count(""), theirs.count(""), agree, size, here, there)
        differing = Counter((a, b) for a, b in zip(ours, theirs, strict=True) if bool(a) != bool(b))
        for (a, b), count in differing.most_common(arguments.show):
            print(f"    {count:5}  here {a or 'kept'!r}, there {b or 'kept'!r}")
    print(f"all three: here {size / totals[0]:.1f} MB/s, there {size / totals[1]:.2f} MB/s, ratio {totals[1] / totals[0]:.1f}")


def _here(text: str, policy: Policy) -> str:
    dropped = apply(text, policy)[1]
    return dropped.reason if dropped else ""


def _row(name: str, kept: int, kept_there: int, agree: float, size: float, here: float, there: float) -> None:
    print(f"{name:8} {kept:9,} {kept_there:6,} {agree:7.2%} {size / here:10.1f} {size / there:6.2f} {there / here:6.1f}")


def _datatrove(filters: Sequence[object]) -> Callable[[str], str]:
    def verdict(text: str) -> str:
        document = Document(text=text, id="")
        for step in filters:
            outcome = step.filter(document)  # type: ignore[attr-defined]
            if outcome is not True:
                return outcome[1] if isinstance(outcome, tuple) else "dropped"
        return ""

    return verdict


def _timed(verdict: Callable[[str], str], texts: Sequence[str]) -> tuple[list[str], float]:
    verdict(texts[0])  # What is loaded at first use.
    start = time.process_time()
    verdicts = [verdict(text) for text in texts]
    return verdicts, time.process_time() - start


if __name__ == "__main__":
    main()

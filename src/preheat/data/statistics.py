"""What a look at prepared data should tell first: the funnel, lengths, how duplicates cluster, pairs to judge the threshold by, and which
paragraphs went most often."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from preheat.data.clean.cleaner import CONTAMINATION
from preheat.data.clean.contamination import SHARED
from preheat.data.dedup.signatures import caught
from preheat.data.manifest import Funnel, Manifest
from preheat.data.pipeline.paragraphs import EDIT
from preheat.data.prepare import DOCUMENTS, EXCLUSIONS
from preheat.data.shards import opened

QUANTILES = (0, 5, 25, 50, 75, 95, 100)
PAIRS = 5
"""Pairs of similar documents that are shown for each source: those nearest to the threshold."""
CURVE = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
PARAGRAPHS = 5
"""Different paragraphs that are shown for each source: those with the most places."""
_SIMILAR = re.compile(r"to (?P<kept>.*), Jaccard (?P<similarity>[\d.]+)", re.DOTALL)
_REPEATED = re.compile(r"paragraph \d+, (?P<words>[\d,]+) words, as (?P<kept>.*), (?P<places>[\d,]+) places in all", re.DOTALL)


@dataclass
class SourceStatistics:
    """One source. `lengths` are tokens of its training documents at `QUANTILES`, `clusters` size of a cluster -> how many there are."""

    funnel: Funnel
    tokens: int
    bytes_per_token: float
    lengths: list[int]
    clusters: dict[int, int] = field(default_factory=dict)
    pairs: list[dict[str, Any]] = field(default_factory=list)
    """Similar documents: `gone`, `kept`, `similarity`, and the beginning of the one that is gone."""
    tasks: dict[str, int] = field(default_factory=dict)
    """File of an evaluation task -> documents that went because they share most with it."""
    shared: list[dict[str, Any]] = field(default_factory=list)
    """Those that share most: `gone`, `task` with the line, `words` in a row, the `start` of these in the document, and their `text`."""
    paragraphs: int = 0
    """Places from which a repeated paragraph went."""
    paragraph_words: int = 0
    """The words of these."""
    frequent: list[dict[str, Any]] = field(default_factory=list)
    """The most frequent of them: `places`, the one that is `kept`, and the beginning."""


def statistics(folder: Path) -> dict[str, SourceStatistics]:
    """Source -> what there is to tell of it.

    Raises:
        PreheatError: the folder is no prepared data.
    """
    manifest = Manifest.load(folder)
    out = {}
    for source in manifest.sources:
        dataset = opened(folder, source.train)
        lengths = np.diff(dataset.starts_of_documents())
        quantiles = [int(value) for value in np.percentile(lengths, QUANTILES, method="nearest")] if len(lengths) else []
        tokens, size = source.train.tokens + source.held_out.tokens, source.train.bytes + source.held_out.bytes
        out[source.name] = SourceStatistics(source.funnel, tokens, size / max(tokens, 1), quantiles)
    families: dict[str, Counter[str]] = defaultdict(Counter)
    for row in _rows(folder / EXCLUSIONS):
        own = out[row["source"]]
        if row["step"] == "duplicate":
            families[row["source"]][row["detail"]] += 1
        elif row["step"] == "near-duplicate" and (match := _SIMILAR.fullmatch(row["detail"])):
            families[row["source"]][f"as {match['kept']}"] += 1
            pair = {"gone": row["id"], "kept": match["kept"], "similarity": float(match["similarity"]), "head": row["head"]}
            own.pairs = sorted([*own.pairs, pair], key=lambda pair: (pair["similarity"], pair["gone"]))[:PAIRS]
        elif row["step"] == CONTAMINATION and (match := SHARED.fullmatch(row["detail"])):
            own.tasks[match["file"]] = own.tasks.get(match["file"], 0) + 1
            place = {"gone": row["id"], "task": f"{match['file']}:{match['line']}"}
            found = place | {"words": int(match["size"]), "start": int(match["start"]), "text": match["words"]}
            own.shared = sorted([*own.shared, found], key=lambda found: (-found["words"], found["gone"]))[:PAIRS]
        elif (row["step"], row["reason"]) == ("edit", EDIT) and (match := _REPEATED.fullmatch(row["detail"])):
            own.paragraphs += 1
            own.paragraph_words += int(match["words"].replace(",", ""))
            found = {"places": int(match["places"].replace(",", "")), "kept": match["kept"], "head": row["head"]}
            if found not in own.frequent:
                own.frequent = sorted([*own.frequent, found], key=lambda found: (-found["places"], found["kept"]))[:PARAGRAPHS]
    for name, family in families.items():
        out[name].clusters = dict(sorted(Counter(count + 1 for count in family.values()).items()))
    return out


def s_curve() -> dict[float, float]:
    """Jaccard similarity -> the probability that MinHash proposes such a pair for comparison."""
    return {similarity: round(caught(similarity), 4) for similarity in CURVE}


def excluded(folder: Path, step: str | None) -> Iterator[dict[str, Any]]:
    """The records of documents that went, or that an edit changed; of one step, or of all."""
    return (row for row in _rows(folder / EXCLUSIONS) if step in (None, row["step"]))


def labels(folder: Path, source: str, split: str) -> list[str]:
    """The labels of the documents of a side of a source, in their order."""
    return [row["id"] for row in _rows(folder / DOCUMENTS) if (row["source"], row["split"]) == (source, split)]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as stream:
        yield from map(json.loads, stream)

"""Prepared data held against its manifest and against itself: every byte of it is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from preheat.data.manifest import Manifest, PreparedSource, Split
from preheat.data.shards import opened
from preheat.errors import PreheatError, Problem, Where

DAMAGED = "data.damaged"
CHUNK = 1 << 24
"""Tokens looked at together."""


def verify(folder: Path) -> list[Problem]:
    """What is wrong with prepared data: changed files, an index that contradicts itself, ids outside of the vocabulary, counts that differ.

    Raises:
        PreheatError: the folder is no prepared data.
    """
    try:
        manifest = Manifest.load(folder)
    except PreheatError as error:
        if error.problems[0].rule != DAMAGED:
            raise
        return list(error.problems)  # A file is missing or cut off: there is no need to read the others.
    found = manifest.damage(folder)
    for source in manifest.sources:
        for side in (source.train, source.held_out):
            try:
                found += _side(folder, manifest, source, side)
            except PreheatError as error:
                found += error.problems
    return found


def _side(folder: Path, manifest: Manifest, source: PreparedSource, side: Split) -> list[Problem]:
    dataset = opened(folder, side)
    dataset.verify()
    where = Where(str(folder / f"{side.prefix}.bin"))
    starts, bos = dataset.starts_of_documents(), manifest.tokenizer.bos
    ends, last, begun, highest = 0, 0, 0, -1
    for begin in range(0, dataset.token_count, CHUNK):
        ids = dataset.tokens(begin, begin + CHUNK)
        ends += int((ids == manifest.tokenizer.eod).sum())
        last += int((ids[_inside(starts[1:] - 1, begin, len(ids))] == manifest.tokenizer.eod).sum())
        begun += int((ids[_inside(starts[:-1], begin, len(ids))] == bos).sum())
        highest = max(highest, int(ids.max()))
    checks = [
        (len(dataset), side.documents, "documents", "the manifest says"),
        (dataset.token_count, side.tokens, "tokens", "the manifest says"),
        (ends, len(dataset), f"tokens that end a document ({manifest.tokenizer.eod})", "the number of documents is"),
        (last, len(dataset), "documents that end with that token", "the number of documents is"),
    ]
    if bos is not None:
        checks.append((begun, len(dataset), f"documents that begin with the token {bos}", "the number of documents is"))
    fix = "Prepare again, into a new folder"
    out = [Problem("data.count", f"{got:_} {what}", f"{said} {want:_}", fix, where) for got, want, what, said in checks if got != want]
    if highest >= manifest.tokenizer.vocab_size:
        want = f"the tokenizer of {source.name} has {manifest.tokenizer.vocab_size:_} entries"
        out.append(Problem("data.ids", f"the highest token id is {highest:_}", want, fix, where))
    return out


def _inside(places: npt.NDArray[np.int64], begin: int, length: int) -> npt.NDArray[np.int64]:
    """Those of the ascending places that are among `length` ones from `begin` on, counted from there."""
    first, last = np.searchsorted(places, [begin, begin + length])
    out: npt.NDArray[np.int64] = places[first:last] - begin
    return out

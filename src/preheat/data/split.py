"""Which documents are held out: decided by a hash of the text, so that a document stays on its side when the data grows."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt

from preheat.errors import refuse
from preheat.units import Quantity


def position(key: bytes) -> int:
    """Where a document stands in [0, 2^64), given the key of its text: bits that are independent of those by which other steps order."""
    return int.from_bytes(hashlib.sha256(b"held-out " + key).digest()[:8], "big")


def held_out(source: str, positions: npt.NDArray[np.uint64], share: Quantity) -> npt.NDArray[np.bool_]:
    """Which documents of a source are held out, given the position of each.

    A document is held out if its position, as a part of 2^64, lies below the share. A small source may have none below it; then the one
    nearest to it, the lowest, is taken: it is the one that is held out first at any larger share, too. In the same way the highest stays
    for training.

    Raises:
        PreheatError: the source has too few documents to have one on each side.
    """
    out = np.zeros(len(positions), bool)
    if share.amount == 0:
        return out
    if share.amount == 1 or len(positions) < 2:
        refuse(
            "data.held-out",
            f"source {source} has {len(positions)} document{'s' * (len(positions) != 1)}, {share} held out"
            if share.amount < 1
            else f"{share} held out",
            "one document at least must be held out and one trained on",
            "Split the text into several documents, or set data.held_out to 0%",
            key="data.held_out",
        )
    below = int((positions < np.uint64(min(math.ceil(share.amount * 2**64), 2**64 - 1))).sum())
    out[np.argsort(positions, kind="stable")[: min(max(below, 1), len(positions) - 1)]] = True
    return out

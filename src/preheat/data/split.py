"""Which documents are held out: decided by a hash of the text, so that a document stays on its side when the data grows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from preheat.errors import refuse
from preheat.units import Quantity


def held_out(source: str, keys: Sequence[bytes], share: Quantity) -> set[int]:
    """Numbers of the held-out documents of a source, given the key of each document's text.

    A document is held out if its position, a number in [0, 1) taken from the key, lies below the share. A small source may have none below
    it; then the one nearest to it, the lowest, is taken: it is the one that is held out first at any larger share, too. In the
    same way the highest stays for training.

    Raises:
        PreheatError: the source has too few documents to have one on each side.
    """
    if share.amount == 0:
        return set()
    if share.amount == 1 or len(keys) < 2:
        refuse(
            "data.held-out",
            f"source {source} has {len(keys)} document{'s' * (len(keys) != 1)}, {share} held out"
            if share.amount < 1
            else f"{share} held out",
            "one document at least must be held out and one trained on",
            "Split the text into several documents, or set data.held_out to 0%",
            key="data.held_out",
        )
    order = sorted(range(len(keys)), key=lambda number: _position(keys[number]))
    below = sum(_position(number) < share.amount * 2**64 for number in keys)
    return set(order[: min(max(below, 1), len(keys) - 1)])


def _position(key: bytes) -> int:
    """64 bits that are independent of those by which other steps order documents."""
    return int.from_bytes(hashlib.sha256(b"held-out " + key).digest()[:8], "big")

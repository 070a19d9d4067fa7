"""Documents with the same text: of each set of them the best one stays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def exact_duplicates(keys: npt.NDArray[np.uint64], ranks: tuple[npt.NDArray[np.integer], ...]) -> npt.NDArray[np.int64]:
    """For each document the number of the one that stays for it, or -1 if it stays itself.

    `keys` has shape (documents, 4): SHA-256 hashes. Of equal keys the one with the lowest rank stays; `ranks` are compared in their order,
    and where they are all equal, the lowest number stays.
    """
    stays_for = np.full(len(keys), -1, np.int64)
    order = np.argsort(keys[:, 0], kind="stable")
    # Only documents that share the first 64 bits with another one are looked at closer.
    first = keys[order, 0]
    same = np.zeros(len(order) + 1, bool)
    same[1:-1] = first[1:] == first[:-1]
    several = np.sort(order[same[1:] | same[:-1]])
    own = keys[several]
    order = np.lexsort((several, *(rank[several] for rank in reversed(ranks)), *own.T[::-1]))
    sorted_keys, several = own[order], several[order]
    fresh = np.ones(len(several), bool)
    fresh[1:] = (sorted_keys[1:] != sorted_keys[:-1]).any(axis=1)
    best = several[np.flatnonzero(fresh)[np.cumsum(fresh) - 1]] if len(several) else several
    stays_for[several[~fresh]] = best[~fresh]
    return stays_for

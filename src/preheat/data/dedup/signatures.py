"""What is known of a document without its text: the hash by which it equals another one, and its MinHash bands.

MinHash (Broder 1997) over word 5-grams by rensa's RMinHash: 256 permutations in 64 bands of 4 rows. Two documents whose 5-gram sets have
the Jaccard similarity s share a band with the probability 1 - (1 - s^4)^64: 0.984 at 0.5, 0.99999 at 0.63, where one word in twenty was
changed, and 0.41 at 0.3, which the exact similarity of the pair then turns down. (With 32 bands 1.2 % of such copies met no original.)
"""

from __future__ import annotations

import hashlib
import unicodedata
from array import array

import numpy as np
from rensa import RMinHash

from preheat.data.dedup.grams import SHINGLE, Hashes, Shingles

PERMUTATIONS, BANDS, ROWS, SEED = 256, 64, 4, 1
SIGNATURE = (PERMUTATIONS, BANDS, ROWS, SEED, SHINGLE)
"""What bands depend on besides the text."""
AT_ONCE = 1024
"""Documents whose signatures are in memory together: 256 Python numbers each."""


def key(text: str) -> bytes:
    """The hash by which two documents are the same: of the text in NFC and lower case, with one space between words."""
    return hashlib.sha256(" ".join(unicodedata.normalize("NFC", text).casefold().split()).encode()).digest()


def bands(documents: Shingles) -> Hashes:
    """The hash of each band of each document, shape (64, documents); two documents are candidates if a band is equal."""
    out = np.zeros((BANDS, len(documents)), np.uint64)
    for first in range(0, len(documents), AT_ONCE):
        own = slice(first, first + AT_ONCE)
        offsets = documents.offsets[first : first + AT_ONCE + 1]
        hashes = documents.hashes[offsets[0] : offsets[-1]]
        matrix = RMinHash.digest_matrix_from_flat_token_hashes(hashes, (offsets - offsets[0]).astype(np.uint64), PERMUTATIONS, SEED)
        # The library gives lists of numbers of 32 bits, which an array takes faster than NumPy does.
        flat = np.frombuffer(b"".join(array("I", row).tobytes() for row in matrix.to_rows()), np.uint32)
        digest = flat.reshape(-1, BANDS, ROWS)
        for row in range(ROWS):
            out[:, own] = (out[:, own] ^ digest[:, :, row].T) * np.uint64(0x9E3779B97F4A7C15)
            out[:, own] ^= out[:, own] >> np.uint64(32)
    return out


def caught(similarity: float) -> float:
    """The probability that two documents of this Jaccard similarity become candidates."""
    return float(1 - (1 - similarity**ROWS) ** BANDS)

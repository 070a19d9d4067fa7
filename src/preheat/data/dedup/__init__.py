"""Exact and near duplicates over all sources. The result does not depend on the order in which documents come, nor on how work is divided."""

from preheat.data.dedup.exact import exact_duplicates
from preheat.data.dedup.near import Match, equal_bands, groups, near_duplicates
from preheat.data.dedup.shingles import shingles
from preheat.data.dedup.signatures import bands, caught, key

__all__ = ["Match", "bands", "caught", "equal_bands", "exact_duplicates", "groups", "key", "near_duplicates", "shingles"]

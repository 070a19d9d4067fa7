"""Exact and near duplicates over all sources. The result depends neither on the order of documents nor on how the work is divided."""

from preheat.data.dedup.exact import exact_duplicates
from preheat.data.dedup.grams import shingles
from preheat.data.dedup.near import Match, equal_bands, groups, near_duplicates
from preheat.data.dedup.signatures import SIGNATURE, bands, caught, key

__all__ = ["SIGNATURE", "Match", "bands", "caught", "equal_bands", "exact_duplicates", "groups", "key", "near_duplicates", "shingles"]

"""Cleaning: what is put right in a document, and for which reason one is left out."""

from preheat.data.clean.cleaner import STEP_NAMES, Cleaned, Cleaner, apply
from preheat.data.clean.contamination import Benchmarks
from preheat.data.clean.edits import unwrapped, without_licence
from preheat.data.clean.policy import POLICIES, Policy

__all__ = ["POLICIES", "STEP_NAMES", "Benchmarks", "Cleaned", "Cleaner", "Policy", "apply", "unwrapped", "without_licence"]

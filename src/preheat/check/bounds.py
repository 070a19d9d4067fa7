"""The rule that comes before all others: sizes that no run has, so that the others need not count to them."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from preheat.check.registry import Finding, rule
from preheat.check.subject import Subject
from preheat.units import Quantity

LIMITS = {
    "layers": 2_000,
    "hidden": 1_000_000,
    "heads": 100_000,
    "kv_heads": 100_000,
    "head_dim": 100_000,
    "qk_rope_head_dim": 100_000,
    "count": 100_000,
    "pipeline": 256,
    "virtual_pipeline": 64,
    "global_size": 10**9,
    "micro_size": 10**9,
    "stage": 200,
    "ramp": 2_000,
    "pipeline_layers": 2_000,
    "ignore": 500,
    "source": 5_000,
    "segment": 1_000,
    "loss_weight": 1_000,
    "bias_update_rate": 1_000,
    "seq_len": 10**9,
}
"""Last part of a key -> the largest number, or the longest list, that is taken seriously: some ten times what has been published."""
LARGEST = 10**18
"""For every other number."""
SMALLEST = 1e-30
"""For every number that is not zero."""


@rule("run.bounds")
def bounds(subject: Subject) -> Iterator[Finding]:
    """No number is beyond all measure. When one is, nothing else is judged.

    Example: layers = 1_000_000_000_000; a length of 9 x 10^20 tokens; a rope_theta of 1e300.
    Source: preheat; the deepest published model has 1,000 layers (arXiv 2203.00555), the longest pipeline 64 ranks (arXiv 2104.04473).
    """
    for key, size in _sizes(subject.recipe, ""):
        limit = LIMITS.get(key.rpartition(".")[2], LARGEST)
        if size > limit:
            yield Finding(key, f"{key} is {size:_}" if size < 10**30 else f"{key} is {float(size):g}", f"at most {limit:_}", "Check it")
        elif 0 < size < SMALLEST:
            yield Finding(key, f"{key} is {size:g}", f"at least {SMALLEST:g}", "Check it")


def _sizes(value: object, key: str) -> Iterator[tuple[str, int | float]]:
    """Every number, quantity and length of a list, with its dotted key."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _sizes(getattr(value, name), f"{key}.{name}" if key else name)
    elif isinstance(value, tuple):
        yield key, len(value)
        for index, entry in enumerate(value):
            yield from _sizes(entry, f"{key}.{index}")
    elif isinstance(value, Quantity):
        yield key, int(value.amount)
    elif isinstance(value, int | float):
        yield key, value

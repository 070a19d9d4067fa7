"""The older way to describe a batch ramp, read as thresholds."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from preheat.recipe import Ramp
from preheat.units import Quantity


def linear_ramp(start: int, increment: int, samples: int, full: int) -> tuple[Ramp, ...]:
    """Thresholds of Megatron-LM's `--rampup-batch-size START INCREMENT SAMPLES` with `--global-batch-size FULL`.

    The (FULL - START) / INCREMENT increments are spread evenly over the first SAMPLES samples: the k-th size begins at
    k * SAMPLES / increments. Megatron-LM ignores the option since core 0.18. Example: 384, 384, 97,656,250 to 1,152 is 384 samples
    until 48,828,125, then 768 until 97,656,250, then 1,152.

    Raises:
        ValueError: START is above FULL, or the way between is no whole number of increments.
    """
    if min(start, increment, samples, full) < 1:
        raise ValueError(f"a ramp of {start} {increment} {samples} to {full}: all four are at least 1")
    if full < start or (full - start) % increment:
        raise ValueError(f"from {start} to {full} is no whole number of increments of {increment}")
    steps = (full - start) // increment
    thresholds = [ceil(Fraction(step * samples, steps)) for step in range(1, steps + 1)]
    sizes = range(start + increment, full + 1, increment)
    first = Ramp(at=Quantity(Fraction(0), "samples"), size=start)
    return first, *(Ramp(at=Quantity(Fraction(at), "samples"), size=size) for at, size in zip(thresholds, sizes, strict=True))

"""What each stage takes from each source, before anything is trained: samples, tokens, and how often the source has been read by then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from preheat.data.blend import Blend
from preheat.data.order import StageSamples


@dataclass(frozen=True)
class Share:
    """What a stage takes from a source. `weight` is its share of the stage's samples, whatever the size of the source."""

    source: str
    weight: float
    samples: int
    tokens: int
    epochs: float
    """Of the source, in this stage alone."""
    epochs_so_far: float
    """Of the source, at the end of the stage."""

    @property
    def warning(self) -> str:
        """What is wrong with it, or nothing."""
        if not self.samples:
            return "gives no sample"
        return f"is read {self.epochs_so_far:.2f} times by then" if self.epochs_so_far > 1 else ""


def mixture(stages: Sequence[StageSamples], tokens: Mapping[str, int]) -> list[list[Share]]:
    """For each stage what it takes from its sources, whose training tokens `tokens` counts.

    Raises:
        PreheatError: the weights of a stage have no common denominator of a usable size.
    """
    taken = dict.fromkeys(tokens, 0)
    out = []
    for stage in stages:
        blend, whole, shares = Blend(stage.mix), sum(stage.mix.values()), []
        for number, name in enumerate(blend.names):
            samples = blend.count(stage.samples, number)
            own = samples * stage.seq_len
            taken[name] += own
            size = max(tokens[name], 1)
            shares.append(Share(name, float(stage.mix[name] / whole), samples, own, own / size, taken[name] / size))
        out.append(shares)
    return out

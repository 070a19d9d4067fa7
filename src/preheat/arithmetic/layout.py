"""How ranks are split: the dense mesh pp x dp x cp x tp and the expert mesh pp x edp x ep x etp over the same ranks."""

from __future__ import annotations

from dataclasses import dataclass

from preheat.recipe import Parallel


@dataclass(frozen=True)
class Layout:
    """Sizes of both meshes for a number of ranks."""

    ranks: int
    dense_dp: int
    """Data-parallel replicas of the dense layers: ranks / (tensor * pipeline * context)."""
    expert_dp: int
    """Data-parallel replicas of the experts: ranks / (expert_tensor * expert * pipeline)."""


def smallest_world(parallel: Parallel) -> int:
    """The fewest ranks that hold the layout once."""
    return parallel.tensor * parallel.pipeline * parallel.context


def layout(parallel: Parallel, ranks: int) -> Layout:
    """Both meshes over `ranks` ranks.

    Raises:
        ValueError: a mesh does not divide the ranks; the message names the numbers.
    """
    dense, expert = smallest_world(parallel), parallel.expert_tensor * parallel.expert * parallel.pipeline
    if ranks % dense:
        raise ValueError(
            f"{ranks} ranks are not divisible by tensor {parallel.tensor} x pipeline {parallel.pipeline} x context {parallel.context} = {dense}"
        )
    if ranks % expert:
        raise ValueError(
            f"{ranks} ranks are not divisible by expert_tensor {parallel.expert_tensor} x expert {parallel.expert} "
            f"x pipeline {parallel.pipeline} = {expert}"
        )
    return Layout(ranks, ranks // dense, ranks // expert)

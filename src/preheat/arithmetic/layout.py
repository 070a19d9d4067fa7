"""How ranks are split: the dense mesh pp x dp x cp x tp and the expert mesh pp x edp x ep x etp over the same ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

from preheat.recipe import Parallel, Stage


@dataclass(frozen=True)
class Layout:
    """Sizes of both meshes for a number of ranks."""

    ranks: int
    dense_dp: int
    """Data-parallel replicas of the dense layers: ranks / (tensor * pipeline * context)."""
    expert_dp: int
    """Data-parallel replicas of the experts: ranks / (expert_tensor * expert * pipeline)."""


@dataclass(frozen=True)
class Mesh:
    """Ranks as a grid; neighbours along the first axis have consecutive numbers."""

    axes: dict[str, int]
    """Name -> size, fastest first."""

    @property
    def ranks(self) -> int:
        return math.prod(self.axes.values())

    def groups(self, *along: str) -> list[list[int]]:
        """The groups of ranks that differ only along these axes, each in rising order, ordered by their first rank."""
        strides, stride = {}, 1
        for name, size in self.axes.items():
            strides[name] = stride
            stride *= size

        def offsets(names: list[str]) -> list[int]:
            spans = [[place * strides[name] for place in range(self.axes[name])] for name in names]
            return sorted(sum(places) for places in product(*spans))

        inside = offsets([name for name in self.axes if name in along])
        return [[start + offset for offset in inside] for start in offsets([name for name in self.axes if name not in along])]


def smallest_world(parallel: Parallel) -> int:
    """The fewest ranks over which both meshes can be laid."""
    return math.lcm(_dense(parallel), _expert(parallel))


def stage_parallel(parallel: Parallel, stage: Stage) -> Parallel:
    """The layout while a stage runs: its own context-parallel size where it has one."""
    return parallel if stage.context is None else parallel.model_copy(update={"context": stage.context})


def layout(parallel: Parallel, ranks: int) -> Layout:
    """Both meshes over `ranks` ranks.

    Raises:
        ValueError: a mesh does not divide the ranks; the message names the numbers.
    """
    dense, expert = _dense(parallel), _expert(parallel)
    if ranks % dense:
        raise ValueError(
            f"{ranks} ranks are not divisible by tensor {parallel.tensor} x pipeline {parallel.pipeline} "
            f"x context {parallel.context} = {dense}"
        )
    if ranks % expert:
        raise ValueError(
            f"{ranks} ranks are not divisible by expert_tensor {parallel.expert_tensor} x expert {parallel.expert} "
            f"x pipeline {parallel.pipeline} = {expert}"
        )
    return Layout(ranks, ranks // dense, ranks // expert)


def meshes(parallel: Parallel, ranks: int) -> tuple[Mesh, Mesh]:
    """The dense and the expert mesh in Megatron-LM's order: tensor ranks next to each other, pipeline ranks farthest apart.

    Raises:
        ValueError: as `layout`.
    """
    sizes = layout(parallel, ranks)
    dense = {"tensor": parallel.tensor, "context": parallel.context, "data": sizes.dense_dp, "pipeline": parallel.pipeline}
    expert = {"expert_tensor": parallel.expert_tensor, "expert": parallel.expert, "data": sizes.expert_dp, "pipeline": parallel.pipeline}
    return Mesh(dense), Mesh(expert)


def _dense(parallel: Parallel) -> int:
    return parallel.tensor * parallel.pipeline * parallel.context


def _expert(parallel: Parallel) -> int:
    return parallel.expert_tensor * parallel.expert * parallel.pipeline

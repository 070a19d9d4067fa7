"""Which axes of a layout are split in its twin: as many as the processes at hand allow, the more intricate ones first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import product

from preheat.arithmetic import layout
from preheat.recipe import Recipe


@dataclass(frozen=True)
class Axes:
    """Sizes of the axes of both meshes, in the order in which they are kept when there are too few processes for all.

    Replicas come last: what they do, adding up gradients, context-parallel ranks do too.
    """

    pipeline: int
    tensor: int
    expert: int
    context: int
    expert_tensor: int
    data: int
    """Replicas of the dense layers."""
    expert_data: int
    """Replicas of the experts."""
    replicate: int
    """Groups of replicas that each hold everything."""

    @property
    def ranks(self) -> int:
        return self.pipeline * self.tensor * self.context * self.data

    @property
    def split(self) -> tuple[str, ...]:
        """The axes that are larger than 1."""
        return tuple(name for name, size in asdict(self).items() if size > 1)


def real_axes(recipe: Recipe, ranks: int) -> Axes:
    """The axes of a recipe's own layout on `ranks` GPUs, with the largest context-parallel size of its stages.

    Raises:
        ValueError: the layout does not divide the ranks.
    """
    parallel, sizes = recipe.parallel, layout(recipe.parallel, ranks)
    return Axes(
        pipeline=parallel.pipeline,
        tensor=parallel.tensor,
        expert=parallel.expert,
        context=max([parallel.context, *(stage.context or 1 for stage in recipe.stage)]),
        expert_tensor=parallel.expert_tensor,
        data=sizes.dense_dp,
        expert_data=sizes.expert_dp if recipe.model.experts is not None else 1,
        replicate=parallel.replicate,
    )


def shrunken(real: Axes, processes: int) -> Axes:
    """The twin's layout on at most `processes` ranks: of all that fit the one that splits the most important axes, then the smallest."""
    names = [field.name for field in fields(Axes)]

    def worth(axes: Axes) -> tuple[list[bool], int]:
        return [name in axes.split for name in names], -axes.ranks

    return max((axes for axes in _possible(real) if axes.ranks <= processes), key=worth)


def other_layout(axes: Axes) -> Axes:
    """Where a run goes on after a loss of nodes: half the ranks, or two replicas where there was one process."""
    if axes.ranks == 1:
        return replace(axes, data=2)
    for name in ("pipeline", "data", "tensor", "context"):
        size = getattr(axes, name)
        if size > 1:
            smaller = _with_experts(replace(axes, **{name: size // 2}, replicate=1))
            if smaller is not None:
                return smaller
    return Axes(*[1] * len(fields(Axes)))


def _with_experts(axes: Axes) -> Axes | None:
    """With the number of expert replicas that follows from the rest; None where the experts do not fit on the ranks."""
    each, rest = divmod(axes.tensor * axes.context * axes.data, axes.expert * axes.expert_tensor)
    return None if rest else replace(axes, expert_data=each)


def _possible(real: Axes) -> Iterator[Axes]:
    def sizes(name: str) -> tuple[int, ...]:
        return (1,) if getattr(real, name) == 1 else (1, 2, 4) if name == "data" else (1, 2)

    names = [field.name for field in fields(Axes) if field.name != "expert_data"]
    experts = real.expert * real.expert_tensor > 1 or real.expert_data > 1
    for chosen in product(*map(sizes, names)):
        axes = _with_experts(Axes(**dict(zip(names, chosen, strict=True)), expert_data=1))
        if axes is None:
            continue
        if not experts:
            axes = replace(axes, expert_data=1)
        elif real.expert_data == 1 and axes.expert_data > 1:
            continue
        # Groups of replicas that hold everything are groups of several, as they are in the real layout.
        if axes.replicate > 1 and (axes.data != 4 or (experts and axes.expert_data % axes.replicate)):
            continue
        yield axes

"""What a published run leaves unsaid and a prediction needs: micro-batch and virtual stages, taken to be the fastest that fit."""

from __future__ import annotations

from collections.abc import Iterator

from preheat.arithmetic import balanced_split
from preheat.arithmetic.memory import MemoryModel, Step
from preheat.arithmetic.programs import EAGER, MEGATRON, MEGATRON_DEEPSPEED, Program
from preheat.plan.step import StepModel
from preheat.recipe import Model, Parallel, Precision

_MICRO_BATCHES = (1, 2, 4, 8, 16)
_MOST_VIRTUAL = 16


def fastest(steps: StepModel, parallel: Parallel, global_batch: int, ranks: int) -> tuple[Parallel, int]:
    """The layout with its virtual stages, and the micro-batch, under which a step takes least among those that fit the GPU.

    That is what people look for before they publish a figure. Where nothing fits by the model of memory, one sample.

    Args:
        parallel: a layout whose meshes divide the ranks; virtual stages that it names are kept.
    """
    replicas = ranks // (parallel.tensor * parallel.pipeline * parallel.context)
    memory = MemoryModel(steps.model, precision_of(steps.precision), program=program_of(steps.software))
    found: list[tuple[float, Parallel, int]] = []
    for micro_batch in _MICRO_BATCHES:
        if global_batch % (replicas * micro_batch):
            continue
        batches = global_batch // (replicas * micro_batch)
        for layout in _with_virtual_stages(steps.model, parallel, batches):
            try:
                taken = memory.fullest(split_evenly(steps.model, layout), ranks, Step(micro_batch, steps.seq_len, batches))
            except ValueError:
                continue
            if taken.fits(steps.gpu.usable):
                found.append((steps.seconds(layout, micro_batch, global_batch, ranks), layout, micro_batch))
    return min(found, key=lambda one: one[0])[1:] if found else (parallel, 1)


def _with_virtual_stages(model: Model, parallel: Parallel, batches: int) -> Iterator[Parallel]:
    """The layout as it is and with every number of virtual stages that Megatron-LM would take."""
    yield parallel
    layers, rest = divmod(model.layers, parallel.pipeline)
    if parallel.pipeline == 1 or parallel.virtual_pipeline > 1 or rest or batches % parallel.pipeline:
        return
    for virtual in range(2, min(layers, _MOST_VIRTUAL) + 1):
        if layers % virtual == 0:
            yield parallel.model_copy(update={"virtual_pipeline": virtual, "schedule": "interleaved"})


def program_of(software: str) -> Program:
    """What a kind of program keeps in memory, by its name in `constants.toml`."""
    return {"megatron-2021": MEGATRON_DEEPSPEED, "pytorch": EAGER}.get(software, MEGATRON)


def precision_of(number_format: str) -> Precision:
    """The recipe's word for a number format of `kernels.Device.of`; the model of memory knows one kind of 8 bits."""
    return Precision.model_validate({"compute": "fp8" if number_format in ("fp8", "mxfp8", "fp4") else number_format})


def split_evenly(model: Model, parallel: Parallel) -> Parallel:
    """Layers that do not divide are given out as evenly as may be."""
    pieces = parallel.pipeline * parallel.virtual_pipeline
    if model.layers % pieces == 0:
        return parallel
    return parallel.model_copy(update={"pipeline_layers": balanced_split(model.layers, pieces)})

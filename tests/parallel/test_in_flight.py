"""How many micro-batches the arithmetic holds at once against the orders of PyTorch's schedules."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
import torch
from torch.distributed.pipelining.schedules import _Action
from torch.distributed.pipelining.stage import _PipelineStageBase

from preheat.arithmetic.pipeline import V_SHAPED, in_flight
from preheat.parallel.pipeline import SCHEDULES
from preheat.recipe import Parallel


@pytest.mark.parametrize(
    ("schedule", "pipeline", "virtual", "micro_batches"),
    [
        ("interleaved", 4, 2, 8),
        ("interleaved", 2, 3, 8),
        ("zero-bubble", 4, 2, 8),
        ("zero-bubble", 2, 2, 8),
        ("zero-bubble-v", 4, 2, 12),
        ("dualpipe-v", 4, 2, 12),
        ("dualpipe-v", 2, 2, 8),
    ],
)
def test_as_many_as_pytorch_s_schedule(schedule: str, pipeline: int, virtual: int, micro_batches: int) -> None:
    """On each rank; an activation goes when the gradients of the weights are there."""
    parallel = Parallel.model_validate({"pipeline": pipeline, "virtual_pipeline": virtual, "schedule": schedule})
    pieces = (0, 2 * pipeline - 1) if schedule in V_SHAPED else range(0, pipeline * virtual, pipeline)
    stages = [_stage(piece, pipeline, pipeline * virtual) for piece in pieces]
    order = SCHEDULES[schedule](stages, n_microbatches=micro_batches, loss_fn=lambda total, _: total).pipeline_order  # type: ignore[call-arg, arg-type, attr-defined]
    for rank in range(pipeline):
        assert _most(order[rank]) / virtual == in_flight(parallel, rank, micro_batches)


def _stage(piece: int, ranks: int, pieces: int) -> MagicMock:
    stage = MagicMock(spec=_PipelineStageBase)
    stage.configure_mock(stage_index=piece, group_size=ranks, group_rank=0, num_stages=pieces, is_last=False, has_backward=True)
    stage.configure_mock(stage_index_to_group_rank={}, device=torch.device("cpu"), submod=torch.nn.Linear(1, 1))
    return stage


def _most(actions: list[_Action | None]) -> int:
    """Forward passes that wait for their backward pass at once, at most."""
    waiting = most = 0
    for action in actions:
        for part in (action.sub_actions or (action,)) if action is not None else ():
            kind = part.computation_type.name
            waiting += (kind == "FORWARD") - (kind in ("FULL_BACKWARD", "BACKWARD_WEIGHT"))
            most = max(most, waiting)
    return most

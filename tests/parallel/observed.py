"""What a rank does in one training step: PyTorch's operators, the weights that it holds, the passes of a pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from layout_run import MODELS, Training
from torch.distributed.pipelining import PipelineStage
from torch.utils._python_dispatch import TorchDispatchMode

from preheat.parallel import Engine, Objective
from preheat.recipe import Parallel

GPT2 = MODELS["gpt2"]


class _Operators(TorchDispatchMode):
    """Counts what PyTorch runs, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        self.counts[operator.overloadpacket.__name__] += 1
        return operator(*arguments, **(keywords or {}))


def one_step(parallel: Parallel, micro_size: int = 8) -> Counter[str]:
    """What a step of GPT-2 on 8 samples runs on this rank, gathering what it starts from included."""
    with _Operators() as seen:
        _accumulate(parallel, micro_size)
    return seen.counts


def _accumulate(parallel: Parallel, micro_size: int) -> Engine:
    engine = Engine(GPT2, parallel, seed=1, device=torch.device("cpu"), compute=torch.float32)
    tokens, labels = Training(GPT2, micro_size).batch(0)
    own = engine.own_samples(len(tokens))
    engine.accumulate(tokens[own], labels[own], micro_size, Objective(labels.numel()))
    return engine


def kept(parallel: Parallel) -> tuple[float, int]:
    """The share of the weights that this rank holds, and how often a step of one micro-batch gathers any."""
    engine = _accumulate(parallel, 8)
    parameters = [parameter for _, parameter in engine.named_parameters()]
    share = sum(parameter.to_local().numel() for parameter in parameters) / sum(parameter.numel() for parameter in parameters)
    return share, one_step(parallel)["_allgather_base_"]


def order(parallel: Parallel) -> list[str]:
    """The passes of this rank in a step of 4 micro-batches: what (F; B; I and W where gradients of inputs and weights are apart), of which
    piece, and of which micro-batch."""
    done = []

    def noted(method: str, letter: Callable[[dict[str, Any]], str]) -> Any:
        original = getattr(PipelineStage, method)

        def run(self: PipelineStage, chunk: int, *arguments: Any, **keywords: Any) -> Any:
            done.append(f"{letter(keywords)}{self.stage_index}.{chunk}")
            return original(self, chunk, *arguments, **keywords)

        return patch.object(PipelineStage, method, run)

    with (
        noted("forward_one_chunk", lambda _: "F"),
        noted("backward_one_chunk", lambda keywords: "B" if keywords.get("full_backward", True) else "I"),
        noted("backward_weight_one_chunk", lambda _: "W"),
    ):
        _accumulate(parallel, 2)
    return done

"""A few steps of training as a function of model and layout, and how far one run is from another. The ranks of a pool run it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from preheat.arithmetic import Rope
from preheat.model import router, routers
from preheat.model.router import best
from preheat.parallel import Engine, Objective
from preheat.recipe import Experts, LatentAttention, Model, MultiTokenPrediction, Optimizer, Parallel, Precision
from preheat.train.optimizer import build_optimizer, set_rate

VOCABULARY = 259  # odd: no tensor size divides it

DENSE = Model(
    layers=4,
    hidden=32,
    heads=8,
    kv_heads=4,
    ffn_hidden=48,
    vocab_size=VOCABULARY,
    rope_theta=1e4,
    tied_embeddings=False,
    init_std=0.1,
)
_SPARSE = {"count": 8, "active": 2, "ffn_hidden": 16}
MODELS = {
    "dense": DENSE,
    "gpt2": Model(
        layers=4,
        hidden=32,
        heads=8,
        ffn_hidden=48,
        vocab_size=VOCABULARY,
        activation="gelu",
        norm="layernorm",
        bias=True,
        position="learned",
        max_positions=32,
        init_std=0.1,
    ),
    "mixtral": DENSE.model_copy(update={"experts": Experts(**_SPARSE, aux_loss=0.02, z_loss=1e-3)}),
    "deepseek": DENSE.model_copy(
        update={
            "kv_heads": None,
            "mla": LatentAttention(q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=4),
            "experts": Experts(
                **_SPARSE,
                shared=1,
                first_dense=1,
                score="sigmoid",
                groups=4,
                active_groups=2,
                scaling=2.5,
                sequence_aux_loss=1e-2,
                bias_update_rate=1e-3,
            ),
            "mtp": MultiTokenPrediction(layers=1, loss_weight=0.3),
        }
    ),
}


@dataclass(frozen=True)
class Training:
    """What is trained, and on what. Tokens are random: every step is one of the first, where gradients are largest."""

    model: Model
    micro_size: int
    shapes: tuple[tuple[int, int], ...] = ((8, 16),) * 5
    """Samples and their length at each step."""
    eod: int | None = None
    compute: torch.dtype = torch.float32
    z_loss: float = 1e-4
    clip: float = 0.5
    prediction_weight: float = 0.3
    rope: Rope | None = None
    scored: tuple[int, ...] = ()
    """How many tokens of each sample have a label; all of the samples that it doesn't name."""
    optimizer: Optimizer | None = None
    """A recipe's; when absent AdamW with a large epsilon, see `train`."""
    precision: Precision | None = None

    def with_micro_size(self, micro_size: int) -> Training:
        return replace(self, micro_size=micro_size)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The tokens and labels of a step; the one after the last is for scoring."""
        samples, length = self.shapes[min(step, len(self.shapes) - 1)]
        tokens = torch.randint(0, VOCABULARY, (samples, length + 1), generator=torch.Generator().manual_seed(step))
        if self.eod is not None:  # documents of some ten tokens
            tokens[torch.rand(tokens.shape, generator=torch.Generator().manual_seed(step)) < 0.1] = self.eod
        labels = tokens[:, 1:].clone()
        for sample, scored in enumerate(self.scored if step < len(self.shapes) else ()):
            labels[sample, scored:] = -1
        return tokens[:, :-1], labels


Named = list[tuple[str, np.ndarray[Any, Any]]]


@dataclass(frozen=True)
class Outcome:
    """What a run came to; tensors are whole. A rank that holds both copies of an embedding has it twice."""

    losses: list[float]
    norms: list[float]
    initial: Named
    parameters: Named
    routers: dict[str, np.ndarray[Any, Any]]
    """Score bias and remembered load."""
    score: float


@dataclass(frozen=True)
class Distance:
    """How far this rank's run is from another, at worst."""

    loss: float
    """Relative, over the steps."""
    norm: float
    """Of the gradients, relative."""
    parameter: float
    """Absolute, after all steps."""
    worst: str
    """Which one that is."""
    router: float
    score: float
    """Relative."""
    initial: bool
    """Whether the initial weights are equal to the last bit."""


def train(training: Training, parallel: Parallel) -> Outcome:
    """Train on this rank."""
    precision = training.precision or Precision()
    if precision.compute == "fp8":
        import_torchao()
    engine = Engine(training.model, parallel, 1, torch.device("cpu"), training.compute, precision)
    parameters = list(engine.named_parameters())
    initial = whole(parameters)
    # Adam divides by the root of the second moment. Where a gradient is near zero that makes noise of 1e-8 into a step as large as any;
    # then a token that two experts suit alike goes to the other one, and runs part. The large epsilon keeps noise as small as it is, and
    # the large initial weights (init_std) make such ties rare.
    optimizer: torch.optim.Optimizer = torch.optim.AdamW([parameter for _, parameter in parameters], lr=3e-3, eps=1e-4, fused=True)
    if training.optimizer is not None:
        optimizer = build_optimizer(engine, training.optimizer)
        set_rate(optimizer, 3e-3)
    losses, norms = [], []
    for step in range(len(training.shapes)):
        tokens, labels = training.batch(step)
        own = engine.own_samples(len(tokens))
        total = int((labels >= 0).sum())
        objective = Objective(
            total, training.rope, training.eod, training.prediction_weight if training.model.mtp else 0.0, training.z_loss
        )
        summed = engine.accumulate(tokens[own], labels[own], training.micro_size, objective)
        losses.append(float(summed.total) / total)
        norms.append(engine.clip(training.clip))
        optimizer.step()
        optimizer.zero_grad()
        engine.finish_step(bias_rate=1e-3)
    tokens, labels = training.batch(len(training.shapes))
    score = engine.score(tokens[:3], labels[:3], training.rope, training.eod)
    after = list(engine.named_parameters())
    assert all(a is b for (_, a), (_, b) in zip(parameters, after, strict=True)), "scoring left gathered weights in their place"
    return Outcome(losses, norms, initial, whole(parameters), _router_state(engine), score)


def import_torchao() -> None:
    """Its import complains, of what this machine lacks and of PyTorch's newer ways."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchao.float8  # noqa: F401
    logging.disable(logging.NOTSET)


@dataclass(frozen=True)
class Bars:
    """How far apart is too far."""

    loss: float = 1e-5
    norm: float = 1e-5
    parameter: float = 1e-4
    router: float = 1e-6
    score: float = 1e-6


def assert_equal(distances: Iterable[Distance], bars: Bars = Bars()) -> None:
    """Every rank's run is the other run, within the bars; initial weights to the last bit."""
    for rank, found in enumerate(distances):
        beyond = [field.name for field in fields(Bars) if not getattr(found, field.name) <= getattr(bars, field.name)]
        assert not beyond, f"rank {rank} is apart in {', '.join(beyond)}: {found}"
        assert found.initial, f"rank {rank} starts with other weights"


def train_alone(training: Training) -> Outcome:
    """What others are compared with. It makes sure that no token sits on the fence between two experts: a layout that adds in another order
    may send such a token to the other one, and nothing would be wrong with it.
    """
    gaps = [1.0]

    def best_and_gap(scores: Tensor, count: int) -> Tensor:
        if count < scores.shape[-1]:
            highest = scores.topk(count + 1, dim=-1).values
            gaps.append(float((highest[..., -2] - highest[..., -1]).min()))
        return best(scores, count)

    with patch.object(router, "best", best_and_gap):
        outcome = train(training, Parallel())
    assert min(gaps) > (1e-6 if training.compute == torch.float32 else 0), f"scores {min(gaps):.0e} apart: draw other tokens"
    return outcome


def distance(training: Training, parallel: Parallel, reference: Outcome) -> Distance:
    """Train on this rank and compare; for a pipeline rank, what it holds."""
    mine = train(training, parallel)
    initial, last = dict(reference.initial), dict(reference.parameters)
    apart, worst = max((_apart(value, last[name]), name) for name, value in mine.parameters)
    return Distance(
        loss=_relative(mine.losses, reference.losses),
        norm=_relative(mine.norms, reference.norms),
        parameter=apart,
        worst=worst,
        router=max((_apart(value, reference.routers[name]) for name, value in mine.routers.items()), default=0.0),
        score=_relative([mine.score], [reference.score]),
        initial=all(np.array_equal(value, initial[name]) for name, value in mine.initial),
    )


def compiled_distance(training: Training, parallel: Parallel, reference: Outcome) -> Distance:
    """The same, with blocks traced and differentiated as a whole, but without Inductor's compiler, which takes half a minute."""
    with patch.object(torch, "compile", partial(torch.compile, backend="aot_eager")), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's own
        found = distance(training, parallel, reference)
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0
    return found


def whole(parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> Named:
    """Copies of the whole tensors; all ranks of a mesh take part."""
    values = [(name, parameter.detach()) for name, parameter in parameters]
    logger = logging.getLogger("torch.distributed.tensor._redistribute")  # it complains of two gathers where one can't do
    logger.setLevel(logging.ERROR)
    found = [(name, (value.full_tensor() if isinstance(value, DTensor) else value).numpy().copy()) for name, value in values]
    logger.setLevel(logging.NOTSET)
    return found


def _router_state(engine: Engine) -> dict[str, np.ndarray[Any, Any]]:
    found = {}
    for piece in engine.pieces:
        for name, module in routers(piece.transformer).items():
            found |= {f"{name}.{kind}": value.numpy().copy() for kind, value in module.named_buffers() if kind in ("bias", "load")}
    return found


def _apart(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    return float(np.abs(a - b).max()) if np.isfinite(a).all() else float("inf")


def _relative(mine: list[float], reference: list[float]) -> float:
    return max(abs(a - b) / abs(b) if a == a else float("inf") for a, b in zip(mine, reference, strict=True))

"""AdamW and Muon: who is decayed and how fast each parameter moves, against PyTorch's own and by hand; moments in bf16; exact resume."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from preheat.model import Transformer, build
from preheat.parallel import Engine
from preheat.recipe import Experts, LatentAttention, Model, MultiTokenPrediction, Optimizer, Parallel, WidthTransfer
from preheat.train import checkpoint
from preheat.train.optimizer import build_optimizer, rounded_at_random, set_rate, treatment
from preheat.train.state import restore, run_state

from .conftest import preheat

MODEL = Model(layers=1, hidden=16, heads=2, ffn_hidden=24, vocab_size=300, rope_theta=1e4, bias=True, tied_embeddings=False)
WIDE = MODEL.model_copy(update={"mup": WidthTransfer(base_hidden=4)})

TABLES = ["embedding.weight", "head.weight", "positions.weight"]
VECTORS = ["norm.weight", "norm.bias", "blocks.0.attention_norm.weight", "blocks.11.attention.query_norm.weight"]
VECTORS += ["blocks.0.attention.query.norm.weight", "blocks.0.attention.latent_norm.weight", "predictions.0.embedding_norm.weight"]
VECTORS += ["blocks.0.attention.out.bias", "blocks.0.feed_forward.experts.up.bias", "blocks.0.feed_forward.gate.bias"]
HIDDEN = [
    f"blocks.3.attention.{name}.weight" for name in ("query", "key", "value", "out", "query.down", "query.up", "latent_down", "latent_up")
]
HIDDEN += [f"blocks.3.feed_forward.{part}{name}.weight" for part in ("", "experts.", "shared.") for name in ("gate", "up", "out")]
HIDDEN += ["predictions.0.project.weight", "predictions.0.block.attention.out.weight"]
ROUTER = "blocks.3.feed_forward.router.weight"


@pytest.mark.parametrize("name", TABLES)
def test_tables_and_head_are_decayed_by_choice_and_move_as_ever(name: str) -> None:
    for kind in ("adamw", "muon"):
        for decayed in (True, False):
            how = treatment(name, WIDE, Optimizer(name=kind, weight_decay=0.1, decay_embeddings=decayed))
            assert (how.muon, how.rate_factor, how.weight_decay) == (False, 1.0, 0.1 if decayed else 0.0)


@pytest.mark.parametrize("name", VECTORS)
def test_norms_and_biases_are_never_decayed_and_move_as_ever(name: str) -> None:
    for kind in ("adamw", "muon"):
        how = treatment(name, WIDE, Optimizer(name=kind, weight_decay=0.1))
        assert (how.muon, how.rate_factor, how.weight_decay) == (False, 1.0, 0.0)


@pytest.mark.parametrize("name", [*HIDDEN, ROUTER])
def test_hidden_matrices_move_slower_in_wider_models(name: str) -> None:
    """m = 16 / 4 = 4. AdamW: rate / m (arXiv 2203.03466, table 8). Muon: rate / sqrt(m), for its norm grows with the root of the width."""
    for model, m in ((MODEL, 1), (WIDE, 4)):
        how = treatment(name, model, Optimizer(weight_decay=0.1, decay_embeddings=False))
        assert (how.muon, how.rate_factor, how.weight_decay) == (False, 1 / m, pytest.approx(0.1 * m))
        how = treatment(name, model, Optimizer(name="muon", weight_decay=0.1))
        muon, slower = (False, m) if name == ROUTER else (True, math.sqrt(m))
        assert (how.muon, how.rate_factor, how.weight_decay) == (muon, 1 / slower, pytest.approx(0.1 * slower))


MOMENTS = {"exp_avg", "exp_avg_sq", "momentum_buffer"}


class Layers(nn.Module):
    """Parameters of all kinds with the names that they have in a model; what the optimizer needs of a transformer."""

    def __init__(self, model: Model = MODEL) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def draw(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator))

        self.config = model
        self.embedding, self.up, self.experts, self.norm = nn.Module(), nn.Module(), nn.Module(), nn.Module()
        self.embedding.weight, self.up.weight, self.experts.weight, self.norm.weight = draw(20, 8), draw(12, 8), draw(3, 6, 8), draw(8)

    def set_gradients(self, seed: int, scale: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator) * scale


def optimizer_over(layers: Layers, optimizer: Optimizer) -> torch.optim.Optimizer:
    return build_optimizer(layers, optimizer)


def values(layers: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in layers.named_parameters()}


def test_muon_and_adamw_are_those_of_pytorch() -> None:
    """A stack of experts moves as its matrices do, each by itself."""
    ours, theirs = Layers(), Layers()
    optimizer = optimizer_over(ours, Optimizer(name="muon", momentum=0.9, weight_decay=0.2, betas=(0.8, 0.9), eps=1e-6))
    experts = [nn.Parameter(matrix) for matrix in theirs.experts.weight.detach().clone()]
    peers = [
        torch.optim.Muon([theirs.up.weight, *experts], lr=0.0, weight_decay=0.2, momentum=0.9, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([theirs.embedding.weight], lr=0.0, weight_decay=0.2, betas=(0.8, 0.9), eps=1e-6, fused=True),
        torch.optim.AdamW([theirs.norm.weight], lr=0.0, weight_decay=0.0, betas=(0.8, 0.9), eps=1e-6, fused=True),
    ]
    for step in range(4):
        ours.set_gradients(step)
        theirs.set_gradients(step)
        for matrix, gradient in zip(experts, theirs.experts.weight.grad, strict=True):
            matrix.grad = gradient
        set_rate(optimizer, 0.01 * (step + 1))
        optimizer.step()
        for peer in peers:
            for group in peer.param_groups:
                group["lr"] = 0.01 * (step + 1)
            peer.step()
    for name in ("embedding", "up", "norm"):
        assert torch.equal(getattr(ours, name).weight, getattr(theirs, name).weight), name
    assert torch.equal(ours.experts.weight, torch.stack(experts))


def test_a_muon_step_is_orthogonal_and_as_large_as_adamw() -> None:
    """Singular values of the update lie around 0.2 * sqrt(larger side) times the rate (arXiv 2502.16982, section 2.2)."""
    layers = Layers()
    before = values(layers)
    optimizer = optimizer_over(layers, Optimizer(name="muon", weight_decay=0.0))
    layers.set_gradients(1, scale=1e-3)
    set_rate(optimizer, 0.5)
    optimizer.step()
    after = values(layers)
    for name, larger in (("up.weight", 12), ("experts.weight", 8)):
        singular = torch.linalg.svdvals(before[name] - after[name]) / (0.5 * 0.2 * math.sqrt(larger))
        assert 0.5 < singular.min().item() < singular.max().item() < 1.5, name


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_at_rate_zero_nothing_moves(kind: str, precision: str) -> None:
    layers = Layers()
    before = values(layers)
    optimizer = optimizer_over(layers, Optimizer(name=kind, state_precision=precision))
    layers.set_gradients(1)
    set_rate(optimizer, 0.0)
    optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in values(layers).items())


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_parameter_without_a_gradient_stays(kind: str, precision: str) -> None:
    layers = Layers()
    before = values(layers)
    optimizer = optimizer_over(layers, Optimizer(name=kind, state_precision=precision))
    layers.set_gradients(1)
    layers.up.weight.grad = layers.norm.weight.grad = None
    set_rate(optimizer, 0.1)
    optimizer.step()
    moved = {name for name, value in values(layers).items() if not torch.equal(value, before[name])}
    assert moved == {"embedding.weight", "experts.weight"}


SPARSE = Model(
    layers=2,
    hidden=16,
    heads=2,
    ffn_hidden=24,
    vocab_size=300,
    rope_theta=1e4,
    mla=LatentAttention(q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=8),
    experts=Experts(count=4, active=2, ffn_hidden=8, shared=1, first_dense=1, score="sigmoid", sequence_aux_loss=1e-3),
    mtp=MultiTokenPrediction(layers=1, loss_weight=0.3),
    mup=WidthTransfer(base_hidden=8),
)
DENSE = SPARSE.model_copy(update={"mla": None, "experts": None, "mtp": None, "tied_embeddings": False})


def train(transformer: Transformer, optimizer: torch.optim.Optimizer, steps: int) -> None:
    tokens = torch.arange(24).view(2, 12) * 7
    for _ in range(steps):
        transformer(tokens, tokens.roll(-1, 1)).total.backward()
        set_rate(optimizer, 1e-2)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("model", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_restored_run_goes_on_with_the_same_bits(tmp_path: Path, model: Model, kind: str, precision: str) -> None:
    recipe = Optimizer(name=kind, state_precision=precision)
    first, second = (Engine(model, Parallel(), seed, torch.device("cpu"), torch.float32) for seed in (1, 2))
    optimizer, other = build_optimizer(first, recipe), build_optimizer(second, recipe)
    models = [engine.pieces[0].transformer for engine in (first, second)]
    train(models[0], optimizer, 2)
    train(models[1], other, 1)
    restore(checkpoint.save(tmp_path, 2, 48, checkpoint.stage(run_state(first, optimizer, once=True)).copy(), "f"), second, other)
    train(models[0], optimizer, 2)
    train(models[1], other, 2)
    for name, tensor in models[0].state_dict().items():
        assert torch.equal(tensor, models[1].state_dict()[name]), name


def moments(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [value for state in optimizer.state.values() for key, value in state.items() if key != "step"]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_moments_in_bf16_take_half_and_give_nearly_the_same_steps(kind: str) -> None:
    runs = []
    for precision in ("fp32", "bf16"):
        layers = Layers()
        start = values(layers)
        optimizer = optimizer_over(layers, Optimizer(name=kind, state_precision=precision, weight_decay=0.0))
        for step in range(20):
            layers.set_gradients(step)
            set_rate(optimizer, 0.01)
            optimizer.step()
        runs.append(
            (
                {name: value - start[name] for name, value in values(layers).items()},
                sum(moment.nbytes for moment in moments(optimizer)),
            )
        )
    (whole, whole_bytes), (half, half_bytes) = runs
    assert half_bytes * 2 == whole_bytes
    for name, moved in whole.items():
        assert (half[name] - moved).norm() < 0.03 * moved.norm(), name
        assert not torch.equal(half[name], moved), name


def test_a_second_moment_in_bf16_falls_again() -> None:
    """With beta 0.999 it loses a thousandth a step, less than half of bf16's spacing: rounded to the nearest it would stay for ever."""
    layers = Layers()
    optimizer = optimizer_over(layers, Optimizer(state_precision="bf16", betas=(0.9, 0.999)))
    layers.set_gradients(0)
    optimizer.step()
    before = optimizer.state[layers.up.weight]["exp_avg_sq"].double().mean().item()
    for parameter in layers.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(700):
        optimizer.step()
    after = optimizer.state[layers.up.weight]["exp_avg_sq"].double().mean().item()
    assert after / before == pytest.approx(0.999**700, rel=0.05)


@given(value=st.floats(-(2.0**100), 2.0**100, width=32), key=st.text(max_size=5))
@settings(max_examples=50, deadline=None)
def test_rounding_at_random_is_right_on_average(value: float, key: str) -> None:
    x = torch.full((20_000,), value)
    rounded = rounded_at_random(x, key)
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded, rounded_at_random(x, key))
    found = rounded.double().unique()
    # Its two neighbours in bf16, which is the upper half of fp32: the one nearer to zero, and the next.
    inner = torch.tensor(value).view(torch.int32) & -(2**16)
    neighbours = {bits.view(torch.float32).double().item() for bits in (inner, inner + 2**16)}
    assert set(found.tolist()) <= neighbours
    spacing = max(neighbours) - min(neighbours)
    assert abs(rounded.double().mean().item() - value) <= spacing * 5 / math.sqrt(4 * 20_000)
    if len(found) == 1:  # exactly a bf16, or so near one that 20,000 draws did not leave it
        assert found.item() == pytest.approx(value, rel=2**-7 * 1e-3, abs=1e-37)


BASE = {"name": "muon", "betas": (0.9, 0.95), "eps": 1e-8, "momentum": 0.95, "weight_decay": 0.1, "decay_embeddings": True}
CHANGES = {"name": "adamw", "betas": (0.8, 0.95), "eps": 1e-2, "momentum": 0.5, "weight_decay": 0.2, "decay_embeddings": False}


@pytest.mark.parametrize("field", [*CHANGES, "state_precision"])
def test_every_field_changes_the_weights(field: str) -> None:
    ends = []
    for changed in ({}, {field: CHANGES.get(field, "bf16")}):
        transformer = build(DENSE, 1)
        train(transformer, build_optimizer(transformer, Optimizer.model_validate(BASE | changed)), 3)
        ends.append(values(transformer))
    assert any(not torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def test_muon_has_a_momentum_of_its_own() -> None:
    ends = []
    for momentum in (None, 0.95):
        layers = Layers()
        optimizer = optimizer_over(layers, Optimizer(name="muon", momentum=momentum))
        layers.set_gradients(1)
        set_rate(optimizer, 0.1)
        optimizer.step()
        ends.append(values(layers))
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def test_a_run_with_muon_bf16_moments_and_z_loss(mini: tuple[Path, Path], undisturbed: Path, tmp_path: Path) -> None:
    """It learns, saves its moments in bf16, and its first gradient is another one by the z-loss alone: weights and text are the same."""
    fields = ["optimizer.name=muon", "optimizer.state_precision=bf16", "optimizer.z_loss=0.3", "schedule.peak_lr=1e-2"]
    preheat("train", mini[0], "--data", mini[1], "--run", tmp_path / "run", *[part for field in fields for part in ("--set", field)])
    ours, theirs = (
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (tmp_path / "run", undisturbed)
    )
    assert ours[0]["loss"] == theirs[0]["loss"]
    assert ours[0]["grad_norm"] > 1.005 * theirs[0]["grad_norm"]
    assert ours[-1]["loss"] < ours[0]["loss"] - 0.5
    stored = load_file(max((tmp_path / "run" / "checkpoints").glob("step-*")) / "rank-00000.safetensors")
    assert {entry.split("/")[1] for entry, value in stored.items() if value.dtype == torch.bfloat16} == MOMENTS

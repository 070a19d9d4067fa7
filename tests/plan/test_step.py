"""A predicted step: parts that add up, bubbles of the literature, published runs, and what must never be faster."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.errors import PreheatError
from preheat.hardware import find
from preheat.plan import StepModel, shipped
from preheat.recipe import Model, Parallel, Recompute, load

LLAMA = load("llama3-8b").recipe.model
SMALL = Model(layers=16, hidden=1024, heads=16, ffn_hidden=4096, vocab_size=32_000, rope_theta=1e4)
MODELS = {name: load(name).recipe.model for name in ("llama3-8b", "toy-124m", "mixtral-8x7b", "deepseek-v3", "gpt3-15b")}


def step_model(model: Model = LLAMA, gpu: str = "H100", **options: Any) -> StepModel:
    return StepModel(model, **({"seq_len": 4096, "gpu": find(gpu), "precision": "bf16"} | options))


layouts = st.builds(
    lambda tensor, pipeline, context, kind, sharding: Parallel(
        tensor=tensor, pipeline=pipeline, context=context, recompute=Recompute(kind=kind), sharding=sharding
    ),
    tensor=st.sampled_from([1, 2, 4, 8]),
    pipeline=st.sampled_from([1, 2, 4, 8]),
    context=st.sampled_from([1, 2, 4]),
    kind=st.sampled_from(["none", "selective", "full"]),
    sharding=st.sampled_from(["none", "optimizer", "full"]),
)


@given(parallel=layouts, micro_batch=st.integers(1, 8), batches=st.integers(1, 40), name=st.sampled_from(sorted(MODELS)))
@settings(max_examples=150, deadline=None)
def test_parts_are_not_negative_and_add_up_to_the_step(parallel: Parallel, micro_batch: int, batches: int, name: str) -> None:
    model = step_model(MODELS[name])
    arguments = (parallel, micro_batch, micro_batch * batches * 2, 512)
    step = model.step(*arguments)
    assert min(step.parts.values()) >= 0
    assert step.seconds == pytest.approx(sum(step.parts.values()))
    assert model.seconds(*arguments) == pytest.approx(step.seconds, rel=1e-9)
    assert step.bound in step.parts
    assert 0 < step.mfu() <= step.hfu < 1


@given(parallel=layouts, more=st.sampled_from(["layers", "hidden", "ffn_hidden", "vocab_size", "seq_len", "micro_batches", "recompute"]))
@settings(max_examples=150, deadline=None)
def test_more_work_is_never_faster(parallel: Parallel, more: str) -> None:
    """Twice the layers, the widths, the vocabulary, the tokens, or computing twice."""
    small, seq_len, batch = SMALL.model_copy(update={"head_dim": 64}), 2048, 128
    before = step_model(small, seq_len=seq_len).seconds(parallel, 1, batch, 256)
    if more == "seq_len":
        after = step_model(small, seq_len=2 * seq_len).seconds(parallel, 1, batch, 256)
    elif more == "micro_batches":
        after = step_model(small, seq_len=seq_len).seconds(parallel, 1, 32 * batch, 256)
    elif more == "recompute":
        after = step_model(small, seq_len=seq_len).seconds(parallel.model_copy(update={"recompute": Recompute(kind="full")}), 1, batch, 256)
    else:
        larger = small.model_copy(update={more: 2 * getattr(small, more)})
        after = step_model(larger, seq_len=seq_len).seconds(parallel, 1, batch, 256)
    assert after >= before * (1 - 1e-9)


def test_a_machine_twice_as_fast_in_all_it_does_takes_half_the_time() -> None:
    gpu = find("H100")
    twice = replace(
        gpu,
        peaks=MappingProxyType({name: 2 * peak for name, peak in gpu.peaks.items()}),
        memory_bandwidth=2 * gpu.memory_bandwidth,
        link_bandwidth=2 * gpu.link_bandwidth,
        network_bandwidth=2 * gpu.network_bandwidth,
    )
    constants = shipped()
    still = replace(constants.common, latency=0.0, network_latency=0.0)
    at_once = {name: replace(program, launch=0.0, step=0.0, step_tensor=0.0) for name, program in constants.software.items()}
    free = replace(constants, common=still, software=at_once)
    parallel = Parallel(tensor=4, pipeline=2, sharding="optimizer")
    slow, fast = (step_model(gpu=gpu.name, constants=free), StepModel(LLAMA, 4096, twice, "bf16", constants=free))
    assert fast.seconds(parallel, 1, 64, 64) == pytest.approx(slow.seconds(parallel, 1, 64, 64) / 2)


@pytest.mark.parametrize(
    ("schedule", "virtual", "bubble"),
    [("1f1b", 1, 3 / 16), ("interleaved", 2, 3 / 32), ("interleaved", 4, 3 / 64), ("zero-bubble", 1, 1 / 16)],
)
def test_the_bubble_over_the_work_is_what_the_schedules_papers_say(schedule: Any, virtual: int, bubble: float) -> None:
    """(p - 1) / (v m) of the ideal time (arXiv 2104.04473, section 2.2), p = 4 and m = 16; a third where weight gradients wait."""
    parallel = Parallel(pipeline=4, virtual_pipeline=virtual, schedule=schedule)
    parts = step_model().step(parallel, 1, 16, 4).parts
    layers = sum(parts[name] for name in ("matrix", "attention", "elementwise", "host"))
    assert parts["bubble"] / layers == pytest.approx(bubble)


def test_full_recompute_adds_one_forward_pass() -> None:
    """Forward and backward products alone are 3 forward passes; with recompute 4 (HFU of arXiv 2205.05198)."""
    plain = step_model().step(Parallel(), 1, 8, 8)
    again = step_model().step(Parallel(recompute=Recompute(kind="full")), 1, 8, 8)
    ratio = (again.flops.causal + again.recomputed) / plain.flops.causal
    assert 1.3 < ratio < 4 / 3
    layers = sum(plain.parts[name] for name in ("matrix", "attention", "elementwise"))
    assert 0.25 < again.parts["recompute"] / layers < 1 / 3 + 0.02
    half = Parallel(recompute=Recompute(kind="full", layers=16))
    assert step_model().step(half, 1, 8, 8).parts["recompute"] == pytest.approx(again.parts["recompute"] / 2)


def test_mfu_of_a_published_run_by_hand() -> None:
    """Megatron-LM, GPT-3 175B on 1,024 A100 (README): 1,536 x 2,048 tokens in 32 s are 96 tokens/s a GPU, 138 TFLOP/s with recompute."""
    model = step_model(load("gpt3-175b").recipe.model, "A100", seq_len=2048, software="megatron-2021")
    step = model.step(Parallel(tensor=8, pipeline=8, recompute=Recompute(kind="full"), sharding="optimizer"), 1, 1536, 1024)
    assert step.tokens == 1536 * 2048
    as_published = replace(step, parts={"all": 32.0})
    assert as_published.tokens_per_s_per_gpu == pytest.approx(96.0)
    assert as_published.hfu * 312 == pytest.approx(138, rel=0.03)
    assert step.seconds == pytest.approx(32, rel=0.2)


def test_layouts_that_published_runs_prefer() -> None:
    """Tensor parallelism beyond a server is slower than within; a longer pipeline idles longer at the same batch."""
    llama_70b = load("llama3-70b").recipe.model
    model = step_model(llama_70b)
    inside, across = (model.seconds(Parallel(tensor=size, sharding="optimizer"), 1, 256, 256) for size in (8, 16))
    assert inside < across
    short, long = (model.step(Parallel(tensor=8, pipeline=size), 1, 64, 256).parts["bubble"] for size in (2, 8))
    assert short < long


def test_sequence_parallelism_divides_norms_and_residual_branches() -> None:
    """8 ranks: each moves an eighth of what it moves without."""
    apart, whole = (step_model().step(Parallel(tensor=8, sequence=sequence), 1, 8, 8).parts["elementwise"] for sequence in (True, False))
    assert apart < whole


def test_experts_are_dropped_without_waiting_for_their_counts() -> None:
    """A capacity makes shapes known beforehand: the host runs ahead of the GPU."""
    sparse = MODELS["mixtral-8x7b"]
    assert sparse.experts is not None
    capped = sparse.model_copy(update={"experts": sparse.experts.model_copy(update={"capacity_factor": 1.0})})
    waiting, ahead = (step_model(model, "B200", seq_len=512).step(Parallel(expert=8), 1, 8, 8).parts["host"] for model in (sparse, capped))
    assert ahead < waiting


def test_each_expert_on_a_rank_costs_the_host_time() -> None:
    """The same tokens over fewer and larger experts on a rank: fewer launches, fewer weights to update; products of full waves."""
    few, many = (step_model(MODELS["deepseek-v3"], "B200").step(Parallel(expert=ways), 1, 64, 64).parts for ways in (64, 8))
    assert few["host"] < many["host"]
    assert few["outside"] < many["outside"]
    assert few["experts"] < many["experts"]


def test_an_offloaded_optimizer_crosses_to_the_gpu_and_back() -> None:
    """8.03e9 parameters on one GPU: moments and master weights are 12 bytes each, 96 GB there and 96 GB back."""
    here, away = (step_model().step(Parallel(offload_optimizer=off), 1, 8, 1).parts["optimizer"] for off in (False, True))
    assert away - here == pytest.approx(2 * 12 * 8.03e9 / 20e9, rel=0.001)


def test_weights_on_a_rank_by_hand() -> None:
    """Mixtral 8x7B over 8 expert ranks: 32 layers of 6 weights and one expert's two."""
    constants = shipped()
    program = constants.program("megatron")
    outside = step_model(MODELS["mixtral-8x7b"]).step(Parallel(expert=8), 1, 8, 8).parts["outside"]
    assert outside == pytest.approx(program.step + 32 * (6 + 2) * program.step_tensor)


def test_a_generation_or_format_without_figures_is_refused() -> None:
    with pytest.raises(PreheatError, match="no throughput of fp8 is known for MI300X"):
        step_model(gpu="MI300X", precision="fp8")
    with pytest.raises(PreheatError, match="A100-80 has no peak for fp8"):
        step_model(gpu="A100", precision="fp8")
    with pytest.raises(PreheatError, match="no software is called torch"):
        step_model(software="torch")
    unknown = replace(find("H100"), generation="rubin")
    with pytest.raises(PreheatError, match="no throughput is known for the generation rubin"):
        StepModel(LLAMA, 4096, unknown, "bf16")

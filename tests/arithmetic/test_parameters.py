"""Parameters against published cards and against Megatron-Core's models, to the last digit."""

import csv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.arithmetic import padded_vocab, parameters, rank_parameters
from preheat.recipe import Experts, LatentAttention, Model, MultiTokenPrediction, Parallel, WeightChange, load
from preheat.units import tokens

with Path(__file__).with_name("model_cards.csv").open() as file:
    CARDS = {card["model"]: card for card in csv.DictReader(file)}
MTP = MultiTokenPrediction(layers=1, loss_weight=(WeightChange(at=tokens(0), weight=0.3),))


def model_of(card: dict[str, str]) -> Model:
    """The shape that a line of model_cards.csv describes."""
    deepseek = card["model"].startswith("DeepSeek-V3")
    experts = None
    if card["experts"]:
        shape = {"shared": 1, "first_dense": 3} if deepseek else {}
        experts = Experts(count=int(card["experts"]), active=int(card["topk"]), ffn_hidden=int(card["moe_ffn"]), **shape)
    mla = LatentAttention(q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    return Model(
        layers=int(card["layers"]),
        hidden=int(card["hidden"]),
        heads=int(card["heads"]),
        kv_heads=int(card["kv_heads"]) if card["kv_heads"] else None,
        head_dim=int(card["head_dim"]) if card["head_dim"] else None,
        ffn_hidden=int(card["ffn"]),
        vocab_size=int(card["vocab"]),
        max_positions=int(card["positions"]) if card["positions"] else None,
        position=card["position"],  # type: ignore[arg-type]
        norm=card["norm"],  # type: ignore[arg-type]
        activation=card["activation"],  # type: ignore[arg-type]
        bias=card["bias"] == "True",
        tied_embeddings=card["tied"] == "True",
        experts=experts,
        mla=mla if deepseek else None,
        mtp=MTP if "MTP module" in card["model"] else None,
    )


@pytest.mark.parametrize("name", CARDS)
def test_every_card_to_the_last_digit(name: str) -> None:
    card, count = CARDS[name], parameters(model_of(CARDS[name]))
    assert count.total == int(card["total"])
    assert count.active == int(card["active"])
    assert count.embedding == int(card["embedding"])
    assert count.head == int(card["head"])


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ("toy-124m", "GPT-2 124M"),
        ("gpt3-15b", "Nemotron-4 15B"),
        ("gpt3-15b-gpt2-vocab", "GPT-3 15B recipe with GPT-2 BPE 50257, tied, no bias"),
        ("gpt3-175b", "GPT-3 175B"),
        ("gpt3-175b-megatron", "GPT-3 175B"),
        ("llama3-8b", "Llama-3 8B"),
        ("llama3-8b-fp8", "Llama-3 8B"),
        ("llama3-8b-guide", "Llama-3 8B"),
        ("llama3-70b", "Llama-3 70B"),
        ("llama3.1-405b", "Llama-3.1 405B"),
        ("mixtral-8x7b", "Mixtral 8x7B"),
        ("mixtral-8x22b", "Mixtral 8x22B v0.1 (vocab 32000)"),
        ("deepseek-v3", "DeepSeek-V3 incl. 1 MTP module (unique params)"),
    ],
)
def test_the_catalog_builds_the_models_that_it_names(recipe: str, name: str) -> None:
    count = parameters(load(recipe).recipe.model)
    assert (count.total, count.active) == (int(CARDS[name]["total"]), int(CARDS[name]["active"]))


def test_the_parts_of_mixtral() -> None:
    """Megatron-Core: 45,097,156,608 of Mixtral 8x7B's parameters are in the experts, a quarter of which a token passes through."""
    count = parameters(model_of(CARDS["Mixtral 8x7B"]))
    assert count.experts == 45_097_156_608
    assert count.total - count.active == 45_097_156_608 * 6 // 8
    assert count.router == 32 * 8 * 4096
    assert count.feed_forward == count.shared_experts == count.mtp == 0


def test_the_parts_of_deepseek() -> None:
    """One prediction layer has 11,610,067,968 parameters of its own; 58 layers have a shared expert and 3 are dense."""
    count = parameters(model_of(CARDS["DeepSeek-V3 incl. 1 MTP module (unique params)"]))
    assert count.mtp == 11_610_067_968
    assert count.shared_experts == 58 * 3 * 7168 * 2048
    assert count.feed_forward == 3 * 3 * 7168 * 18_432
    assert count.positions == 0


def test_normalised_queries_and_keys_add_two_weights_a_layer() -> None:
    model = model_of(CARDS["Llama-3 8B"])
    assert parameters(model.model_copy(update={"qk_norm": True})).total == 8_030_261_248 + 32 * 2 * 128


def test_rows_of_a_padded_vocabulary() -> None:
    assert padded_vocab(50_257, 1) == 50_304  # nanoGPT's padded vocabulary
    assert padded_vocab(50_257, 8) == 51_200  # Megatron-LM's GPT-3 with TP 8
    assert padded_vocab(128_256, 8) == 129_024
    assert padded_vocab(128, 1) == 128


def test_each_stage_of_llama_405b_on_megatron() -> None:
    """Megatron-Core's GPTModel on the meta device with tensor 8, pipeline 16, unpadded vocabulary."""
    parallel = Parallel(tensor=8, pipeline=16, pipeline_layers=(7, *[8] * 14, 7))
    held = [rank_parameters(model_of(CARDS["Llama-3.1 405B"]), parallel, rank, 128_256).total for rank in (0, 1, 15)]
    assert held == [3_052_109_824, 3_187_933_184, 3_052_126_208]


def test_each_stage_of_mixtral_on_megatron() -> None:
    """Megatron-Core's GPTModel on the meta device with tensor 1, pipeline 4, expert 8."""
    parallel = Parallel(pipeline=4, expert=8)
    held = [rank_parameters(model_of(CARDS["Mixtral 8x7B"]), parallel, rank).total for rank in (0, 1, 3)]
    assert held == [1_876_230_144, 1_745_158_144, 1_876_234_240]


def test_a_tied_head_is_copied_to_the_last_stage() -> None:
    """GPT-2's embedding is at both ends of a pipeline of two, and once on a single rank."""
    model = model_of(CARDS["GPT-2 124M"])
    assert rank_parameters(model, Parallel(), 0, 50_257).total == 124_439_808
    both = [rank_parameters(model, Parallel(pipeline=2), rank, 50_257).total for rank in (0, 1)]
    assert sum(both) == 124_439_808 + 50_257 * 768


@pytest.mark.parametrize("name", CARDS)
def test_one_rank_holds_the_whole_model(name: str) -> None:
    model = model_of(CARDS[name])
    assert rank_parameters(model, Parallel(), 0, model.vocab_size).total == int(CARDS[name]["total"])


@settings(max_examples=60, deadline=None)
@given(pipeline=st.sampled_from([1, 2, 4]), virtual=st.sampled_from([1, 2]), expert=st.sampled_from([1, 2, 4, 8]))
def test_the_ranks_of_a_layout_hold_the_model_once(pipeline: int, virtual: int, expert: int) -> None:
    """Expert ranks hold different experts and the same dense parameters; pipeline ranks differ in all."""
    model = model_of(CARDS["Mixtral 8x7B"])
    parallel = Parallel(pipeline=pipeline, virtual_pipeline=virtual, expert=expert)
    held = [rank_parameters(model, parallel, rank, 32_000) for rank in range(pipeline)]
    assert sum(rank.dense for rank in held) + expert * sum(rank.experts for rank in held) == 46_702_792_704


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_tensor_ranks_repeat_norms_and_output_biases_only(tensor: int) -> None:
    """Of GPT-2's layer two norms (4 x 768) and the biases of both output projections (2 x 768) are on every rank."""
    model = model_of(CARDS["GPT-2 124M"])
    repeated = 12 * 6 * 768 + 2 * 768 + 1024 * 768
    rows = padded_vocab(50_257, tensor)
    held = rank_parameters(model, Parallel(tensor=tensor), 0).total
    assert tensor * (held - repeated) + repeated == 124_439_808 + (rows - 50_257) * 768


def test_tensor_ranks_of_experts_split_by_expert_tensor() -> None:
    """An expert of Mixtral has 3 x 4,096 x 14,336 weights; tensor parallelism of the attention does not touch it."""
    model = model_of(CARDS["Mixtral 8x7B"])
    one = 3 * 4096 * 14_336
    assert rank_parameters(model, Parallel(tensor=4, expert=8), 0).experts == 32 * one
    assert rank_parameters(model, Parallel(tensor=4, expert=8, expert_tensor=2), 0).experts == 16 * one

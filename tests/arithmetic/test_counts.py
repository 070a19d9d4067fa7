"""Parameters and FLOPs against published figures."""

import pytest

from preheat.arithmetic import flops_per_token, layout, padded_vocab, parameters
from preheat.recipe import Model, Parallel, load

LLAMA3_8B = Model(layers=32, hidden=4096, heads=32, kv_heads=8, ffn_hidden=14336, vocab_size=128_256, tied_embeddings=False, rope_theta=5e5)
LLAMA3_70B = Model(layers=80, hidden=8192, heads=64, kv_heads=8, ffn_hidden=28672, vocab_size=128_256, tied_embeddings=False, rope_theta=5e5)
GPT3 = {"activation": "gelu", "norm": "layernorm", "bias": True, "position": "learned"}
GPT3_175B = Model(layers=96, hidden=12288, heads=96, ffn_hidden=49152, vocab_size=50_257, max_positions=2048, **GPT3)


@pytest.mark.parametrize(
    ("model", "total"),
    [
        (LLAMA3_8B, 8_030_261_248),  # Meta-Llama-3-8B, model card and safetensors index
        (LLAMA3_70B, 70_553_706_496),  # Meta-Llama-3-70B
        (GPT3_175B, 174_604_259_328),  # arXiv 2005.14165, table 2.1: "175.0B"
    ],
)
def test_parameters_of_published_models(model: Model, total: int) -> None:
    assert parameters(model).total == total


def test_the_toy_is_gpt2_small() -> None:
    assert parameters(load("toy-124m").recipe.model).total == 124_439_808


def test_untied_embeddings_add_one_table() -> None:
    toy = load("toy-124m").recipe.model
    assert parameters(toy.model_copy(update={"tied_embeddings": False})).total == 124_439_808 + 50_257 * 768


def test_flops_of_llama3_8b_at_8k_by_convention() -> None:
    """51.5 GFLOP a token exactly, 61.1 with all parameters and full-square attention: the same step, 19 % apart."""
    flops = flops_per_token(LLAMA3_8B, 8192)
    assert flops.causal / 1e9 == pytest.approx(51.5, abs=0.05)
    assert flops.full_square / 1e9 == pytest.approx(61.1, abs=0.05)


def test_flops_of_gpt3_175b_equal_megatrons_counter() -> None:
    """Megatron-LM counts 3,340 PFLOP for an iteration of 1,536 sequences of 2,048 tokens with the vocabulary padded for TP 8."""
    assert flops_per_token(GPT3_175B, 2048, tensor=8).megatron * 1536 * 2048 / 1e15 == pytest.approx(3340, rel=5e-4)


def test_padded_vocabulary() -> None:
    assert padded_vocab(50_257, 1) == 50_304  # nanoGPT's padded vocabulary
    assert padded_vocab(50_257, 8) == 51_200  # Megatron-LM's GPT-3 with TP 8
    assert padded_vocab(128_256, 8) == 129_024
    assert padded_vocab(128, 1) == 128


def test_deepseek_v3_on_1024_gpus_has_two_meshes() -> None:
    mesh = layout(Parallel(tensor=2, pipeline=16, expert=64), 1024)
    assert (mesh.dense_dp, mesh.expert_dp) == (32, 1)
    with pytest.raises(ValueError, match=r"1024 .* = 2048"):
        layout(Parallel(tensor=2, pipeline=16, expert=64, expert_tensor=2), 1024)


def test_405b_on_128_gpus_with_context_parallelism_is_refused() -> None:
    with pytest.raises(ValueError, match=r"100 .* = 128"):
        layout(Parallel(tensor=8, pipeline=8, context=2), 100)
    assert layout(Parallel(tensor=8, pipeline=8, context=2), 128).dense_dp == 1

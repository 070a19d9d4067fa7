"""Who sees whom: documents, windows, and caches that must agree with reading the whole."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from preheat.model import Cache, build, documents, inference
from preheat.model.mask import positions, seen
from preheat.recipe import LatentAttention, Model, RopeScaling

EOD = 7
ROTARY = Model(layers=2, hidden=32, heads=4, kv_heads=2, ffn_hidden=48, vocab_size=260, rope_theta=100.0, init_std=0.3)
LATENT = LatentAttention(q_lora_rank=12, kv_lora_rank=16, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=10)
YARN = RopeScaling(kind="yarn", factor=4.0, original_max_positions=8, beta_fast=32.0, beta_slow=1.0)
MODELS = {
    "rotary": ROTARY,
    "learned": ROTARY.model_copy(update={"position": "learned", "rope_theta": None, "max_positions": 24, "kv_heads": None}),
    "window": ROTARY.model_copy(update={"sliding_window": 3}),
    "partial": ROTARY.model_copy(update={"rotary_fraction": 0.5, "qk_norm": True, "norm": "layernorm1p", "activation": "squared_relu"}),
    "latent": ROTARY.model_copy(update={"mla": LATENT, "kv_heads": None}),
    "latent without query latent": ROTARY.model_copy(
        update={"mla": LATENT.model_copy(update={"q_lora_rank": None}), "kv_heads": None, "rope_scaling": YARN}
    ),
}


@given(st.lists(st.integers(6, 8), min_size=1, max_size=12), st.none() | st.integers(1, 13))
def test_a_token_sees_earlier_ones_of_its_document_within_the_window(tokens: list[int], window: int | None) -> None:
    tokens_BT = torch.tensor([tokens])
    mask = seen(len(tokens), torch.device("cpu"), documents(tokens_BT, EOD), window)
    assert mask is not None
    place = positions(documents(tokens_BT, EOD))[0]
    for query in range(len(tokens)):
        start = max((index for index in range(query + 1) if tokens[index] == EOD), default=0)
        expected = [start <= key <= query and (window is None or query - key < window) for key in range(len(tokens))]
        assert mask[0, 0, query].tolist() == expected
        assert place[query] == query - start


def test_nothing_to_mask_leaves_plain_causal_attention() -> None:
    assert seen(8, torch.device("cpu")) is None
    assert seen(8, torch.device("cpu"), window=8) is None


@pytest.mark.parametrize("name", MODELS)
def test_a_document_is_read_as_if_it_were_alone(name: str) -> None:
    """The logits of document 2 are the same after any document 1, of any length, and those of reading it alone."""
    model = build(MODELS[name], seed=1)
    second = [EOD, 11, 12, 13, 14, 15]
    with inference(model):
        alone = model.logits(model(torch.tensor([second])))
        for first in ([1, 2, 3, 4, 5], [1, 2, 200, 4, 5], [9], [1] * 12):
            tokens_BT = torch.tensor([first + second])
            after = model.logits(model(tokens_BT, documents_BT=documents(tokens_BT, EOD)))[:, len(first) :]
            torch.testing.assert_close(after, alone, rtol=1e-4, atol=1e-5)
            if MODELS[name].sliding_window is None:
                assert not torch.allclose(model.logits(model(tokens_BT))[:, len(first) :], alone, rtol=1e-2)


@pytest.mark.parametrize("name", MODELS)
def test_a_window_or_a_cache_changes_nothing_that_was_read(name: str) -> None:
    model = build(MODELS[name], seed=2)
    tokens_BT = torch.randint(0, 260, (2, 20), generator=torch.Generator().manual_seed(0))
    with inference(model):
        whole = model(tokens_BT)
        cache = Cache(model.config, 20)
        parts = [model(tokens_BT[:, :7], cache=cache)] + [model(tokens_BT[:, t : t + 1], cache=cache) for t in range(7, 20)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-5)


def test_a_window_hides_what_lies_before_it() -> None:
    """With two layers of window 3 a token depends on the 4 before it and on none further back."""
    model = build(MODELS["window"], seed=3)
    tokens_BT = torch.randint(0, 260, (1, 16), generator=torch.Generator().manual_seed(0))
    with inference(model):
        before = model(tokens_BT)[0, 10]
        for changed in range(11):
            other_BT = tokens_BT.clone()
            other_BT[0, changed] = (other_BT[0, changed] + 1) % 260
            assert torch.equal(model(other_BT)[0, 10], before) == (changed < 6)

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from preheat.arithmetic import Rope
from preheat.errors import PreheatError, RunFailed
from preheat.evaluate import held_out, scorer
from preheat.evaluate.held_out import TOKENS_AT_ONCE
from preheat.model import Transformer, build
from preheat.recipe import Model

MODEL = Model(layers=1, hidden=16, heads=2, ffn_hidden=16, vocab_size=260, rope_theta=10_000.0, init_std=0.3)
BYTES = np.arange(260) % 5


@pytest.fixture(scope="module")
def transformer() -> Transformer:
    return build(MODEL, seed=0)


def text(length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(0, 260, length).astype(np.uint16)


@given(length=st.integers(2, 70), seq_len=st.integers(1, 80), limit=st.none() | st.integers(1, 80))
@settings(max_examples=40, deadline=None)
def test_every_token_but_the_first_is_scored_once_from_its_window(length: int, seq_len: int, limit: int | None) -> None:
    """Against one token at a time: the label at position p is predicted from the tokens of p's window before it."""
    transformer = build(MODEL, seed=0)
    ids = text(length)
    scored = ids[: length if limit is None else limit + 1]
    assume((scored[1:] % 5).any())
    nats = 0.0
    for position in range(1, len(scored)):
        window = (position - 1) // seq_len * seq_len
        with torch.no_grad():
            logits = transformer.logits(transformer(torch.from_numpy(scored[window:position].astype(np.int64))[None]))[0, -1]
        nats -= float(logits.double().log_softmax(-1)[int(scored[position])])
    score = held_out(scorer(transformer), {"web": ids}, BYTES, seq_len=seq_len, max_tokens=limit)["web"]
    assert score.nats == pytest.approx(nats, rel=1e-5)
    assert score.tokens == len(scored) - 1
    assert score.bytes == sum(int(token) % 5 for token in scored[1:])
    assert score.loss == pytest.approx(nats / score.tokens)
    assert score.bits_per_byte * score.bytes * math.log(2) == pytest.approx(nats, rel=1e-5)


def test_many_windows_are_split_over_passes_without_a_seam(transformer: Transformer) -> None:
    ids = text(TOKENS_AT_ONCE + 200)
    whole = held_out(scorer(transformer), {"web": ids}, BYTES, seq_len=64)["web"]
    cut = 64 * 100
    parts = [held_out(scorer(transformer), {"web": part}, BYTES, seq_len=64)["web"] for part in (ids[: cut + 1], ids[cut:])]
    assert whole.tokens == sum(part.tokens for part in parts) == len(ids) - 1
    assert whole.nats == pytest.approx(sum(part.nats for part in parts), rel=1e-6)


def test_bits_per_byte_of_a_model_that_guesses() -> None:
    """All logits 0: log2(260) bits per token; at 2 bytes per token half of that per byte."""
    transformer = build(MODEL, seed=0)
    with torch.no_grad():
        transformer.embedding.weight.zero_()
    score = held_out(scorer(transformer), {"web": text(40)}, np.full(260, 2), seq_len=16)["web"]
    assert score.bits_per_byte == pytest.approx(math.log2(260) / 2)


def test_sources_are_scored_apart_and_the_rope_base_matters(transformer: Transformer) -> None:
    texts = {"web": text(40), "code": text(50)}
    together = held_out(scorer(transformer), texts, BYTES, seq_len=16)
    assert together["code"] == held_out(scorer(transformer), {"code": texts["code"]}, BYTES, seq_len=16)["code"]
    assert together["web"].loss != held_out(scorer(transformer, Rope(50.0)), texts, BYTES, seq_len=16)["web"].loss
    assert transformer.training


@pytest.mark.parametrize(
    ("ids", "limit", "message"),
    [
        ([], None, "web: 0 tokens"),
        ([3], None, "web: 1 tokens"),
        ([1, 260], None, "token id 260"),
        ([3, 5], None, "no bytes"),
        ([1, 2], 0, "0 held-out"),
    ],
)
def test_texts_without_a_score_are_refused(transformer: Transformer, ids: list[int], limit: int | None, message: str) -> None:
    with pytest.raises(PreheatError, match=message):
        held_out(scorer(transformer), {"web": np.array(ids, np.int64)}, BYTES, seq_len=16, max_tokens=limit)


def test_a_loss_that_is_not_finite_is_said_to_be_so() -> None:
    transformer = build(MODEL, seed=0)
    with torch.no_grad():
        transformer.norm.weight[0] = float("inf")
    with pytest.raises(RunFailed, match="the held-out loss of web is"):
        held_out(scorer(transformer), {"web": text(40)}, BYTES, seq_len=16)
    assert transformer.training

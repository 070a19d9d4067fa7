"""What the training engine doesn't run: a note to whoever checks and exports, an error to whoever trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from preheat.check import check, untrained
from preheat.recipe import catalog, load

DENSE = str(Path(__file__).parent / "recipes" / "dense.toml")
MOE = "model.experts={ count = 8, active = 2, ffn_hidden = 100, shared = 1, aux_loss = 0.01 }"
SEQUENCE = "parallel={ tensor = 8, sequence = true }"
LATENT = "model.mla={ kv_lora_rank = 512, qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128 }"


@pytest.mark.parametrize(
    ("rule", "sets", "said"),
    [
        ("engine.not-trained", ["parallel={ pipeline = 4, schedule = 'dualpipe' }"], 'schedule = "dualpipe-v" and virtual_pipeline = 2'),
        ("engine.not-trained", ["model.dropout=0.1", "precision.compute=fp16"], "does not do model.dropout, precision.compute"),
        ("engine.ring", ["parallel={ context = 2, context_exchange = 'ring' }", "batch.mask_documents=true"], "documents under ring"),
        ("engine.ring", ["parallel={ context = 2, context_exchange = 'ring' }", "model.sliding_window=64"], "a window of 64 under ring"),
        ("engine.heads", ["model.kv_heads=2", "parallel.tensor=4"], "2 kv_heads over tensor 4"),
        (
            "engine.heads",
            ["parallel={ context = 8, tensor = 2, context_exchange = 'ulysses' }"],
            "8 kv_heads over tensor 2 x context 8 = 16",
        ),
        (
            "engine.sharding",
            ["parallel={ pipeline = 4, virtual_pipeline = 2, schedule = 'zero-bubble-v', sharding = 'full' }"],
            '"full" with schedule "zero-bubble-v"',
        ),
        ("engine.vocabulary", ["model.vocab_size=258", "parallel.tensor=32"], "9 each; 29 ranks hold them all"),
        ("engine.experts", [MOE, "parallel.tensor=2"], "experts with tensor 2 and no sequence parallelism"),
        ("engine.experts", [MOE, "model.experts.capacity_factor=1.5", "parallel.context=2"], "capacity_factor 1.5 over context 2"),
        ("engine.experts", [MOE, "model.experts.capacity_factor=1.5", SEQUENCE], "capacity_factor 1.5 over tensor 8 with sequence"),
        ("engine.experts", [MOE, SEQUENCE], "shared experts of width 100 over tensor 8"),
        ("engine.optimizer", ["optimizer.state_precision=bf16", "parallel.gpus=8"], "bf16 moments over several ranks"),
        ("engine.prediction", ["model.mtp={ layers = 4, loss_weight = 0.3 }", "batch.seq_len=4"], "4 tokens ahead in sequences of 4"),
    ],
)
def test_it_is_noted_in_a_check_and_an_error_in_training(rule: str, sets: list[str], said: str) -> None:
    loaded = load(DENSE, sets)
    noted = {str(problem): problem.severity for problem in check(loaded) if problem.rule == rule}
    refused = {str(problem): problem.severity for problem in untrained(loaded) if problem.rule == rule}
    assert any(said in text for text in noted)
    assert noted.keys() == refused.keys()
    assert set(noted.values()) == {"note"}
    assert set(refused.values()) == {"error"}


@pytest.mark.parametrize(
    "sets",
    [
        ["parallel={ context = 2, context_exchange = 'ring' }"],
        ["parallel={ context = 4, tensor = 2, context_exchange = 'ulysses' }"],
        [LATENT, "model.kv_heads=2", "parallel.tensor=4"],
        [MOE, "model.experts.ffn_hidden=96", "parallel={ tensor = 2, sequence = true, context = 2, expert = 4 }"],
        [MOE, "model.experts.capacity_factor=1.5", "parallel.expert=4"],
        ["parallel={ pipeline = 4, virtual_pipeline = 2, schedule = 'dualpipe-v' }"],
        ["model.vocab_size=258", "parallel.tensor=8"],
        ["optimizer.name=muon", "parallel.tensor=2"],
        [MOE, "optimizer.name=muon", "parallel.expert=2"],
        ["optimizer.state_precision=bf16", "parallel.gpus=1"],
    ],
)
def test_what_the_engine_runs_is_not_refused(sets: list[str]) -> None:
    assert untrained(load(DENSE, sets)) == []


def test_ignoring_a_note_does_not_train_it() -> None:
    loaded = load(DENSE, ["model.dropout=0.1", "ignore=[{ rule = 'engine.not-trained', reason = 'exported only' }]"])
    assert "engine.not-trained" not in {problem.rule for problem in check(loaded)}
    assert [problem.rule for problem in untrained(loaded)] == ["engine.not-trained"]


def test_what_the_catalog_asks_beyond_training() -> None:
    """DualPipe, fp16, and stages with a context-parallel size of their own; no layout of the catalog is beyond the engine."""
    found = {name: {problem.rule for problem in untrained(load(name))} for name in catalog()}
    assert {"deepseek-v3", "gpt3-175b", "llama3.1-405b"} <= {name for name, rules in found.items() if rules}
    assert set().union(*found.values()) == {"engine.not-trained"}
    assert not found["llama3-70b"] | found["mixtral-8x7b"] | found["mixtral-8x22b"] | found["gpt3-15b"] | found["gpt3-175b-megatron"]

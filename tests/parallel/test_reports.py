"""Faults from public reports that are about parallelism, as they were met; the numbers are those of the collection of cases.

Elsewhere: F02 (a score that grows with the ranks), F05 (the balance loss by micro-batch), F07 (expert gradients), F10 (shards drawn alike)
and F19 (accumulation in a pipeline) are what `test_equality` compares in every layout; F03 (each stage clips by itself), F07, F09 (replicas
that start apart), F18 (a rank that does not clip) and F19 are built in on purpose in `test_mutants`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from conftest import Apart
from layout_run import MODELS, Bars, Training, assert_equal, train
from rank_pool import RankPool

from preheat.recipe import Parallel

DENSE = MODELS["dense"].model_copy(update={"layers": 2})


@pytest.mark.parametrize(("count", "micro_size"), [(1, 2), (1, 1), (2, 1)])
def test_f01_every_token_weighs_the_same(apart: Apart, count: int, micro_size: int) -> None:
    """Two samples with 10 and 100 targets: each weighs 1/110, however they are cut (transformers issue 24725)."""
    training = Training(DENSE, micro_size, shapes=((2, 100),) * 2, scored=(10, 100))
    assert_equal(apart(count, Parallel(), training))


def test_f08_both_copies_of_a_tied_embedding_stay_equal(ranks: RankPool) -> None:
    """After ten steps of pipeline 2, two replicas and a sharded optimizer, to the last bit (Megatron-LM issue 844)."""
    training = Training(MODELS["gpt2"], micro_size=1, shapes=((8, 16),) * 10)
    outcomes = ranks.run(4, train, training, Parallel(pipeline=2, sharding="optimizer"))
    copies = [value for outcome in outcomes for name, value in outcome.parameters if name == "embedding.weight"]
    assert len(copies) == 4
    assert all(np.array_equal(copy, copies[0]) for copy in copies)


@pytest.mark.parametrize(
    "sizes", [{}, {"sharding": "full", "replicate": 2}, {"tensor": 2, "sequence": True}, {"context": 2}], ids=["none", "hybrid", "tp", "cp"]
)
def test_f09_ranks_with_the_same_weights_have_the_same_bits(ranks: RankPool, sizes: dict[str, Any]) -> None:
    """At the start and after steps (OLMo-core pull 319, torchtitan issue 166)."""
    outcomes = ranks.run(4, train, Training(DENSE, micro_size=1), Parallel(**sizes))
    for outcome in outcomes[1:]:
        for kind in ("initial", "parameters"):
            pairs = zip(getattr(outcome, kind), getattr(outcomes[0], kind), strict=True)
            assert all(name == other and np.array_equal(value, theirs) for (name, value), (other, theirs) in pairs)
        assert outcome.norms == outcomes[0].norms


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_f11_the_first_loss_is_that_of_a_guess(ranks: RankPool, tensor: int) -> None:
    """ln(112,146) = 11.63; ranks that drew their own values began at 5.83 and 1.45 (Automodel issue 1291)."""
    model = DENSE.model_copy(update={"vocab_size": 112_146, "init_std": 0.02, "layers": 1})
    outcomes = ranks.run(tensor, train, Training(model, micro_size=2, shapes=((2, 16),)), Parallel(tensor=tensor))
    assert {round(outcome.losses[0], 5) for outcome in outcomes} == {round(outcomes[0].losses[0], 5)}
    assert outcomes[0].losses[0] == pytest.approx(math.log(112_146), abs=0.5)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("dense", {}), ("mixtral", {"expert": 2}), ("gpt2", {"pipeline": 2}), ("dense", {"tensor": 2, "sequence": True})],
)
def test_f12_a_rank_without_targets(apart: Apart, name: str, sizes: dict[str, Any]) -> None:
    """The first half of the batch has no label: no NaN, and the others' tokens count as they do alone (Automodel issue 3796)."""
    model = MODELS[name].model_copy(update={"layers": 2})
    assert_equal(apart(2, Parallel(**sizes), Training(model, micro_size=2, scored=(0, 0, 0, 0))))


def test_f20_accumulation_is_the_same_for_fifty_steps(apart: Apart) -> None:
    """Four micro-batches on each of two ranks (build-nanogpt pull 30)."""
    training = Training(DENSE, micro_size=1, shapes=((8, 16),) * 50)
    assert_equal(apart(2, Parallel(), training), Bars(loss=1e-4, norm=1e-4))

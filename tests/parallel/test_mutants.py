"""Tests of the tests: with a fault built in, the comparison of layouts fails, and says where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from layout_run import MODELS, Outcome, Training, assert_equal
from mutants import MUTANTS, mutant_distance
from rank_pool import RankPool

from preheat.recipe import Parallel

CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "averaged": ("dense", {"sharding": "full"}, "norm"),
    "last micro-batch dropped": ("dense", {"sharding": "optimizer"}, "loss, norm"),
    "first micro-batch of a pipeline dropped": ("dense", {"pipeline": 2}, "loss, norm"),
    "another replica's rows": ("dense", {}, "loss, norm"),
    "own seed": ("dense", {}, "loss, norm"),
    "experts twice": ("mixtral", {"expert": 2}, "norm"),
    "own gradient": ("gpt2", {}, "norm"),
    "clipped by own norm": ("dense", {"pipeline": 2}, "norm"),
    "one rank does not clip": ("dense", {"tensor": 2, "sequence": True}, "parameter"),
    "twins apart": ("gpt2", {"pipeline": 2}, "norm"),
    "counted alone": ("mixtral", {"expert": 2}, "router"),
}


def test_every_fault_has_a_case() -> None:
    assert CASES.keys() == MUTANTS.keys()


@pytest.mark.parametrize("fault", CASES)
def test_a_fault_is_noticed(ranks: RankPool, reference: Callable[[Training], Outcome], fault: str) -> None:
    name, sizes, where = CASES[fault]
    training = Training(MODELS[name].model_copy(update={"layers": 2}), micro_size=2)
    found = ranks.run(2, mutant_distance, fault, training, Parallel(**sizes), reference(training))
    with pytest.raises(AssertionError, match=f"is apart in .*{where}"):
        assert_equal(found)

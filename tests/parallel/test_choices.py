"""A choice that leaves the result as it is shows in what is computed, sent, kept or done first: otherwise it would do nothing, in silence."""

from __future__ import annotations

import pytest
from observed import GPT2, kept, one_step, order
from rank_pool import RankPool

from preheat.recipe import Parallel, Recompute

LAYERS = GPT2.layers
V = {"pipeline": 2, "virtual_pipeline": 2}


@pytest.mark.parametrize(
    ("recompute", "attention", "feed_forward"),
    [
        (Recompute(), LAYERS, LAYERS),
        (Recompute(kind="selective"), 2 * LAYERS, LAYERS),
        (Recompute(kind="full"), 2 * LAYERS, 2 * LAYERS),
        (Recompute(kind="full", layers=3), LAYERS + 3, LAYERS + 3),
    ],
)
def test_what_is_computed_again(recompute: Recompute, attention: int, feed_forward: int) -> None:
    counts = one_step(Parallel(recompute=recompute))
    assert (counts["_scaled_dot_product_flash_attention_for_cpu"], counts["gelu"]) == (attention, feed_forward)


@pytest.mark.parametrize(
    ("exchange", "sent"),
    [
        ("gather", {"all_gather_into_tensor": 2 * LAYERS}),  # keys and values
        ("ulysses", {"all_to_all_single": 2 * 4 * LAYERS}),  # queries, keys, values and outputs, and as many gradients
        # Keys and values in one round of each pass, and their gradients in both rounds of the backward pass.
        ("ring", {"send": (2 + 2 + 4) * LAYERS, "recv_": (2 + 2 + 4) * LAYERS}),
    ],
)
def test_what_context_ranks_exchange(ranks: RankPool, exchange: str, sent: dict[str, int]) -> None:
    kinds = ("all_gather_into_tensor", "all_to_all_single", "send", "recv_")
    for counts in ranks.run(2, one_step, Parallel(context=2, context_exchange=exchange)):
        assert {kind: counts[kind] for kind in kinds if counts[kind]} == sent


def test_what_sharding_keeps_and_gathers(ranks: RankPool) -> None:
    """Blocks and the rest are gathered once; with "full" each block again for its backward pass, but not the rest, which ends last."""
    found = {
        sharding: ranks.run(4, kept, Parallel(sharding=sharding, replicate=replicate))[0]
        for sharding, replicate in (("none", 1), ("optimizer", 1), ("full", 1), ("full", 2))
    }
    assert found == {}


def test_the_order_of_a_pipeline(ranks: RankPool) -> None:
    found = {
        schedule: ranks.run(2, order, Parallel(**(sizes | {"schedule": schedule})))[0]
        for schedule, sizes in {
            "1f1b": {"pipeline": 2},
            "interleaved": V,
            "zero-bubble": V,
            "zero-bubble-v": V,
            "dualpipe-v": V,
        }.items()
    }
    for k, v in found.items():
        print(k, " ".join(v))
    assert not found

"""A choice that leaves the result as it is shows in what is computed, sent, kept, or done first: else it would do nothing, in silence."""

from __future__ import annotations

from typing import Any

import pytest
from observed import GPT2, kept, one_step, order
from rank_pool import RankPool

from preheat.recipe import Parallel, Recompute

LAYERS = GPT2.layers


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


@pytest.mark.parametrize(
    ("sizes", "share", "gathers"),
    [
        ({"sharding": "none"}, 1, 0),
        ({"sharding": "optimizer"}, 1 / 4, LAYERS + 1),
        ({"sharding": "full"}, 1 / 4, 2 * LAYERS + 1),
        ({"sharding": "full", "replicate": 2}, 1 / 2, 2 * LAYERS + 1),
    ],
)
def test_what_sharding_keeps_and_gathers(ranks: RankPool, sizes: dict[str, Any], share: float, gathers: int) -> None:
    """Each block, and the rest; with "full" each block again for its backward pass, but not the rest, with which that pass begins."""
    for held, gathered in ranks.run(4, kept, Parallel(**sizes)):
        assert held == pytest.approx(share, rel=5e-3)  # no dim of 259 is divisible
        assert gathered == gathers


@pytest.mark.parametrize(
    ("schedule", "pieces", "passes"),
    [
        ("1f1b", "0", "FB"),
        ("interleaved", "02", "FB"),
        ("zero-bubble", "02", "FIW"),
        ("zero-bubble-v", "03", "FIW"),
        ("dualpipe-v", "03", "FBIW"),  # weights apart only while the pipeline fills and empties
    ],
)
def test_the_passes_of_a_pipeline(ranks: RankPool, schedule: str, pieces: str, passes: str) -> None:
    found = ranks.run(2, order, Parallel(pipeline=2, virtual_pipeline=len(pieces), schedule=schedule))[0]
    assert {step[0] for step in found} == set(passes)
    assert sorted(step for step in found if step[0] == "F") == [f"F{piece}.{batch}" for piece in pieces for batch in range(4)]
    backward = sorted(step[1:] for step in found if step[0] in "BI")
    assert backward == [f"{piece}.{batch}" for piece in pieces for batch in range(4)]
    assert [step[1:] for step in found if step[0] == "W"] == [step[1:] for step in found if step[0] == "I"]


def test_the_order_of_1f1b_is_that_of_its_paper(ranks: RankPool) -> None:
    """arXiv 2104.04473, figure 4 (the interleaved one begins F0.0 F0.1 F2.0 F2.1, as in its lower half)."""
    first, last = ranks.run(2, order, Parallel(pipeline=2))
    assert first == ["F0.0", "F0.1", "B0.0", "F0.2", "B0.1", "F0.3", "B0.2", "B0.3"]
    assert last == ["F1.0", "B1.0", "F1.1", "B1.1", "F1.2", "B1.2", "F1.3", "B1.3"]
    interleaved = ranks.run(2, order, Parallel(pipeline=2, virtual_pipeline=2, schedule="interleaved"))[0]
    assert interleaved[:4] == ["F0.0", "F0.1", "F2.0", "F2.1"]

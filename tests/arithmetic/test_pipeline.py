"""No split of layers loses or invents one."""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from preheat.arithmetic import balanced_split, bubble, pipeline_split
from preheat.recipe import Parallel, load


def layers_of(layers: int, parallel: Parallel) -> list[list[int]]:
    return [[layer for chunk in rank for layer in chunk.layers] for rank in pipeline_split(layers, parallel)]


def test_30_layers_on_4_stages_are_refused_and_not_cut_to_28() -> None:
    """Megatron-LM issue 1304 built 28."""
    with pytest.raises(ValueError, match=r"30 layers .* 4 pipeline stages.*\[7, 8, 8, 7\]"):
        pipeline_split(30, Parallel(pipeline=4))
    assert [len(rank) for rank in layers_of(30, Parallel(pipeline=4, pipeline_layers=(7, 8, 8, 7)))] == [7, 8, 8, 7]


def test_an_uneven_list_is_the_model_and_nothing_else() -> None:
    with pytest.raises(ValueError, match="sums to 28, and the model has 30"):
        pipeline_split(30, Parallel(pipeline=4, pipeline_layers=(7, 7, 7, 7)))
    with pytest.raises(ValueError, match=r"3 entries, and pipeline 4 .* 4 pieces"):
        pipeline_split(30, Parallel(pipeline=4, pipeline_layers=(10, 10, 10)))
    with pytest.raises(ValueError, match="sums to 1, and the model has 20"):
        pipeline_split(20, Parallel(pipeline_layers=(1,)))  # Megatron-LM issue 1778


def test_virtual_stages_go_round_the_ranks() -> None:
    """16 layers, 4 stages, 2 virtual: rank 0 holds layers 0, 1 and 8, 9 (arXiv 2104.04473, figure 4)."""
    split = layers_of(16, Parallel(pipeline=4, virtual_pipeline=2))
    assert split[0] == [0, 1, 8, 9]
    assert split[3] == [6, 7, 14, 15]


def test_embedding_and_head_lie_at_the_ends() -> None:
    split = pipeline_split(16, Parallel(pipeline=4, virtual_pipeline=2))
    assert [(rank, chunk.index) for rank, chunks in enumerate(split) for chunk in chunks if chunk.first] == [(0, 0)]
    assert [(rank, chunk.index) for rank, chunks in enumerate(split) for chunk in chunks if chunk.last] == [(3, 7)]


def test_dualpipe_holds_the_model_from_both_ends() -> None:
    assert layers_of(8, Parallel(pipeline=4, schedule="dualpipe")) == [[0, 1, 6, 7], [2, 3, 4, 5], [2, 3, 4, 5], [0, 1, 6, 7]]
    with pytest.raises(ValueError, match="virtual_pipeline is 2"):
        pipeline_split(8, Parallel(pipeline=4, virtual_pipeline=2, schedule="dualpipe"))


def test_llama_405b_gives_up_a_layer_at_both_ends() -> None:
    """arXiv 2407.21783, section 3.3.2; 126 + 2 = 16 x 8."""
    assert balanced_split(126, 16) == (7, *[8] * 14, 7)
    assert load("llama3.1-405b").recipe.parallel.pipeline_layers == balanced_split(126, 16)


@given(st.integers(1, 130), st.integers(1, 20), st.integers(0, 2), st.integers(0, 2))
def test_a_balanced_split_has_every_layer_and_is_even(layers: int, pieces: int, embedding: int, head: int) -> None:
    sizes = balanced_split(layers, pieces, embedding=embedding, head=head)
    assert len(sizes) == pieces
    assert sum(sizes) == layers
    assert min(sizes) >= 0
    if pieces > 1 and layers > 3 * pieces:
        weights = [sizes[0] + embedding, *sizes[1:-1], sizes[-1] + head]
        assert max(weights) - min(weights) <= 1


@given(st.data(), st.integers(1, 8), st.integers(1, 4), st.booleans())
def test_every_layer_is_on_one_rank_once(data: st.DataObject, pipeline: int, virtual: int, dual: bool) -> None:
    assume(not dual or (virtual == 1 and pipeline % 2 == 0))
    sizes = tuple(data.draw(st.lists(st.integers(0, 5), min_size=pipeline * virtual, max_size=pipeline * virtual)))
    parallel = Parallel(pipeline=pipeline, virtual_pipeline=virtual, pipeline_layers=sizes, schedule="dualpipe" if dual else "interleaved")
    split = layers_of(sum(sizes), parallel)
    assert len(split) == pipeline
    copies = 2 if dual else 1
    assert sorted(layer for rank in split for layer in rank) == sorted([*range(sum(sizes))] * copies)
    assert all(rank == sorted(rank) for rank in split)


@pytest.mark.parametrize(
    ("pipeline", "micro_batches", "percent"),
    [(8, 4, 63.6), (12, 1, 91.7), (12, 12, 47.8), (12, 24, 31.4), (12, 128, 7.9)],  # torchtitan issue 775; BLOOM's plan
)
def test_waiting_time_of_a_pipeline(pipeline: int, micro_batches: int, percent: float) -> None:
    assert float(bubble(Parallel(pipeline=pipeline), micro_batches)) * 100 == pytest.approx(percent, abs=0.05)


def test_virtual_stages_shorten_the_wait() -> None:
    """(p - 1) / (v m) of the work: 3 / (2 x 8) of it, 3 / 19 of the step."""
    assert bubble(Parallel(pipeline=4, virtual_pipeline=2), 8) == Fraction(3, 19)
    assert bubble(Parallel(), 5) == 0


def test_a_split_is_proposed_only_where_one_can_be_read() -> None:
    """Eight stages of two layers, or 256 numbers, help nobody."""
    for layers, stages in ((2, 8), (2000, 256)):
        with pytest.raises(ValueError, match="not divisible") as caught:
            pipeline_split(layers, Parallel(pipeline=stages))
        assert len(str(caught.value)) < 80

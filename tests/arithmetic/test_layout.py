"""Both meshes: sizes that Megatron-LM accepts, and its groups of ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preheat.arithmetic import layout, meshes, smallest_world, stage_parallel
from preheat.recipe import Parallel, load


def test_deepseek_v3_on_1024_gpus_has_two_meshes() -> None:
    mesh = layout(Parallel(tensor=2, pipeline=16, expert=64), 1024)
    assert (mesh.dense_dp, mesh.expert_dp) == (32, 1)
    with pytest.raises(ValueError, match=r"1024 .* = 2048"):
        layout(Parallel(tensor=2, pipeline=16, expert=64, expert_tensor=2), 1024)


@pytest.mark.parametrize(
    ("parallel", "ranks", "dense", "expert"),
    [
        (Parallel(pipeline=4, expert=8), 64, 16, 2),  # Mixtral 8x7B; the guide: 2
        (Parallel(tensor=4, pipeline=4, expert=8), 256, 16, 8),  # Mixtral 8x22B
        (Parallel(tensor=4, pipeline=4, expert=8, expert_tensor=4), 256, 16, 2),
        (Parallel(context=2), 8, 4, 8),  # Llama 3 8B; the guide: 8
        (Parallel(tensor=4, expert=4), 4, 1, 1),  # Megatron-Bridge issue 546
        (Parallel(tensor=8, pipeline=8, context=2), 128, 1, 16),
    ],
)
def test_sizes_that_megatron_gives(parallel: Parallel, ranks: int, dense: int, expert: int) -> None:
    mesh = layout(parallel, ranks)
    assert (mesh.dense_dp, mesh.expert_dp) == (dense, expert)


def test_a_mesh_that_does_not_divide_the_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"100 .* = 128"):
        layout(Parallel(tensor=8, pipeline=8, context=2), 100)
    with pytest.raises(ValueError, match=r"8 .* expert 3 .* = 3"):
        layout(Parallel(expert=3), 8)


def test_the_smallest_world_holds_both_meshes() -> None:
    assert smallest_world(Parallel()) == 1
    assert smallest_world(Parallel(pipeline=4, expert=8)) == 32
    assert smallest_world(Parallel(tensor=2, pipeline=16, expert=64)) == 1024
    assert smallest_world(Parallel(tensor=4, expert=6)) == 12


def test_groups_of_megatrons_example() -> None:
    """parallel_state's example of 16 GPUs with tensor 2 and pipeline 4: 8 tensor, 4 pipeline and 8 data-parallel groups."""
    dense, _ = meshes(Parallel(tensor=2, pipeline=4), 16)
    assert dense.groups("tensor") == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]
    assert dense.groups("pipeline") == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
    assert dense.groups("data") == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]


def test_experts_spread_over_tensor_and_data_ranks() -> None:
    """Tensor 2, expert 4 on 8 GPUs: an expert group takes consecutive GPUs, so two of them share a tensor group."""
    dense, expert = meshes(Parallel(tensor=2, expert=4), 8)
    assert expert.groups("expert") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert expert.groups("data") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert dense.groups("data", "context") == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_a_stage_may_take_another_context_size() -> None:
    """Llama 3.1 405B: context 1 and 64 replicas at 8K; context 16 and 4 replicas at 128K (arXiv 2407.21783, table 4, on 8,192 GPUs)."""
    recipe = load("llama3.1-405b").recipe
    sizes = {stage.name: layout(stage_parallel(recipe.parallel, stage), 8192).dense_dp for stage in recipe.stage}
    assert sizes["main-16m"] == 64
    assert sizes["context-128k"] == 4


small = st.sampled_from([1, 2, 3, 4])


@given(small, small, small, small, small, small)
def test_every_rank_is_in_one_group_of_every_kind(tensor: int, pipeline: int, context: int, expert: int, etp: int, times: int) -> None:
    parallel = Parallel(tensor=tensor, pipeline=pipeline, context=context, expert=expert, expert_tensor=etp)
    ranks = smallest_world(parallel) * times
    for mesh in meshes(parallel, ranks):
        assert mesh.ranks == ranks
        for axis, size in mesh.axes.items():
            groups = mesh.groups(axis)
            assert {len(group) for group in groups} == {size}
            assert sorted(rank for group in groups for rank in group) == list(range(ranks))
        assert mesh.groups(*mesh.axes) == [list(range(ranks))]

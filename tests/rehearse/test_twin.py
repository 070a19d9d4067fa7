"""The twin of a recipe: legal itself, with every pattern of the real one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from preheat.arithmetic import Timeline, head_dim, kv_heads, layout, padded_vocab, parameters, pipeline_split, smallest_world
from preheat.check import check
from preheat.check.engine import untrained
from preheat.hardware import Cluster
from preheat.interop.toml_text import document
from preheat.recipe import Recipe, catalog, load
from preheat.rehearse import Twin, events, explained, twin

GOLDEN = Path(__file__).parent / "mixtral-8x7b.toml"
KINDS = ("activation", "norm", "norm_eps", "bias", "qk_norm", "position", "rope_theta", "rotary_fraction", "tied_embeddings")
KEPT = {"experts": ("score", "scaling", "aux_loss", "sequence_aux_loss", "z_loss"), "mla": (), "mtp": (), "mup": ()}


def gpus_of(recipe: Recipe) -> int:
    return recipe.parallel.gpus or smallest_world(recipe.parallel)


def of_catalog(name: str) -> tuple[Recipe, Twin]:
    recipe = load(name).recipe
    return recipe, twin(recipe, gpus_of(recipe), 8)


def hold_legal(small: Twin, folder: Path, processes: int) -> None:
    """The three recipes of a rehearsal are read back as they are, and neither `check` nor `train` refuses them."""
    assert small.axes.ranks <= processes
    for recipe, ranks in ((small.recipe, small.axes.ranks), (small.alone, 1), (small.elsewhere, small.other.ranks)):
        file = folder / "twin.toml"
        file.write_text(document(recipe.model_dump(mode="json", exclude_defaults=True)), encoding="utf-8")
        loaded = load(str(file))
        assert loaded.recipe == recipe
        problems = check(loaded, Cluster.parse(str(ranks))) + untrained(loaded)
        assert [str(problem) for problem in problems if problem.severity == "error"] == []
        for segment in Timeline(recipe).segments:
            assert segment.batch_size % (layout(recipe.parallel, ranks).dense_dp * segment.micro_size) == 0


def hold_pattern(recipe: Recipe, small: Twin) -> None:
    """What a model is made of, its ratios and the shape of its schedule are those of the real one."""
    real, model = recipe.model, small.recipe.model
    assert [getattr(model, kind) for kind in KINDS] == [getattr(real, kind) for kind in KINDS]
    for part, fields in KEPT.items():
        ours, theirs = getattr(model, part), getattr(real, part)
        assert (ours is None) == (theirs is None), part
        for field in fields if theirs is not None else ():
            assert getattr(ours, field) == getattr(theirs, field)
    if real.experts is None or recipe.optimizer.name == "adamw":
        assert small.recipe.optimizer == recipe.optimizer
    assert small.recipe.seed == recipe.seed
    if real.mla is None and real.heads // kv_heads(real) <= 8:
        assert model.heads // kv_heads(model) == real.heads // kv_heads(real)
    if real.experts is not None and model.experts is not None:
        assert (model.experts.active < model.experts.count) == (real.experts.active < real.experts.count)
        assert (model.experts.shared > 0, model.experts.first_dense > 0) == (real.experts.shared > 0, real.experts.first_dense > 0)
        if real.experts.groups and model.experts.groups:
            chosen = real.experts.active_groups < real.experts.groups  # type: ignore[operator]
            assert (model.experts.active_groups < model.experts.groups) == chosen  # type: ignore[operator]
    rates, schedule = recipe.schedule, small.recipe.schedule
    assert (schedule.peak_lr, schedule.final_lr, schedule.decay, schedule.decay_shape) == (
        *(rates.peak_lr, rates.final_lr, rates.decay, rates.decay_shape),
    )
    for axis, size in asdict(small.axes).items():
        assert size <= max(1, asdict(small.real)[axis])
        if asdict(small.real)[axis] > 1 and size == 1:
            assert any(said.startswith(f"{axis} ") for said in small.not_rehearsed), axis
    for pieces in pipeline_split(model.layers, small.recipe.parallel):
        assert any(piece.layers or piece.first or piece.last for piece in pieces)


@pytest.mark.parametrize("name", catalog())
def test_every_recipe_of_the_catalog_has_a_small_twin(name: str, tmp_path: Path) -> None:
    recipe, small = of_catalog(name)
    hold_legal(small, tmp_path, 8)
    hold_pattern(recipe, small)
    assert parameters(small.recipe.model).total < 2_000_000
    assert bool(small.axes.split) == bool(small.real.split)
    assert Timeline(small.recipe).end.steps <= 20
    assert len(small.recipe.stage) == len(recipe.stage)


SETTINGS = {
    "model.layers": st.integers(1, 130),
    "model.kv_heads": st.sampled_from([1, 2, 4, 8, 16, 32]),
    "model.head_dim": st.sampled_from([64, 80, 128, 256]),
    "model.ffn_hidden": st.sampled_from([1024, 5632, 14_336]),
    "model.vocab_size": st.sampled_from([258, 511, 50_257, 65_535, 128_256, 256_000]),
    "model.rotary_fraction": st.sampled_from([0.25, 0.5, 1.0]),
    "model.activation": st.sampled_from(["swiglu", "gelu", "squared_relu"]),
    "model.qk_norm": st.sampled_from(["true", "false"]),
    "model.bias": st.sampled_from(["true", "false"]),
    "model.dropout": st.sampled_from([0.0, 0.1]),
    "model.tied_embeddings": st.sampled_from(["true", "false"]),
    "model.sliding_window": st.sampled_from([1, 512, 4095]),
    "model.rope_scaling": st.sampled_from(
        ["{kind='yarn', factor=4.0, original_max_positions=4096, beta_fast=32.0, beta_slow=1.0}"],
    ),
    "model.mtp": st.sampled_from(
        ["{layers=1, loss_weight=0.3}", "{layers=3, loss_weight=[{at='0 steps', weight=0.3}, {at='9%', weight=0.1}]}"]
    ),
    "model.mup": st.sampled_from(["{base_hidden=256}", "{base_hidden=1024, base_head_dim=64}"]),
    "batch.seq_len": st.sampled_from([512, 4096, 8192]),
    "batch.micro_size": st.sampled_from([1, 2, 4]),
    "batch.mask_documents": st.sampled_from(["true", "false"]),
    "batch.ramp": st.sampled_from(["[]", "[{at='0 tokens', size=256}, {at='1B tokens', size=512}]"]),
    "schedule.length": st.sampled_from(["300B tokens", "100_000 steps", "30M samples"]),
    "schedule.warmup": st.sampled_from(["0 steps", "2000 steps", "1%"]),
    "schedule.decay": st.sampled_from(["cosine", "linear"]),
    "optimizer.name": st.sampled_from(["adamw", "muon"]),
    "precision.compute": st.sampled_from(["auto", "fp16", "bf16"]),
    "parallel.tensor": st.sampled_from([1, 2, 3, 4, 8]),
    "parallel.pipeline": st.sampled_from([1, 2, 3, 4, 8, 16]),
    "parallel.virtual_pipeline": st.sampled_from([1, 2, 4]),
    "parallel.schedule": st.sampled_from(["1f1b", "interleaved", "zero-bubble", "zero-bubble-v", "dualpipe", "dualpipe-v"]),
    "parallel.context": st.sampled_from([1, 2, 4]),
    "parallel.context_exchange": st.sampled_from(["gather", "ring", "ulysses"]),
    "parallel.expert": st.sampled_from([1, 2, 4, 8]),
    "parallel.expert_tensor": st.sampled_from([1, 2]),
    "parallel.sequence": st.sampled_from(["true", "false"]),
    "parallel.sharding": st.sampled_from(["none", "optimizer", "full"]),
    "parallel.replicate": st.sampled_from([1, 2, 4]),
    "parallel.recompute": st.sampled_from(["{kind='full', layers=1}", "{kind='full'}", "{kind='selective'}"]),
}
EXPERTS = {
    "model.experts.count": st.sampled_from([2, 8, 64, 160]),
    "model.experts.active": st.sampled_from([1, 2, 6, 8]),
    "model.experts.shared": st.sampled_from([0, 1, 3]),
    "model.experts.first_dense": st.sampled_from([0, 1, 3]),
    "model.experts.groups": st.sampled_from([1, 2, 8]),
    "model.experts.active_groups": st.sampled_from([1, 2, 4]),
    "model.experts.capacity_factor": st.sampled_from([1.25]),
}


def mixed(most: int, table: dict[str, st.SearchStrategy[object]]) -> st.SearchStrategy[dict[str, object]]:
    return st.dictionaries(st.sampled_from(sorted(table)), st.none(), max_size=most).flatmap(
        lambda chosen: st.fixed_dictionaries({key: table[key] for key in chosen})
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(
    name=st.sampled_from(["llama3-8b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3", "llama3.1-405b"]),
    values=mixed(5, SETTINGS),
    experts=mixed(3, EXPERTS),
    gpus=st.sampled_from([None, 64, 512, 1536, 4096]),
    processes=st.sampled_from([1, 2, 4, 8, 16]),
)
def test_any_legal_recipe_has_a_legal_twin(
    name: str,
    values: dict[str, object],
    experts: dict[str, object],
    gpus: int | None,
    processes: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    sets = values | (experts if load(name).recipe.model.experts is not None else {})
    loaded = load(name, tuple(f"{key}={value}" for key, value in sets.items()))
    ranks = gpus or gpus_of(loaded.recipe)
    problems = check(loaded, Cluster.parse(f"{ranks}x99999GB"))
    assume(not any(problem.severity == "error" for problem in problems))
    small = twin(loaded.recipe, ranks, processes)
    hold_legal(small, tmp_path_factory.mktemp("twin"), max(2, processes))
    hold_pattern(loaded.recipe, small)


def test_llama_405b_by_hand() -> None:
    """Tensor 8, pipeline 16 with shorter ends, context in later stages: 2 x 2 x 2 processes, and none left for replicas."""
    _, small = of_catalog("llama3.1-405b")
    model, parallel = small.recipe.model, small.recipe.parallel
    assert (parallel.tensor, parallel.pipeline, parallel.context, parallel.sequence) == (2, 2, 2, True)
    assert parallel.pipeline_layers == (2, 1)
    # 128 heads on 8 key/value heads; tensor 8 leaves one of these to each rank.
    assert (model.heads, model.kv_heads) == (32, 2)
    # 128,256 rows are no multiple of 8 x 128, so they are padded; 384 are none of 2 x 128.
    assert padded_vocab(128_256, 8) > 128_256
    assert (model.vocab_size, padded_vocab(model.vocab_size, 2)) == (384, 512)
    assert [stage.seq_len for stage in small.recipe.stage] == [32, None, None, 128, 256, 256, 256, 256]
    assert small.recipe.batch.seq_len == 64
    assert small.not_rehearsed[0].startswith("data 64: left at 1")
    assert (small.other.pipeline, small.other.tensor, small.other.context, small.other.ranks) == (1, 2, 2, 4)


def test_deepseek_v3_by_hand() -> None:
    """Four of eight groups become two of four; two of each group's experts are active as in the real one; the last piece is shorter."""
    _, small = of_catalog("deepseek-v3")
    experts, parallel = small.recipe.model.experts, small.recipe.parallel
    assert experts is not None
    assert (experts.groups, experts.active_groups, experts.count, experts.active, experts.first_dense) == (4, 2, 16, 4, 1)
    assert (parallel.schedule, parallel.virtual_pipeline, parallel.pipeline_layers) == ("dualpipe-v", 2, (2, 2, 2, 1))
    assert [segment.batch_size for segment in Timeline(small.recipe).segments] == [8, 16, 8, 8]
    said = "\n".join(small.not_rehearsed)
    assert "DualPipe" in said
    assert "fp8" in said
    assert "stage.context" in said


def test_odd_vocabulary_and_many_heads_per_key_value_head() -> None:
    loaded = load("llama3-8b", ("model.vocab_size=50_257", "model.kv_heads=4", "model.heads=32", "parallel.tensor=4"))
    small = twin(loaded.recipe, 64, 8)
    assert small.recipe.model.vocab_size % 128 == 50_257 % 128 == 81
    assert (small.recipe.model.heads, small.recipe.model.kv_heads, head_dim(small.recipe.model)) == (16, 2, 4)


def test_fewer_processes_leave_axes_at_one_and_say_so() -> None:
    """Of pipeline, expert and data 4 processes hold pipeline and expert, whose ranks are replicas of the dense layers."""
    recipe = load("mixtral-8x7b").recipe
    small = twin(recipe, 64, 4)
    assert small.axes.split == ("pipeline", "expert", "data")
    assert [said for said in small.not_rehearsed if said.startswith("expert_data 2")]
    assert twin(recipe, 64, 1).axes.split == ()


def test_a_twin_passes_each_kind_of_event() -> None:
    """GPT-3: a ramp of six sizes, warm-up, cosine, then flat."""
    _, small = of_catalog("gpt3-175b")
    assert [(event.step, event.what) for event in events(small.recipe)] == [
        (3, "batch 4 -> 8"),
        (3, "the warm-up ends at a rate of 6e-05"),
        (4, "the rate begins its cosine way to 6e-06"),
    ]
    _, small = of_catalog("llama3-8b-guide")
    assert [event.step for event in events(small.recipe) if event.what.startswith("stage")] == [6, 9]


def test_explained() -> None:
    """The text as it was read by a person; it is a recipe file."""
    _, small = of_catalog("mixtral-8x7b")
    assert explained(small) == GOLDEN.read_text(encoding="utf-8")
    assert load(str(GOLDEN)).recipe == small.recipe

"""Whatever is set, `check` answers: it neither raises nor contradicts itself."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preheat.arithmetic import Timeline, layout
from preheat.check import RULES, check
from preheat.hardware import Cluster
from preheat.recipe import load

RECIPES = Path(__file__).parent / "recipes"
SMALL = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 16, 61, 64])
WIDTHS = st.sampled_from([1, 96, 128, 768, 1000, 4096, 7168, 14336])
LENGTHS = st.sampled_from(["0 steps", "1 steps", "10 steps", "1000 samples", "5%", "100%", "1B tokens", "300B tokens", "15T samples"])

SETTINGS = {
    "model.layers": SMALL,
    "model.hidden": WIDTHS,
    "model.heads": SMALL,
    "model.kv_heads": SMALL,
    "model.ffn_hidden": WIDTHS,
    "model.vocab_size": st.sampled_from([258, 32_000, 50_257, 65_535, 128_256]),
    "model.position": st.sampled_from(["rotary", "learned"]),
    "model.rotary_fraction": st.sampled_from([0.25, 0.3, 1.0]),
    "model.sliding_window": WIDTHS,
    "batch.global_size": SMALL,
    "batch.micro_size": SMALL,
    "batch.seq_len": st.sampled_from([2, 1000, 4096, 131_072]),
    "schedule.length": LENGTHS,
    "schedule.warmup": LENGTHS,
    "schedule.decay": st.sampled_from(["cosine", "linear", "wsd", "constant", "segments"]),
    "schedule.decay_length": LENGTHS,
    "schedule.decay_shape": st.sampled_from(["linear", "1-sqrt"]),
    "stage.main.until": LENGTHS,
    "stage.main.context": SMALL,
    "stage.main.micro_size": SMALL,
    "stage.anneal.global_size": SMALL,
    "checkpoint.every": LENGTHS,
    "precision.compute": st.sampled_from(["auto", "fp8", "fp16", "fp32"]),
    "precision.fp8_recipe": st.sampled_from(["delayed", "blockwise", "mxfp8"]),
    "parallel.tensor": SMALL,
    "parallel.pipeline": SMALL,
    "parallel.virtual_pipeline": SMALL,
    "parallel.context": SMALL,
    "parallel.expert": SMALL,
    "parallel.expert_tensor": SMALL,
    "parallel.sequence": st.sampled_from(["true", "false"]),
    "parallel.sharding": st.sampled_from(["none", "optimizer", "full"]),
    "parallel.schedule": st.sampled_from(["1f1b", "interleaved", "zero-bubble", "dualpipe"]),
    "parallel.recompute.kind": st.sampled_from(["none", "selective", "full"]),
    "parallel.recompute.layers": SMALL,
}
MIXED = st.dictionaries(st.sampled_from(sorted(SETTINGS)), st.none(), max_size=6).flatmap(
    lambda chosen: st.fixed_dictionaries({key: SETTINGS[key] for key in chosen})
)
QUICK = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@QUICK
@given(name=st.sampled_from(["dense", "experts"]), values=MIXED, gpus=st.sampled_from([None, "1", "8xH100", "64", "100xA100", "1024xB200"]))
def test_any_settings_are_answered(name: str, values: dict[str, object], gpus: str | None) -> None:
    loaded = load(str(RECIPES / f"{name}.toml"), tuple(f"{key}={value}" for key, value in values.items()))
    where = Cluster.parse(gpus) if gpus else None
    found = check(loaded, where)
    assert found == check(loaded, where)
    assert {problem.rule for problem in found} <= set(RULES)
    if not [problem for problem in found if problem.severity == "error"]:
        assert Timeline(loaded.recipe).end.steps > 0
        if where:
            assert layout(loaded.recipe.parallel, where.count).dense_dp >= 1


@QUICK
@given(heads=st.integers(1, 96), kv_heads=SMALL, width=WIDTHS, tensor=SMALL)
def test_a_tensor_size_that_is_offered_is_accepted(heads: int, kv_heads: int, width: int, tensor: int) -> None:
    sets = (f"model.heads={heads}", "model.head_dim=128", f"model.kv_heads={kv_heads}", f"model.ffn_hidden={width}")

    def complaints(size: int) -> list[str]:
        found = check(load(str(RECIPES / "dense.toml"), (*sets, f"parallel.tensor={size}")))
        return [problem.fix for problem in found if problem.rule == "layout.tensor"]

    for fix in complaints(tensor):
        for offered in re.findall(r"\d+", fix.partition("(")[0]):
            assert complaints(int(offered)) == []


@QUICK
@given(size=st.integers(1, 512), micro=st.integers(1, 16), replicas=st.integers(1, 64))
def test_a_batch_that_is_offered_is_accepted(size: int, micro: int, replicas: int) -> None:
    def complaints(batch: int, small: int) -> list[str]:
        sets = (f"batch.global_size={batch}", f"batch.micro_size={small}", "parallel.sharding=full")
        found = check(load(str(RECIPES / "dense.toml"), sets), Cluster.parse(str(replicas)))
        return [problem.fix for problem in found if problem.rule in ("batch.replicas", "batch.micro-size")]

    assert bool(complaints(size, micro)) is bool(size % (micro * replicas))
    for fix in complaints(size, micro):
        if "Use a batch of" in fix:
            assert all(complaints(int(batch), micro) == [] for batch in re.findall(r"\d+", fix.partition(",")[0]))
        elif "A replica gets" in fix:
            assert all(complaints(size, int(small)) == [] for small in re.findall(r"\d+", fix.partition(":")[2]))

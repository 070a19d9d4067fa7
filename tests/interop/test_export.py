"""Recipes as Megatron-LM commands, and back."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preheat.arithmetic import Timeline
from preheat.check.megatron import check_megatron
from preheat.errors import PreheatError
from preheat.interop import export_megatron, import_megatron
from preheat.megatron import VERSIONS
from preheat.recipe import Recipe, catalog, load

LOST = {
    # what no argument says: prose, the texts behind tokenized files, lengths that are no whole number of steps, and recipe-only choices
    "description",
    "ignore",
    "data.source",
    "data.dedup.near",
    "schedule.length",
    "schedule.warmup",
    "precision.compute",
    "parallel.gpus",
    "parallel.schedule",
    "model.depth_scaled_init",
}
STAGED = {"stage", "batch.global_size", "batch.seq_len", "batch.ramp", "batch.micro_size", "tokenizer.kind", "tokenizer.path"}
STAGED |= {"schedule.decay", "schedule.decay_length", "schedule.decay_shape", "schedule.final_lr", "schedule.segment"}
STAGED |= {"model.experts.bias_update_rate", "model.mtp.loss_weight", "checkpoint.every", "evaluation.every"}


@pytest.fixture(scope="module")
def recipes() -> dict[str, Recipe]:
    return {name: load(name).recipe for name in catalog()}


def _gpus(recipe: Recipe) -> int:
    return recipe.parallel.gpus or 1


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", catalog())
def test_the_way_there_and_back_gives_the_same_recipe(name: str, version: str, recipes: dict[str, Recipe]) -> None:
    recipe = recipes[name]
    export = export_megatron(recipe, _gpus(recipe), version)
    imported = import_megatron(export.text, f"{name}.sh", _gpus(recipe), version)
    assert imported.recipe == recipe
    assert imported.lost == ()
    assert set(export.carried) <= LOST | (STAGED if len(export.parts) > 1 else set())


@pytest.mark.parametrize("name", catalog())
def test_a_yaml_file_of_each_part_comes_back_too(name: str, recipes: dict[str, Recipe]) -> None:
    recipe = recipes[name]
    for part in range(1, len(export_megatron(recipe, _gpus(recipe), "0.19").parts) + 1):
        export = export_megatron(recipe, _gpus(recipe), "0.19", form="yaml", part=part)
        assert import_megatron(export.text, f"{name}.yaml", _gpus(recipe), "0.19").recipe == recipe


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", catalog())
def test_check_accepts_every_exported_command(name: str, version: str, recipes: dict[str, Recipe]) -> None:
    recipe = recipes[name]
    text = export_megatron(recipe, _gpus(recipe), version).text
    problems = check_megatron(text, f"{name}.sh", _gpus(recipe), version)
    assert [problem for problem in problems if problem.severity == "error"] == []
    warned = {problem.rule for problem in problems if problem.severity == "warning"}
    expected = {"megatron.pipeline-full"} if recipe.batch.ramp else set()
    if name == "gpt3-15b-gpt2-vocab":
        expected.add("megatron.size-name")  # that it has 12.8B parameters is why it is there
    if text.count("pretrain_gpt.py") > 1:
        expected |= {"megatron.decay-end", "megatron.pipeline-full"}  # a part ends before the decay of the whole run does
    if name == "gpt3-175b-megatron":
        expected |= {"megatron.optimizer-unsharded"}
    if recipe.model.tied_embeddings and recipe.model.activation == "swiglu":
        expected |= {"megatron.default"}  # tied embeddings are the default and have no flag
    assert warned <= expected


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("name", catalog())
def test_bash_passes_on_the_arguments_that_are_named(name: str, recipes: dict[str, Recipe], tmp_path: Path) -> None:
    recipe = recipes[name]
    export = export_megatron(recipe, _gpus(recipe), "0.19")
    launches = _words(export.text, tmp_path)
    assert [tuple(words[words.index("pretrain_gpt.py") + 1 :]) for words in launches] == list(export.parts)


def _words(text: str, tmp_path: Path) -> list[list[str]]:
    """What bash passes on to torchrun in each launch of a script."""
    stand_in = tmp_path / "torchrun"
    stand_in.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word" >> words; done\nprintf "\\n" >> words\n')
    stand_in.chmod(0o755)
    (tmp_path / "run.sh").write_text(text)
    subprocess.run(["bash", "run.sh"], check=True, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, cwd=tmp_path, timeout=10)
    return [line.split("\0")[:-1] for line in (tmp_path / "words").read_text().splitlines()]


def _flag(part: tuple[str, ...], flag: str) -> str:
    return part[part.index(flag) + 1]


def test_the_batch_ramp_is_written_as_each_version_heeds_it(recipes: dict[str, Recipe]) -> None:
    recipe = recipes["gpt3-15b"]
    new = export_megatron(recipe, 768, "0.18").parts[0]
    # the replacement that NVIDIA's own test uses for the ramp 384 384 97656250 of 4,096 tokens
    assert _flag(new, "--step-batch-size-schedule") == "0:384 200B:768 400B:1152"
    assert "--global-batch-size" not in new
    old = export_megatron(recipe, 768, "0.17").parts[0]
    at = old.index("--rampup-batch-size")
    start, increment, samples = (int(value) for value in old[at + 1 : at + 4])
    assert (start, increment, _flag(old, "--global-batch-size")) == (384, 384, "1152")
    assert abs(samples - 97_656_250) <= 1


def test_what_the_guide_got_wrong_is_right(recipes: dict[str, Recipe]) -> None:
    llama = export_megatron(recipes["llama3-8b"], 64, "0.19").parts[0]
    for flag in ("--group-query-attention", "--untie-embeddings-and-output-weights", "--disable-bias-linear", "--swiglu"):
        assert flag in llama
    assert (_flag(llama, "--rotary-base"), _flag(llama, "--num-query-groups")) == ("500000", "8")
    assert (_flag(llama, "--hidden-dropout"), _flag(llama, "--adam-beta2"), _flag(llama, "--tokenizer-type")) == (
        "0.0",
        "0.95",
        "HuggingFaceTokenizer",
    )
    deepseek = export_megatron(recipes["deepseek-v3"], 2048, "0.19").parts[0]
    assert "--group-query-attention" not in deepseek
    assert _flag(deepseek, "--moe-layer-freq") == "([0]*3+[1]*58)"
    assert (_flag(deepseek, "--moe-ffn-hidden-size"), _flag(deepseek, "--moe-shared-expert-intermediate-size")) == ("2048", "2048")
    assert (_flag(deepseek, "--kv-lora-rank"), _flag(deepseek, "--expert-tensor-parallel-size")) == ("512", "1")
    fp8 = export_megatron(recipes["llama3-8b-fp8"], 64, "0.19").parts[0]
    assert (_flag(fp8, "--fp8-format"), "--bf16" in fp8) == ("hybrid", True)


def test_deepseeks_rates_and_weights_change_from_part_to_part(recipes: dict[str, Recipe]) -> None:
    parts = export_megatron(recipes["deepseek-v3"], 2048, "0.19").parts
    rows = [(_flag(p, "--lr"), _flag(p, "--lr-decay-style"), _flag(p, "--mtp-loss-scaling-factor")) for p in parts]
    assert rows == [
        ("0.00022", "WSD", "0.3"),
        ("0.00022", "cosine", "0.1"),
        ("2.2e-05", "constant", "0.1"),
        ("7.3e-06", "constant", "0.1"),
        ("7.3e-06", "constant", "0.1"),
        ("7.3e-06", "constant", "0.1"),
    ]
    assert [_flag(part, "--moe-router-bias-update-rate") for part in parts] == ["0.001", "0.001", "0.0", "0.0", "0.0", "0.0"]


@pytest.mark.parametrize(
    ("recipe", "sets", "gpus", "version", "match"),
    [
        ("llama3-8b", (), 3, "0.19", "3 ranks"),
        ("llama3-8b", ("batch.global_size=500",), 64, "0.19", "a batch of 500"),
        ("llama3-8b", ("model.rope_theta=500000.5",), 64, "0.19", "--rotary-base is an integer"),
        ("deepseek-v3", ("batch.ramp.1.size=4096",), 2048, "0.17", "even increments"),
        ("llama3-8b", ("schedule.decay='segments'", "schedule.segment=[{lr=1e-3, shape='linear'}]"), 64, "0.19", "rises"),
        ("llama3-8b", (), 64, "0.16", "known: 0.17"),
        ("llama3-8b", ("seed=0",), 64, "0.19", "seed 0"),
        ("llama3-8b", ("seed=4294967296",), 64, "0.19", "Megatron-LM takes 1 to 4294967195"),
        ("llama3-8b", ("tokenizer={kind='file', path='a\"b/tokenizer.json'}",), 64, "0.19", "without quotes"),
        ("llama3-8b", ("optimizer.name='muon'", "parallel.sharding='full'"), 64, "0.19", "muon with sharding full"),
        ("llama3-8b", ("optimizer.state_precision='bf16'", "parallel.sharding='none'"), 64, "0.19", "state_precision bf16"),
        ("llama3-8b", ("optimizer.state_precision='bf16'", "optimizer.name='muon'"), 64, "0.19", "state_precision bf16 with muon"),
        ("deepseek-v3", ("model.mup={base_hidden=256, base_head_dim=64}",), 2048, "0.19", "base_head_dim with mla"),
    ],
)
def test_what_megatron_would_do_differently_is_refused(recipe: str, sets: tuple[str, ...], gpus: int, version: str, match: str) -> None:
    with pytest.raises(PreheatError, match=match):
        export_megatron(load(recipe, sets).recipe, gpus, version)


def test_a_path_is_no_command(recipes: dict[str, Recipe], tmp_path: Path) -> None:
    path = f"$(touch {tmp_path}/ran) `touch {tmp_path}/ran` ${{HOME}} it's\\x/tokenizer.json"
    recipe = recipes["toy-124m"].model_copy(update={"tokenizer": recipes["llama3-8b"].tokenizer.model_copy(update={"path": path})})
    export = export_megatron(recipe, 8, "0.19")
    assert import_megatron(export.text, "x.sh", 8, "0.19").recipe == recipe
    words = _words(export.text, tmp_path)
    assert not (tmp_path / "ran").exists()
    assert tuple(words[0][words[0].index("pretrain_gpt.py") + 1 :]) == export.parts[0]
    assert _flag(export.parts[0], "--tokenizer-model") == path.removesuffix("/tokenizer.json")
    export = export_megatron(recipe, 8, "0.19", form="yaml")
    assert import_megatron(export.text, "x.yaml", 8, "0.19").recipe == recipe


@pytest.mark.parametrize(("gpus", "nodes"), [(1, 1), (6, 1), (12, 2), (24, 3), (44, 11)])
def test_the_launcher_starts_as_many_processes_as_there_are_gpus(gpus: int, nodes: int, tmp_path: Path) -> None:
    recipe = load("tiny", ("batch.global_size=528", "batch.ramp=[]", "batch.micro_size=1")).recipe
    text = export_megatron(recipe, gpus, "0.19", part=1).text
    assert f"--nproc_per_node {gpus // nodes} --nnodes {nodes}\n" in text
    assert "megatron.launcher" not in {problem.rule for problem in check_megatron(text, "x.sh", gpus)}


def test_documents_width_transfer_and_muon(recipes: dict[str, Recipe]) -> None:
    sets = ("batch.mask_documents=true", "model.mup={base_hidden=256}", "optimizer.name='muon'", "parallel.sharding='optimizer'")
    recipe = load("llama3-8b", (*sets, "parallel.tensor=2")).recipe
    parts = {version: export_megatron(recipe, 64, version).parts[0] for version in VERSIONS}
    for version, part in parts.items():
        assert {"--reset-position-ids", "--reset-attention-mask", "--use-mup"} <= set(part)
        # a recipe without base_head_dim keeps 1 / sqrt(width) for attention scores: sqrt(128) / 128
        assert (_flag(part, "--mup-base-hidden-size"), _flag(part, "--mup-base-head-dim")) == ("256", "128")
        # arXiv 2502.16982, equation 4: 0.2 * sqrt(max(rows, columns)); Nesterov momentum 0.95
        assert (_flag(part, "--muon-scale-mode"), _flag(part, "--muon-extra-scale-factor"), _flag(part, "--muon-momentum")) == (
            "spectral",
            "0.2",
            "0.95",
        )
        assert ("--use-distributed-optimizer" in part) == (version != "0.17")
        assert _flag(part, "--optimizer") == ("dist_muon" if version == "0.17" else "muon")
        assert ("--muon-use-nesterov" if version == "0.17" else "--muon-nesterov") in part


@pytest.mark.parametrize(
    ("sets", "word"),
    [
        (("model.init_truncation=3.0",), "whole normal distribution"),
        (("optimizer.z_loss=1e-4",), "no z-loss"),
        (("optimizer.decay_embeddings=false",), "decays embedding"),
        (("batch.mask_documents=true",), "see each other"),
        (("model.mup={base_hidden=256}",), "weight decay of hidden matrices"),
    ],
)
def test_what_has_no_argument_is_listed_and_comes_back(sets: tuple[str, ...], word: str) -> None:
    recipe = load("llama3-8b", sets).recipe
    export = export_megatron(recipe, 64, "0.19")
    assert any(word in note for note in export.notes)
    assert not any(word in note for note in export_megatron(load("llama3-8b").recipe, 64, "0.19").notes)
    imported = import_megatron(export.text, "x.sh", 64, "0.19")
    assert (imported.recipe, imported.lost) == (recipe, ())


def test_parts_are_chosen_by_number(recipes: dict[str, Recipe]) -> None:
    recipe = recipes["llama3-8b-guide"]
    with pytest.raises(PreheatError, match="3 commands"):
        export_megatron(recipe, 64, "0.19", form="yaml")
    with pytest.raises(PreheatError, match="part 4"):
        export_megatron(recipe, 64, "0.19", part=4)
    whole, last = export_megatron(recipe, 64, "0.19"), export_megatron(recipe, 64, "0.19", part=3)
    assert last.parts == whole.parts[2:]
    assert "seq-length 131072" in last.text


_SMALL = "llama3-8b"


@st.composite
def _sets(draw: st.DrawFn) -> tuple[str, ...]:
    """Settings over a small recipe that stay valid together."""
    heads = draw(st.sampled_from([4, 8]))
    tensor, pipeline = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 4]))
    activation = draw(st.sampled_from(["swiglu", "gelu", "squared_relu"]))
    sets = [
        f"model.layers={draw(st.sampled_from([4, 8]))}",
        "model.hidden=64",
        f"model.heads={heads}",
        f"model.kv_heads={draw(st.sampled_from([2, 4]))}",
        "model.ffn_hidden=96",
        "model.vocab_size=1024",
        f"model.activation='{activation}'",
        f"model.norm='{draw(st.sampled_from(['rmsnorm', 'layernorm', 'layernorm1p']))}'",
        f"model.norm_eps={draw(st.sampled_from(['1e-5', '1e-6']))}",
        f"model.bias={draw(st.sampled_from(['true', 'false']))}",
        f"model.qk_norm={draw(st.sampled_from(['true', 'false']))}",
        f"model.tied_embeddings={draw(st.sampled_from(['true', 'false']))}",
        f"model.rope_theta={draw(st.sampled_from([10_000, 500_000]))}",
        f"model.rotary_fraction={draw(st.sampled_from(['1.0', '0.5']))}",
        f"model.dropout={draw(st.sampled_from(['0.0', '0.1']))}",
        f"model.init_std={draw(st.sampled_from(['0.02', '0.006']))}",
        "batch.global_size=32",
        f"batch.micro_size={draw(st.sampled_from([1, 2]))}",
        "batch.seq_len=128",
        f"schedule.length='{draw(st.sampled_from(['1000 steps', '2048000 tokens', '16000 samples', '2000001 tokens']))}'",
        f"schedule.warmup='{draw(st.sampled_from(['10 steps', '5%', '0 tokens', '12345 tokens']))}'",
        f"parallel.tensor={tensor}",
        f"parallel.pipeline={pipeline}",
        f"parallel.sequence={'true' if tensor > 1 and draw(st.booleans()) else 'false'}",
        "parallel.context=1",
        "parallel.gpus=8",
        f"parallel.sharding='{draw(st.sampled_from(['none', 'optimizer']))}'",
        f"parallel.recompute.kind='{draw(st.sampled_from(['none', 'selective', 'full']))}'",
        f"batch.mask_documents={draw(st.sampled_from(['true', 'false']))}",
        f"model.mup={draw(st.sampled_from(['{base_hidden=32}', '{base_hidden=64, base_head_dim=2}']))}",
        f"precision.compute='{draw(st.sampled_from(['bf16', 'fp16', 'fp32']))}'",
        f"seed={draw(st.integers(1, 2**31))}",
    ]
    decay = draw(st.sampled_from(["cosine", "linear", "wsd", "constant"]))
    sets.append(f"schedule.decay='{decay}'")
    if decay == "constant":
        sets.append("schedule.final_lr=3e-4")
    if decay == "wsd":
        shape = draw(st.sampled_from(["linear", "cosine", "exponential", "1-sqrt"]))
        sets += ["schedule.decay_length='20%'", f"schedule.decay_shape='{shape}'"]
    if draw(st.booleans()):
        sets += ["optimizer.name='muon'", f"optimizer.momentum={draw(st.sampled_from(['0.9', '0.8']))}"]
    elif "parallel.sharding='optimizer'" in sets:
        sets.append(f"optimizer.state_precision='{draw(st.sampled_from(['fp32', 'bf16']))}'")
    if draw(st.booleans()):
        sets.append("batch.ramp=[{at='0 tokens', size=16}, {at='500K tokens', size=32}]")
    if draw(st.booleans()):
        experts = "count=4, active=2, ffn_hidden=32, shared=1, first_dense=1, score='sigmoid', bias_update_rate=0.001, aux_loss=0.01"
        sets.append(f"model.experts={{{experts}}}")
    return tuple(sets)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_sets(), st.sampled_from(VERSIONS))
def test_random_recipes_come_back_and_are_accepted(sets: tuple[str, ...], version: str) -> None:
    recipe = load(_SMALL, sets).recipe
    Timeline(recipe)
    export = export_megatron(recipe, 8, version)
    assert import_megatron(export.text, "x.sh", 8, version).recipe == recipe
    shape = [
        key for key in export.carried if key.startswith(("model.", "optimizer.", "parallel.", "precision.", "batch.seq", "batch.micro"))
    ]
    assert shape == []

"""Verdicts on Megatron-LM commands against those that three versions of Megatron-LM really gave (tests/fixtures/megatron/verdicts.json).

The fixture holds the arguments of 111 commands and the first stage that refused them in the wheels 0.17.1, 0.18.2 and 0.19.2, asked
with run_megatron.py: "parse", "validate_args", "transformer_config" or "ok".
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.check.megatron import MEGATRON_RULES, check_megatron
from preheat.errors import PreheatError
from preheat.interop import import_megatron
from preheat.megatron import VERSIONS, options

FIXTURES = Path(__file__).parents[1] / "fixtures" / "megatron"
CASES: list[dict[str, Any]] = json.loads((FIXTURES / "verdicts.json").read_text())

STRICTER = {
    "neither": {"length": "the schedule fails: the run has no length"},
    "warmup_ge_decay": {"warmup-length": "the schedule fails: warm-up past the end of the decay"},
    "wsd_nodecay": {"wsd": "the schedule fails: no length of the decay"},
    "moe_topk_gt": {"expert-choice": "the router fails: more choices than experts"},
    "moe_layer_freq_bad": {"expert-layers": "building the model fails: a list of 61 entries for 32 layers"},
    "vpp_mbs_notdiv": {"virtual-batches": "the first step fails: 3 micro-batches on 4 interleaved stages"},
    "gbs_not_div": {"global-batch": "core 0.17 fails when it counts micro-batches"},
    "rampup": {"ignored": "the ramp is dropped"},
    "rampup_iters": {"ignored": "the ramp is dropped"},
    "rampup_notdiv": {"ignored": "the ramp is dropped", "ramp": "core 0.17 fails when it counts micro-batches"},
    "sp_tp1": {"sequence-parallel-off": "sequence parallelism is switched off"},
    "llama3-8b-fp8/fp8-format": {
        "sequence-parallel-off": "sequence parallelism is switched off",
        "gqa-missing": "32 key/value heads are trained, and 8 are written",
        "qk-scaling": "attention fails without an environment variable",
    },
    "llama31-405b/fix3": {
        "gqa-missing": "128 key/value heads are trained, and 8 are written",
        "samples-amount": "61 quadrillion tokens",
    },
    "mixtral-8x7b/yaml": {"length": "the schedule fails: the run has no length", "gqa-missing": "32 key/value heads, and 8 are written"},
    "deepseek-v3/fix5-mla-noSP": {
        "expert-world": "process groups fail: 1024 GPUs for 2048 expert ranks",
        "expert-sequence": "the first step fails: experts under tensor parallelism without sequence parallelism",
    },
}
STRICTER["llama3-8b-fp8/fp8-format+bf16"] = STRICTER["llama3-8b-fp8/fp8-format"]
"""Commands that Megatron-LM's parser, validation and configuration let through: our rule -> what happens afterwards."""


def _errors(case: dict[str, Any], version: str) -> set[str]:
    problems = check_megatron(shlex.join(case["args"]), case["name"], case["gpus"], version)
    return {problem.rule.removeprefix("megatron.") for problem in problems if problem.severity == "error"}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_we_refuse_what_megatron_refuses(case: dict[str, Any], version: str) -> None:
    errors = _errors(case, version)
    if case["stage"][version] == "ok":
        assert errors <= set(STRICTER.get(case["name"], {}))
    else:
        assert errors


def test_every_reason_to_be_stricter_is_used() -> None:
    used = {
        (case["name"], rule) for case in CASES for version in VERSIONS if case["stage"][version] == "ok" for rule in _errors(case, version)
    }
    assert used == {(name, rule) for name, rules in STRICTER.items() for rule in rules}


def test_the_commands_are_those_that_were_asked() -> None:
    assert len(CASES) == 111
    assert sum(case["stage"]["0.19"] == "ok" for case in CASES) == 54
    differ = {case["name"] for case in CASES if len(set(case["stage"].values())) > 1}
    assert differ == {"gbs_not_div", "rampup_iters", "stepbs", "stepbs_gbs"}


GUIDE = {
    # file: GPUs, rules that must be among the findings, texts that must be among them
    "gpt3-15b.yaml": (32, ["activation", "ignored", "size-name", "amounts", "comment"], ["the comment says 2B tokens", "16.0B tokens"]),
    "gpt3-15b.sh": (
        32,
        ["rendezvous", "tokenizer-missing", "default", "amounts", "connections"],
        ["48 key/value heads", "learned positions", "0.1 is taken", "16.0B tokens"],
    ),
    "gpt3-175b.yaml": (512, ["renamed", "amounts"], ["--lr-warmup-steps", "471.9B tokens"]),
    "llama3-8b.yaml": (8, ["renamed", "gqa-missing"], ["--rope-theta", "32 key/value heads are trained"]),
    "llama3-8b-fp8.sh": (
        8,
        ["removed", "format-missing", "default", "sequence-parallel-off", "gqa-missing", "tokenizer", "inert"],
        ["--fp8-hybrid", "0.999 is taken", "gelu, layernorm, learned positions"],
    ),
    "llama3-70b.yaml": (64, ["renamed", "length", "default", "gqa-missing"], ["--rope-theta", "the head is the embedding"]),
    "llama3.1-405b.yaml": (
        1024,
        ["renamed", "pipeline-split", "iters-and-samples", "samples-amount", "comment"],
        ["--rope-theta", "126 layers on 8", "61.4 quadrillion", "--train-samples 3662109375"],
    ),
    "llama3.1-405b.sh": (
        1024,
        ["renamed", "pipeline-split", "iters-and-samples", "default", "gqa-missing", "rendezvous", "resume"],
        ["--use-flash-attn-v2", "126 layers on 8", "no --rotary-base: 10000 is taken", "128 key/value heads"],
    ),
    "mixtral-8x7b.yaml": (
        64,
        ["gqa-missing", "default", "length", "replicas"],
        ["the head is the embedding", "10000 is taken", "16 replicas"],
    ),
    "mixtral-8x7b.sh": (64, ["gqa-missing", "default", "tokenizer", "replicas"], ["32 key/value heads", "16 micro-batches"]),
    "mixtral-8x22b.yaml": (
        256,
        ["expert-biases", "expert-balance", "default", "length", "expert-sequence"],
        ["learned positions", "gelu", "nothing balances the experts"],
    ),
    "deepseek-v3.yaml": (
        1024,
        ["renamed", "required", "pipeline-split", "expert-biases", "expert-world", "expert-width"],
        [
            "--shared-expert-intermediate-size",
            "--lr-warmup-tokens",
            "--train-tokens",
            "--seq-length is missing",
            "61 layers on 16",
            "= 2048",
            "256 experts of 18432",
        ],
    ),
}


@pytest.mark.parametrize("name", GUIDE)
def test_the_guides_recipes_are_refused_with_all_reasons_in_one_report(name: str) -> None:
    gpus, rules, texts = GUIDE[name]
    problems = check_megatron((FIXTURES / "guide" / name).read_text(), name, gpus)
    assert any(problem.severity == "error" for problem in problems)
    assert set(rules) <= {problem.rule.removeprefix("megatron.") for problem in problems}
    report = "\n".join(str(problem) for problem in problems)
    for text in texts:
        assert text in report
    lines = (FIXTURES / "guide" / name).read_text().splitlines()
    for problem in problems:
        if problem.where.line and problem.where.key and problem.rule in ("megatron.renamed", "megatron.removed"):
            assert problem.where.key.removeprefix("--") in lines[problem.where.line - 1]


def test_deepseek_layout_with_and_without_expert_tensor() -> None:
    base = "--num-experts 256 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 16 --expert-model-parallel-size 64"
    with_one = check_megatron(f"{base} --expert-tensor-parallel-size 1", "x", 1024)
    assert "megatron.expert-world" not in {problem.rule for problem in with_one}
    assert any("32 replicas on 1024 GPUs, and 1 of the experts" in problem.got for problem in with_one)
    with_two = check_megatron(base, "x", 1024)
    (problem,) = [problem for problem in with_two if problem.rule == "megatron.expert-world"]
    assert "1024 GPUs for expert-tensor 2 x expert 64 x pipeline 16 = 2048" in problem.got


BASE = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 "
    "--lr 1e-4 --bf16 --vocab-size 32000 --tokenizer-type NullTokenizer --mock-data --train-iters 1000 --global-batch-size 64 "
)


@pytest.mark.parametrize(
    ("rule", "extra", "version"),
    [
        ("positive", "--pipeline-model-parallel-size 0", "0.19"),
        ("bounds", "--num-layers 320000", "0.19"),
        ("bounds", "--num-experts 8 --num-layers 99999999999999", "0.19"),
        ("finite", "--lr nan", "0.19"),
        ("seed", "--seed 0", "0.19"),
        ("seed", "--seed 4294967296", "0.19"),
        ("document-mask", "--reset-position-ids --reset-attention-mask", "0.19"),
        ("muon", "--optimizer muon --use-distributed-optimizer", "0.17"),
        ("muon", "--optimizer muon --overlap-grad-reduce", "0.17"),
        ("muon", "--optimizer muon --use-megatron-fsdp --ckpt-format fsdp_dtensor", "0.19"),
        ("state-precision", "--exp-avg-dtype bf16", "0.19"),
        ("state-precision", "--use-precision-aware-optimizer --exp-avg-dtype bf16", "0.19"),
        ("renamed", "--deepspeed", "0.19"),
        ("without", "--fp8-amax-history-len 4", "0.19"),
        ("repeated", "--lr 2e-4", "0.19"),
        ("retired", "--batch-size 8", "0.19"),
        ("type", "--rotary-base 5e5", "0.19"),
        ("choice", "--lr-decay-style wsd", "0.19"),
        ("count", "--rampup-batch-size 1 2", "0.17"),
        ("stray", "--bf16 yes", "0.19"),
        ("unknown", "--tensor-model-parallel 2", "0.19"),
        ("other-version", "--step-batch-size-schedule 0:8", "0.17"),
        ("open", "--seed $SEED", "0.19"),
        ("decay-end", "--lr-decay-iters 2000", "0.19"),
        ("warmup-twice", "--lr-warmup-fraction 0.1 --lr-warmup-iters 10", "0.19"),
        ("lr-order", "--min-lr 1", "0.19"),
        ("ramp-warmup", "--lr-warmup-iters 10 --step-batch-size-schedule 0:8", "0.19"),
        ("two-batches", "--step-batch-size-schedule 0:8", "0.19"),
        ("batch-schedule", "--step-batch-size-schedule 5:8", "0.19"),
        ("batch-never", "--step-batch-size-schedule '0:8 9T:16'", "0.19"),
        ("ramp", "--rampup-batch-size 16 10 100", "0.17"),
        ("pipeline-full", "--pipeline-model-parallel-size 8 --global-batch-size 4", "0.19"),
        ("world", "--tensor-model-parallel-size 3", "0.19"),
        ("expert-count", "--num-experts 8 --expert-model-parallel-size 3", "0.19"),
        ("heads-tensor", "--num-attention-heads 2 --tensor-model-parallel-size 8", "0.19"),
        ("ffn-tensor", "--ffn-hidden-size 1001 --tensor-model-parallel-size 2", "0.19"),
        (
            "pipeline-twice",
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 --num-virtual-stages-per-pipeline-rank 2",
            "0.19",
        ),
        ("pipeline-layout", "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 't*16|t*16L'", "0.19"),
        ("virtual-pipeline", "--pipeline-model-parallel-size 1 --num-virtual-stages-per-pipeline-rank 2", "0.19"),
        ("context-chunks", "--context-parallel-size 8 --seq-length 4090", "0.19"),
        ("overlap", "--overlap-param-gather", "0.19"),
        ("fsdp", "--use-torch-fsdp2 --pipeline-model-parallel-size 2", "0.19"),
        ("deterministic", "--deterministic-mode --cross-entropy-loss-fusion", "0.17"),
        ("deterministic", "--deterministic-mode --tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap", "0.19"),
        ("offload", "--optimizer-cpu-offload", "0.19"),
        ("tensor-node", "--tensor-model-parallel-size 16", "0.19"),
        ("optimizer-unsharded", "", "0.19"),
        ("vocabulary-files", "--tokenizer-type GPT2BPETokenizer", "0.19"),
        ("data-weights", "--data-path 0.5 a 0.5", "0.19"),
        ("data-source", "--data-path a", "0.19"),
        ("tokenizer", "--tokenizer-type HuggingFaceTokenizer", "0.19"),
        ("tokenizer", "--vocab-file tokenizer.model", "0.19"),
        ("split", "--data-path a", "0.19"),
        ("save-interval", "--save x", "0.19"),
        ("resume", "--save x --save-interval 1", "0.19"),
        ("mla-gqa", "--multi-latent-attention --group-query-attention --num-query-groups 16", "0.19"),
        ("head-width", "--num-attention-heads 48", "0.19"),
        ("positions", "--seq-length 8192", "0.19"),
        ("prediction-positions", "--mtp-num-layers 1", "0.19"),
        ("latent-rotary", "--multi-latent-attention --rope-type rope --position-embedding-type rope", "0.19"),
        ("latent-width", "--multi-latent-attention", "0.19"),
        ("expert-one", "--num-experts 8 --moe-router-topk 1", "0.19"),
        ("expert-bias", "--num-experts 8 --moe-router-enable-expert-bias", "0.19"),
        ("expert-groups", "--num-experts 8 --moe-router-num-groups 4 --moe-router-group-topk 8", "0.19"),
        ("expert-flags", "--moe-ffn-hidden-size 64", "0.19"),
        ("expert-shared", "--num-experts 8 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 3000", "0.19"),
        ("virtual-batches", "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 6", "0.19"),
        ("expert-dispatch", "--num-experts 8 --expert-model-parallel-size 8", "0.19"),
        ("format", "--fp16", "0.19"),
        ("fp8-history", "--fp8-format hybrid --fp8-recipe tensorwise --fp8-amax-history-len 4", "0.19"),
        ("recompute", "--recompute-granularity full", "0.19"),
        ("recompute-layers", "--recompute-granularity full --recompute-method block --recompute-num-layers 64", "0.19"),
    ],
)
def test_each_rule_has_a_command_that_it_finds_and_one_that_it_leaves_alone(rule: str, extra: str, version: str) -> None:
    found = {problem.rule for problem in check_megatron(BASE + extra, "x", 8, version)}
    assert f"megatron.{rule}" in found
    good = BASE + "--use-distributed-optimizer"
    assert f"megatron.{rule}" not in {problem.rule for problem in check_megatron(good, "x", 8, version)}


def test_fsdp_and_one_connection() -> None:
    text = f"export CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun --nproc_per_node=8 pretrain_gpt.py {BASE} --use-megatron-fsdp\n"
    assert "megatron.connections-fsdp" in {problem.rule for problem in check_megatron(text, "run.sh", 8)}
    assert "megatron.connections-fsdp" not in {problem.rule for problem in check_megatron(text.partition("\n")[2], "run.sh", 8)}


def test_groups_of_micro_batches_larger_than_the_pipeline() -> None:
    # megatron-core's own test configuration gpt3_mcore_te_tp1_pp4_vp1_tunable_overlap: 5 micro-batches on 4 stages in groups of 5
    extra = "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 10 "
    group = "--microbatch-group-size-per-virtual-pipeline-stage"
    rules = [{p.rule for p in check_megatron(BASE + extra + more, "x", 8)} for more in ("", f"{group} 5", f"{group} 3", f"{group} 6")]
    assert ["megatron.virtual-batches" in found for found in rules] == [True, False, True, True]


def test_a_missing_tokenizer_is_gpt2s() -> None:
    text = BASE.replace("--tokenizer-type NullTokenizer", "")
    (problem,) = [problem for problem in check_megatron(text, "x", 8) if problem.rule == "megatron.tokenizer-missing"]
    assert (problem.severity, problem.want) == ("warning", "GPT2BPETokenizer is taken for a vocabulary of 32000")


def test_the_launch_of_a_script_is_judged() -> None:
    text = f"torchrun --nproc_per_node=8 --nnodes=2 pretrain_gpt.py {BASE} --tensor-model-parallel-size 2\n"
    found = {problem.rule for problem in check_megatron(text, "run.sh", 8)}
    assert {"megatron.launcher", "megatron.rendezvous", "megatron.connections", "megatron.resume"} <= found
    better = "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" + text.replace("--nnodes=2", "--nnodes=2 --rdzv-endpoint=a:1")
    found = {problem.rule for problem in check_megatron(better, "run.sh", 16)}
    assert not {"megatron.launcher", "megatron.rendezvous", "megatron.connections"} & found


def test_a_sharded_muon_is_written_as_each_version_has_it() -> None:
    sharded = {"0.17": "--optimizer dist_muon", "0.18": "--optimizer muon --use-distributed-optimizer"}
    for version, extra in sharded.items():
        found = {problem.rule for problem in check_megatron(f"{BASE}{extra} --overlap-grad-reduce --overlap-param-gather", "x", 8, version)}
        assert not {"megatron.muon", "megatron.overlap", "megatron.choice"} & found


def test_the_documents_are_kept_apart_by_the_unfused_kernel() -> None:
    text = f"{BASE} --reset-attention-mask --transformer-impl local --no-masked-softmax-fusion"
    assert "megatron.document-mask" not in {problem.rule for problem in check_megatron(text, "x", 8)}


def test_deterministic_mode_wants_its_network() -> None:
    text = f"torchrun --nproc_per_node=8 pretrain_gpt.py {BASE} --deterministic-mode\n"
    rule = "megatron.deterministic-network"
    assert rule in {problem.rule for problem in check_megatron(text, "run.sh", 8)}
    assert rule in {problem.rule for problem in check_megatron("export NCCL_ALGO=NVLS\n" + text, "run.sh", 8)}
    assert rule not in {problem.rule for problem in check_megatron("export NCCL_ALGO=Ring\n" + text, "run.sh", 8)}


def test_an_ignored_ramp_comes_with_the_schedule_that_says_the_same() -> None:
    # the replacement that NVIDIA's own test uses for the ramp 384 384 97656250 of 4,096 tokens: 0:384 200B:768 400B:1152
    text = BASE.replace("--global-batch-size 64", "--global-batch-size 1152") + "--rampup-batch-size 384 384 97656250"
    (problem,) = [problem for problem in check_megatron(text, "x", 8) if problem.rule == "megatron.ignored"]
    assert '"0:384 200000000000:768 400000000000:1152"' in problem.fix
    (problem,) = [p for p in check_megatron(text.replace("384 384", "1 1"), "x", 8) if p.rule == "megatron.ignored"]
    assert problem.fix == "Use --step-batch-size-schedule"


def test_nothing_is_missed_where_a_shell_may_know_more() -> None:
    text = "torchrun --nproc_per_node=8 pretrain_gpt.py $MODEL_ARGS --bf16 --tensor-model-parallel-size 3\n"
    problems = check_megatron(text, "run.sh", 8)
    assert {problem.rule for problem in problems if problem.severity == "error"} == {"megatron.world"}
    assert any("$MODEL_ARGS may hold arguments" in problem.got for problem in problems)


@pytest.mark.timeout(20)
def test_a_schedule_and_a_condition_without_end_are_judged_in_time() -> None:
    check_megatron(f"{BASE} --step-batch-size-schedule '{'1:8 ' * 20_000}'", "x", 8)
    condition = "! " * 20_000 + "&& a " * 10_000
    check_megatron(f"if [[ {condition} ]]; then A=1; fi\ntorchrun pretrain_gpt.py {BASE}\n", "x", 8)


def test_a_hybrid_model_counts_its_layers_by_its_pattern() -> None:
    text = BASE.replace("--num-layers 32", "--hybrid-layer-pattern M*M-M*M-")
    assert "megatron.required" not in {problem.rule for problem in check_megatron(text, "x", 8)}
    with pytest.raises(PreheatError, match="hybrid"):
        import_megatron(text, "x", 8, "0.19")


def test_another_program_may_have_arguments_of_its_own() -> None:
    text = f"torchrun --nproc_per_node=8 my/train.py {BASE} --freeze-LM\n"
    problems = check_megatron(text, "run.sh", 8)
    assert "megatron.unknown" in {problem.rule for problem in problems}
    assert any("train.py" in problem.got and problem.rule == "megatron.open" for problem in problems)


def test_every_rule_explains_itself_with_an_example() -> None:
    for rule in MEGATRON_RULES.values():
        assert "Example:" in rule.explanation or "Source:" in rule.explanation, rule.name
        assert len(rule.summary) > 20, rule.name


def test_no_torch_and_no_numpy_are_loaded() -> None:
    code = (
        "import sys, preheat.check.megatron, preheat.interop, preheat.cli.export, preheat.cli.import_\n"
        "sys.exit(bool({'torch', 'numpy', 'yaml'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


FLAGS = sorted({option.flag for option in options("0.19").values()} | {"--rope-theta", "--train-tokens", "--nonsense"})
SIZES = [
    flag for flag in FLAGS if flag.endswith(("-size", "-layers", "-heads", "-experts", "-topk", "-groups", "-length", "-stage", "-rank"))
]
VALUES = [
    "0",
    "1",
    "2",
    "3",
    "7",
    "64",
    "-1",
    "0.5",
    "1e-4",
    "true",
    "[1,2]",
    "([0]*2+[1])",
    "1,0",
    "0:8 1B:16",
    "E|t|L",
    "WSD",
    "$X",
    "99,1",
    "a b",
    "nan",
    "99999999999999",
]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(FLAGS) | st.sampled_from(SIZES), st.lists(st.sampled_from(VALUES), max_size=3)), max_size=25),
    st.sampled_from(VERSIONS),
    st.integers(1, 64),
)
def test_any_arguments_get_a_report_and_never_an_accident(arguments: list[tuple[str, list[str]]], version: str, gpus: int) -> None:
    text = BASE + " ".join(f"{flag} {' '.join(shlex.quote(value) for value in values)}" for flag, values in arguments)
    check_megatron(text, "x", gpus, version)
    with contextlib.suppress(PreheatError):
        import_megatron(text, "x", gpus, version)

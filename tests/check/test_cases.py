"""Failures that other projects reported in public, each with the numbers of its report; cases.csv says where every case is dealt with."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from preheat.arithmetic import Timeline, bubble, layout, linear_ramp
from preheat.check import RULES, Machine
from preheat.errors import PreheatError, Problem
from preheat.recipe import Parallel, load

Check = Callable[..., list[Problem]]
DENSE = str(Path(__file__).parent / "recipes" / "dense.toml")
TABLE = list(csv.DictReader((Path(__file__).parent / "cases.csv").read_text("utf-8").splitlines()))

SMOKE = ("schedule.length=40 steps", "schedule.warmup=4 steps", "stage=[{ name = 'main', mix = { web = 1, code = 1 } }]")
HEADS_12 = ("model.hidden=768", "model.heads=12", "model.kv_heads=12", "model.ffn_hidden=3072")
DEEPSEEK = (
    "parallel.tensor=2",
    "parallel.schedule=1f1b",
    "stage=[{ name = 'main', mix = { corpus = 1 } }]",
    "batch.ramp=[]",
    "schedule.length=14.9T tokens",
    "parallel.sequence=true",
    "checkpoint.every=100 steps",
)

REFUSED = [
    ("A01", "layout.pipeline", "dense", ["model.layers=30", "parallel.pipeline=4"], None, ["30 layers", "4 pipeline", "2 layers are left"]),
    (
        "A01-list",
        "layout.pipeline",
        "dense",
        ["model.layers=30", "parallel.pipeline=4", "parallel.pipeline_layers=[7, 7, 7, 7]"],
        None,
        ["7 + 7 + 7 + 7 = 28", "30 layers"],
    ),
    (
        "A03",
        "layout.pipeline",
        "dense",
        ["model.layers=20", "parallel.pipeline_layers=[1]"],
        None,
        ["[1] has no effect with pipeline = 1", "20 layers"],
    ),
    (
        "A04",
        "layout.tensor",
        "dense",
        [*HEADS_12, "parallel.tensor=8"],
        "8",
        ["12 heads over tensor 8", "whole attention heads", "1, 2, 3, 4, 6", "also 12"],
    ),
    ("A05-ranks", "layout.ranks", "experts", ["model.experts.count=9", "parallel.expert=3"], "8", ["8 ranks", "expert 3"]),
    (
        "A05-experts",
        "experts.parallel",
        "experts",
        ["model.experts.count=10", "parallel.expert=4"],
        None,
        ["10 experts over expert 4", "1, 2, 5, 10"],
    ),
    (
        "A06-twice",
        "layout.ranks",
        "deepseek-v3",
        [*DEEPSEEK, "parallel.expert_tensor=2"],
        "1024",
        ["1024 ranks", "expert_tensor 2 x expert 64 x pipeline 16 = 2048"],
    ),
    ("A08", "batch.replicas", "dense", ["batch.micro_size=16"], "48", ["1024 samples", "micro-batches of 16", "48 data-parallel", "768"]),
    (
        "A10",
        "layout.context",
        "dense",
        ["batch.seq_len=8190", "parallel.context=4"],
        None,
        ["8190 tokens in 2 x context = 8 chunks leave 6 over"],
    ),
    ("A11", "batch.pipeline-fill", "dense", ["batch.global_size=4", "parallel.pipeline=8"], None, ["4 micro-batches for 8", "63.6%"]),
    (
        "A12",
        "batch.replicas",
        "dense",
        ["batch.global_size=64", "batch.micro_size=8"],
        "16",
        ["64 samples in micro-batches of 8 on 16", "1 or 2 or 4"],
    ),
    ("A13-larger", "batch.micro-size", "dense", ["batch.global_size=8", "batch.micro_size=16"], None, ["8 samples", "micro_size of 8"]),
    ("A13-rest", "batch.micro-size", "dense", ["batch.global_size=10", "batch.micro_size=4"], None, ["10 samples in micro-batches of 4"]),
    (
        "B07",
        "schedule.fits",
        "dense",
        [*SMOKE, "schedule.decay=wsd", "schedule.decay_shape=linear", "schedule.decay_length=95%"],
        None,
        ["warm-up of 4 + decay of 38 = 42 steps", "the run has 40 steps"],
    ),
    ("B08", "schedule.fits", "dense", ["schedule.length=10 steps"], None, ["warm-up of 2_000 steps", "the run has 10 steps"]),
    (
        "B09",
        "schedule.segments",
        "dense",
        [
            "schedule.length=50000 steps",
            "schedule.decay=segments",
            "schedule.segment=[{ until = '100000 steps', lr = 3e-5, shape = 'cosine' }]",
        ],
        None,
        ["the last segment ends at 100_000 steps", "the run ends at 50_000 steps"],
    ),
    (
        "C06",
        "batch.replicas",
        "dense",
        ["batch.ramp=[{ at = '0 samples', size = 8 }, { at = '10000 samples', size = 1024 }]"],
        "16",
        ["8 samples", "on 16 data-parallel replicas"],
    ),
    (
        "D05",
        "stage.share",
        "dense",
        [
            "schedule.length=1000 samples",
            "batch.global_size=1",
            "schedule.warmup=1 steps",
            "checkpoint.every=10 steps",
            "stage=[{ name = 'main', mix = { web = 0.99999, code = 0.00001 } }]",
        ],
        None,
        ["code has weight 1e-05 of the 1_000 samples", "0.01 of a sample"],
    ),
    ("D12", "stage.mix", "dense", ["stage.main.mix={ web = 0.7, cod = 0.3 }"], None, ["mixes cod", "web, code"]),
    ("L06", "tokenizer.path", "dense", ["tokenizer.path=tokenizer.py"], None, ["never code"]),
]


@pytest.mark.parametrize(("case", "rule", "name", "sets", "gpus", "words"), REFUSED, ids=[row[0] for row in REFUSED])
def test_the_case_is_found_with_its_numbers(
    problems: Check, case: str, rule: str, name: str, sets: list[str], gpus: str | None, words: list[str]
) -> None:
    found = [problem for problem in problems(name, *sets, gpus=gpus) if problem.rule == rule]
    assert found, case
    assert found[0].severity == ("warning" if rule in ("batch.pipeline-fill", "stage.share") else "error")
    text = " ".join(str(problem) for problem in found)
    for word in words:
        assert word in text, (case, word, text)


def errors(found: list[Problem]) -> list[str]:
    return [str(problem) for problem in found if problem.severity == "error" and problem.rule != "memory.fits"]


def test_a01_an_uneven_split_that_adds_up_is_accepted(problems: Check) -> None:
    sets = ("model.layers=30", "parallel.pipeline=4", "parallel.pipeline_layers=[7, 8, 8, 7]")
    assert errors(problems("dense", *sets, gpus="8")) == []


def test_a04_all_constraints_that_fail_are_told_at_once(texts: Callable[..., str]) -> None:
    """12 heads, 5 kv_heads and a width of 3,001 all forbid 8; what is offered satisfies them all: only 1."""
    sets = ["model.hidden=768", "model.heads=12", "model.kv_heads=5", "model.ffn_hidden=3001", "parallel.tensor=8"]
    text = texts("layout.tensor", "dense", *sets)
    assert "12 heads" in text
    assert "5 kv_heads" in text
    assert "ffn_hidden 3001" in text
    assert re.search(r"Use a tensor size of 1\b(?!,)", text)


@pytest.mark.parametrize("tensor", [1, 2, 3, 4, 6, 12])
def test_a04_what_is_called_legal_is_legal(texts: Callable[..., str], tensor: int) -> None:
    assert texts("layout.tensor", "dense", *HEADS_12, f"parallel.tensor={tensor}") == ""


def test_a06_expert_tensor_is_its_own_and_expert_never_divides_the_dense_replicas(problems: Check) -> None:
    sets = ("parallel.tensor=4", "parallel.expert=4", "parallel.sequence=true")
    assert errors(problems("experts", *sets, gpus="4")) == []
    mesh = layout(Parallel(tensor=4, expert=4), 4)
    assert (mesh.dense_dp, mesh.expert_dp) == (1, 1)


def test_a06_deepseek_v3_on_1024_gpus(problems: Check) -> None:
    assert errors(problems("deepseek-v3", *DEEPSEEK, "batch.global_size=15360", gpus="1024")) == []
    mesh = layout(Parallel(tensor=2, pipeline=16, expert=64), 1024)
    assert (mesh.dense_dp, mesh.expert_dp) == (32, 1)


def test_a07_one_length_of_one_unit_and_the_same_run_in_all_three() -> None:
    """200B tokens at 1,024 x 4,096 a step: 47,684 steps (the last one is begun), 48,828,416 samples."""
    end = Timeline(load(DENSE).recipe).end
    assert (end.steps, end.samples, end.tokens) == (47_684, 48_828_416, 200_001_191_936)
    with pytest.raises(PreheatError, match="unknown key 'samples'"):
        load(DENSE, ("schedule.samples=48828416",))


@pytest.mark.parametrize(("gpus", "accumulated"), [("8", 8), ("16", 4)])
def test_a08_more_servers_accumulate_less_and_the_batch_stays(problems: Check, gpus: str, accumulated: int) -> None:
    """1,024 sequences in micro-batches of 16, on one server of 8 and on two."""
    assert errors(problems("dense", "batch.micro_size=16", gpus=gpus)) == []
    assert 1024 // (16 * int(gpus)) == accumulated


def test_a09_the_padded_vocabulary_is_told(texts: Callable[..., str]) -> None:
    text = texts("layout.padded-vocabulary", "dense", "model.vocab_size=65535", "parallel.tensor=2")
    assert "65_535" in text
    assert "65_536" in text


def test_a10_a_sequence_that_divides_is_accepted(problems: Check) -> None:
    assert errors(problems("dense", "parallel.context=2", gpus="8")) == []


@pytest.mark.parametrize(("micro", "tensor"), [(4, 1), (8, 2), (8, 4)])
def test_a12_the_micro_batch_is_chosen_from_the_data_parallel_groups(problems: Check, micro: int, tensor: int) -> None:
    sets = ("batch.global_size=64", f"batch.micro_size={micro}", f"parallel.tensor={tensor}")
    assert errors(problems("dense", *sets, gpus="16")) == []


WSD_10 = (
    "schedule.length=10 steps",
    "schedule.warmup=4 steps",
    "schedule.peak_lr=1.0",
    "schedule.final_lr=0.0",
    "schedule.decay=wsd",
    "schedule.decay_shape=linear",
    "schedule.decay_length=4 steps",
    "checkpoint.every=1 steps",
)


def rates(*sets: str) -> list[float]:
    timeline = Timeline(load(DENSE, sets).recipe)
    return [timeline.step(number).lr for number in range(1, timeline.end.steps + 1)]


def test_b04_the_first_step_moves_and_the_last_one_arrives() -> None:
    """Warm-up 4, stable 2, decay 4: 1/4 to 1, 1, 1, then 3/4 down to 0."""
    assert rates(*WSD_10) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 0.75, 0.5, 0.25, 0])


def test_b04_neither_warm_up_nor_decay_is_needed(problems: Check) -> None:
    flat = (*WSD_10[:1], "schedule.warmup=0 steps", *WSD_10[2:6], "schedule.decay_length=0 steps", "checkpoint.every=1 steps")
    assert errors(problems("dense", *flat)) == []
    assert rates(*flat)[0] == 1
    assert rates(*flat)[-2] == 1


def test_b05_past_the_end_the_rate_stays_at_its_minimum() -> None:
    timeline = Timeline(load(DENSE).recipe)
    assert timeline.learning_rate(timeline.end.tokens * 65) == 3e-5


def test_b06_without_warm_up_the_first_step_of_wsd_has_the_peak() -> None:
    sets = ("schedule.warmup=0 steps", "schedule.decay=wsd", "schedule.decay_shape=linear", "schedule.decay_length=10%")
    assert Timeline(load(DENSE, sets).recipe).step(1).lr == 3e-4


def test_b09_a_decay_that_follows_the_length_ends_with_it() -> None:
    assert rates("schedule.length=500 steps", "schedule.warmup=10 steps")[-1] == 3e-5


@pytest.mark.parametrize("shape", ["linear", "cosine", "exponential", "1-sqrt"])
def test_b10_every_shape_ends_at_the_asked_ratio(shape: str) -> None:
    """1,000 steps of which 100 decay to a tenth; the faulty formula of the report would end at 0.526."""
    sets = ["schedule.length=1000 steps", "schedule.warmup=10 steps", "schedule.decay=wsd", f"schedule.decay_shape={shape}"]
    found = rates(*sets, "schedule.decay_length=100 steps")
    assert found[899] == 3e-4
    assert found[-1] / 3e-4 == pytest.approx(0.1)


def test_b12_a_cosine_of_20_steps_is_down_at_step_20() -> None:
    assert rates("schedule.length=20 steps", "schedule.warmup=2 steps")[-1] == 3e-5


def test_c03_a_retired_key_is_refused_with_the_one_that_took_its_place() -> None:
    with pytest.raises(PreheatError) as caught:
        load(DENSE, ("batch.rampup=16",))
    assert "unknown key 'rampup'" in str(caught.value)
    assert "ramp" in caught.value.problems[0].fix


def test_c04_blooms_ramp_shows_how_long_the_pipeline_waits(texts: Callable[..., str]) -> None:
    """16 to 2,048 by 16 over 9,765,625 samples on 12 stages, 8 replicas, micro-batches of 2: 127 increments of 76,894.7."""
    entries = linear_ramp(16, 16, 9_765_625, 2048)
    assert len(entries) == 1 + 127
    assert int(entries[1].at.amount) == 76_895
    written = ", ".join(f"{{ at = '{int(entry.at.amount)} samples', size = {entry.size} }}" for entry in entries)
    sets = ["model.layers=72", "parallel.pipeline=12", "batch.global_size=2048", "batch.micro_size=2", f"batch.ramp=[{written}]"]
    text = texts("batch.pipeline-fill", "dense", *sets, gpus="96")
    assert "16 samples / (2 a micro-batch x 8 replicas) = 1 micro-batch" in text
    assert "91.7%" in text
    assert "until 176 samples, 50.0%" in text  # 11 micro-batches: at 192 the pipeline is full for the first time
    segments = Timeline(load(DENSE, (*sets, "schedule.length=300B tokens", "schedule.warmup=1%")).recipe).segments
    assert segments[0].steps == 4806
    assert sum(segment.steps for segment in segments if segment.batch_size < 2048) == pytest.approx(26_076, abs=127)


@pytest.mark.parametrize(("batch", "waiting"), [(16, 91.7), (192, 47.8), (384, 31.4), (2048, 7.9)])
def test_c04_the_bubble_at_each_size(batch: int, waiting: float) -> None:
    assert float(bubble(Parallel(pipeline=12), batch // 16)) * 100 == pytest.approx(waiting, abs=0.05)


def test_k01_a_port_that_the_system_hands_out(texts: Callable[..., str]) -> None:
    """10,000 + job id modulo 50,000, as the report has it: job 40,000 gets 50,000."""
    assert "50000" in texts("launch.port", "dense", machine=Machine({"MASTER_PORT": str(10_000 + 40_000 % 50_000)}))
    assert texts("launch.port", "dense", machine=Machine({"MASTER_PORT": "29500"})) == ""


@pytest.mark.parametrize(("tasks", "found"), [("8", True), ("8(x16)", True), ("1(x16)", False)])
def test_k02_slurm_and_torchrun_both_start_the_ranks(texts: Callable[..., str], tasks: str, found: bool) -> None:
    variables = {"SLURM_NTASKS_PER_NODE": tasks, "TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "8"}
    text = texts("launch.two-launchers", "dense", machine=Machine(variables))
    assert ("8 tasks a server and torchrun 8" in text) is found
    assert ("64 processes" in text) is found


@pytest.mark.parametrize(("version", "found"), [("2.9.0", True), ("2.9.1+cu128", True), ("2.10.0", False), ("2.13.0+cpu", False)])
def test_l02_a_torch_with_the_advisory_is_named(texts: Callable[..., str], version: str, found: bool) -> None:
    text = texts("launch.torch", "dense", machine=Machine({}, version))
    assert ("GHSA-63cw-57p8-fm3p" in text) is found
    assert (version in text) is found


@pytest.mark.parametrize("setting", ["_target_=os.system", "model._target_='os.system'", "data.source.web.trust_remote_code=true"])
def test_l03_l06_names_that_would_run_code_are_unknown_keys(setting: str) -> None:
    with pytest.raises(PreheatError, match="unknown key"):
        load(DENSE, (setting,))


@pytest.mark.parametrize("text", ["${oc.env:HOME}", "!!python/object/apply:os.system ['true']", "!include /etc/passwd"])
def test_l03_l05_interpolation_and_tags_are_plain_text_and_no_name(text: str) -> None:
    with pytest.raises(PreheatError):
        load(DENSE, (f"name={text}",))


def test_l05_numbers_are_numbers() -> None:
    assert load(DENSE, ("schedule.peak_lr=1e-4",)).recipe.schedule.peak_lr == 1e-4
    with pytest.raises(PreheatError, match="peak_lr"):
        load(DENSE, ('schedule.peak_lr="1e-4"',))


def test_every_case_has_a_row_and_every_row_names_a_rule_or_a_place() -> None:
    assert len({row["case"] for row in TABLE}) == len(TABLE)
    for kind, count in {"A": 12, "B": 11, "C": 5, "D": 21, "F": 18, "K": 6, "L": 5}.items():
        assert sum(row["case"].startswith(kind) for row in TABLE) == count, kind
    for row in TABLE:
        for rule in row["rules"].split():
            assert rule in RULES or rule.startswith(("recipe.", "megatron.")), row
        assert bool(row["rules"]) != bool(row["elsewhere"]), row


def test_every_case_that_names_a_rule_of_ours_is_tested_here() -> None:
    source = Path(__file__).read_text("utf-8")
    for row in TABLE:
        if any(rule in RULES for rule in row["rules"].split()):
            assert f'"{row["case"]}' in source or f"_{row['case'].lower()}_" in source, row

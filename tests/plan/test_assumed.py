"""What a published run leaves unsaid: the batch and the length that its other figures give, and the fastest layout that fits."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.arithmetic.memory import MemoryModel, Step
from preheat.hardware import find
from preheat.plan import Run, Runs, StepModel, read_runs
from preheat.plan.assumed import fastest, precision_of, program_of
from preheat.plan.constants import tables
from preheat.plan.fit import fit
from preheat.recipe import Parallel, load

README = {
    "source": "Megatron-LM README model table",
    "model": "GPT-177B",
    "layers": "96",
    "hidden": "12288",
    "heads": "96",
    "vocab": "131072",
    "hardware": "H100",
    "num_gpus": "2304",
    "precision": "BF16",
    "seq_len": "4096",
    "global_batch": "1152",
    "TP": "8",
    "PP": "6",
    "CP": "1",
    "tflops_gpu": "432.8",
}
"""NVIDIA/Megatron-LM, README.md: micro-batch and virtual stages are not printed."""
VOLTA = {
    "source": "BigScience experiments (JZ V100)",
    "model": "GPT-1.3B",
    "layers": "24",
    "hidden": "2048",
    "heads": "16",
    "hardware": "V100-32GB",
    "num_gpus": "8",
    "precision": "fp16",
    "seq_len": "2048",
    "micro_batch": "1",
    "TP": "1",
    "PP": "2",
    "tflops_gpu": "45.4",
    "step_time_s": "30",
}
"""bigscience-workshop/bigscience, experiments/gpt2-meg.md; there TFLOP/s are 1.3 * 8 * 2048 * batch / (seconds * GPUs * 1000)."""
CARD = {
    "source": "Megatron-Bridge verification card",
    "model": "gpt_oss_120b",
    "ref": "2026-08-17",
    "hardware": "GB200",
    "num_gpus": "64",
    "precision": "bf16",
    "micro_batch": "4",
    "global_batch": "1280",
    "TP": "1",
    "PP": "1",
    "EP": "64",
    "tokens_s_gpu": "16398.332",
    "step_time_s": "4.99563",
}
"""NVIDIA-NeMo/Megatron-Bridge: the card does not print its sequence length."""


def table(folder: Path, *rows: dict[str, str]) -> Runs:
    columns = dict.fromkeys(name for row in (README, VOLTA, CARD, *rows) for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns))
    writer.writeheader()
    writer.writerows(rows)
    (folder / "runs.csv").write_text(text.getvalue(), encoding="utf-8")
    return read_runs(folder / "runs.csv")


def only(folder: Path, row: dict[str, str]) -> Run:
    (run,) = table(folder, row).used
    return run


def test_a_batch_follows_from_rate_and_seconds(tmp_path: Path) -> None:
    """1.3e9 * 8 * 2048 * 512 / (30 * 8) = 45.4e12; the model really has 1.316e9 parameters."""
    run = only(tmp_path, VOLTA)
    assert run.global_batch == pytest.approx(512, rel=0.02)
    assert run.tokens_per_s_per_gpu == pytest.approx(512 * 2048 / 30 / 8, rel=0.02)
    assert run.assumed == ("the global batch that the row's rate and seconds give",)
    assert not run.guessed
    assert table(tmp_path, VOLTA | {"step_time_s": ""}).skipped == {"a pipeline without a global batch": 1}


def test_a_sequence_length_follows_from_tokens_and_seconds(tmp_path: Path) -> None:
    """16,398.332 * 64 * 4.99563 / 1,280 = 4,096."""
    run = only(tmp_path, CARD)
    assert run.seq_len == 4096
    assert run.assumed == ("the sequence length that the row's tokens/s and seconds give",)
    assert table(tmp_path, CARD | {"step_time_s": "5.1"}).skipped == {"the sequence length is not named": 1}


def test_a_micro_batch_that_is_not_named_is_the_fastest_that_fits(tmp_path: Path) -> None:
    """1,152 samples on 48 replicas are 24 each, 4 of 6 stages' worth: pieces of 2 or more need micro-batches by sixes."""
    run = only(tmp_path, README)
    assert run.guessed
    assert 24 % run.micro_batch == 0
    steps = StepModel(run.model, run.seq_len, run.gpu, run.precision, run.software)
    memory = MemoryModel(run.model, precision_of("bf16"), program=program_of("megatron"))

    def fits(layout: Parallel, micro_batch: int) -> bool:
        return memory.fullest(layout, run.ranks, Step(micro_batch, 4096, 24 // micro_batch)).fits(run.gpu.usable)

    def seconds(layout: Parallel, micro_batch: int) -> float:
        return steps.seconds(layout, micro_batch, run.global_batch, run.ranks)

    assert fits(run.parallel, run.micro_batch)
    plain = run.parallel.model_copy(update={"virtual_pipeline": 1, "schedule": "1f1b"})
    others = [seconds(plain, micro_batch) for micro_batch in (1, 2, 4) if fits(plain, micro_batch)]
    assert seconds(run.parallel, run.micro_batch) <= min(others)
    named = only(tmp_path, README | {"micro_batch": "1", "VP": "2"})
    assert (named.micro_batch, named.parallel.virtual_pipeline, named.assumed) == (1, 2, ())


def test_virtual_stages_that_a_row_names_stay(tmp_path: Path) -> None:
    assert only(tmp_path, README | {"VP": "2"}).parallel.virtual_pipeline == 2


def test_where_nothing_fits_it_is_one_sample() -> None:
    """405B on eight GPUs takes 800 GB a GPU for its states alone."""
    steps = StepModel(load("llama3.1-405b").recipe.model, 8192, find("H100"), "bf16")
    assert fastest(steps, Parallel(tensor=8), 16, 8) == (Parallel(tensor=8), 1)


def test_neither_micro_batch_nor_batch_is_too_little(tmp_path: Path) -> None:
    runs = table(tmp_path, README | {"global_batch": ""})
    assert runs.skipped == {"neither micro-batch nor global batch is named": 1}


def test_constants_are_not_fitted_to_what_they_chose(tmp_path: Path) -> None:
    """A figure of a tenth of what is possible moves nothing where the layout was preheat's own choice."""
    others = read_runs(Path(__file__).with_name("published.csv")).used
    run = only(tmp_path, README)
    absurd = replace(run, tokens_per_s_per_gpu=(run.tokens_per_s_per_gpu or 0) / 10)
    assert fit([*others, absurd], tables()) == fit(others, tables())


@given(
    column=st.sampled_from([name for name in README if name != "source"]),
    value=st.sampled_from(["", "0", "-1", "1", "3", "7", "1.5", "nan", "1e11", "999999999", "2", "512", "x"]),
)
@settings(max_examples=120, deadline=None)
def test_no_value_of_an_open_row_ends_in_a_traceback(tmp_path_factory: pytest.TempPathFactory, column: str, value: str) -> None:
    runs = table(tmp_path_factory.mktemp("rows"), README | {column: value})
    assert len(runs.used) + runs.skipped.total() == 1

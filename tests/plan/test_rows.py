"""Reading tables of published runs: eight real rows, and everything a row can lack or get wrong."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.errors import PreheatError
from preheat.plan import Runs, read_runs

TABLE = Path(__file__).with_name("published.csv")
ROWS = list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()))
RUNS = {run.id: run for run in read_runs(TABLE).used}


def write(file: Path, rows: list[dict[str, str]]) -> Path:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(ROWS[0]))
    writer.writeheader()
    writer.writerows(rows)
    file.write_text(text.getvalue(), encoding="utf-8")
    return file


def changed(folder: Path, number: str, **values: str) -> Runs:
    """The row of that id, with other values in its columns."""
    row = next(row for row in ROWS if row["id"] == number)
    return read_runs(write(folder / "runs.csv", [row | values]))


def test_every_real_row_is_used() -> None:
    runs = read_runs(TABLE)
    assert len(runs.used) == len(ROWS)
    assert not runs.skipped


def test_what_ran_is_read_from_columns_and_name() -> None:
    llama, mpt, bloom = RUNS["39"], RUNS["351"], RUNS["835"]
    assert (llama.model.layers, llama.model.vocab_size, llama.precision, llama.software) == (126, 128_256, "fp8", "megatron")
    assert (llama.parallel.tensor, llama.parallel.pipeline, llama.parallel.virtual_pipeline, llama.parallel.context) == (8, 8, 8, 2)
    assert (mpt.model.hidden, mpt.model.ffn_hidden, mpt.parallel.sharding, mpt.parallel.recompute.kind) == (8192, 32_768, "full", "full")
    assert mpt.software == "pytorch"
    assert (bloom.model.layers, bloom.model.hidden, bloom.software) == (72, 14_336, "megatron-2021")
    assert bloom.memory == 59e9
    assert RUNS["34"].software == "megatron-2026"
    assert RUNS["34"].precision == "mxfp8"
    assert RUNS["88"].sparse
    assert RUNS["88"].parallel.expert == 32
    assert RUNS["952"].parallel.replicate == 128


def test_throughput_is_read_by_the_sources_convention(tmp_path: Path) -> None:
    """405B at 8k: 952 tokens/s and 2,403 TFLOP/s with the causal half; Llama 3 8B at 8k: 12,036 and 697 with the full square."""
    assert RUNS["835"].tokens_per_s_per_gpu == pytest.approx(2048 * 2048 / 120.85 / 384)
    for number, tokens in (("34", 952), ("614", 12_036)):
        (run,) = changed(tmp_path, number, tokens_s_gpu="").used
        assert run.tokens_per_s_per_gpu == pytest.approx(tokens, rel=0.005)
    hardware = changed(tmp_path, "835", step_time_s="").used[0].tokens_per_s_per_gpu
    assert hardware == pytest.approx(RUNS["835"].tokens_per_s_per_gpu, rel=0.03)
    assert RUNS["1038"].tokens_per_s_per_gpu == pytest.approx(0.4522 * 989.4e12 / (6 * 8.3217e9 + 12 * 32 * 4096 * 4096), rel=0.001)


@pytest.mark.parametrize(
    ("number", "values", "reason"),
    [
        ("34", {"phase": "lora"}, "not pretraining: lora"),
        ("34", {"hardware": "TPU v5e"}, "not a GPU: TPU"),
        ("34", {"hardware": "Cray-1"}, "unknown hardware: Cray-1"),
        ("34", {"num_gpus": ""}, "the number of GPUs is not named"),
        ("34", {"num_gpus": "some"}, "the number of GPUs is not named"),
        ("34", {"num_gpus": "255"}, "the layout does not divide the GPUs"),
        ("34", {"DP": "9"}, "the layout does not multiply to the GPUs"),
        ("34", {"seq_len": "-8192"}, "the sequence length is not named"),
        ("34", {"TP": ""}, "the layout is not named"),
        ("34", {"model": "Foo-3B"}, "the model's shape is not known"),
        ("34", {"layers": "999999999"}, "more layers than any model has"),
        ("34", {"model": "Nemotron_3_Nano"}, "state-space or linear-attention layers"),
        ("34", {"hidden": "7"}, "the width does not divide among the heads"),
        ("34", {"model": "bert/bert_release"}, "not a decoder"),
        ("34", {"micro_batch": "", "global_batch": ""}, "neither micro-batch nor global batch is named"),
        ("34", {"global_batch": ""}, "a pipeline without a global batch"),
        ("34", {"precision": "fp8", "hardware": "A100", "num_gpus": "256"}, "A100-80 does not multiply in fp8"),
        ("34", {"hardware": "MI300X"}, "no throughput of fp8 is known for MI300X"),
        ("34", {"tokens_s_gpu": "", "tflops_gpu": "nan"}, "no throughput is stated"),
        ("34", {"tokens_s_gpu": "9520"}, "the stated figure lies above the GPU's peak"),
        ("34", {"source": "functional golden values"}, "a functional test, timed under settings for reproducible numbers"),
        ("88", {"EP": "100"}, "the layout of the experts does not divide the GPUs"),
    ],
)
def test_a_row_that_can_not_be_used_says_why(tmp_path: Path, number: str, values: dict[str, str], reason: str) -> None:
    runs = changed(tmp_path, number, **values)
    assert not runs.used
    assert runs.skipped == {reason: 1}


def test_a_row_with_memory_alone_is_kept_for_it(tmp_path: Path) -> None:
    (run,) = changed(tmp_path, "835", step_time_s="", tflops_gpu="").used
    assert run.tokens_per_s_per_gpu is None
    assert run.no_throughput == "no throughput is stated"
    assert run.memory == 59e9


def test_without_the_columns_of_such_a_table_it_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text("model,hardware\nllama3-8b,H100\n")
    with pytest.raises(PreheatError, match=r"no column source, num_gpus, seq_len"):
        read_runs(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PreheatError, match="can't read the table"):
        read_runs(file)
    with pytest.raises(PreheatError, match="can't read the table"):
        read_runs(tmp_path)


@given(
    column=st.sampled_from(list(ROWS[0])),
    number=st.sampled_from([row["id"] for row in ROWS]),
    value=st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.integers(-9, 10**13).map(str) | st.floats().map(str),
)
@settings(max_examples=200, deadline=None)
def test_no_value_ends_in_a_traceback(tmp_path_factory: pytest.TempPathFactory, column: str, number: str, value: str) -> None:
    """Whatever stands in a cell, the row is used or its reason is counted."""
    runs = changed(tmp_path_factory.mktemp("rows"), number, **{column: value})
    assert len(runs.used) + runs.skipped.total() == 1

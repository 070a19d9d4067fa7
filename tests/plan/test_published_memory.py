"""The model of memory against published figures, read as `preheat plan calibrate` reads them."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from preheat.plan.published_memory import case_of, predicted_memory
from preheat.plan.rows import Run, read_runs

THROUGHPUT = ("tokens_s_gpu", "tflops_gpu", "step_time_s")
FUNCTIONAL = {
    "source": "Megatron-LM functional golden values",
    "layers": 12,
    "hidden": 512,
    "heads": 8,
    "kv_heads": 8,
    "hardware": "H100",
    "num_gpus": 8,
    "precision": "bf16",
    "seq_len": 1024,
    "micro_batch": 4,
    "global_batch": 32,
    "TP": 1,
    "PP": 1,
    "CP": 1,
    "dist_opt": "N",
    "SP": "N",
    "recompute": "none",
    "memory_kind": "torch peak allocated on LAST rank (world_size-1)",
    "notes": "transformer-impl=transformer_engine",
}
"""NVIDIA/Megatron-LM at d98e8a64, tests/functional_tests."""
BLOOM = {
    "source": "BigScience tr11 A100 chronicles",
    "hardware": "A100-80GB",
    "num_gpus": 384,
    "seq_len": 2048,
    "global_batch": 2048,
    "TP": 8,
    "CP": 1,
    "dist_opt": "ZeRO-1",
    "recompute": "full",
    "memory_kind": "GPU memory (as printed, nvidia-smi)",
}
"""bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles-prequel.md."""


@pytest.fixture
def run(tmp_path: Path) -> Callable[[dict[str, object]], Run]:
    def read(row: dict[str, object]) -> Run:
        file = tmp_path / "runs.csv"
        with file.open("w", newline="") as stream:
            row = {"id": 1, "model": "gpt/row", **dict.fromkeys(THROUGHPUT), **row}
            writer = csv.DictWriter(stream, row)
            writer.writeheader()
            writer.writerow(row)
        [found] = read_runs(file).used
        return found

    return read


@pytest.mark.parametrize(
    ("values", "gibibytes"),
    [
        ({"dist_opt": "Y"}, 2.555),
        ({"dist_opt": "Y", "notes": "attention-backend=unfused"}, 4.379),
        ({"dist_opt": "Y", "notes": "transformer-impl=local"}, 4.292),
        ({"PP": 4, "VP": 3, "notes": "attention-backend=unfused"}, 3.875),
        ({"TP": 2, "PP": 2}, 1.282),
        ({"TP": 2, "PP": 2, "model": "gpt/te_tp2_pp2_cross_entropy_loss_fusion"}, 1.666),
        ({"TP": 2, "PP": 2, "CP": 2, "SP": "Y"}, 0.825),
        ({"TP": 2, "EP": 2, "experts": 8, "topk": 1, "dist_opt": "Y", "SP": "Y"}, 2.011),
    ],
)
def test_functional_tests(run: Callable[[dict[str, object]], Run], values: dict[str, object], gibibytes: float) -> None:
    """A name tells of fused cross-entropy, a missing ETP is TP, context parallelism excludes dropout."""
    predicted = predicted_memory(run(FUNCTIONAL | {"memory_GiB": gibibytes} | values))
    assert predicted is not None
    assert predicted / 2**30 == pytest.approx(gibibytes, rel=0.08)


def test_what_a_table_does_not_tell_of_is_not_predicted(run: Callable[[dict[str, object]], Run]) -> None:
    for values in (
        {"model": "gpt/gpt_grpo_throughput"},
        {"notes": "multi-latent-attention=True"},
        {"notes": "mtp-num-layers=1; swiglu=True"},
        {"notes": "use-megatron-fsdp=True"},
    ):
        assert predicted_memory(run(FUNCTIONAL | {"memory_GiB": 1} | values)) is None


@pytest.mark.parametrize(
    ("values", "gigabytes"),
    [
        ({"model": "GPT-181B", "PP": 8, "micro_batch": 4, "global_batch": 2016}, 52),
        ({"model": "GPT-194B", "PP": 6, "micro_batch": 8}, 75),
        ({"model": "GPT-200B", "PP": 10, "micro_batch": 8, "num_gpus": 320}, 76),
    ],
)
def test_bloom_s_trials(run: Callable[[dict[str, object]], Run], values: dict[str, object], gigabytes: float) -> None:
    """nvidia-smi counts what lies outside of the allocator too; gradients are in fp32, and their shares once more."""
    predicted = predicted_memory(run(BLOOM | {"memory_GB_printed": gigabytes} | values))
    assert predicted is not None
    assert predicted / 1e9 == pytest.approx(gigabytes, rel=0.12)


def test_layouts_reported_as_out_of_memory_do_not_fit(run: Callable[[dict[str, object]], Run]) -> None:
    """Llama 3 70B on tensor 4, pipeline 4 x 5, 32 H100 in fp8: out of memory by fragmentation (Megatron-Bridge, memory tuning notes)."""
    row = {
        "source": "Megatron-Bridge skill",
        "model": "Llama3-70B",
        "hardware": "H100",
        "num_gpus": 32,
        "precision": "FP8 current scaling",
        "seq_len": 4096,
        "micro_batch": 1,
        "global_batch": 32,
        "TP": 4,
        "PP": 4,
        "VP": 5,
        "CP": 1,
        "recompute": "selective core_attn",
        "memory_GB_printed": 58.8,
        "memory_kind": "peak GB",
    }
    found = run(row)
    case = case_of(found)
    assert case is not None
    assert not max(case.per_rank(), key=lambda memory: memory.total).fits(found.gpu.usable)

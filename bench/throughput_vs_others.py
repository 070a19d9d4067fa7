"""Throughput predicted for published runs beside llm-analysis: `python bench/throughput_vs_others.py RUNS.csv [--docs]`.

Needs `pip install llm-analysis` in the same environment, which no part of preheat does. That program takes as an input what share of the
peak matrix products reach: it is given one for each generation of GPUs, the one with the least median error on these very rows. preheat
predicts with the constants that ship. Both see the same rows: dense models, for it has no number formats by layer and exchanges no experts
in training, and of these the ones that name their micro-batch. `--docs` writes the result into docs/planner-accuracy.md.
"""

from __future__ import annotations

import logging
import math
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

from fit_planner import PAGE, put_section

from preheat.plan import Run, read_runs
from preheat.plan.accuracy import Accuracy, Error, predict
from preheat.plan.constants import shipped

try:
    from llm_analysis import analysis
    from llm_analysis.config import GPUConfig, ModelConfig, ParallelismConfig
except ImportError:
    sys.exit("llm-analysis is not installed here: pip install llm-analysis")

SHARES = [share / 100 for share in range(20, 101, 2)]


def seconds(run: Run, share: float) -> float:
    """llm-analysis's seconds of a step when matrix products reach this share of the peak."""
    model, layout, gpu = run.model, run.parallel, run.gpu
    replicas = run.ranks // (layout.tensor * layout.pipeline * layout.context)
    program = analysis.LLMAnalysis(
        ModelConfig(
            name=run.name,
            num_layers=model.layers,
            n_head=model.heads,
            hidden_dim=model.hidden,
            vocab_size=model.vocab_size,
            max_seq_len=run.seq_len,
            num_key_value_heads=model.kv_heads,
            ffn_embed_dim=model.ffn_hidden,
            expansion_ratio=model.ffn_hidden / model.hidden,
        ),
        GPUConfig(
            name=gpu.name,
            mem_per_GPU_in_GB=1e6,  # its own estimate of memory may not keep it from answering
            hbm_bandwidth_in_GB_per_sec=gpu.memory_bandwidth / 1e9,
            intra_node_bandwidth_in_GB_per_sec=gpu.link_bandwidth / 1e9,
            intra_node_min_message_latency=8e-6,
            peak_fp16_TFLOPS=gpu.peak(run.precision) / 1e12,
            inter_node_bandwidth_in_GB_per_sec=gpu.network_bandwidth * gpu.server / 1e9,
        ),
        parallelism_config=ParallelismConfig(layout.tensor, layout.pipeline, replicas * layout.context),
        flops_efficiency=share,
    )
    kinds = {"none": "NONE", "selective": "SELECTIVE", "full": "FULL"}
    zero = {"none": "NONE", "optimizer": "STAGE_1", "full": "STAGE_3"}
    answer = program.training(
        batch_size_per_gpu=run.micro_batch,
        gradient_accumulation_steps=max(1, round(run.global_batch / replicas / run.micro_batch)),
        seq_len=run.seq_len,
        activation_recomputation=analysis.ActivationRecomputation[kinds[layout.recompute.kind]],
        ds_zero=analysis.DSZeRO[zero[layout.sharding]],
        mlp_gated_linear_units=model.activation == "swiglu",
    )
    return float(answer["latency_per_iter"])


def theirs(runs: list[Run]) -> tuple[list[Error], list[Run]]:
    """llm-analysis's predictions at its best share for each generation, and the rows that it answers at all."""
    by_generation: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_generation[run.gpu.generation].append(run)
    errors: list[Error] = []
    for some in by_generation.values():
        best: list[Error] = []
        for share in SHARES:
            found = [error for run in some if (error := attempt(run, share)) is not None]
            if not best or middle(found) < middle(best):
                best = found
        errors += best
    return errors, [error.run for error in errors]


def attempt(run: Run, share: float) -> Error | None:
    """None where it refuses the layout: heads or layers that don't divide."""
    try:
        predicted = run.global_batch * run.seq_len / run.ranks / seconds(run, share)
    except (AssertionError, ZeroDivisionError):
        return None
    assert run.tokens_per_s_per_gpu is not None
    return Error(run, predicted, run.tokens_per_s_per_gpu)


def middle(errors: list[Error]) -> float:
    return median(abs(math.log(error.predicted / error.measured)) for error in errors) if errors else math.inf


def main() -> None:
    logging.disable(logging.CRITICAL)
    used = read_runs(Path(sys.argv[1])).used
    dense = [run for run in used if run.tokens_per_s_per_gpu is not None and not run.sparse and not run.guessed]
    other, answered = theirs(dense)
    lines = ["| | rows | median of the absolute error | 90th percentile | bias |", "|---|--:|--:|--:|--:|"]
    for name, errors in (("preheat", predict(answered, shipped())), ("llm-analysis 0.2.2, at its best", other)):
        found = Accuracy.of(errors)
        assert found is not None
        lines.append(f"| {name} | {found.n} | {found.median_abs_error:.1%} | {found.p90_abs_error:.1%} | {found.bias:+.1%} |")
    lines += ["", f"llm-analysis refuses {len(dense) - len(answered)} of {len(dense)} rows."]
    print("\n".join(lines))
    if "--docs" in sys.argv:
        put_section(PAGE, "others", iter(lines))


if __name__ == "__main__":
    main()

"""Memory of published runs as three estimators see it: preheat's, Megatron-LM's own and the PyPI package llm-analysis.

    python bench/memory_vs_others.py RUNS.csv [--megatron FILE] [--llm-analysis FOLDER]

FILE is Megatron-LM's `megatron/training/theoretical_memory_usage.py`, FOLDER what llm_analysis's wheel unpacks to. Neither is installed;
one that is not named is left out. All are asked about the same rows and told the same: model, layout, sharding, recomputation. The others
know nothing of logits in a pipeline, of libraries, allocator or context, and Megatron-LM's nothing of full recomputation; what they leave
out is their error.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import sys
import types
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median

from preheat.arithmetic import head_dim, kv_heads, layout, padded_vocab
from preheat.plan.published_memory import Case, case_of, predicted_memory
from preheat.plan.rows import read_runs

Estimator = Callable[[Case], float]


def megatron(file: Path) -> Estimator:
    """Megatron-LM's `report_theoretical_memory`, in bytes."""
    package, utils = types.ModuleType("megatron_training"), types.ModuleType("megatron_training.utils")
    utils.__dict__.update(is_hybrid_model=lambda _: False, print_rank_0=lambda _: None)
    package.__path__ = []
    module = types.ModuleType("megatron_training.theoretical_memory_usage")
    module.__package__ = "megatron_training"
    sys.modules.update({"megatron_training": package, "megatron_training.utils": utils})
    exec(compile(file.read_text(), str(file), "exec"), module.__dict__)

    def estimate(case: Case) -> float:
        model, parallel, mla = case.model, case.parallel, case.model.mla
        experts = model.experts
        arguments = types.SimpleNamespace(
            kv_channels=head_dim(model),
            num_attention_heads=model.heads,
            hidden_size=model.hidden,
            group_query_attention=kv_heads(model) != model.heads,
            num_query_groups=kv_heads(model),
            num_experts=experts.count if experts else None,
            swiglu=model.activation == "swiglu",
            moe_shared_expert_intermediate_size=experts.shared * experts.ffn_hidden if experts and experts.shared else None,
            moe_layer_freq=[0] * experts.first_dense + [1] * (model.layers - experts.first_dense) if experts else 1,
            num_layers=model.layers,
            moe_ffn_hidden_size=experts.ffn_hidden if experts else None,
            moe_router_topk=experts.active if experts else 0,
            moe_latent_size=None,
            add_bias_linear=model.bias,
            ffn_hidden_size=model.ffn_hidden,
            mtp_num_layers=model.mtp.layers if model.mtp else None,
            normalization="RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
            multi_latent_attention=mla is not None,
            q_lora_rank=mla.q_lora_rank if mla else None,
            kv_lora_rank=mla.kv_lora_rank if mla else None,
            qk_head_dim=mla.qk_nope_head_dim if mla else None,
            qk_pos_emb_head_dim=mla.qk_rope_head_dim if mla else None,
            v_head_dim=mla.v_head_dim if mla else None,
            padded_vocab_size=padded_vocab(model.vocab_size, parallel.tensor),
            untie_embeddings_and_output_weights=not model.tied_embeddings,
            expert_tensor_parallel_size=parallel.expert_tensor,
            expert_model_parallel_size=parallel.expert,
            pipeline_model_parallel_size=parallel.pipeline,
            tensor_model_parallel_size=parallel.tensor,
            world_size=case.ranks,
            data_parallel_size=layout(parallel, case.ranks).dense_dp,
            use_distributed_optimizer=parallel.sharding != "none",
            seq_length=case.step.seq_len,
            micro_batch_size=case.step.micro_size,
            virtual_pipeline_model_parallel_size=parallel.virtual_pipeline if parallel.virtual_pipeline > 1 else None,
            sequence_parallel=parallel.sequence,
            # Its formula for sequence parallelism also wants selective recomputation, which was then what fused attention is now.
            recompute_granularity="full" if parallel.recompute.kind == "full" else "selective",
        )
        state = module.__dict__["compute_weight_and_optimizer_memory"](arguments)
        split = parallel.sequence and arguments.recompute_granularity == "selective"
        kept = module.__dict__["compute_activation_memory" if split else "compute_activation_memory_without_sp"]
        return float(state + kept(arguments, num_microbatches=case.step.micro_batches))

    return estimate


def llm_analysis(folder: Path) -> Estimator:
    """llm-analysis 0.2.2's sum of weights, gradients, optimizer state and activations, in bytes."""
    sys.path.insert(0, str(folder))
    sys.modules.setdefault("fire", types.ModuleType("fire"))  # its command line alone needs it
    analysis, config = (importlib.import_module(f"llm_analysis.{name}") for name in ("analysis", "config"))
    importlib.import_module("llm_analysis.logger").logger.setLevel("CRITICAL")
    gpu = config.GPUConfig("any", 1e6, 2000, 300, 1e-5, 312)  # with room for everything, so that it answers

    def estimate(case: Case) -> float:
        model, parallel, experts = case.model, case.parallel, case.model.experts
        shape = config.ModelConfig(
            name="row",
            num_layers=model.layers,
            n_head=model.heads,
            hidden_dim=model.hidden,
            vocab_size=model.vocab_size,
            max_seq_len=case.step.seq_len,
            num_key_value_heads=kv_heads(model),
            ffn_embed_dim=experts.ffn_hidden if experts else model.ffn_hidden,
            moe_num_experts=experts.count if experts else 1,
            moe_top_k=experts.active if experts else 1,
        )
        replicas = layout(parallel, case.ranks).dense_dp
        ranks = config.ParallelismConfig(
            parallel.tensor, parallel.pipeline, replicas, parallel.expert, parallel.tensor if parallel.sequence else 1
        )
        recomputation = {"none": "NONE", "selective": "SELECTIVE", "full": "FULL"}[parallel.recompute.kind]
        found = analysis.LLMAnalysis(shape, gpu, config.DtypeConfig(), ranks).training(
            batch_size_per_gpu=case.step.micro_size,
            gradient_accumulation_steps=case.step.micro_batches,
            seq_len=case.step.seq_len,
            total_num_tokens=10**9,
            activation_recomputation=analysis.ActivationRecomputation[recomputation],
            ds_zero=analysis.DSZeRO[{"none": "NONE", "optimizer": "STAGE_1", "full": "STAGE_3"}[parallel.sharding]],
            flash_attn=case.program.fused_attention,
            softmax_dropout=bool(model.dropout),
            mlp_gated_linear_units=model.activation == "swiglu",
        )
        return float(found["(weight+op_state+grad+act)_memory_per_gpu"])

    return estimate


def main() -> None:
    """Ask all about every row, print the errors of each by source."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--megatron", type=Path, metavar="FILE")
    parser.add_argument("--llm-analysis", type=Path, metavar="FOLDER")
    chosen = parser.parse_args()
    others: dict[str, Estimator] = {}
    for name, path, make in (("Megatron-LM", chosen.megatron, megatron), ("llm-analysis", chosen.llm_analysis, llm_analysis)):
        if path is None or not path.exists():
            print(f"{name}: left out, {'not named' if path is None else f'{path} is not there'}")
        else:
            others[name] = make(path)
    errors: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    silent: dict[str, int] = defaultdict(int)
    for run in read_runs(chosen.runs).used:
        case, own = case_of(run), predicted_memory(run)
        if run.memory is None or case is None or own is None:
            continue
        for source in (run.source, "all"):
            errors[source]["preheat"].append(own / run.memory - 1)
        for name, estimate in others.items():
            try:
                found = estimate(case)
            except (AssertionError, AttributeError, TypeError, ValueError, ZeroDivisionError):
                silent[name] += 1
                continue
            for source in (run.source, "all"):
                errors[source][name].append(found / run.memory - 1)
    table = csv.writer(sys.stdout, delimiter="\t")
    table.writerow(["source", "estimator", "rows", "median |error|", "90th percentile", "median error"])
    for source, by_name in errors.items():
        for name, found in by_name.items():
            sizes = sorted(map(abs, found))
            row = [f"{value:.1%}" for value in (median(sizes), sizes[int(0.9 * len(sizes))], median(found))]
            table.writerow([source, name, len(found), *row])
    for name, rows in silent.items():
        print(f"{name} gives no answer for {rows} rows")


if __name__ == "__main__":
    main()

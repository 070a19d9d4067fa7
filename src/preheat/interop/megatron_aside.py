"""Arguments of a command that no part of the importer reads: those that change what is trained are told, the others are left aside."""

from __future__ import annotations

import re
from typing import Any

from preheat.megatron import Settings, options, remarks

_SAME_TRAINING = re.compile(
    r"""
    log_.* | .*tensorboard.* | wandb_.* | timing_.* | profile.* | nvtx.* | .*_log_interval | logging_level | app_tag_.*
    | one_logger.* | straggler_.*
    | .*profil.* | energy_.* | memory_snapshot_path | record_memory_history | enable_one_logger | report_theoretical_memory
    | load | no_load_.* | save_.* | no_save_.* | .*ckpt.* | (?!pretrained).*checkpoint.* | async_.* | auto_detect_.* | use_persistent_.*
    | verify_integrity
    | exit_.* | adlr_.* | rerun_.* | error_injection_.* | check_.* | manual_gc.* | empty_unused_memory_level | test_mode
    | result_rejected_.*
    | distributed_.* | local_rank | rank | use_gloo_.* | nccl_.* | high_priority_.* | use_tp_pp_dp_mapping | use_sharp
    | sharp_.* | ft_.*
    | replication.* | inprocess_.* | heartbeat.* | enable_ft_.* | .*_rng_tracker | deterministic_mode | batch_invariant_mode
    | data_cache_path | num_workers | mmap_bin_files | object_storage_.* | .*_index_.* | create_attention_mask.*
    | mock_data | data_args_path
    | vocab_file | merge_file | tokenizer_.* | tiktoken_.* | make_vocab_size_divisible_by | vocab_extra_ids
    | max_position_embeddings
    | transformer_impl | attention_backend | .*fusion.* | .*fused.* | .*_fuser | use_flash_attn
    | attention_softmax_in_fp32 | accumulate_.*_in_fp32
    | no_persist_layer_norm | moe_grouped_gemm | moe_token_dispatcher.* | moe_flex_.* | moe_hybridep_.* | moe_router_dtype
    | moe_permute_.*
    | moe_shared_expert_overlap | moe_enable_deepep | moe_deepep_.* | moe_router_padding_.* | moe_per_layer_logging
    | moe_pad_experts_.*
    | overlap_.* | .*_overlap_.* | tp_comm_.* | cp_comm_type | hierarchical_context_.* | align_.* | defer_.* | delay_.*
    | wgrad_.* | ddp_.*
    | .*fsdp.* | init_model_with_meta_device | num_distributed_optimizer_instances | data_parallel_sharding_strategy | outer_dp_.*
    | use_layer_wise_.* | reuse_grad_buf_.* | microbatch_group_.* | use_ring_exchange_p2p | cuda_graph.* | .*_cuda_graph.*
    | external_cuda_graph
    | .*offload.* | disable_bf16_reduced_precision_matmul | fp8_param_gather | keep_fp8_.* | fp8_amax_.* | dataloader_type
    | eval_global_batch_size
    | use_checkpoint_opt_param_scheduler | override_opt_param_scheduler | inference_.* | .*_inference
    | enable_chunked_prefill | flash_decode
    | max_tokens_to_oom | use_legacy_.* | enable_experimental | log_energy | loss_scale.* | initial_loss_scale
    | min_loss_scale | hysteresis
    """,
    re.VERBOSE,
)
"""Names of values that leave the training as it is, but for rounding, speed and what is written down."""


class Heeded(dict[str, Any]):
    """The values of a command, which remember by name which of them were read."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.names: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.names.add(key)
        return super().get(key, default)


def unread(settings: Settings, names: set[str]) -> list[tuple[str, str]]:
    """Flag and meaning of every argument that changes the training and whose value was not among those read."""
    table, known = options(settings.version), remarks(settings.version)
    found = []
    for dest, argument in settings.given.items():
        option = table.get(argument.flag)
        if dest in names or option is None or argument.flag in known or _SAME_TRAINING.fullmatch(dest):
            continue
        if dest == "kv_channels" and settings["multi_latent_attention"]:  # which has widths of its own
            continue
        if str(settings.values.get(dest)) not in (option.default, "None"):
            found.append((argument.flag, f"set to {' '.join(argument.values)[:60]}" if argument.values else "set"))
    return found

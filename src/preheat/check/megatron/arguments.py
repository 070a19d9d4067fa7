"""Rules about the arguments themselves: names, types, numbers of values, and those that the parser takes and nobody heeds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from preheat.arithmetic import linear_ramp
from preheat.check.megatron.registry import hazard
from preheat.check.registry import Finding
from preheat.megatron import Settings
from preheat.megatron.bounds import beyond_measure

_ENABLERS = {
    "fp8_amax_history_len": ("fp8", "--fp8-format"),
    "fp8_amax_compute_algo": ("fp8", "--fp8-format"),
    "rope_scaling_factor": ("use_rope_scaling", "--use-rope-scaling"),
    "moe_router_bias_update_rate": ("moe_router_enable_expert_bias", "--moe-router-enable-expert-bias"),
    "mtp_loss_scaling_factor": ("mtp_num_layers", "--mtp-num-layers"),
    "moe_router_num_groups": ("moe_router_group_topk", "--moe-router-group-topk"),
    "q_lora_rank": ("multi_latent_attention", "--multi-latent-attention"),
    "kv_lora_rank": ("multi_latent_attention", "--multi-latent-attention"),
    "v_head_dim": ("multi_latent_attention", "--multi-latent-attention"),
    "moe_router_topk": ("num_experts", "--num-experts"),
    "moe_aux_loss_coeff": ("num_experts", "--num-experts"),
    "moe_grouped_gemm": ("num_experts", "--num-experts"),
    "moe_token_dispatcher_type": ("num_experts", "--num-experts"),
    "moe_shared_expert_intermediate_size": ("num_experts", "--num-experts"),
    "mup_base_hidden_size": ("use_mup", "--use-mup"),
    "mup_base_head_dim": ("use_mup", "--use-mup"),
    "recompute_modules": ("recompute_granularity", "--recompute-granularity selective"),
}


def _of_kind(settings: Settings, *kinds: str) -> Iterator[Finding]:
    for fault in settings.faults:
        if fault.kind in kinds:
            place = f"line {fault.line}: " if not fault.flag and fault.line else ""
            yield Finding(fault.flag, place + fault.got, fault.want, fault.fix)


@hazard("unknown")
def unknown(settings: Settings) -> Iterator[Finding]:
    """An argument that no version of Megatron-LM's parser knows: the program ends before it starts. Abbreviations are not known either.

    Example: --tensor-model-parallel 2.
    """
    yield from _of_kind(settings, "unknown")


@hazard("renamed")
def renamed(settings: Settings) -> Iterator[Finding]:
    """An argument of another program, or of nobody, for something that Megatron-LM calls differently: the program ends before it starts.

    Example: --rope-theta 500000 (it is --rotary-base), --lr-warmup-steps, --train-tokens 14.8T, --use-flash-attn-v2.
    """
    yield from _of_kind(settings, "renamed")


@hazard("removed")
def removed(settings: Settings) -> Iterator[Finding]:
    """An argument that Megatron-LM had and has no more: the program ends before it starts.

    Example: --fp8-hybrid, gone since August 2023; it is --fp8-format hybrid.
    """
    yield from _of_kind(settings, "removed")


@hazard("other-version")
def other_version(settings: Settings) -> Iterator[Finding]:
    """An argument that another version of megatron-core has.

    Example: --step-batch-size-schedule under 0.17, --use-legacy-models under 0.19.
    """
    yield from _of_kind(settings, "other-version")


@hazard("retired")
def retired(settings: Settings) -> Iterator[Finding]:
    """An argument that the parser still takes, only to refuse it afterwards.

    Example: --batch-size 8, --warmup 1, --checkpoint-activations.
    """
    yield from _of_kind(settings, "retired")


@hazard("type")
def types(settings: Settings) -> Iterator[Finding]:
    """A value of the wrong type.

    Example: --train-samples 14.8T, --rotary-base 5e5 (an integer is wanted).
    """
    yield from _of_kind(settings, "type")


@hazard("count")
def counts(settings: Settings) -> Iterator[Finding]:
    """A wrong number of values.

    Example: --rampup-batch-size [384,384,97656250] is one value where three are wanted.
    """
    yield from _of_kind(settings, "count")


@hazard("choice")
def choices(settings: Settings) -> Iterator[Finding]:
    """A value that is none of those allowed.

    Example: --lr-decay-style wsd (it is WSD).
    """
    yield from _of_kind(settings, "choice")


@hazard("stray")
def stray(settings: Settings) -> Iterator[Finding]:
    """A word that belongs to no argument: before the first flag, after a flag without values, or on a line that a missing \\ cut off.

    Example: --bf16 true.
    """
    yield from _of_kind(settings, "stray")


_LONGEST_SCHEDULE = 12


@hazard("ignored")
def ignored(settings: Settings) -> Iterator[Finding]:
    """An argument that is accepted and not heeded, so that another run is trained than the one that is written.

    Stricter than Megatron-LM, which says so in one line of the log. Example: --rampup-batch-size since core 0.18 (commit 532ad926b4):
    the run starts at the full global batch.
    """
    for finding in _of_kind(settings, "ignored"):
        schedule = _schedule_of_ramp(settings) if finding.key == "--rampup-batch-size" else ""
        yield replace(finding, fix=f'Write --step-batch-size-schedule "{schedule}" and no --global-batch-size') if schedule else finding


def _schedule_of_ramp(settings: Settings) -> str:
    """The newer form of a ramp, which counts in tokens; nothing where it is long or not to be worked out."""
    entry, seq_len, batch = settings["rampup_batch_size"], settings["seq_length"], settings["global_batch_size"]
    if not (entry and seq_len and batch):
        return ""
    start, increment, samples = entry
    if increment < 1 or (batch - start) // increment >= _LONGEST_SCHEDULE:
        return ""
    try:
        ramp = linear_ramp(start, increment, samples, batch)
    except ValueError:
        return ""
    return " ".join(f"{int(each.at.amount) * seq_len}:{each.size}" for each in ramp)


@hazard("inert", "note")
def inert(settings: Settings) -> Iterator[Finding]:
    """An argument that is accepted, changes nothing and is not missed.

    Example: --use-mcore-models.
    """
    yield from _of_kind(settings, "inert")


@hazard("repeated", "warning")
def repeated(settings: Settings) -> Iterator[Finding]:
    """An argument given twice with different values; the last one holds.

    Example: --seq-length 4096 ... --seq-length 8192.
    """
    yield from _of_kind(settings, "repeated")


@hazard("open", "note")
def left_open(settings: Settings) -> Iterator[Finding]:
    """Something that only a shell could know, and that is not judged: a script is read and never run.

    Example: --nnodes $SLURM_NNODES, $(hostname), the branches of an if.
    """
    yield from _of_kind(settings, "open")


@hazard("required", absence=True)
def required(settings: Settings) -> Iterator[Finding]:
    """Arguments without a default that the program insists on.

    Example: a command without --seq-length.
    """
    needed = ("num_layers", "hidden_size", "num_attention_heads", "seq_length", "max_position_embeddings", "micro_batch_size", "lr")
    broken = {fault.flag for fault in settings.faults if fault.kind in ("open", "type", "count", "stray")}
    others = {"seq_length": "encoder_seq_length", "num_layers": "encoder_num_layers"}
    for name in needed:
        flag = "--" + name.replace("_", "-")
        counted = name == "num_layers" and (settings["hybrid_layer_pattern"] or settings["hybrid_override_pattern"])
        if settings[name] is None and settings[others.get(name, name)] is None and flag not in broken and not counted:
            yield Finding(flag, f"{flag} is missing", "it has no default", f"Give {flag}")


@hazard("bounds")
def bounds(settings: Settings) -> Iterator[Finding]:
    """A number that no command means: a slip of the keyboard. The other rules are silent until it is mended.

    Stricter than Megatron-LM. Example: --num-layers 320000.
    """
    for flag, number, most in beyond_measure(settings):
        yield Finding(
            flag, f"{flag} {number:.3g}" if abs(number) > 10**15 else f"{flag} {number}", f"at most {most:_}", "Correct the number"
        )


@hazard("finite")
def finite(settings: Settings) -> Iterator[Finding]:
    """Rates and coefficients are numbers.

    Example: --lr nan, which Python's parser takes.
    """
    for name, argument in settings.given.items():
        value = settings[name]
        if any(isinstance(each, float) and not math.isfinite(each) for each in (value if isinstance(value, list) else [value])):
            yield Finding(argument.flag, f"{argument.flag} {' '.join(argument.values)}", "a finite number", "Correct the number")


@hazard("positive")
def positive(settings: Settings) -> Iterator[Finding]:
    """Sizes are at least 1.

    Example: --pipeline-model-parallel-size 0.
    """
    names = (
        "num_layers hidden_size num_attention_heads seq_length max_position_embeddings micro_batch_size global_batch_size num_query_groups "
        "ffn_hidden_size tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size expert_model_parallel_size "
        "expert_tensor_parallel_size moe_router_topk moe_ffn_hidden_size num_layers_per_virtual_pipeline_stage train_iters train_samples"
    )
    for name in names.split():
        value = settings[name]
        if settings.has(name) and isinstance(value, int) and value < 1:
            flag = "--" + name.replace("_", "-")
            yield Finding(flag, f"{flag} {value}", "at least 1", "Correct the number")


@hazard("without", "warning", absence=True)
def without_enabler(settings: Settings) -> Iterator[Finding]:
    """An argument that only has an effect together with another one, which is missing.

    Example: --fp8-amax-history-len 1024 without --fp8-format; --rope-scaling-factor 8 without --use-rope-scaling.
    """
    for name, (enabler, flag) in _ENABLERS.items():
        if settings.has(name) and not settings[enabler]:
            own = "--" + name.replace("_", "-")
            yield Finding(own, f"{own} without {flag} has no effect", "", f"Add {flag} or remove it")

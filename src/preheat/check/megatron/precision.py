"""Rules about number formats and recomputation."""

from __future__ import annotations

from collections.abc import Iterator

from preheat.check.megatron.registry import hazard
from preheat.check.registry import Finding
from preheat.megatron import Settings
from preheat.megatron.batch import size


@hazard("format")
def formats(settings: Settings) -> Iterator[Finding]:
    """One 16-bit format, and one format below it.

    Example: --bf16 --fp16; --fp8-format hybrid --fp4-format e2m1.
    """
    if settings["bf16"] and settings["fp16"]:
        yield Finding("--fp16", "--bf16 and --fp16", "one of them", "Remove --fp16")
    if settings["fp8"] and settings["fp4"]:
        yield Finding("--fp4-format", "--fp8-format and --fp4-format", "one of them", "Remove one")
    if settings["fp8_param_gather"] and not (
        settings["use_distributed_optimizer"] or settings["use_torch_fsdp2"] or settings["use_megatron_fsdp"]
    ):
        yield Finding("--fp8-param-gather", "--fp8-param-gather without --use-distributed-optimizer", "", "Add --use-distributed-optimizer")
    elif settings["fp8_param_gather"] and not settings["fp8"]:
        yield Finding("--fp8-param-gather", "--fp8-param-gather without --fp8-format", "", "Add --fp8-format")


@hazard("format-missing", "warning", absence=True)
def missing(settings: Settings) -> Iterator[Finding]:
    """Without --bf16 weights and activations are 32-bit, also beside --fp8-format.

    Example: an FP8 command without --bf16.
    """
    if not settings["bf16"] and not settings["fp16"]:
        beside = " beside --fp8-format" if settings["fp8"] else ""
        yield Finding("--bf16", f"no --bf16{beside}: parameters are fp32", "", "Add --bf16")


@hazard("fp8-history", "warning")
def history(settings: Settings) -> Iterator[Finding]:
    """A history of maxima only counts for delayed scaling, and one step of it (the default) is hardly a history.

    Example: --fp8-recipe tensorwise --fp8-amax-history-len 1024.
    """
    if settings["fp8"] and settings["fp8_recipe"] != "delayed":
        for name in ("fp8_amax_history_len", "fp8_amax_compute_algo"):
            if settings.has(name):
                flag = "--" + name.replace("_", "-")
                yield Finding(flag, f"{flag} with --fp8-recipe {settings['fp8_recipe']} has no effect", "delayed", "Remove it")


@hazard("recompute", absence=True)
def recompute(settings: Settings) -> Iterator[Finding]:
    """Full recomputation says how (uniform or block) and for how many layers; selective says neither.

    Example: --recompute-granularity full --recompute-method block without --recompute-num-layers.
    """
    kind = "selective" if settings["recompute_activations"] else settings["recompute_granularity"]
    method, layers = settings["recompute_method"], settings["recompute_num_layers"]
    flag = "--recompute-granularity"
    if kind == "full" and method is None:
        yield Finding(flag, "--recompute-granularity full without --recompute-method", "uniform or block", "Add --recompute-method uniform")
    if kind == "full" and layers is None:
        fix = "Add --recompute-num-layers (block: layers of a stage that are recomputed; uniform: layers per checkpoint)"
        yield Finding(flag, "--recompute-granularity full without --recompute-num-layers", "", fix)
    if kind == "selective" and method is not None:
        yield Finding("--recompute-method", f"--recompute-method {method} with selective recomputation", "", "Remove it")
    elif kind == "selective" and layers is not None:
        yield Finding("--recompute-num-layers", "--recompute-num-layers with selective recomputation", "", "Remove it")
    if settings["distribute_saved_activations"] and settings["sequence_parallel"]:
        yield Finding("--distribute-saved-activations", "--distribute-saved-activations with --sequence-parallel", "", "Remove it")


@hazard("recompute-layers", "warning")
def recompute_layers(settings: Settings) -> Iterator[Finding]:
    """No more layers are recomputed than a stage has.

    Example: --recompute-num-layers 64 for 32 layers.
    """
    count, layers = settings["recompute_num_layers"], settings["num_layers"]
    if settings["recompute_granularity"] == "full" and count and layers:
        stage = max(1, layers // size(settings, "pipeline_model_parallel_size"))
        if count > stage:
            yield Finding("--recompute-num-layers", f"{count} layers", f"a stage has {stage}", f"Write --recompute-num-layers {stage}")


@hazard("muon")
def muon(settings: Settings) -> Iterator[Finding]:
    """Muon goes without FSDP and in the older checkpoint formats; in core 0.17 its sharded form is --optimizer dist_muon.

    Example: --optimizer muon --use-distributed-optimizer under 0.17. Since 0.18 that is how it is sharded.
    """
    name, flag = settings["optimizer"], "--optimizer"
    if name not in ("muon", "dist_muon"):
        return
    if settings["use_torch_fsdp2"] or settings["use_megatron_fsdp"]:
        yield Finding(flag, f"{flag} {name} with FSDP", "", "Use --use-distributed-optimizer")
    if settings["ckpt_format"] not in ("torch", "torch_dist"):
        yield Finding("--ckpt-format", f"--ckpt-format {settings['ckpt_format']} with {flag} {name}", "torch_dist", "Change it")
    if not settings.since("0.18"):
        if settings["use_distributed_optimizer"]:
            yield Finding(flag, f"{flag} {name} with --use-distributed-optimizer under 0.17", "", f"Write {flag} dist_muon alone")
        for other in ("overlap_grad_reduce", "overlap_param_gather"):
            if name == "muon" and settings[other]:
                yield Finding(flag, f"{flag} muon with --{other.replace('_', '-')} under 0.17", "", f"Write {flag} dist_muon")


@hazard("state-precision")
def state_precision(settings: Settings) -> Iterator[Finding]:
    """Moments in fewer bits belong to the precision-aware optimizer, which is Adam with the distributed optimizer.

    Megatron-LM's validation lets it through; building the optimizer fails. Example: --exp-avg-dtype bf16 alone.
    """
    flag = "--use-precision-aware-optimizer"
    kept = [name for name in ("exp_avg_dtype", "exp_avg_sq_dtype", "main_params_dtype", "main_grads_dtype") if settings[name] != "fp32"]
    if not settings["use_precision_aware_optimizer"]:
        for name in kept:
            own = "--" + name.replace("_", "-")
            yield Finding(own, f"{own} {settings[name]} without {flag}", "", f"Add {flag}")
        return
    if settings["optimizer"] != "adam":
        yield Finding(flag, f"{flag} with --optimizer {settings['optimizer']}", "adam", "Remove one")
    if not settings["use_distributed_optimizer"]:
        yield Finding(flag, f"{flag} without --use-distributed-optimizer", "", "Add --use-distributed-optimizer")

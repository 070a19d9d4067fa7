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


@hazard("format-missing", "warning")
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


@hazard("recompute")
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

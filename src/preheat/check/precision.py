"""Rules about number formats."""

from __future__ import annotations

from collections.abc import Iterator

from preheat.arithmetic import head_dim, kv_heads
from preheat.check.registry import Finding, rule
from preheat.check.subject import Subject


@rule("precision.fp8-recipe")
def fp8_recipe(subject: Subject) -> Iterator[Finding]:
    """Training in fp8 says how it scales, and nothing else does.

    Example: compute = "fp8" alone; fp8_recipe = "delayed" with compute = "bf16".
    Source: arXiv 2209.05433; arXiv 2310.10537 (mxfp8); arXiv 2412.19437, section 3.3 (blocks of 128).
    """
    precision = subject.recipe.precision
    if precision.compute == "fp8" and precision.fp8_recipe is None:
        yield Finding("precision.compute", 'compute = "fp8" without fp8_recipe', "", "Set precision.fp8_recipe")
    if precision.compute != "fp8" and precision.fp8_recipe is not None:
        got = f'fp8_recipe has no effect with compute = "{precision.compute}"'
        yield Finding("precision.fp8_recipe", got, "", 'Set compute = "fp8" or remove it')


@rule("precision.fp8-shape")
def fp8_shape(subject: Subject) -> Iterator[Finding]:
    """Matrices in fp8 have dims that are multiples of 16, blocks ones of their blocks, after the tensor-parallel cut.

    Example: ffn_hidden = 11_000 over tensor = 8 leaves 1,375.
    Source: Transformer Engine (dims divisible by 16 for fp8, by 32 for mxfp8 blocks); arXiv 2412.19437, section 3.3.2 (128).
    """
    precision, model, parallel = subject.recipe.precision, subject.model, subject.parallel
    if precision.compute != "fp8":
        return
    step = {"mxfp8": 32, "blockwise": 128}.get(precision.fp8_recipe or "", 16)
    widths = {"model.hidden": (model.hidden, 1), "model.ffn_hidden": (model.ffn_hidden, parallel.tensor)}
    linears_alone = precision.fp8_recipe in ("tensorwise", "rowwise")  # which this engine does to every linear layer of a block
    if linears_alone and model.mla is not None:
        latent = model.mla
        widths["model.mla.qk_rope_head_dim"] = (latent.qk_rope_head_dim, 1)
        widths["model.mla.kv_lora_rank"] = (latent.kv_lora_rank, 1)
        widths["model.mla.q_lora_rank"] = (latent.q_lora_rank or step, 1)
    elif linears_alone:
        widths["model.kv_heads"] = (kv_heads(model) * head_dim(model), parallel.tensor)
    if model.experts:
        widths["model.experts.ffn_hidden"] = (model.experts.ffn_hidden, parallel.expert_tensor)
    for key, (width, cut) in widths.items():
        part = width / cut
        if part % step:
            got = f"{'keys of width' if key == 'model.kv_heads' else key.partition('.')[2]} {width}" + (
                f" over {cut} ranks = {part:g}" if cut > 1 else ""
            )
            yield Finding(key, got, f"{precision.fp8_recipe or 'fp8'} needs multiples of {step}", "Change the width or the tensor size")


@rule("precision.gpu")
def gpu(subject: Subject) -> Iterator[Finding]:
    """The GPUs multiply what the recipe computes in.

    fp8 came with Hopper, block scales in hardware (mxfp8) with Blackwell, bf16 with Ampere.
    Example: compute = "fp8" with --gpus 8xA100; fp8_recipe = "mxfp8" with --gpus 64xH100.
    Source: NVIDIA's architecture white papers (A100, H100) and the Transformer Engine's support table.
    """
    if subject.gpus is None or not subject.gpus.gpu.peaks:
        return
    precision = subject.recipe.precision
    wanted, key = str(precision.compute), "precision.compute"
    if precision.compute == "fp8" and precision.fp8_recipe == "mxfp8":
        wanted, key = "mxfp8", "precision.fp8_recipe"
    if wanted not in ("auto", "fp32") and wanted not in subject.gpus.gpu.peaks:
        can = ", ".join(subject.gpus.gpu.peaks)
        yield Finding(key, f"{wanted} on {subject.gpus.gpu.name}", f"it multiplies {can}", "Choose another format or another GPU")


@rule("precision.fp16", "note")
def fp16(subject: Subject) -> Iterator[Finding]:
    """fp16 has 5 bits of exponent: losses are scaled, and large runs in it spiked or diverged where bf16 did not.

    Example: compute = "fp16"; BLOOM's 104B trial in fp16 never became stable, its 176B run in bf16 had one spike.
    Source: bigscience-workshop/bigscience chronicles of tr8 and tr11; arXiv 1710.03740.
    """
    if subject.recipe.precision.compute == "fp16":
        yield Finding(
            "precision.compute", "fp16 overflows above 65,504", "bf16 has the range of fp32", "Prefer bf16 where there is a choice"
        )

"""From a Megatron-LM command to a recipe. What is written is taken as meant, also where Megatron-LM would do something else."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from preheat.arithmetic import linear_ramp
from preheat.errors import PreheatError, Problem, refuse
from preheat.interop.carried import apply_comments
from preheat.interop.megatron_aside import Heeded, unread
from preheat.interop.megatron_optimizer import optimizer_table
from preheat.interop.megatron_schedule import schedule_table
from preheat.interop.toml_text import document
from preheat.megatron import Settings, read_commands, settle
from preheat.megatron.architecture import Lost, model_table
from preheat.megatron.batch import full_batch, step_schedule
from preheat.megatron.bounds import beyond_measure
from preheat.megatron.stages import stage_layers, virtual_stages
from preheat.recipe import Recipe
from preheat.units import Quantity, tokens

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LONGEST_RAMP = 1_000
PLACEHOLDERS: dict[str, Any] = {
    "seq_len": 4096,
    "vocab_size": 32_000,
    "peak_lr": 3e-4,
    "length": "100B tokens",
    "every": "1000 steps",
    "tokenizer": "tokenizer.json",
}
"""What stands in the recipe where the command says nothing; each use is stated."""


@dataclass(frozen=True)
class Imported:
    """A recipe made from a command."""

    recipe: Recipe
    text: str
    """The recipe as a TOML file."""
    stated: tuple[str, ...]
    """What the recipe holds that the command does not say."""
    lost: tuple[Problem, ...]
    """What the command says that a recipe cannot."""
    carried: tuple[str, ...]
    """Keys that came from the command's comments."""


def import_megatron(text: str, file: str, gpus: int, version: str) -> Imported:
    """Read a launch script, a list of flags or a flat YAML file as a recipe; of several launches the first.

    Raises:
        PreheatError: there is no command, or it lacks the shape of the model; and what the recipe's schema refuses.
    """
    commands = read_commands(text, file)
    settings = settle(commands[0], gpus, version)
    if settings["hybrid_layer_pattern"] or settings["hybrid_override_pattern"] or settings["is_hybrid_model"]:
        refuse("megatron.lost", "a hybrid model, of Mamba and attention layers", "a recipe describes a transformer", "", file=file)
    for name in ("num_layers", "hidden_size", "num_attention_heads"):
        if settings[name] is None:
            refuse("megatron.required", f"--{name.replace('_', '-')} is missing", "the shape of the model", "Give it", file=file)
    for flag, number, most in beyond_measure(settings):
        refuse(
            "megatron.bounds", f"{flag} {number:.3g}", f"at most {most:_}", "Correct the number", file=file, line=settings.where(flag).line
        )
    heeded = Heeded(settings.values)
    try:
        values, stated, lost = recipe_table(replace(settings, values=heeded))
    except (ValueError, OverflowError) as error:  # a length below zero
        refuse("megatron.recipe", str(error), "", "`preheat check --megatron` says where", file=file)
    told = {flag for flag, _ in lost}
    lost += [(flag, what) for flag, what in unread(settings, heeded.names) if flag not in told]
    if len(commands) > 1:
        stated.append(f"the first of {len(commands)} launches is read")
    carried = apply_comments(values, text, file)
    kept = [line for line in stated if not any(line.startswith(key) for key in carried)]
    rates = any(key.startswith("schedule.") for key in carried)
    lost = [(flag, what) for flag, what in lost if not (rates and flag.startswith("--lr-"))]
    problems = [
        Problem("megatron.lost", f"{flag}: {what}", "a recipe cannot say it", "", settings.where(flag), "warning") for flag, what in lost
    ]
    recipe = _validated(values, file)
    return Imported(recipe, document(values), tuple(kept), tuple(problems), tuple(carried))


def recipe_table(settings: Settings) -> tuple[dict[str, Any], list[str], Lost]:
    """The recipe as a nested table, what in it is a placeholder, and what of the command it cannot hold."""
    stated: list[str] = []
    model, lost = model_table(settings, meant=True)
    if "vocab_size" not in model:
        model["vocab_size"] = _placeholder("model.vocab_size", "vocab_size", "no --vocab-size", stated)
    batch = _batch(settings, stated) | _documents(settings, lost)
    sources, mix = _data(settings, stated)
    values: dict[str, Any] = {
        "name": _name(settings),
        "description": f"Read from {settings.command.file.rsplit('/', 1)[-1]} for Megatron-LM {settings.version}.",
        "seed": max(0, settings["seed"] or 0),
        "model": model,
        "tokenizer": _tokenizer(settings, stated),
        "batch": batch,
        "optimizer": optimizer_table(settings, lost),
        "schedule": schedule_table(settings, batch["seq_len"], PLACEHOLDERS, stated, lost),
        "stage": [{"name": "main", "mix": mix}],
        "data": {"source": sources},
        "precision": _precision(settings, lost),
        "checkpoint": {"every": _interval(settings, "save_interval", "checkpoint.every", stated)},
        "parallel": _parallel(settings, lost),
    }
    if settings["split"]:
        values["data"] |= _held_out(settings, lost)
    if settings["eval_interval"] and settings["eval_iters"]:
        values["evaluation"] = {"every": f"{settings['eval_interval']} steps"}
    return values, stated, lost


def _validated(values: dict[str, Any], file: str) -> Recipe:
    from pydantic import ValidationError

    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        problems = [
            Problem("megatron.recipe", f"{'.'.join(str(part) for part in found['loc'])}: {found['msg']}", "", "")
            for found in error.errors(include_url=False)
        ]
        raise PreheatError(*problems) from None


def _placeholder(key: str, name: str, why: str, stated: list[str]) -> Any:
    stated.append(f"{key} = {PLACEHOLDERS[name]!r}: {why}; put the right value there")
    return PLACEHOLDERS[name]


def _name(settings: Settings) -> str:
    for text in (
        (settings["save"] or "").rstrip("/"),
        settings.command.file.removesuffix(".sh").removesuffix(".yaml").removesuffix(".txt"),
    ):
        found = _NAME.fullmatch(re.sub(r"[^A-Za-z0-9._-]", "-", text.rsplit("/", 1)[-1]).lstrip("-._")[:64])
        if found:
            return found[0]
    return "imported"


def _batch(settings: Settings, stated: list[str]) -> dict[str, Any]:
    seq_len = settings["seq_length"] or _placeholder("batch.seq_len", "seq_len", "no --seq-length", stated)
    table: dict[str, Any] = {"global_size": full_batch(settings), "micro_size": settings["micro_batch_size"] or 1, "seq_len": seq_len}
    if not settings["global_batch_size"] and not settings["step_batch_size_schedule"]:
        stated.append(
            f"batch.global_size = {table['global_size']}: no --global-batch-size; one micro-batch a replica, as Megatron-LM takes it"
        )
    entries = step_schedule(settings)
    if len(entries) > 1 or (entries and entries[0][0]):
        table["ramp"] = [{"at": str(tokens(at)), "size": size} for at, size in entries]
    elif settings["rampup_batch_size"]:
        start, increment, samples = settings["rampup_batch_size"]
        try:
            if increment > 0 and (table["global_size"] - start) // increment > _LONGEST_RAMP:
                raise ValueError(f"more than {_LONGEST_RAMP} batch sizes")
            ramp = linear_ramp(start, increment, samples, table["global_size"])
        except ValueError as error:
            stated.append(f"batch.ramp is left out: {error}")
        else:
            table["ramp"] = [{"at": str(tokens(int(entry.at.amount) * seq_len)), "size": entry.size} for entry in ramp]
    return table


def _documents(settings: Settings, lost: Lost) -> dict[str, Any]:
    """Whether documents of a sample see each other."""
    masked, restarted = settings["reset_attention_mask"], settings["reset_position_ids"]
    learned = settings["position_embedding_type"] == "learned_absolute" and not settings["use_rotary_position_embeddings"]
    if restarted and not masked:
        lost.append(("--reset-position-ids", "positions that restart with each document, which still sees the one before it"))
    elif masked and not restarted and learned:
        lost.append(("--reset-attention-mask", "positions that go on through documents that do not see each other"))
    return {"mask_documents": True} if masked else {}


def _data(settings: Settings, stated: list[str]) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Sources and the mixture; the texts behind a tokenized file are not known."""
    entries = settings["data_path"] or []
    weighted = len(entries) > 1 and len(entries) % 2 == 0 and all(_number(entry) is not None for entry in entries[::2])
    pairs = list(zip(entries[::2], entries[1::2], strict=True)) if weighted else [("1", entry) for entry in entries]
    names: dict[str, float] = {}
    for weight, path in pairs:
        base = re.sub(r"[^A-Za-z0-9._-]", "-", path.rsplit("/", 1)[-1].removesuffix("_text_document")).lstrip("-._")[:60] or "text"
        name = next(candidate for candidate in (base, *(f"{base}-{i}" for i in range(2, len(pairs) + 2))) if candidate not in names)
        names[name] = _number(weight) or 1.0
    if not names:
        names = {"text": 1.0}
    stated.append(f"data.source: Megatron-LM reads tokenized files; the texts of {', '.join(names)} are placeholders")
    return [{"name": name, "paths": [f"data/{name}/**/*.jsonl*"], "format": "jsonl"} for name in names], names


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


def _held_out(settings: Settings, lost: Lost) -> dict[str, Any]:
    shares = [_number(part) or 0.0 for part in settings["split"].split(",")]
    total = sum(shares)
    if not total or len(shares) > 3:
        return {}
    if len(shares) == 3 and shares[2]:
        lost.append(("--split", f"a test split of {shares[2] / total:.2%}"))
    share = Fraction(str(shares[1] if len(shares) > 1 else 0.0)) / Fraction(str(total))
    try:
        return {"held_out": str(Quantity(share, "%"))}
    except (ValueError, OverflowError):
        return {}


def _tokenizer(settings: Settings, stated: list[str]) -> dict[str, Any]:
    kind, model = settings["tokenizer_type"], settings["tokenizer_model"]
    if kind == "GPT2BPETokenizer" or (kind is None and settings["merge_file"]):
        return {"kind": "gpt2"}
    if model and kind == "HuggingFaceTokenizer":
        return {"kind": "file", "path": model if model.endswith(".json") else f"{model.rstrip('/')}/tokenizer.json".removeprefix("./")}
    why = f"{kind} with {model or 'no file'}" if kind else "no --tokenizer-type"
    return {"kind": "file", "path": _placeholder("tokenizer.path", "tokenizer", why, stated)}


def _precision(settings: Settings, lost: Lost) -> dict[str, Any]:
    if settings["fp4"]:
        lost.append(("--fp4-format", "FP4"))
    if settings["fp8"]:
        if not settings["bf16"] and settings["fp16"]:
            lost.append(("--fp16", "fp16 beside fp8"))
        if settings["fp8_recipe"] == "custom":
            lost.append(("--fp8-recipe", "a recipe of one's own"))
            return {"compute": "fp8"}
        return {"compute": "fp8", "fp8_recipe": settings["fp8_recipe"]}
    return {"compute": "bf16" if settings["bf16"] else "fp16" if settings["fp16"] else "fp32"}


def _interval(settings: Settings, name: str, key: str, stated: list[str]) -> str:
    if settings[name]:
        return f"{settings[name]} steps"
    return str(_placeholder(key, "every", f"no --{name.replace('_', '-')}", stated))


def _parallel(settings: Settings, lost: Lost) -> dict[str, Any]:
    tensor, pipeline = settings["tensor_model_parallel_size"], settings["pipeline_model_parallel_size"]
    table: dict[str, Any] = {"tensor": tensor, "pipeline": pipeline, "context": settings["context_parallel_size"]}
    try:
        virtual, layers = virtual_stages(settings), stage_layers(settings)
    except ValueError as error:
        lost.append(("--pipeline-model-parallel-size", str(error)))
        virtual, layers = 1, None
    if virtual > 1:
        table |= {"virtual_pipeline": virtual, "schedule": "interleaved"}
    if layers is not None and len(set(layers)) > 1:
        table["pipeline_layers"] = list(layers)
    if settings["num_experts"]:
        table["expert"] = settings["expert_model_parallel_size"]
        table["expert_tensor"] = settings["expert_tensor_parallel_size"] or tensor
    table["sequence"] = bool(settings["sequence_parallel"]) and tensor > 1
    fully = settings["use_torch_fsdp2"] or (
        settings["use_megatron_fsdp"] and settings["data_parallel_sharding_strategy"] == "optim_grads_params"
    )
    sharded = settings["use_distributed_optimizer"] or settings["optimizer"] == "dist_muon"
    table["sharding"] = "full" if fully else "optimizer" if sharded else "none"
    table["recompute"] = _recompute(settings, lost)
    return table | {"gpus": settings.gpus}


def _recompute(settings: Settings, lost: Lost) -> dict[str, Any]:
    kind = "selective" if settings["recompute_activations"] else settings["recompute_granularity"] or "none"
    if kind == "selective" and settings["recompute_modules"] not in (None, ["core_attn"]):
        lost.append(("--recompute-modules", "recomputation of " + ", ".join(settings["recompute_modules"])))
    if kind == "full" and settings["recompute_method"] == "block" and settings["recompute_num_layers"]:
        return {"kind": "full", "layers": settings["recompute_num_layers"]}
    if kind == "full" and (settings["recompute_num_layers"] or 1) > 1:
        lost.append(("--recompute-num-layers", f"one checkpoint for {settings['recompute_num_layers']} layers"))
    return {"kind": kind}

"""A weights-only start: the model of a Hugging Face folder as preheat's own weights, its tokenizer, and a recipe to go on from."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preheat.arithmetic import parameters
from preheat.data import Tokenizer
from preheat.errors import PreheatError, refuse
from preheat.interop.huggingface.plain import skeleton
from preheat.interop.huggingface.read import Opened, open_folder
from preheat.interop.tensor_rules import inward
from preheat.interop.toml_text import document
from preheat.model.weights import SHARD_BYTES, save_weights, write_manifest
from preheat.recipe import Model, load

RECIPE, TOKENIZER, WEIGHTS = "recipe.toml", "tokenizer.json", "weights"
_LONGEST_START = 4096
"""Sequences of the suggested recipe; a model may reach further."""


@dataclass(frozen=True)
class Brought:
    """What was written."""

    folder: Path
    architecture: str
    model: Model
    parameters: int
    notes: tuple[str, ...]
    """What of the folder was not taken, or has to be decided."""


def import_huggingface(folder: Path, out: Path, *, allow_pickle: bool = False, shard_bytes: int = SHARD_BYTES) -> Brought:
    """Write `weights/`, `recipe.toml` and `tokenizer.json` into a new folder; `preheat train RECIPE --init-from` starts from it.

    Raises:
        PreheatError: `out` exists, or the folder holds no model that preheat has. Nothing is left behind.
    """
    if out.exists():
        refuse("import.folder", f"{out} exists", "", "Remove it or choose another --out")
    opened = open_folder(folder, allow_pickle=allow_pickle)
    notes = list(opened.notes)
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        (partial / WEIGHTS).mkdir(parents=True)
        _write_weights(opened, partial / WEIGHTS, shard_bytes)
        notes += _copy_tokenizer(folder, partial, opened.model)
        (partial / RECIPE).write_text(_HEAD + document(_recipe(folder, opened)), "utf-8")
        load(str(partial / RECIPE))
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return Brought(out, opened.family.architecture, opened.model, parameters(opened.model).total, tuple(notes))


def _write_weights(opened: Opened, folder: Path, shard_bytes: int) -> None:
    """The tensors in their stored number format, in the order of the rules."""
    shapes = {name: tuple(tensor.shape) for name, tensor in skeleton(opened.model).items()}
    planned = {name: (shapes[name], opened.theirs[rule.theirs[0]].dtype) for rule in opened.rules for name in rule.ours}
    written = save_weights(folder, planned, inward(opened.rules, opened.theirs), shard_bytes)
    origin = {"folder": opened.folder.resolve().name, "architecture": opened.family.architecture}
    write_manifest(folder, opened.model, origin, written)


def _copy_tokenizer(folder: Path, out: Path, model: Model) -> list[str]:
    source = folder / TOKENIZER
    if not source.is_file():
        return [f"there is no {TOKENIZER}: put the model's own beside {RECIPE}"]
    shutil.copyfile(source, out / TOKENIZER)
    try:
        tokenizer = Tokenizer.load(out)
    except PreheatError as error:
        return [f"preheat cannot read the tokenizer: {error}"]
    if tokenizer.vocab_size > model.vocab_size:
        return [f"the tokenizer has {tokenizer.vocab_size:_} entries and the model {model.vocab_size:_}"]
    return []


_HEAD = """# Training that goes on from imported weights:
#   preheat train recipe.toml --init-from FOLDER
# [model] is what the weights are. Everything else is a skeleton: choose sources, length and rates.

"""


def _recipe(folder: Path, opened: Opened) -> dict[str, Any]:
    seq_len = min(opened.max_positions, _LONGEST_START)
    model = opened.model.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    return {
        "name": "from-" + "".join(c if c.isalnum() else "-" for c in folder.resolve().name.lower()).strip("-"),
        "description": f"Goes on from {opened.family.architecture} weights, whose longest sequences had {opened.max_positions} tokens.",
        "model": model,
        "tokenizer": {"kind": "file", "path": TOKENIZER},
        "batch": {"global_size": 64, "micro_size": 1, "seq_len": seq_len},
        "schedule": {"length": "1B tokens", "peak_lr": 2e-5, "final_lr": 2e-6, "warmup": "1%", "decay": "cosine"},
        "stage": [{"name": "main", "mix": {"text": 1}}],
        "data": {"source": [{"name": "text", "paths": ["data/*.jsonl"], "format": "jsonl", "licence": "say which"}]},
        "checkpoint": {"every": "10%"},
    }

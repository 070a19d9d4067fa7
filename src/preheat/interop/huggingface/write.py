"""A trained model as a folder that `transformers` loads, read back and compared with its source before it gets its name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from preheat.data import Tokenizer
from preheat.errors import refuse
from preheat.interop.huggingface.card import Provenance, model_card
from preheat.interop.huggingface.family import Family, Setting
from preheat.interop.huggingface.plain import Plain, skeleton
from preheat.interop.huggingface.read import Opened, open_folder
from preheat.interop.huggingface.registry import FAMILIES, family_for
from preheat.interop.huggingface.tokenizer import write_tokenizer
from preheat.interop.tensor_rules import outward, refuse_other_tensors
from preheat.model.function import unlike
from preheat.model.weights import SHARD_BYTES, Written, save_weights, tensor_sha256
from preheat.recipe import Model

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SCHEMA = "preheat.export-hf/1"


@dataclass(frozen=True)
class Exported:
    """What was written."""

    folder: Path
    architecture: str
    dtype: str
    parameters: int
    files: tuple[str, ...]


def export_huggingface(
    model: Model,
    weights: Mapping[str, Tensor],
    setting: Setting,
    out: Path,
    *,
    dtype: str | None = None,
    tokenizer: Tokenizer | None = None,
    provenance: Provenance | None = None,
    shard_bytes: int = SHARD_BYTES,
    families: tuple[Family, ...] = FAMILIES,
) -> Exported:
    """Write a model for Hugging Face.

    Args:
        weights: every tensor of the model under preheat's names.
        setting: rotary positions and length of the last stage that was trained.
        out: the folder to make; it must not exist.
        dtype: `fp32`, `bf16` or `fp16`; as the weights are when absent.
        tokenizer: written along, and its end-of-document token becomes the one that begins and ends a text.
        provenance: what the model card says; none is written without.

    Raises:
        PreheatError: `out` exists, no class computes this model, a tensor is missing, left over or not finite, or what was written reads
            back as something else. Nothing is left behind.
    """
    if out.exists():
        refuse("export.folder", f"{out} exists", "", "Remove it or choose another --out")
    plain = Plain(model, weights, DTYPES[dtype] if dtype else None)
    family = family_for(plain.model, setting, families)
    _refuse_incomplete(plain)
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        written = _write_tensors(plain, family, partial, shard_bytes)
        stored = written[family.embedding].dtype
        _write_json(partial / "config.json", config_json(family, plain.model, setting, stored, tokenizer))
        ends = {} if tokenizer is None else {"bos_token_id": tokenizer.start, "eos_token_id": tokenizer.eod}
        _write_json(partial / "generation_config.json", {**ends, "do_sample": True, "temperature": 0.8, "top_p": 0.95})
        if tokenizer is not None:
            write_tokenizer(tokenizer, partial, setting.max_positions)
        if provenance is not None:
            card = model_card(plain.model, family.architecture, setting.rope, setting.max_positions, provenance)
            (partial / "README.md").write_text(card, "utf-8")
        _compare(plain, setting, open_folder(partial, families=families), written)
        _write_json(partial / "export.json", {"schema": SCHEMA, "tensors": {name: asdict(entry) for name, entry in written.items()}})
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    files = tuple(sorted(path.name for path in out.iterdir()))
    return Exported(out, family.architecture, stored, sum(torch.Size(entry.shape).numel() for entry in written.values()), files)


def config_json(family: Family, model: Model, setting: Setting, dtype: str, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The whole config.json, made from the trained model and nothing else."""
    start, end = (tokenizer.start, tokenizer.eod) if tokenizer else (None, None)
    return {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        **family.config(model, setting),
        "bos_token_id": start,
        "eos_token_id": end,
        "torch_dtype": dtype,
        "dtype": dtype,
        "use_cache": True,
    }


def _refuse_incomplete(plain: Plain) -> None:
    expected = {name: tuple(tensor.shape) for name, tensor in skeleton(plain.model).items()}
    refuse_other_tensors(expected, plain.shapes(), "export.tensors", None, "The weights belong to another model")


def _write_tensors(plain: Plain, family: Family, folder: Path, shard_bytes: int) -> dict[str, Written]:
    rules = tuple(family.rules(plain.model))
    planned = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in outward(rules, plain.on_meta())}
    return save_weights(folder, planned, outward(rules, plain), shard_bytes)


def _compare(plain: Plain, setting: Setting, back: Opened, written: Mapping[str, Written]) -> None:
    """What was written has to be the same function with the same bits."""
    rope = setting.rope
    trained = plain.model.model_copy(update={"rope_theta": rope.theta, "rope_scaling": rope.scaling} if rope else {})
    problems = unlike(trained, back.model)
    seen = set()
    for name, tensor in back.ours():
        seen.add(name)
        source = plain[name]
        if tensor.dtype != source.dtype or tensor_sha256(tensor) != tensor_sha256(source):
            problems.append(f"{name}: other bits")
    problems += [f"{name}: missing" for name in plain if name not in seen]
    problems += [f"{name}: other bits in the file" for name in written if tensor_sha256(back.theirs[name]) != written[name].sha256]
    if problems:
        refuse("export.reload", f"what was written reads back as something else: {'; '.join(problems[:5])}", "", "Please report this")


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")

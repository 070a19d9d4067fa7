"""Architectures of published runs: by the columns of a row, or by the name of a model."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from preheat.recipe import Model, load

_FILE = Path(__file__).with_name("models.toml")
_BLOOM = {"vocab_size": 250_880, "activation": "gelu", "norm": "layernorm", "bias": True, "tied_embeddings": True}
_PLAIN = {"tied_embeddings": False, "rope_theta": 10_000.0}
_OWN = ("names", "recipe", "family", "source")
_STATE_SPACE = ("nemotron3", "nemotronh", "mamba", "qwen36", "qwen3next", "qwen38", "hybrid", "mimo", "jamba")
_ENCODERS = ("bert", "t5")
_MOST_LAYERS = 10_000


class UnknownModel(Exception):
    """A row's architecture can't be told; the message is the reason to skip it."""


def architecture(name: str, columns: Mapping[str, int], pipeline: int = 1) -> Model:
    """The model of a row.

    Args:
        name: what the table calls it.
        columns: what the row itself says, by the recipe's words (`layers`, `hidden`, ...); it wins over what is known by name.
        pipeline: to tell between models of one name.

    Raises:
        UnknownModel: neither columns nor name tell the architecture, or preheat can't express it.
    """
    key = plain(name)
    if key.startswith(_ENCODERS):
        raise UnknownModel("not a decoder")
    if any(mark in key for mark in _STATE_SPACE):
        raise UnknownModel("state-space or linear-attention layers")
    values = _known_shape(key, pipeline) or _from_columns(key, columns)
    values |= {word: value for word, value in columns.items() if word not in ("experts", "topk")}
    values.setdefault("ffn_hidden", 4 * values["hidden"])
    if columns.get("experts", 0) > 1 and "experts" not in values:
        active = min(columns.get("topk", 1), columns["experts"])
        values["experts"] = {"count": columns["experts"], "active": active, "ffn_hidden": values["ffn_hidden"]}
    if "(w/o mtp)" in name.lower():
        values["mtp"] = None
    if "(tokendrop)" in name.lower() and values.get("experts"):
        values["experts"] = {**values["experts"], "capacity_factor": 1.0}
    if values["layers"] > _MOST_LAYERS:
        raise UnknownModel("more layers than any model has")
    if not values.get("head_dim") and not values.get("mla") and values["hidden"] % values["heads"]:
        raise UnknownModel("the width does not divide among the heads")
    try:
        return Model.model_validate(values)
    except ValidationError as error:
        raise UnknownModel(f"the row's shape is no model: {error.errors()[0]['msg'][:80]}") from None


def plain(name: str) -> str:
    """A name without what tables add to it: letters and digits only, the path and brackets gone."""
    bare = re.sub(r"\(.*?\)", "", name.lower()).strip().rpartition("/")[2]
    return re.sub(r"[^a-z0-9.]", "", bare).replace(".", "")


def _known_shape(key: str, pipeline: int) -> dict[str, Any]:
    """What is known by name, nothing where nothing is: of several models the first whose layers the pipeline divides, else the last."""
    entries = _known().get(key, [])
    fitting = [entry for entry in entries if not entry["layers"] % pipeline] or entries[-1:]
    return dict(fitting[0]) if fitting else {}


def _from_columns(key: str, columns: Mapping[str, int]) -> dict[str, Any]:
    """What the columns of a row don't say: the usual GPT, or MosaicML's; heads 128 wide where they are not counted."""
    if not {"layers", "hidden"} <= set(columns):
        raise UnknownModel("the model's shape is not known")
    return {
        "vocab_size": 50_368 if key.startswith("mpt") else 51_200,
        "activation": "gelu",
        "norm": "layernorm",
        "tied_embeddings": True,
        "rope_theta": 10_000.0,
        "heads": max(1, columns["hidden"] // 128),
    }


@lru_cache(maxsize=1)
def _known() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in tomllib.loads(_FILE.read_text(encoding="utf-8"))["model"]:
        if "recipe" in entry:
            values = load(entry["recipe"]).recipe.model.model_dump()
        else:
            values = {key: value for key, value in entry.items() if key not in _OWN}
            values = (_BLOOM | {"rope_theta": 10_000.0} if entry.get("family") == "bloom" else _PLAIN) | values
        for name in entry["names"]:
            found.setdefault(plain(name), []).append(values)
    return found

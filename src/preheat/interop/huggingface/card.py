"""The model card: what was trained, on what, under which licences, and how well it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from preheat.arithmetic import Rope, parameters
from preheat.interop.toml_text import document
from preheat.recipe import Model


@dataclass(frozen=True)
class Sourced:
    """One source of the training text."""

    name: str
    licence: str
    tokens: int


@dataclass(frozen=True)
class Provenance:
    """Where a model comes from."""

    recipe: Mapping[str, Any]
    """The whole recipe, resolved."""
    tokens: int
    """Training tokens up to this checkpoint."""
    step: int
    complete: bool
    sources: Sequence[Sourced]
    evaluation: Mapping[str, Any] | None
    """What `preheat evaluate` wrote."""


def model_card(model: Model, architecture: str, rope: Rope | None, max_positions: int, provenance: Provenance) -> str:
    """README.md of an exported folder."""
    count = parameters(model)
    state = "" if provenance.complete else " The run was not complete."
    active = f", {count.active:,} of them active per token" if count.active != count.total else ""
    base = f", rotary base {rope.theta:,.0f}" if rope else ""
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "---",
        f"# {provenance.recipe['name']}",
        "",
        str(provenance.recipe.get("description", "")),
        "",
        f"A language model of {count.total:,} parameters{active}, as `{architecture}`, trained with preheat on "
        f"{provenance.tokens:,} tokens (step {provenance.step:,}).{state} The last sequences had {max_positions:,} tokens{base}.",
        "",
        "Documents were separated by the end-of-document token, so that a text begins best with it. No tuning for instructions.",
        "",
        "## Data",
        "",
        "| source | training tokens prepared | licence |",
        "|---|--:|---|",
        *(f"| {source.name} | {source.tokens:,} | {source.licence or 'not stated'} |" for source in provenance.sources),
        "",
        *_evaluation(provenance.evaluation),
        "## Recipe",
        "",
        "```toml",
        document(_without_none(provenance.recipe)).rstrip(),
        "```",
        "",
    ]
    return "\n".join(lines)


def _evaluation(record: Mapping[str, Any] | None) -> list[str]:
    if record is None:
        return []
    rows = [f"| held-out {name} | bits per byte | {score['bits_per_byte']:.4f} |" for name, score in record.get("held_out", {}).items()]
    rows += [
        f"| {task} | accuracy (chance {score['chance']:.2f}) | {score['accuracy']:.4f} |"
        for task, score in record.get("choices", {}).items()
    ]
    return ["## Evaluation", "", "| | | |", "|---|---|--:|", *rows, ""] if rows else []


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(entry) for key, entry in value.items() if entry is not None}
    return [_without_none(entry) for entry in value] if isinstance(value, list | tuple) else value

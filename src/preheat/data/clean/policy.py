"""Cleaning policies: data that names steps and their numbers."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from math import inf
from typing import Any

from preheat import recipe
from preheat.data.clean import c4, edits, fineweb, gopher, rules
from preheat.data.clean.rule import Step
from preheat.errors import refuse


def _edit(change: Callable[[str], str]) -> Step:
    return lambda text, numbers: change(text.text)


STEPS: dict[str, tuple[Step, str]] = {
    "characters normalised": (_edit(edits.characters), ""),
    "spaces collapsed": (_edit(edits.spaces), ""),
    "whitespace normalised": (_edit(edits.whitespace), ""),
    "navigation lines removed": (_edit(edits.without_navigation), ""),
    "lines unwrapped": (_edit(edits.unwrapped), ""),
    "licence header removed": (_edit(edits.without_licence), ""),
    "personal data masked": (_edit(edits.without_personal_data), ""),
    "too short": (rules.too_short, "length"),
    "few letters": (rules.few_letters, "letters"),
    "long run without a break": (rules.long_run, "run"),
    "repeated lines": (rules.repeated_lines, "repeated_lines"),
    "generated": (rules.generated, ""),
    "minified": (rules.minified, "line"),
    "gopher repetition": (gopher.repetition, "gopher"),
    "gopher quality": (gopher.quality, "gopher"),
    "c4 lines": (c4.lines, "c4"),
    "fineweb quality": (fineweb.quality, "fineweb"),
}
"""Each step of a policy by its name, and the group of numbers that it reads, if any."""
MASKING = "personal data masked"


@dataclass(frozen=True)
class Policy:
    """The steps that a document goes through, in order, and their thresholds by `group.name`."""

    steps: tuple[str, ...]
    numbers: Mapping[str, float]


def _loaded() -> dict[str, Policy]:
    tables: dict[str, Any] = tomllib.loads(resources.files(__package__).joinpath("policies.toml").read_text("utf-8"))
    numbers = {f"{group}.{name}": float(value) for group, own in tables["numbers"].items() for name, value in own.items()}
    out = {}
    for name, table in tables["policy"].items():
        groups = {STEPS[step][1] for step in table["steps"]}
        used = {key: value for key, value in (numbers | table.get("numbers", {})).items() if key.split(".")[0] in groups}
        out[name] = Policy(tuple(table["steps"]), used)
    return out


POLICIES = _loaded()


def policy_of(source: recipe.Source) -> Policy:
    """The policy of a source with the thresholds that it changes, and masking if it asks for that.

    Raises:
        PreheatError: a threshold belongs to no rule of the policy, or no number can be compared with it.
    """
    policy = POLICIES[source.policy]
    for name, value in source.thresholds.items():
        if name not in policy.numbers:
            known = ", ".join(sorted(policy.numbers))
            got = f"source {source.name}: policy {source.policy!r} has no threshold {name!r}"
            refuse("data.threshold", got, f"it has {known}", "Correct the name", key="data.source.thresholds")
        if not 0 <= value < inf:
            got = f"source {source.name}: {name} is {value:g}"
            refuse("data.threshold", got, "a finite number, 0 or more", "Correct the number", key="data.source.thresholds")
    steps = (*policy.steps, MASKING) if source.mask_personal_data else policy.steps
    return replace(policy, steps=steps, numbers={**policy.numbers, **source.thresholds})

"""What a rule is: a named function from a subject to findings, with a docstring that `preheat check --explain` shows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from preheat.check.gpus import Gpus
from preheat.check.machine import Machine
from preheat.check.subject import Subject
from preheat.check.suppress import suppress
from preheat.errors import Problem, Severity
from preheat.recipe import Loaded


@dataclass(frozen=True)
class Finding:
    """What disagrees, before the runner adds the rule's name, its source and the place of the key."""

    key: str
    got: str
    want: str = ""
    fix: str = ""
    source: str = ""
    """Only where it is another one than the rule's own."""


Check = Callable[[Subject], Iterator[Finding]]


@dataclass(frozen=True)
class Rule:
    """A registered rule. `arguable` is an error that `[[ignore]]` may silence, because it judges and does not prove."""

    name: str
    severity: Severity
    check: Check
    arguable: bool

    @property
    def explanation(self) -> str:
        """What it looks at, why, an example, and the source."""
        return inspect.getdoc(self.check) or ""

    @property
    def source(self) -> str:
        """The last paragraph of the explanation, which says where the rule comes from."""
        return " ".join(self.explanation.rpartition("Source:")[2].split())


RULES: dict[str, Rule] = {}


def rule(name: str, severity: Severity = "error", arguable: bool = False) -> Callable[[Check], Check]:
    """Register a rule under `family.name`. Warnings and notes can always be ignored with a reason, errors only if arguable."""

    def register(check: Check) -> Check:
        assert name not in RULES, name
        RULES[name] = Rule(name, severity, check, arguable or severity != "error")
        return check

    return register


def check(loaded: Loaded, gpus: Gpus | None = None, machine: Machine | None = None) -> list[Problem]:
    """Every finding of every rule, errors first, without what the recipe ignores with a reason.

    Args:
        loaded: a recipe with the origins of its values.
        gpus: how many GPUs it shall run on, and of which kind; without them the rules about memory and data-parallel batches look at
            the number that the recipe itself names, if any.
        machine: where this process runs; the rules about launching find nothing without it.
    """
    subject = Subject(loaded, gpus, machine or Machine())

    def apply(entry: Rule) -> list[Problem]:
        return [
            Problem(entry.name, found.got, found.want, found.fix, loaded.where(found.key), entry.severity, found.source or entry.source)
            for found in entry.check(subject)
        ]

    beyond_measure = apply(RULES["run.bounds"])
    if beyond_measure:
        return beyond_measure
    problems = [problem for entry in RULES.values() for problem in apply(entry)]
    kept = suppress(loaded, problems, {entry.name: entry.arguable for entry in RULES.values()})
    return sorted(kept, key=lambda problem: ("error", "warning", "note").index(problem.severity))

"""What a rule is: a named function from a recipe to findings, with a docstring that `preheat check --explain` shows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from preheat.errors import Problem, Severity
from preheat.recipe import Loaded, Recipe


@dataclass(frozen=True)
class Finding:
    """What disagrees, before the runner adds the rule's name and the place of the key."""

    key: str
    got: str
    want: str = ""
    fix: str = ""
    source: str = ""


Check = Callable[[Recipe], Iterator[Finding]]


@dataclass(frozen=True)
class Rule:
    """A registered rule."""

    name: str
    severity: Severity
    check: Check

    @property
    def explanation(self) -> str:
        return inspect.getdoc(self.check) or ""


RULES: dict[str, Rule] = {}


def rule(name: str, severity: Severity = "error") -> Callable[[Check], Check]:
    """Register a rule under `family.name`."""

    def register(check: Check) -> Check:
        assert name not in RULES, name
        RULES[name] = Rule(name, severity, check)
        return check

    return register


def check(loaded: Loaded) -> list[Problem]:
    """Every finding of every rule, errors first."""
    problems = []
    for entry in RULES.values():
        for finding in entry.check(loaded.recipe):
            where = loaded.where(finding.key)
            problems.append(Problem(entry.name, finding.got, finding.want, finding.fix, where, entry.severity, finding.source))
    return sorted(problems, key=lambda problem: ("error", "warning", "note").index(problem.severity))

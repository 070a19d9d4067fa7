"""The rules about Megatron-LM arguments, and the run of all of them over one command."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from preheat.check.registry import Finding, Rule
from preheat.errors import Problem, Severity, by_severity
from preheat.megatron import Settings

OWN_SOURCE = "argument parser, validation and model configuration of megatron-core 0.17.1, 0.18.2 and 0.19.2"
"""The source of a rule that names no other."""

Judge = Callable[[Settings], Iterator[Finding]]
"""A rule's function; the key of a finding is the flag that it is about."""

MEGATRON_RULES: dict[str, Rule[Settings]] = {}
_OF_ABSENCE: set[str] = set()
"""Rules that miss an argument; they say nothing where a variable that only a shell knows may hold it."""


def hazard(name: str, severity: Severity = "error", *, absence: bool = False) -> Callable[[Judge], Judge]:
    """Register a rule under `megatron.name`; with `absence` it is about an argument that is not there."""

    def register(judge: Judge) -> Judge:
        full = f"megatron.{name}"
        assert full not in MEGATRON_RULES, full
        MEGATRON_RULES[full] = Rule(full, severity, judge)
        if absence:
            _OF_ABSENCE.add(full)
        return judge

    return register


def judge(settings: Settings) -> list[Problem]:
    """Every finding of every rule, errors first, then by line."""
    slips = MEGATRON_RULES["megatron.bounds"].problems(settings, settings.where, OWN_SOURCE)
    if slips:
        return slips
    rules = [rule for name, rule in MEGATRON_RULES.items() if not (settings.partial and name in _OF_ABSENCE)]
    problems = [problem for rule in rules for problem in rule.problems(settings, settings.where, OWN_SOURCE)]
    return sorted(problems, key=lambda problem: (by_severity(problem), problem.where.line or 0))

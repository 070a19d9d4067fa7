"""What a rule about Megatron-LM arguments is, and the run of all of them over one command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from preheat.check.registry import Finding
from preheat.errors import Problem, Severity
from preheat.megatron import Settings

OWN_SOURCE = "argument parser, validation and model configuration of megatron-core 0.17.1, 0.18.2 and 0.19.2"

Judge = Callable[[Settings], Iterator[Finding]]
"""A rule's function; the key of a finding is the flag that it is about."""


@dataclass(frozen=True)
class MegatronRule:
    """A registered rule."""

    name: str
    severity: Severity
    judge: Judge

    @property
    def explanation(self) -> str:
        """What it looks at, why, an example, and the source."""
        return inspect.getdoc(self.judge) or ""

    @property
    def summary(self) -> str:
        """The first line of the explanation."""
        return self.explanation.partition("\n")[0]

    @property
    def source(self) -> str:
        """What stands behind `Source:` in the explanation; Megatron-LM's own parser and validation where nothing does."""
        return " ".join(self.explanation.rpartition("Source:")[2].split()) if "Source:" in self.explanation else OWN_SOURCE


MEGATRON_RULES: dict[str, MegatronRule] = {}


def hazard(name: str, severity: Severity = "error") -> Callable[[Judge], Judge]:
    """Register a rule under `megatron.name`."""

    def register(judge: Judge) -> Judge:
        full = f"megatron.{name}"
        assert full not in MEGATRON_RULES, full
        MEGATRON_RULES[full] = MegatronRule(full, severity, judge)
        return judge

    return register


def judge(settings: Settings) -> list[Problem]:
    """Every finding of every rule, errors first, then by line."""
    problems = []
    for rule in MEGATRON_RULES.values():
        for finding in rule.judge(settings):
            where = settings.where(finding.key)
            problems.append(Problem(rule.name, finding.got, finding.want, finding.fix, where, rule.severity, finding.source or rule.source))
    order = ("error", "warning", "note")
    return sorted(problems, key=lambda problem: (order.index(problem.severity), problem.where.line or 0))

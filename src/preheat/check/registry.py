"""What a rule is: a named function from a subject to findings, with a docstring that `preheat check --explain` shows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from preheat.check.machine import Machine
from preheat.check.subject import Subject
from preheat.check.suppress import suppress
from preheat.errors import PreheatError, Problem, Severity, Where, by_severity
from preheat.hardware import Cluster
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


Judged = TypeVar("Judged")
"""What a rule looks at: a recipe's `Subject`, or the settings of a Megatron-LM command."""


@dataclass(frozen=True)
class Rule(Generic[Judged]):
    """A registered rule. `arguable` is whether `[[ignore]]` may silence it; of the errors, those that judge and do not prove."""

    name: str
    severity: Severity
    check: Callable[[Judged], Iterator[Finding]]
    arguable: bool = False

    @property
    def explanation(self) -> str:
        """What it looks at, why, an example, and the source."""
        return inspect.getdoc(self.check) or ""

    @property
    def summary(self) -> str:
        """The first line of the explanation."""
        return self.explanation.partition("\n")[0]

    @property
    def source(self) -> str:
        """What stands behind `Source:` in the explanation; nothing where it names none."""
        return " ".join(self.explanation.partition("Source:")[2].split())

    def problems(self, subject: Judged, where: Callable[[str], Where], otherwise: str = "") -> list[Problem]:
        """The findings with the place of each key and their source, `otherwise` where neither finding nor rule names one."""
        found = list(self.check(subject))
        source = (self.source or otherwise) if found else ""
        return [Problem(self.name, each.got, each.want, each.fix, where(each.key), self.severity, each.source or source) for each in found]


Check = Callable[[Subject], Iterator[Finding]]
RULES: dict[str, Rule[Subject]] = {}


def rule(name: str, severity: Severity = "error", arguable: bool = False) -> Callable[[Check], Check]:
    """Register a rule under `family.name`. Warnings and notes can always be ignored with a reason, errors only if arguable."""

    def register(check: Check) -> Check:
        assert name not in RULES, name
        RULES[name] = Rule(name, severity, check, arguable or severity != "error")
        return check

    return register


def refuse_absurd(loaded: Loaded) -> None:
    """For whoever counts without judging first.

    Raises:
        PreheatError: `run.bounds` finds a size beyond all measure.
    """
    problems = RULES["run.bounds"].problems(Subject(loaded, None, Machine()), loaded.where)
    if problems:
        raise PreheatError(*problems)


def check(
    loaded: Loaded,
    gpus: Cluster | None = None,
    machine: Machine | None = None,
    wanted: Callable[[Rule[Subject]], bool] = lambda rule: True,
) -> list[Problem]:
    """Every finding of every rule, errors first, without what the recipe ignores with a reason.

    Args:
        loaded: a recipe with the origins of its values.
        gpus: how many GPUs it shall run on, and of which kind; without them the rules about memory and data-parallel batches look at
            the number that the recipe itself names, if any.
        machine: where this process runs; the rules about launching find nothing without it.
        wanted: the rules that are asked; all when absent. An `[[ignore]]` of another one then counts as unused.
    """
    subject = Subject(loaded, gpus, machine or Machine())

    beyond_measure = RULES["run.bounds"].problems(subject, loaded.where)
    if beyond_measure:
        return beyond_measure
    problems = [problem for entry in RULES.values() if wanted(entry) for problem in entry.problems(subject, loaded.where)]
    kept = suppress(loaded, problems, {entry.name: entry.arguable for entry in RULES.values()})
    return sorted(kept, key=by_severity)

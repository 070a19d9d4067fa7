"""What preheat says when something is wrong: a list of problems, each with the numbers that disagree and the way out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NoReturn, get_args

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Where:
    """The place a problem points at; any part may be unknown."""

    file: str | None = None
    line: int | None = None
    key: str | None = None

    def __str__(self) -> str:
        place = self.file or ""
        if place and self.line is not None:
            place += f":{self.line}"
        return " ".join(part for part in (place, self.key) if part)


@dataclass(frozen=True)
class Problem:
    """One finding: `rule` names it, `got` and `want` disagree, `fix` says what to change, `source` why it is so."""

    rule: str
    got: str
    want: str
    fix: str
    where: Where = field(default_factory=Where)
    severity: Severity = "error"
    source: str = ""

    def __str__(self) -> str:
        place = str(self.where)
        head = f"{place}: " if place else ""
        text = f"{head}{self.got}; {self.want}" if self.want else f"{head}{self.got}"
        return f"{text}. {self.fix} [{self.rule}]" if self.fix else f"{text} [{self.rule}]"


def by_severity(problem: Problem) -> int:
    """A sorting key: errors first, notes last."""
    return get_args(Severity).index(problem.severity)


class PreheatError(Exception):
    """The input is wrong and nothing was changed. The command line ends with exit code 2."""

    exit_code = 2

    def __init__(self, *problems: Problem) -> None:
        assert problems, "an error names at least one problem"
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


class RunFailed(PreheatError):
    """The input was fine and the work failed (a loss that is not finite, a full disk). Exit code 1."""

    exit_code = 1


def refuse(
    rule: str, got: str, want: str = "", fix: str = "", *, file: object = None, line: int | None = None, key: str | None = None
) -> NoReturn:
    """Raise a `PreheatError` with one problem."""
    where = Where(None if file is None else str(file), line, key)
    raise PreheatError(Problem(rule, got, want, fix, where))

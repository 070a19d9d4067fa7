"""`[[ignore]]` in a recipe: a rule that shall be silent there, and why."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from preheat.errors import Problem
from preheat.recipe import Loaded


def suppress(loaded: Loaded, problems: Sequence[Problem], arguable: Mapping[str, bool]) -> list[Problem]:
    """The problems without those that the recipe ignores, and what is wrong with the ignoring itself.

    An unknown rule and an error that no run survives are refused; an entry that silences nothing is a warning.

    Args:
        loaded: the recipe, for its `[[ignore]]` entries and their lines.
        problems: what the rules found.
        arguable: rule -> whether it may be ignored.
    """
    found = {problem.rule for problem in problems}
    ignored: set[str] = set()
    complaints = []
    for index, entry in enumerate(loaded.recipe.ignore):
        where = loaded.where(f"ignore.{index}.rule")
        if entry.rule not in arguable:
            near = difflib.get_close_matches(entry.rule, arguable, 1, 0.5)
            hint = f"Did you mean {near[0]}?" if near else "`preheat check --explain all` lists them"
            complaints.append(Problem("ignore.unknown-rule", f"no rule is called {entry.rule!r}", "", hint, where))
        elif not arguable[entry.rule]:
            want = "an error that no run survives cannot be ignored"
            complaints.append(Problem("ignore.error", f"{entry.rule} is ignored", want, "Correct what it finds", where))
        elif entry.rule not in found:
            got = f"{entry.rule} finds nothing to ignore"
            complaints.append(Problem("ignore.unused", got, "", "Remove the entry", where, "warning"))
        ignored |= {entry.rule} if arguable.get(entry.rule) else set()
    return [problem for problem in problems if problem.rule not in ignored] + complaints

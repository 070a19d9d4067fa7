"""`[[ignore]]` silences what may be argued about, and says so when it has nothing to do."""

from collections.abc import Callable
from pathlib import Path

import pytest

from preheat.check import RULES, check
from preheat.errors import PreheatError, Problem
from preheat.recipe import load

DENSE = Path(__file__).parent / "recipes" / "dense.toml"


def ignoring(tmp_path: Path, rule: str, changes: str = "", reason: str = "measured, and it works") -> list[Problem]:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(f'extends = "{DENSE}"\nname = "mine"\n{changes}\n[[ignore]]\nrule = "{rule}"\nreason = "{reason}"\n')
    return check(load(str(recipe)))


def test_a_warning_is_silenced(tmp_path: Path) -> None:
    found = ignoring(tmp_path, "model.dropout", "[model]\ndropout = 0.1\n")
    assert [problem.rule for problem in found] == ["engine.not-trained"]


def test_an_error_that_judges_is_silenced(tmp_path: Path) -> None:
    found = ignoring(tmp_path, "memory.fits", "[parallel]\ngpus = 1\n")
    assert [problem for problem in found if problem.severity == "error"] == []


def test_an_error_that_no_run_survives_is_not(tmp_path: Path) -> None:
    rules = {problem.rule: problem for problem in ignoring(tmp_path, "batch.micro-size", "[batch]\nmicro_size = 3\n")}
    assert rules["batch.micro-size"].severity == "error"
    assert rules["ignore.error"].severity == "error"
    assert rules["ignore.error"].where.line == 7


def test_an_unknown_rule_is_refused_with_the_nearest(tmp_path: Path) -> None:
    [problem] = ignoring(tmp_path, "model.droput")
    assert (problem.rule, problem.severity) == ("ignore.unknown-rule", "error")
    assert "model.dropout" in problem.fix


def test_what_has_nothing_to_ignore_is_a_warning_with_its_line(tmp_path: Path) -> None:
    [problem] = ignoring(tmp_path, "model.dropout")
    assert (problem.rule, problem.severity) == ("ignore.unused", "warning")
    assert problem.where.line == 5


@pytest.mark.parametrize("entry", ['rule = "model.dropout"', 'rule = "model.dropout"\nreason = ""', 'reason = "no rule"'])
def test_a_reason_and_a_rule_are_required(tmp_path: Path, entry: str) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(f'extends = "{DENSE}"\nname = "mine"\n[[ignore]]\n{entry}\n')
    with pytest.raises(PreheatError, match="ignore"):
        load(str(recipe))


def test_only_errors_that_judge_may_be_ignored() -> None:
    assert {rule.name for rule in RULES.values() if rule.severity == "error" and rule.arguable} == {"memory.fits", "schedule.length"}


def test_settings_on_the_command_line_are_ignored_alike(problems: Callable[..., list[Problem]]) -> None:
    sets = ["model.dropout=0.1", "ignore=[{ rule = 'model.dropout', reason = 'a small corpus, seen many times' }]"]
    assert [problem.rule for problem in problems("dense", *sets)] == ["engine.not-trained"]

"""Every rule is shown a recipe that breaks it and one that does not."""

import pytest

from preheat.check import RULES, check
from preheat.recipe import catalog, load

BROKEN = {
    "model.head-dim": ["model.heads=3"],
    "model.kv-heads": ["model.kv_heads=3"],
    "model.position": ["model.position=learned", "model.rope_theta=10000.0"],
    "model.over-trained": ["schedule.length=1B tokens"],
    "schedule.decay": ["schedule.decay=cosine"],
    "schedule.lr-order": ["schedule.final_lr=1.0"],
    "stage.order": ["stage.long-context.name=main"],
    "run.timeline": ["schedule.warmup=2000 steps"],
    "batch.ramp": ["batch.global_size=32"],
    "batch.micro-size": ["batch.micro_size=3"],
    "stage.mix": ["stage.main.mix={ prose = 0.7, cod = 0.3 }"],
    "stage.seq-len": ["stage.long-context.seq_len=500"],
    "tokenizer.path": ["tokenizer.kind=gpt2"],
    "parallel.batch": ["parallel.context=3"],
    "parallel.single-process": ["parallel.tensor=2"],
}


def test_every_rule_has_a_case() -> None:
    assert set(BROKEN) == set(RULES)


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_recipe_is_found_by_its_rule(rule: str) -> None:
    found = [problem for problem in check(load("tiny", tuple(BROKEN[rule]))) if problem.rule == rule]
    assert found
    assert all(problem.severity == RULES[rule].severity and problem.got for problem in found)
    assert all(problem.where.key for problem in found)


@pytest.mark.parametrize("name", catalog())
def test_the_catalog_has_no_error_and_no_warning(name: str) -> None:
    assert [str(problem) for problem in check(load(name)) if problem.severity != "note"] == []


@pytest.mark.parametrize("name", RULES)
def test_a_rule_says_what_it_is_about_and_gives_an_example(name: str) -> None:
    explanation = RULES[name].explanation
    assert len(explanation.splitlines()) >= 2
    assert "xample" in explanation or "Hoffmann" in explanation


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.heads=3", ["256", "3"]),
        ("model.kv_heads=3", ["4", "3", "[1, 2, 4]"]),
        ("batch.micro_size=3", ["16", "3", "micro_size of 2"]),
        ("stage.anneal.until=20%", ["anneal has no steps"]),
        ("stage.main.until=99%", ["anneal has no steps"]),
        ("schedule.decay_length=99%", ["decay starts at", "end of the warm-up at 60_000"]),
        ("stage.long-context.until=95%", ["95%", "1.2M tokens"]),
        ("parallel.context=3", ["256", "2 x context = 6"]),
    ],
)
def test_the_numbers_that_disagree_are_named(setting: str, words: list[str]) -> None:
    text = " ".join(str(problem) for problem in check(load("tiny", (setting,))) if problem.severity == "error")
    for word in words:
        assert word in text


def test_the_toy_is_over_trained_four_times() -> None:
    """10B tokens on 124M parameters: 80 a parameter, and 20 would be 2.5B tokens."""
    [note] = [problem for problem in check(load("toy-124m")) if problem.rule == "model.over-trained"]
    assert "80 tokens per parameter" in note.got
    assert "2.5B" in note.want


def test_all_problems_come_at_once_errors_first() -> None:
    problems = check(load("tiny", ("model.heads=3", "batch.micro_size=3", "parallel.tensor=2", "schedule.length=1B tokens")))
    severities = [problem.severity for problem in problems]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)
    assert {"model.head-dim", "batch.micro-size", "parallel.single-process", "model.over-trained"} <= {problem.rule for problem in problems}

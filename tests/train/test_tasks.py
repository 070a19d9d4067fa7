"""The tasks that a recipe names, from its text to its evaluation: kept out, scored, and told when they are no longer the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import RECIPE, preheat

PASSAGE = "Read and parse the header of one message and return it with the original line endings kept as they were"
"""Not in the text of the recipe's sources; one file more holds it."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "tasks").mkdir()
    (folder / "tasks/reading.jsonl").write_text(json.dumps({"question": PASSAGE, "choices": ["yes", "no"], "label": 0}) + "\n")
    (folder / "more.py").write_text(f'def reading(message):\n    """{PASSAGE}."""\n    return message.header, message.line_endings\n' * 2)
    path = folder / "mini.toml"
    text = (
        RECIPE.replace('"stdlib:email/*.py"', '"stdlib:email/*.py", "more.py"')
        .replace("60 steps", "12 steps")
        .replace("20 steps", "4 steps")
    )
    path.write_text(text.replace("[evaluation]\n", '[evaluation]\ntasks = ["tasks/*.jsonl"]\n'))
    preheat("data", "prepare", path, "--data", folder / "data")
    return path


def test_from_the_recipe_to_the_evaluation(recipe: Path, tmp_path: Path) -> None:
    data, run, task = recipe.parent / "data", tmp_path / "run", recipe.parent / "tasks/reading.jsonl"
    rows = [json.loads(line) for line in (data / "exclusions.jsonl").read_text().splitlines()]
    assert [(row["id"], row["detail"].partition(" words")[0]) for row in rows if row["step"] == "contamination"] == [
        ("more.py", f"tasks/reading.jsonl:1: {len(PASSAGE.split())}")
    ]
    content = task.read_text()
    task.write_text(content.replace('"label": 0', '"label": 1'))
    message = preheat("train", recipe, "--data", data, "--run", run, code=2).stderr
    assert "the task tasks/reading.jsonl has changed" in message
    assert not run.exists()

    task.write_text(content)
    preheat("train", recipe, "--data", data, "--run", run)
    record = json.loads(preheat("evaluate", run, "--json").stdout)
    assert record["choices"]["reading"]["n"] == 1
    assert record["tasks"]["reading"]["kept_out"] is True

    # A run that has begun goes on, and says so.
    task.unlink()
    preheat("train", recipe, "--data", data, "--run", run)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert ["no file matches 'tasks/*.jsonl'" in event["evidence"] for event in events if event["kind"] == "tasks"] == [True]
    message = preheat("evaluate", run, code=2).stderr
    assert str(recipe.parent) in message
    assert "--task" in message

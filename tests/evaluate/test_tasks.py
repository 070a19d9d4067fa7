"""Which tasks an evaluation scores, what they are called, and whether the training text was kept clean of them."""

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from preheat.data import File, tasks
from preheat.errors import PreheatError
from preheat.evaluate import Task, evaluate, find_tasks, load_tasks
from preheat.model import build
from preheat.recipe import Model

LINE = {"question": "What falls?", "choices": ["rain", "up"], "label": 0}


def write(path: Path, *lines: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_command_line_replaces_what_the_recipe_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "recipes/tasks/b.jsonl", LINE)
    write(tmp_path / "recipes/tasks/a.jsonl", LINE)
    write(tmp_path / "mine/[1].jsonl", LINE)
    named = ("tasks/*.jsonl",)
    assert [file.id for file in find_tasks([], named, tmp_path / "recipes")] == ["tasks/a.jsonl", "tasks/b.jsonl"]
    assert [file.path for file in find_tasks(["mine/[1].jsonl"], named, tmp_path / "recipes")] == [str(tmp_path / "mine/[1].jsonl")]
    assert [file.id for file in find_tasks(["recipes/*/a.jsonl"], named, tmp_path)] == ["recipes/tasks/a.jsonl"]
    assert find_tasks([], (), tmp_path) == []


def test_tasks_that_are_gone_are_told_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(PreheatError, match=rf"evaluation.tasks: .*'tasks/\*.jsonl'.*{tmp_path}.*--task"):
        find_tasks([], ("tasks/*.jsonl",), tmp_path)
    with pytest.raises(PreheatError, match=r"--task: .*no file matches 'none.jsonl'"):
        find_tasks(["none.jsonl"], (), tmp_path)


def test_names_are_short_where_they_can_be() -> None:
    def names(*ids: str) -> list[str]:
        return tasks.names([File(each, each, 0) for each in ids])

    assert names("tasks/mmlu.jsonl", "tasks/piqa.jsonl.gz") == ["mmlu", "piqa"]
    assert names("mmlu/cases.jsonl", "piqa/cases.jsonl", "a.jsonl") == ["mmlu/cases.jsonl", "piqa/cases.jsonl", "a"]
    assert names(".hidden") == [".hidden"]


def test_a_task_knows_whether_it_was_kept_out(tmp_path: Path) -> None:
    """By its content: under another name it is the same task, and with another line it is not."""
    plain = write(tmp_path / "known.jsonl", LINE)
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    write(tmp_path / "grown.jsonl", LINE, LINE)
    (tmp_path / "renamed.jsonl").write_bytes(plain.read_bytes())
    sha256 = hashlib.sha256(plain.read_bytes()).hexdigest()
    found = load_tasks(find_tasks([], ("*.jsonl*",), tmp_path), lambda text: list(text.encode()), start=256, kept_out={"old.jsonl": sha256})
    assert {name: (task.kept_out, len(task.questions)) for name, task in found.items()} == {
        "known": (True, 1),
        "renamed": (True, 1),
        "grown": (False, 2),
        "packed": (False, 1),
    }
    assert found["known"].sha256 == sha256
    assert found["known"].questions == found["packed"].questions


def test_the_record_names_the_tasks() -> None:
    model = build(Model(layers=1, hidden=16, heads=2, ffn_hidden=16, vocab_size=260, rope_theta=10_000.0), seed=0)
    ids = np.arange(250)
    questions = load_tasks_of(LINE)
    named = {"falls": Task("tasks/falls.jsonl", "ab", questions, kept_out=True)}
    asked = {"training": ids, "questions": {"continuation-a": [], "continuation-b": questions}, "seq_len": 32, "rope": None}
    record = evaluate(model, {"a": ids}, np.ones(260, np.int64), tasks=named, **asked)
    assert set(record["choices"]) == {"falls", "continuation-b"}
    assert record["choices"]["falls"]["n"] == 1
    assert record["tasks"] == {"falls": {"file": "tasks/falls.jsonl", "sha256": "ab", "kept_out": True}}
    with pytest.raises(PreheatError, match="a task is called continuation-b"):
        evaluate(model, {"a": ids}, np.ones(260, np.int64), tasks={"continuation-b": named["falls"]}, **asked)


def load_tasks_of(*lines: dict[str, object]) -> list:
    from preheat.evaluate import Question

    return [
        Question((256, *str(line["question"]).encode()), tuple(tuple(f" {text}".encode()) for text in line["choices"]), (4, 2), 0)
        for line in lines
    ]

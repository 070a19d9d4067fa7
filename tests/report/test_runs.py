"""The list of runs reads what run folders say, whatever state they are in."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

from preheat.report.runs import run_states


def make(root: Path, name: str, steps: int, total: int = 10, torn: bool = False) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(json.dumps({"name": name}))
    (folder / "plan.json").write_text(json.dumps({"total_steps": total}))
    lines = [
        json.dumps({"step": n, "tokens": 100 * n, "stage": "main", "loss": 9 - n / 10, "step_time_s": 2.0}) for n in range(1, steps + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines) + ('{"step": 99, "tok' if torn else ""))
    (folder / "lock").touch()
    return folder


def test_each_state(tmp_path: Path) -> None:
    for name, steps in (("a", 10), ("b", 4), ("deep/c", 0)):
        make(tmp_path, name, steps, torn=name == "b")
    busy = make(tmp_path, "d", 5)
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "recipe.json").write_text("{")
    with (busy / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        states = {str(state.path.relative_to(tmp_path)): state for state in run_states(tmp_path)}
    assert {path: state.state for path, state in states.items()} == {
        "a": "complete",
        "b": "stopped",
        "deep/c": "stopped",
        "d": "training",
        "e": "unreadable",
    }
    assert (states["b"].step, states["b"].tokens, states["b"].stage, states["b"].loss) == (4, 400, "main", pytest.approx(8.6))
    assert states["d"].seconds_left == pytest.approx(5 * 2.0)
    assert states["b"].seconds_left is None


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    folder = make(tmp_path, "long", 50_000, total=100_000)
    assert (folder / "metrics.jsonl").stat().st_size > 10 * 2**16
    assert run_states(tmp_path)[0].step == 50_000

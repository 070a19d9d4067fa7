"""A rehearsal as people run it: real processes on real text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from preheat.rehearse import Difference, Leg
from preheat.rehearse.ranks import Ranks
from preheat.rehearse.rehearsal import differences

RECIPE = """
extends = "llama3-8b"
name = "pipelined"

[model]
layers = 8
hidden = 1024
heads = 16
kv_heads = 8
ffn_hidden = 4096

[batch]
ramp = [{ at = "0 tokens", size = 256 }, { at = "1B tokens", size = 512 }]

[[stage]]
name = "main"
until = "90%"
mix = { general = 0.5, code = 0.5 }

[[stage]]
name = "long"
seq_len = 16_384
rope_theta = 8_000_000
mix = { code = 1 }

[parallel]
context = 1
pipeline = 4
sharding = "none"
gpus = 4
"""


def rehearse(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "preheat", "rehearse", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("recipe") / "pipelined.toml"
    file.write_text(RECIPE)
    return file


@pytest.fixture(scope="module")
def kept(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    folder = tmp_path_factory.mktemp("kept") / "rehearsal"
    done = rehearse(recipe, "--nproc", "2", "--json", "--keep", folder)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_a_pipeline_agrees_with_one_process_through_kill_and_resume(kept: tuple[Path, dict[str, object]]) -> None:
    _, report = kept
    assert (report["schema"], report["ok"]) == ("preheat.rehearsal/1", True)
    whole, killed, *moved = report["legs"]  # type: ignore[misc]
    assert (whole["processes"], whole["first"], whole["last"]) == (1, 1, 12)
    assert (killed["processes"], killed["split"], killed["first"]) == (2, {"pipeline": 2}, 1)
    assert "SIGKILL" in killed["end"]
    # The checkpoint past the middle of 12 steps is that of step 7; from there on one process takes over, for half of the ranks are lost.
    assert moved[0]["first"] == 8
    assert moved[0]["processes"] == 1
    assert moved[-1]["last"] == 12
    for leg in (killed, *moved):
        assert set(leg["differences"]) >= {"loss", "grad_norm"}
        assert all(found["largest"] < 1e-5 for found in leg["differences"].values())


def test_the_run_lived_through_what_it_says(kept: tuple[Path, dict[str, object]]) -> None:
    folder, report = kept
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 13))
    by_step = {line["step"]: line for line in lines}
    for event in report["events"]:  # type: ignore[attr-defined]
        before, after = by_step[event["step"] - 1], by_step[event["step"]]
        if event["what"].startswith("batch"):
            assert event["what"] == f"batch {before['batch_size']} -> {after['batch_size']}"
        if event["what"].startswith("stage"):
            assert (before["stage"], after["stage"]) == ("main", "long")
            assert f"sequences {before['seq_len']} -> {after['seq_len']}" in event["what"]
            assert after["rope_theta"] == 8_000_000
    kinds = [json.loads(line)["kind"] for line in (folder / "run" / "events.jsonl").read_text().splitlines()]
    assert kinds.count("resume") == len(report["legs"]) - 2  # type: ignore[arg-type]
    assert kinds[-1] == "finish"


def test_a_folder_that_is_there_is_left_alone(kept: tuple[Path, dict[str, object]], recipe: Path) -> None:
    done = rehearse(recipe, "--keep", kept[0])
    assert done.returncode == 2
    assert "rehearse.folder" in done.stderr


def test_what_check_refuses_is_not_rehearsed(recipe: Path) -> None:
    done = rehearse(recipe, "--set", "parallel.pipeline=5", "--explain")
    assert done.returncode == 2
    assert "layout.pipeline" in done.stderr


def test_a_run_that_does_not_get_through_is_a_finding(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that can't start its work ends the rehearsal with exit code 1 and its own words."""
    (tmp_path / "tokenizers.py").write_text("raise ImportError('no tokenizers today')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = rehearse(recipe, "--nproc", "1")
    assert done.returncode == 1
    assert "no tokenizers today" in done.stderr
    assert "rehearse.failed" in done.stderr


BROKEN = """
import sys

if "train" in sys.orig_argv:
    import preheat.train.start

    start = sys.modules["preheat.train.start"]  # the package has a function of this name
    restore = start.restore

    def forgetful(checkpoint, engine, optimizer):
        restore(checkpoint, engine, optimizer)
        for state in optimizer.state.values():
            state["exp_avg"].zero_()

    start.restore = forgetful
"""


def test_a_resume_that_forgets_a_moment_disagrees(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the test: whatever runs agrees before the kill, and no longer after it."""
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = rehearse(recipe, "--nproc", "1", "--json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert [leg["agrees"] for leg in report["legs"][:3]] == [True, True, False]


def test_killed_ranks_are_gone(tmp_path: Path) -> None:
    with Ranks(["check", "tiny"], 2, tmp_path / "log") as ranks:
        ranks.kill()
        assert [worker.returncode for worker in ranks.workers] == [-9, -9]


def test_the_first_failure_is_named_with_its_words(tmp_path: Path) -> None:
    with Ranks(["check", "nowhere.toml"], 2, tmp_path / "log") as ranks:
        ranks.wait()
        assert ranks.failed is not None
        assert "nowhere.toml" in ranks.last_words(ranks.failed)


def test_the_largest_difference_and_its_step() -> None:
    """By hand: losses 2.0 and 4.0 that differ by 0.5 and 0.25 are 25 % and 6.25 % off; held-out losses only where they were measured."""
    reference = {
        1: {"step": 1, "loss": 2.0, "grad_norm": 1.0},
        2: {"step": 2, "loss": 4.0, "grad_norm": 2.0, "held_out": {"web": {"loss": 8.0}, "code": {"loss": 5.0}}},
    }
    lines = [
        {"step": 1, "loss": 2.5, "grad_norm": 1.0},
        {"step": 2, "loss": 3.75, "grad_norm": 1.0, "held_out": {"web": {"loss": 8.0}, "code": {"loss": 5.5}}},
    ]
    found = differences(reference, lines)
    assert found == {"loss": Difference(0.25, 1), "grad_norm": Difference(0.5, 2), "held_out": Difference(pytest.approx(0.1), 2)}


def test_one_step_that_differs_is_a_leg_that_disagrees() -> None:
    assert Leg("", 2, {"data": 2}, 1, 2, "", 0.0, 1e-5, {"loss": Difference(1e-6, 1), "grad_norm": Difference(9e-6, 1)}).agrees
    assert not Leg("", 2, {"data": 2}, 1, 2, "", 0.0, 1e-5, {"loss": Difference(1e-6, 1), "grad_norm": Difference(2e-5, 2)}).agrees

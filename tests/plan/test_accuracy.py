"""How errors are summed up, that a fit finds numbers back, and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from preheat.plan import Accuracy, calibrate, calibration_json, read_runs, shipped
from preheat.plan.accuracy import Error, predict
from preheat.plan.constants import read, tables
from preheat.plan.fit import BELIEFS, fit, value_at

TABLE = Path(__file__).with_name("published.csv")
RUNS = read_runs(TABLE)


def test_median_percentile_and_bias_by_hand() -> None:
    """Errors of +10, -20, +30, 0 and +50 %: the middle size is 20 %, nine tenths lie within 50 %, the middle error is +10 %."""
    errors = [Error(RUNS.used[0], 100 * factor, 100) for factor in (1.1, 0.8, 1.3, 1.0, 1.5)]
    found = Accuracy.of(errors)
    assert found is not None
    assert found.n == 5
    assert found.median_abs_error == pytest.approx(0.2)
    assert found.p90_abs_error == pytest.approx(0.5)
    assert found.bias == pytest.approx(0.1)
    assert Accuracy.of([]) is None


def test_real_rows_are_predicted_within_a_third() -> None:
    """Eight rows that are not chosen for it; docs/planner-accuracy.md has all."""
    calibration = calibrate(RUNS, memory=lambda run: run.memory)
    found = calibration_json(calibration)
    assert found["overall"]["throughput"]["n"] == len(RUNS.used)
    assert found["overall"]["throughput"]["p90_abs_error"] < 0.33
    assert found["overall"]["memory"] == {"n": 2, "median_abs_error": 0.0, "p90_abs_error": 0.0, "bias": 0.0}
    assert set(found["by_source"]) == {run.source for run in RUNS.used}
    sizes = [abs(row["error"]) for row in found["worst"]]
    assert sizes[0] == max(sizes)


def test_a_fit_finds_back_what_made_the_figures() -> None:
    """Rows as they would have been measured where H100 and A100 multiply a fifth slower."""
    slow = tables()
    for generation in ("hopper", "ampere"):
        slow["kernels"][generation] |= {name: 0.8 * value for name, value in slow["kernels"][generation].items() if "matrix" in name}
    made_up = [
        replace(error.run, tokens_per_s_per_gpu=error.predicted)
        for error in predict([run for run in RUNS.used if run.gpu.generation in ("hopper", "ampere")], read(slow))
    ]
    before = Accuracy.of(predict(made_up, shipped()))
    after = Accuracy.of(predict(made_up, read(fit(made_up, tables()))))
    assert before is not None
    assert after is not None
    assert after.median_abs_error < 0.03 < 0.1 < before.median_abs_error


def test_a_source_that_is_left_out_is_not_learned_from() -> None:
    """Figures of a tenth of what is possible: the fit with them is bent, the one without them is not."""
    absurd = [replace(run, tokens_per_s_per_gpu=(run.tokens_per_s_per_gpu or 0) / 10) for run in RUNS.used if "nanotron" in run.source]
    good = [run for run in RUNS.used if "nanotron" not in run.source]
    runs = replace(RUNS, used=good + absurd)
    sources: list[str] = []
    left_out = calibrate(runs, leave_one_out=True, progress=sources.append)
    (error,) = [error for error in left_out.throughput if "nanotron" in error.run.source]
    assert error.signed > 5
    assert sources == list(dict.fromkeys(run.source for run in runs.used))


def test_beliefs_and_constants_name_the_same_numbers() -> None:
    """Each fitted number has its place in constants.toml, and lies where it can mean something."""
    found = tables()
    for path, belief in BELIEFS.items():
        value = value_at(found, path)
        assert value > 0 or belief.share
        assert not belief.share or 0 <= value <= 0.95


def test_the_command_prints_json_of_its_shape_and_refuses_no_table(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "preheat", "plan", "calibrate", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    found = json.loads(run("--runs", str(TABLE), "--json").stdout)
    assert found["schema"] == "preheat.plan.calibrate/1"
    assert {"rows_used", "rows_skipped", "rows_assumed", "overall", "by_source", "worst"} <= set(found)
    assert set(found["overall"]["throughput"]) == {"n", "median_abs_error", "p90_abs_error", "bias"}
    assert "MosaicML" in run("--runs", str(TABLE)).stdout
    (tmp_path / "bare.csv").write_text(TABLE.read_text().splitlines()[0] + "\n")
    bare = run("--runs", str(tmp_path / "bare.csv"))
    assert (bare.returncode, bare.stderr) == (1, "")
    assert bare.stdout.startswith("0 rows used")
    missing = run("--runs", str(tmp_path / "none.csv"))
    assert missing.returncode == 2
    assert "can't read the table" in missing.stderr

"""Megatron-LM itself: its parser, validation, model configuration and scheduler over what we export, judge and tabulate.

Needs an unpacked megatron-core wheel (0.17.1 wants torch and pyyaml beside it):
    pip download --no-deps --ignore-requires-python megatron-core==0.17.1 -d /tmp/wheel && unzip /tmp/wheel/*.whl -d /tmp/megatron
    PREHEAT_MEGATRON=/tmp/megatron pytest -m oracle
Further folders (of triton, for 0.18 and newer) follow after a colon.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from preheat.arithmetic import Timeline
from preheat.interop import export_megatron
from preheat.interop.megatron_windows import Window, windows
from preheat.megatron import VERSIONS, options
from preheat.recipe import Recipe, catalog, load

RUNNER = Path(__file__).with_name("run_megatron.py")
VERDICTS = Path(__file__).parents[1] / "fixtures" / "megatron" / "verdicts.json"
FOLDERS = [Path(part) for part in os.environ.get("PREHEAT_MEGATRON", "").split(":") if part]


def _missing() -> str:
    if not FOLDERS:
        return "PREHEAT_MEGATRON is not set: it names the folder of an unpacked megatron-core wheel"
    if not (FOLDERS[0] / "megatron" / "training" / "arguments.py").is_file():
        return f"{FOLDERS[0]} holds no megatron/training"
    return "" if find_spec("torch") and find_spec("yaml") else "megatron-core needs torch and pyyaml"


pytestmark = [pytest.mark.oracle, pytest.mark.timeout(600), pytest.mark.skipif(bool(_missing()), reason=_missing() or "present")]


def _ask(*options: str, cases: Any = ()) -> Any:
    environment = {**os.environ, "PYTHONPATH": ":".join(str(folder.resolve()) for folder in FOLDERS)}
    answer = subprocess.run(
        [sys.executable, str(RUNNER), *options], input=json.dumps(list(cases)), capture_output=True, text=True, env=environment, timeout=500
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    return json.loads(answer.stdout)


@pytest.fixture(scope="module")
def version() -> str:
    """The version of the wheel, from the folder that describes it."""
    (folder,) = FOLDERS[0].glob("megatron_core-*.dist-info")
    short = ".".join(folder.name.split("-")[1].removesuffix(".dist").split(".")[:2])
    assert short in VERSIONS
    return short


def test_the_table_is_the_parsers(version: str) -> None:
    kinds = {"_StoreAction": "value", "_StoreTrueAction": "on", "_StoreFalseAction": "off", "BooleanOptionalAction": "switch"}
    theirs = {
        flag: (action["dest"], kinds[action["action"]], str(action["nargs"] or ""))
        for action in _ask("--arguments")
        for flag in action["flags"]
        if action["action"] != "_HelpAction"
    }
    ours = {flag: (option.dest, option.kind, option.nargs) for flag, option in options(version).items()}
    assert ours == theirs


def test_the_recorded_verdicts_are_its(version: str) -> None:
    recorded = json.loads(VERDICTS.read_text())
    answers = {answer["name"]: answer["stage"] for answer in _ask(cases=recorded)}
    assert answers == {case["name"]: case["stage"][version] for case in recorded}


def _cases(version: str) -> list[tuple[dict[str, Any], Recipe, Window]]:
    """Every command of every catalog recipe, with clocks inside its part of the run."""
    found = []
    for name in catalog():
        recipe = load(name).recipe
        gpus = recipe.parallel.gpus or 1
        parts = export_megatron(recipe, gpus, version).parts
        for number, (window, arguments) in enumerate(zip(windows(recipe, Timeline(recipe)), parts, strict=True), 1):
            seq_len = window.segments[0].seq_len
            clocks = [window.start + (window.end - window.start) * tenth // 10 for tenth in range(1, 10)]
            samples = [-(-clock // seq_len) for clock in clocks]
            found.append(({"name": f"{name}/{number}", "gpus": gpus, "args": list(arguments), "samples": samples}, recipe, window))
    return found


def test_every_exported_command_is_accepted_and_has_the_recipes_rates(version: str) -> None:
    cases = _cases(version)
    answers = _ask(cases=[case for case, _, _ in cases])
    refused = {answer["name"]: answer["error"] for answer in answers if answer["stage"] != "ok"}
    assert refused == {}
    for (case, recipe, window), answer in zip(cases, answers, strict=True):
        rate, seq_len = Timeline(recipe).learning_rate, window.segments[0].seq_len
        coarse = recipe.schedule.peak_lr * 4 / max(1, (window.end - window.start) // seq_len)  # a sample or two of rounding
        for samples, theirs in zip(case["samples"], answer["rates"], strict=True):
            assert theirs == pytest.approx(rate(samples * seq_len), rel=1e-4, abs=coarse), case["name"]


def test_a_run_of_one_length_has_the_recipes_steps(version: str) -> None:
    cases = [(case, recipe, window) for case, recipe, window in _cases(version) if len({s.seq_len for s in Timeline(recipe).segments}) == 1]
    answers = _ask(cases=[case for case, _, _ in cases])
    steps = {case["name"]: window.segments[-1].end.steps for case, _, window in cases}
    # 0.17 spreads a ramp over the samples between its ends, so that a threshold may fall a step beside the recipe's
    slack = 1 if version == "0.17" else 0
    for answer in answers:
        assert abs(answer["iterations"] - steps[answer["name"]]) <= slack, answer["name"]

"""`preheat plan` as a user meets it: shapes, exit codes, refusals."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from preheat.cli import plan
from preheat.errors import PreheatError

CARD = """[Mine]
generation = "hopper"
memory = 48e9
memory_bandwidth = 2e12
peaks = { bf16 = 400e12, fp32 = 40e12 }
link_bandwidth = 32e9
domain = 2
server = 2
network_bandwidth = 10e9
price = 1.0
"""


def planned(capsys: pytest.CaptureFixture[str], name: str, gpus: str, *sets: str, code: int = 0, **options: Any) -> Any:
    with pytest.raises(typer.Exit) as ended:
        plan.recipe_(name, gpus, list(sets), as_json=True, **options)
    assert ended.value.exit_code == code
    return json.loads(capsys.readouterr().out)


def test_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "llama3-70b", "64xH100")
    assert found["schema"] == "preheat.plan/1"
    assert found["fits"] is True
    assert {"max_gib", "breakdown", "per_stage"} <= found["memory"].keys()
    assert {"tokens_per_s_per_gpu", "mfu", "hfu", "convention"} <= found["throughput"].keys()
    assert {"days", "cost_usd", "checkpoint_interval_steps", "goodput"} <= found["run"].keys()
    assert found["step_time_s"] > 0
    assert found["cluster"]["price_source"]
    assert found["layout"]["data"] == 2


def test_layouts_have_the_same_keys(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "llama3-8b", "64xH100", do_search=True, top=3)
    assert len(found["layouts"]) == 3
    days = [layout["run"]["days"] for layout in found["layouts"]]
    assert days == sorted(days)
    for layout in found["layouts"]:
        assert layout["fits"]
        assert {"memory", "throughput", "step_time_s", "run", "set"} <= layout.keys()


def test_what_does_not_fit_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "llama3-8b", "8xA100-40", "parallel.sharding=none", code=1)
    assert found["fits"] is False
    assert found["memory"]["max_gib"] > found["memory"]["room_gib"]


def test_a_layout_found_is_a_success_though_the_recipe_s_own_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "llama3-8b", "8xA100", "parallel.sharding=none", do_search=True, top=1)
    assert found["fits"] is False
    assert len(found["layouts"]) == 1


def test_a_search_helps_a_recipe_whose_layout_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "llama3-70b", "24xH100", do_search=True, top=1)
    assert found["refused"][0]["rule"] == "layout.ranks"
    assert found["fits"] is False
    assert (found["cluster"]["gpus"], found["program"], found["number_format"]) == (24, "megatron", "bf16")
    assert found["layouts"]
    assert planned(capsys, "llama3-70b", "8xA100-40", do_search=True, code=1)["layouts"] == []


def test_limits_are_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(capsys, "toy-124m", "4xA100", max_days=1.0, budget=100.0)["over_limits"] is None
    assert "days" in planned(capsys, "toy-124m", "4xA100", max_days=0.01, code=1)["over_limits"]
    assert "$" in planned(capsys, "toy-124m", "4xA100", budget=5.0, code=1)["over_limits"]


def test_a_card_of_one_s_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "cards.toml"
    file.write_text(CARD)
    found = planned(capsys, "toy-124m", "2xMine", hardware=file)
    assert found["cluster"]["price_usd_per_hour"] == 1.0
    assert found["run"]["cost_usd"] == pytest.approx(found["run"]["gpu_hours"])


WRONG: list[tuple[str, str | None, list[str], str]] = [
    ("toy-124m", None, [], "the recipe names no GPUs"),
    ("llama3-70b", None, [], "laid out for 64 GPUs"),
    ("toy-124m", "4", [], "names no kind"),
    ("toy-124m", "4xH900", [], "Did you mean H800"),
    ("llama3-8b-fp8", "8xA100", [], "fp8 on A100-80"),
    ("toy-124m", "4xA100", ["model.heads=11"], "768"),
    ("toy-124m", "4xA100", ["schedule.warmup=1000000 steps"], "warmup is 1M steps"),
    ("toy-124m", "4xA100", ["schedule.length=50%"], "length in tokens"),
]
WRONG_LAYOUTS: list[tuple[str, str | None, list[str], str]] = [
    ("toy-124m", "3xA100", [], "512 samples in micro-batches of 8 on 3"),
    ("llama3-70b", "48xH100", [], "48 ranks are no multiple"),
    ("llama3-70b", "64xH100", ["parallel.tensor=3"], "64 heads over tensor 3"),
]


@pytest.mark.parametrize(("name", "gpus", "sets", "said"), WRONG + WRONG_LAYOUTS)
def test_wrong_usage_is_refused_with_the_numbers(name: str, gpus: str | None, sets: list[str], said: str) -> None:
    with pytest.raises(PreheatError, match=said) as refused:
        plan.recipe_(name, gpus, sets)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(("name", "gpus", "sets", "said"), WRONG)
def test_no_search_mends_it(name: str, gpus: str | None, sets: list[str], said: str) -> None:
    with pytest.raises(PreheatError, match=said):
        plan.recipe_(name, gpus, sets, do_search=True)


@pytest.mark.parametrize("asked", ["advise", "prove"])
def test_what_is_asked_of_a_refused_layout_is_not_left_out_in_silence(asked: str) -> None:
    with pytest.raises(PreheatError, match="24 ranks are no multiple"):
        plan.recipe_("llama3-70b", "24xH100", do_search=True, **{asked: True})


def test_top_is_of_a_search() -> None:
    with pytest.raises(PreheatError, match="--top 5 without --search"):
        plan.recipe_("llama3-70b", "64xH100", top=5)


def test_what_preheat_does_not_train_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSeek-V3's report: DualPipe, and products in FP8 with a scale for each block."""
    found = planned(capsys, "deepseek-v3", "2048xH800", code=1)
    assert {"precision.fp8_recipe", "parallel.schedule"} <= set(found["beyond_training"])
    assert planned(capsys, "toy-124m", "4xA100")["beyond_training"] == []
    with pytest.raises(typer.Exit):
        plan.recipe_("deepseek-v3", "2048xH800")
    assert "does not train stage.1.context, " in capsys.readouterr().out


def test_the_page_has_a_picture_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        plan.recipe_("llama3-70b", "64xH100", do_search=True, top=2, advise=True)
    page = capsys.readouterr().out
    for part in ("rank   0 ww", "bound by: matrix products", "the run: ", "considered", "--set parallel", "left out:", "speed: exchange"):
        assert part in page, part
    assert max(map(len, page.splitlines())) < 300


ENDLESS_WAIT = (["toy-124m", "--gpus", "4xA100", "--save-wait", "inf"], 2)


def test_words_after_plan_are_a_recipe_but_for_calibrate() -> None:
    program = "import sys; from preheat.cli import main; main()\n"
    for words, code in (
        (["toy-124m", "--gpus", "4xA100"], 0),
        (["--gpus", "4xA100", "toy-124m"], 0),
        (["calibrate"], 2),
        (["recipe"], 2),
        ENDLESS_WAIT,
    ):
        done = subprocess.run([sys.executable, "-c", program, "plan", *words], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == code, done.stderr
    check = "import sys; from preheat.cli import main\ntry: main()\nfinally: assert not {'torch', 'numpy'} & sys.modules.keys()"
    done = subprocess.run([sys.executable, "-c", check, "plan", "toy-124m", "--gpus", "4xA100", "--search"], check=False, timeout=60)
    assert done.returncode == 0

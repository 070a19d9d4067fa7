"""The program as a user meets it: exit codes, JSON shapes, speed of start, and no torch where none is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "preheat", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def core_only(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program where every package beyond the core is missing."""
    program = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('torch', 'numpy', 'tokenizers', 'tiktoken', 'rensa', 'safetensors', 'tensorboard', 'jinja2'):\n"
        "            raise ModuleNotFoundError(f'No module named {name}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from preheat.cli import main\n"
        "sys.argv = ['preheat', *sys.argv[1:]]\n"
        "main()\n"
    )
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, check=False)


def answer(*arguments: str, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code).stdout)


def test_show_tells_values_origins_and_what_follows() -> None:
    shown = answer("show", "toy-124m")
    assert shown["recipe"]["model"]["hidden"] == 768
    assert shown["origins"]["model.hidden"]["file"] == "toy-124m"
    assert shown["origins"]["model.hidden"]["line"] > 0
    assert "GPT-2" in shown["origins"]["model.hidden"]["note"]
    assert shown["origins"]["optimizer.eps"]["kind"] == "default"
    derived = shown["derived"]
    assert derived["parameters"]["total"] == derived["parameters"]["active"] == 124_439_808
    assert set(derived["flops_per_token"]) == {"causal", "full_square", "megatron"}
    assert derived["total_steps"] == 19_074  # llm.c takes 19,073 whole ones of 10B tokens; the last one is begun
    assert derived["total_tokens"] == 19_074 * 524_288
    assert derived["layout"]["dense_dp"] == derived["layout"]["expert_dp"] == 1


def test_every_leaf_that_show_prints_has_an_origin() -> None:
    shown = answer("show", "tiny", "--set", "seed=9")
    assert shown["origins"]["seed"]["kind"] == "set"
    text = run("show", "tiny", "--set", "seed=9").stdout
    assert "--set" in text
    assert "2_078_016" in text


def test_show_lays_out_gpus() -> None:
    shown = answer("show", "tiny", "--set", "parallel.tensor=2", "--gpus", "8")
    assert shown["derived"]["layout"] == {"ranks": 8, "dense_dp": 4, "expert_dp": 8}
    assert "7 ranks are not divisible" in run("show", "tiny", "--set", "parallel.tensor=2", "--gpus", "7", code=2).stderr


def test_timeline_at_a_moment() -> None:
    moment = answer("timeline", "toy-124m", "--at", "700 steps")
    assert moment["step"] == 700
    assert moment["tokens"] == 700 * 524_288
    assert moment["samples"] == 700 * 512
    assert moment["lr"] == 6e-4
    assert moment["batch_size"] == 512
    assert moment["stage"] == "main"
    assert moment["seq_len"] == 1024
    assert moment["rope_theta"] is None
    assert moment["mix"] == {"web": 1.0}
    assert answer("timeline", "tiny", "--at", "100%")["lr"] == 1e-4
    assert "no quantity" in run("timeline", "tiny", "--at", "half", code=2).stderr
    assert "past the end" in run("timeline", "tiny", "--at", "2B tokens", code=2).stderr


def test_check_exit_codes_and_shape() -> None:
    good = answer("check", "tiny")
    assert good["ok"] is True
    bad = answer("check", "tiny", "--set", "model.heads=5", code=1)
    assert bad["ok"] is False
    problem = bad["problems"][0]
    assert set(problem) == {"rule", "severity", "where", "got", "want", "fix", "source"}
    assert set(problem["where"]) == {"file", "line", "key"}
    unknown = answer("check", "tiny", "--set", "model.hiden=3", code=2)
    assert unknown["problems"][0]["rule"] == "recipe.unknown-key"


def test_explain_shows_a_rules_docstring() -> None:
    assert "grouped-query attention" in run("check", "--explain", "model.kv-heads").stdout
    assert len(run("check", "--explain", "all").stdout.splitlines()) > 10
    assert "no rule is called" in run("check", "--explain", "nope", code=2).stderr


def test_recipes_and_schema_are_json() -> None:
    assert {"tiny", "toy-124m"} <= {entry["name"] for entry in answer("recipes")["recipes"]}
    assert json.loads(run("schema").stdout)["$defs"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("check", "tinny"), "Did you mean tiny?"),
        (("check", "no/such.toml"), "no recipe file"),
        (("check", "tiny", "--set", "schedule.warmup=100"), "no unit"),
        (("show", "tiny", "--set", "model.layer=3"), "Did you mean layers?"),
        (("chek", "tiny"), "No such command"),
        (("check", "--frobnicate"), "No such option"),
        (("check",), "no recipe was named"),
    ],
)
def test_wrong_usage_is_one_clear_message_and_exit_code_2(arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments, code=2)
    assert words in done.stderr + done.stdout


@pytest.mark.parametrize("arguments", [("recipes",), ("show", "tiny"), ("check", "tiny"), ("timeline", "tiny"), ("schema",), ("--help",)])
def test_what_answers_at_once_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    done = core_only(*arguments)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"), [(("train", "tiny"), "train"), (("data", "prepare", "tiny"), "data"), (("report", "."), "train")]
)
def test_a_missing_extra_is_named(arguments: tuple[str, ...], extra: str) -> None:
    done = core_only(*arguments)
    assert done.returncode == 2
    assert f"pip install 'preheat[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_recipe_file_of_the_user_can_be_checked(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('extends = "tiny"\nname = "mine"\n\n[model]\nheads = 5\n')
    problems = answer("check", str(recipe), code=1)["problems"]
    assert problems[0]["where"] == {"file": str(recipe), "line": 5, "key": "model.heads"}

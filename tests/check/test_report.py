"""`preheat check` as it is met at the prompt: one report, grouped by rule, with the place of every key."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import preheat.recipe
from preheat.check import READING, suppress

DENSE = Path(__file__).parent / "recipes" / "dense.toml"


def run(*arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "preheat", "check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(f'extends = "{DENSE}"\nname = "mine"\n\n[model]\nkv_heads = 5\n\n[batch]\nmicro_size = 3\n\n[parallel]\ntensor = 3\n')
    return recipe


def test_the_report_is_grouped_by_rule_with_the_line_of_each_key(broken: Path) -> None:
    lines = run(str(broken), code=1).splitlines()
    heads = [line for line in lines if line.startswith("error ")]
    assert [line.split(":")[0] for line in heads] == ["error batch.micro-size", "error layout.tensor", "error model.kv-heads"]
    place = lines.index(heads[1]) + 1
    assert lines[place] == f"  {broken}:11 parallel.tensor"
    assert "32 heads over tensor 3" in lines[place + 1]
    assert f"  {broken}:5 model.kv_heads" in lines
    assert lines[-1] == f"{broken}: 5 errors, 1 note"  # layout.tensor has three reasons and one way out
    assert sum("Use a tensor size of" in line for line in lines) == 1


def test_json_carries_the_same(broken: Path) -> None:
    answer = json.loads(run(str(broken), "--json", code=1))
    assert set(answer) == {"schema", "ok", "problems"}
    assert answer["ok"] is False
    assert {problem["rule"] for problem in answer["problems"]} >= {"batch.micro-size", "layout.tensor", "model.kv-heads"}
    for problem in answer["problems"]:
        assert set(problem) == {"rule", "severity", "where", "got", "want", "fix", "source"}
        assert set(problem["where"]) == {"file", "line", "key"}
        assert problem["source"]


def test_gpus_and_the_size_that_is_assumed_are_said() -> None:
    assert "on 64 GPUs (no kind named: 80 GB each are assumed)" in run(str(DENSE), "--gpus", "64", code=1)
    assert "each GPU of 64 ranks needs 144.5 GB" in run(str(DENSE), "--gpus", "64xH100", code=1)
    assert "on 64 H100 of 80 GB: nothing to complain about" in run(str(DENSE), "--gpus", "64xH100", "--set", "parallel.sharding=full")


def test_the_length_of_405b_in_a_samples_field() -> None:
    text = run("llama3.1-405b", "--set", "schedule.length=15T samples", code=1)
    assert "schedule.length" in text
    assert '"15T tokens"' in text


def test_deepseek_v3_with_experts_cut_twice_is_refused_with_the_numbers() -> None:
    layout = ["--set", "parallel.tensor=2", "--set", "parallel.expert_tensor=2", "--gpus", "1024"]
    assert "expert_tensor 2 x expert 64 x pipeline 16 = 2048" in run("deepseek-v3", *layout, code=1)


def test_warm_up_samples_are_shown_in_tokens() -> None:
    assert "3_906_252 samples are 16.0B tokens" in run("gpt3-15b")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tiny", "--gpus", "many"], "--gpus many"),
        (["tiny", "--gpus", "8xH10"], "Did you mean H100?"),
        (["tiny", "--megatron", "x.sh", "--gpus", "8"], "a recipe and a Megatron-LM file were named"),
        (["--megatron", "x.sh", "--gpus", "8"], "x.sh"),
        (["--megatron", "x.sh"], "--megatron without --gpus"),
        (["--explain", "model.nope"], "no rule is called"),
        (["--explain", "layout.tenser"], "Did you mean layout.tensor?"),
        (["--explain", "recipe.valeu"], "Did you mean recipe.value?"),
    ],
)
def test_wrong_usage_is_one_message_and_code_2(arguments: list[str], words: str) -> None:
    assert words in run(*arguments, code=2)


def test_a_megatron_command_goes_straight_to_the_report(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 \\\n  --rope-theta 500000\n")
    text = run("--megatron", str(script), "--gpus", "8", code=1)
    assert "--rope-theta" in text
    assert f"{script}:2" in text


def test_explain_shows_what_why_an_example_and_a_source() -> None:
    text = run("--explain", "layout.tensor")
    assert "heads = 12 with tensor = 8" in text
    assert "arXiv 1909.08053" in text
    assert "[[ignore]]" not in text
    assert "[[ignore]]" in run("--explain", "memory.fits")
    rules = run("--explain", "all").splitlines()
    assert len(rules) > 60
    assert any(line.startswith("megatron.") for line in rules)


@pytest.mark.parametrize("name", READING)
def test_what_is_no_rule_is_explained_too(name: str) -> None:
    lines = READING[name].splitlines()
    assert lines[0].endswith(".")
    assert any(line.startswith("Example: ") for line in lines)


def test_every_finding_outside_of_the_rules_is_explained() -> None:
    folder = Path(preheat.recipe.__file__).parent
    raised = {name for file in folder.glob("*.py") for name in re.findall(r'"(recipe\.[a-z-]+)"', file.read_text("utf-8"))}
    raised |= set(re.findall(r'"(ignore\.[a-z-]+)"', Path(suppress.__file__).read_text("utf-8")))
    assert raised == set(READING)


def test_a_file_cannot_command_the_terminal(tmp_path: Path) -> None:
    """ESC ] 0 ; sets the title of a window, ESC [ 2 J clears it."""
    recipe = tmp_path / "hostile.toml"
    recipe.write_text('extends = "tiny"\nname = "x"\n"a\\u001b[2J" = 1\ndescription = "a\\nb \\u001b]0;owned\\u0007 \\u202e"\n')
    assert r"a\x1b[2J" in run(str(recipe), code=2)
    assert "\x1b" not in run(str(recipe), code=2)
    recipe.write_text(recipe.read_text().replace('"a\\u001b[2J" = 1\n', ""))
    command = [sys.executable, "-m", "preheat", "show", str(recipe)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert r"a\nb \x1b]0;owned\x07 \u202e" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)


def test_a_name_that_is_no_utf_8_and_a_terminal_without_letters_are_survived() -> None:
    for arguments, code in (["check", "\udcff.toml", "--json"], 2), (["show", "tiny", "--set", "description=é→"], 0):
        environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
        command = [sys.executable, "-m", "preheat", *arguments]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False, env=environment)
        assert (done.returncode, done.stderr) == (code, b"")
        assert done.stdout.isascii()


def test_the_collector_works_while_a_verb_does() -> None:
    """It is off while modules load, for speed; a training run with it off would fill the memory."""
    program = (
        "import gc, sys\n"
        "import preheat.cli.schema as verb\n"
        "verb.json_schema = lambda: gc.isenabled()\n"
        "from preheat.cli import main\n"
        "sys.argv = ['preheat', 'schema']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "true\n"


def test_no_check_imports_torch_numpy_or_rich() -> None:
    program = (
        "import sys\n"
        "for name in ('torch', 'numpy', 'rich', 'jinja2', 'tokenizers', 'yaml'): sys.modules[name] = None\n"
        "from preheat.cli import main\n"
        "sys.argv = ['preheat', 'check', 'deepseek-v3', '--gpus', '2048xH800']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

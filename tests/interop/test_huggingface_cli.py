"""A run goes out to a Hugging Face folder and comes back, as a user types it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from preheat.cli.app import run as program

RECIPE = """
name = "mini"
description = "A few steps on the standard library."
seed = 3

[model]
layers = 2
hidden = 32
heads = 2
kv_heads = 1
ffn_hidden = 64
vocab_size = 320
rope_theta = 10_000

[tokenizer]
kind = "train-bpe"

[batch]
global_size = 4
micro_size = 4
seq_len = 32

[schedule]
length = "12 steps"
peak_lr = 1e-2
final_lr = 1e-3
warmup = "2 steps"

[[stage]]
name = "main"
until = "50%"
mix = { json = 1 }

[[stage]]
name = "long"
seq_len = 64
rope_theta = 50_000
mix = { json = 1 }

[[data.source]]
name = "json"
paths = ["stdlib:json/*.py", "stdlib:http/*.py"]
policy = "code"
licence = "PSF-2.0"

[checkpoint]
every = "6 steps"

[evaluation]
held_out_tokens = 200
questions = 0
"""


class Done(NamedTuple):
    """What the program printed."""

    stdout: str
    stderr: str


def preheat(*arguments: str | Path, code: int = 0) -> Done:
    """The program in this process, so that PyTorch is loaded once."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["preheat", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            program()
    assert (ended.value.code or 0) == code, f"exit code {ended.value.code}\n{out.getvalue()}\n{err.getvalue()}"
    return Done(out.getvalue(), err.getvalue())


def preheat_alone(*arguments: str | Path) -> None:
    """The program in a process of its own, where it takes signals and starts others."""
    done = subprocess.run([sys.executable, "-m", "preheat", *map(str, arguments)], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "mini.toml").write_text(RECIPE)
    preheat_alone("data", "prepare", folder / "mini.toml", "--data", folder / "data")
    preheat_alone("train", folder / "mini.toml", "--data", folder / "data", "--run", folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    out = run.parent / "hf"
    done = preheat("export", "hf", run, "--out", out)
    assert "LlamaForCausalLM" in done.stdout
    return out


def test_the_folder_is_complete_and_says_what_the_last_stage_was(run: Path, exported: Path) -> None:
    names = {path.name for path in exported.iterdir()}
    expected = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
    assert names == expected | {"export.json"}
    config = json.loads((exported / "config.json").read_text())
    assert (config["rope_theta"], config["rope_parameters"]["rope_theta"], config["max_position_embeddings"]) == (50_000, 50_000, 64)
    assert config["eos_token_id"] == json.loads((run.parent / "data" / "manifest.json").read_text())["tokenizer"]["eod"]
    card = (exported / "README.md").read_text()
    assert "PSF-2.0" in card
    assert "rope_theta = 50000.0" in card
    again = preheat("export", "hf", run, "--out", exported, code=2)
    assert "exists" in again.stderr


def test_transformers_reads_text_and_model_alike(run: Path, exported: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from preheat.data import Tokenizer
    from preheat.train import load_trained

    ours = load_trained(run)
    tokenizer, theirs = Tokenizer.load(run.parent / "data"), transformers.AutoTokenizer.from_pretrained(exported, local_files_only=True)
    text = "def dumps(obj, *, skipkeys=False):\n    return 'naïve — 猫'\n"
    ids = tokenizer.encode(text)
    assert theirs(text, add_special_tokens=False)["input_ids"] == ids
    assert theirs.decode(ids) == text
    assert theirs.eos_token_id == tokenizer.eod
    model = transformers.AutoModelForCausalLM.from_pretrained(exported, local_files_only=True)
    tokens_BT = torch.tensor([[tokenizer.eod, *ids][:64]])
    with torch.no_grad():
        hidden_BTD = ours.model(tokens_BT, rope=ours.step.segment.rope)
        assert (ours.model.logits(hidden_BTD) - model(tokens_BT).logits).abs().max() < 1e-4


def test_text_from_the_folder_is_text_from_the_run(run: Path, exported: Path) -> None:
    asked = ("--prompt", "import ", "--tokens", "20", "--temperature", "0", "--json")
    texts = [json.loads(preheat("sample", place, *asked).stdout)["text"] for place in (run, exported)]
    assert texts[0] == texts[1]
    preheat("sample", exported, "--data", run.parent / "data", code=2)


def test_bf16_is_the_rounded_run(run: Path) -> None:
    from safetensors.torch import load_file

    from preheat.train import load_trained

    value = json.loads(preheat("export", "hf", run, "--out", run.parent / "bf16", "--dtype", "bf16", "--json").stdout)
    assert (value["schema"], value["dtype"]) == ("preheat.export-hf/1", "bfloat16")
    rounded, source = load_file(run.parent / "bf16" / "model.safetensors"), load_trained(run).model.state_dict()
    assert torch.equal(rounded["model.embed_tokens.weight"], source["embedding.weight"].bfloat16())
    assert json.loads((run.parent / "bf16" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert "one of fp32, bf16, fp16" in preheat("export", "hf", run, "--out", run.parent / "x", "--dtype", "fp8", code=2).stderr


def test_it_comes_back_as_weights_and_a_recipe_that_checks(run: Path, exported: Path) -> None:
    back = run.parent / "back"
    value = json.loads(preheat("import", "hf", exported, "--out", back, "--json").stdout)
    assert (value["architecture"], value["notes"]) == ("LlamaForCausalLM", [])
    shown = json.loads(preheat("show", back / "recipe.toml", "--json").stdout)
    assert shown["recipe"]["model"]["rope_theta"] == 50_000
    preheat("check", back / "recipe.toml")
    assert {path.name for path in (back / "weights").iterdir()} == {"model.safetensors", "manifest.json"}
    assert "exists" in preheat("import", "hf", exported, "--out", back, code=2).stderr
    assert "config.json" in preheat("import", "hf", run, "--out", run.parent / "y", code=2).stderr

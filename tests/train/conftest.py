"""A recipe that trains in a second, on real text: two packages of the standard library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = """
name = "mini"
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
micro_size = 2
seq_len = 32
ramp = [{ at = "0 tokens", size = 2 }, { at = "1000 tokens", size = 4 }]

[schedule]
length = "60 steps"
peak_lr = 1e-2
final_lr = 1e-3
warmup = "5 steps"
decay = "wsd"
decay_length = "20 steps"
decay_shape = "1-sqrt"

[[stage]]
name = "main"
until = "60%"
mix = { mail = 0.7, json = 0.3 }

[[stage]]
name = "long"
seq_len = 64
rope_theta = 50_000
global_size = 2
mix = { json = 1 }

[data]
held_out = "10%"

[[data.source]]
name = "mail"
paths = ["stdlib:email/*.py"]
policy = "code"

[[data.source]]
name = "json"
paths = ["stdlib:json/*.py", "stdlib:http/*.py", "stdlib:logging/*.py"]
policy = "code"

[checkpoint]
every = "7 steps"

[evaluation]
every = "20 steps"
held_out_tokens = 200
questions = 5
"""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "chaos: a hundred kills over all layouts, ten minutes: `make chaos`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "chaos" not in config.getoption("markexpr"):
        items[:] = [item for item in items if "chaos" not in item.keywords or item.get_closest_marker("chaos") is None]


def preheat(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the program in a process of its own and hold its exit code."""
    done = subprocess.run([sys.executable, "-m", "preheat", *map(str, arguments)], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="session")
def mini(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The recipe file and its prepared data."""
    folder = tmp_path_factory.mktemp("mini")
    recipe, data = folder / "mini.toml", folder / "data"
    recipe.write_text(RECIPE)
    preheat("data", "prepare", recipe, "--data", data)
    return recipe, data


@pytest.fixture(scope="session")
def undisturbed(mini: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a run that nothing interrupted."""
    recipe, data = mini
    run = tmp_path_factory.mktemp("runs") / "whole"
    preheat("train", recipe, "--data", data, "--run", run)
    return run

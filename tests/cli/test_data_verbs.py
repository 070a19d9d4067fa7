"""`preheat data import` and `mix` as a user meets them, on shards that are written here."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from preheat.data.tokenizer import train

RECIPE = """
extends = "tiny"
name = "ready"

[data]
held_out = "5%"

[[data.source]]
name = "web"
paths = ["*.bin"]
format = "tokens"
licence = "CC0-1.0"

[tokenizer]
kind = "file"
path = "t.json"

[model]
vocab_size = 300

[schedule]
length = "20K tokens"
warmup = "2 steps"

[[stage]]
name = "main"
mix = { web = 1 }
"""


def run(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "preheat", "data", *arguments], cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = train(["some words of a text and other words of another text"] * 9, 280)
    (tmp_path / "t.json").write_text(tokenizer.content, "utf-8")
    (tmp_path / "ready.toml").write_text(RECIPE)
    np.array([i for n in range(900) for i in (*tokenizer.encode(f"words {n} of the text"), tokenizer.eod)], "<u2").tofile(
        tmp_path / "a.bin"
    )
    return tmp_path


def test_imported_shown_and_checked(folder: Path) -> None:
    assert "nanogpt" in run(folder, "import", "ready.toml").stdout
    assert "using the prepared data" in run(folder, "import", "ready.toml").stdout
    manifest = json.loads(run(folder, "import", "ready.toml", "--json").stdout)
    (source,) = manifest["sources"]
    assert source["train"]["documents"] + source["held_out"]["documents"] == 900
    run(folder, "verify", "prepared/ready")
    assert "words 0 of the text" in run(folder, "inspect", "prepared/ready").stdout


def test_the_mixture_is_told_before_it_is_trained(folder: Path) -> None:
    run(folder, "import", "ready.toml")
    tokens = json.loads((folder / "prepared/ready/manifest.json").read_text())["sources"][0]["train"]["tokens"]
    done = run(folder, "mix", "ready.toml", "--set", "schedule.length=100K tokens")
    (share,) = json.loads(run(folder, "mix", "ready.toml", "--set", "schedule.length=100K tokens", "--json").stdout)["stages"]["main"]
    assert share["tokens"] >= 100_000 > tokens
    assert share["epochs"] == pytest.approx(share["tokens"] / tokens)
    assert f"warning: stage main: web is read {share['epochs']:.2f} times by then" in done.stderr


def test_the_wrong_verb_names_the_right_one(folder: Path) -> None:
    assert "preheat data import RECIPE" in run(folder, "prepare", "ready.toml", code=2).stderr
    assert "preheat data prepare" in run(folder, "mix", "ready.toml", code=2).stderr
    (folder / "a.bin").write_bytes(b"\x01\x00\xff\xff")
    error = run(folder, "import", "ready.toml", code=2).stderr
    assert "a.bin@1: the id is 65_535; the tokenizer has 280 entries" in error
    assert not (folder / "prepared/ready").exists()


def test_on_a_terminal_lines_stay_above_a_bar(folder: Path) -> None:
    reader, writer = pty.openpty()
    words = ["the", "people", "of", "this", "country", "have", "made", "laws", "and", "roads"]
    for number in range(6):
        text = " ".join(words[(number * n + n * n) % 10] for n in range(400))
        (folder / f"{number}.txt").write_text(f"{text.capitalize()}.\n")
    (folder / "text.toml").write_text(RECIPE.replace("*.bin", "*.txt").replace('format = "tokens"', ""))
    command = [sys.executable, "-m", "preheat", "data", "prepare", str(folder / "text.toml"), "--data", str(folder / "again")]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    with subprocess.Popen(command, stdout=writer, stderr=writer, stdin=writer, env=environment) as process:
        os.close(writer)
        shown = b""
        with suppress(OSError):  # The other end is closed.
            while piece := os.read(reader, 1 << 16):
                shown += piece
    os.close(reader)
    assert process.returncode == 0
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip() for line in shown.decode().splitlines()]
    assert any(re.search(r"100%  .*0 s left", line) for line in lines)
    assert any(line.startswith("prepared in ") for line in lines)

"""`preheat import megatron` and `preheat export megatron` as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).parents[1] / "fixtures" / "megatron" / "guide"


def _preheat(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "preheat", *arguments], capture_output=True, text=True, timeout=60, cwd=cwd)


def test_a_command_goes_out_and_comes_back(tmp_path: Path) -> None:
    out = _preheat("export", "megatron", "llama3-8b", "--gpus", "64", "--out", "run.sh", cwd=tmp_path)
    assert (out.returncode, (tmp_path / "run.sh").exists()) == (0, True)
    again = _preheat("export", "megatron", "llama3-8b", "--gpus", "64", "--out", "run.sh", cwd=tmp_path)
    assert again.returncode == 2
    back = _preheat("import", "megatron", "run.sh", "--gpus", "64", "--out", "back.toml", cwd=tmp_path)
    assert back.returncode == 0
    shown = [json.loads(_preheat("show", name, "--json", cwd=tmp_path).stdout)["recipe"] for name in ("llama3-8b", "back.toml")]
    assert shown[0] == shown[1]


def test_json_has_the_report() -> None:
    answer = _preheat("import", "megatron", str(GUIDE / "llama3-8b.yaml"), "--gpus", "8", "--json")
    value = json.loads(answer.stdout)
    assert (answer.returncode, value["schema"], value["recipe"]["model"]["kv_heads"]) == (0, "preheat.import/1", 8)
    assert "megatron.renamed" in {problem["rule"] for problem in value["problems"]}


def test_check_goes_straight_to_the_report() -> None:
    answer = _preheat("check", "--megatron", str(GUIDE / "llama3.1-405b.yaml"), "--gpus", "1024", "--json")
    value = json.loads(answer.stdout)
    assert (answer.returncode, value["ok"]) == (1, False)
    lines = {problem["rule"]: problem["where"]["line"] for problem in value["problems"]}
    assert (lines["megatron.renamed"], lines["megatron.samples-amount"]) == (9, 16)


def test_wrong_files_are_refused_in_a_word(tmp_path: Path) -> None:
    (tmp_path / "x.sh").write_bytes(b"--lr \xff\n")
    for name in ("missing.sh", "x.sh"):
        answer = _preheat("import", "megatron", str(tmp_path / name), "--gpus", "8")
        assert answer.returncode == 2
        assert "Traceback" not in answer.stderr

"""Runs that are killed again and again end with the bits of one that nobody touched; `make chaos` for all layouts.

Cases B03, C01, D06, D08, D21, E03, E08, E13, K07.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def storm(folder: Path, layout: str, kills: int) -> int:
    """How many kills struck; see `chaos.py`."""
    command = [sys.executable, str(Path(__file__).with_name("chaos.py")), str(folder / "storm"), layout, str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    print(done.stdout)
    return int(json.loads(done.stdout.splitlines()[-1])["struck"])


@pytest.mark.parametrize(("layout", "kills"), [("one", 6), ("changing", 3)])
def test_a_run_that_is_killed(tmp_path: Path, layout: str, kills: int) -> None:
    assert storm(tmp_path, layout, kills) >= kills - 1  # a kill from outside may come late


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("layout", "kills"), [("one", 30), ("fsdp", 23), ("tp2-pp2", 14), ("ep2", 23), ("changing", 14)])
def test_a_storm(tmp_path: Path, layout: str, kills: int) -> None:
    assert storm(tmp_path, layout, kills) >= 0.8 * kills

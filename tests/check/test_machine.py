"""What is read of the machine, and that nothing in its variables can end the program."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from preheat.check import Machine


def test_the_version_of_torch_is_what_its_metadata_says() -> None:
    try:
        expected: str | None = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        expected = None
    assert Machine.here().torch == expected


def test_a_package_with_a_similar_name_is_not_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path / "nowhere"), str(tmp_path)])
    (tmp_path / "torch-geometric-2.6.dist-info").mkdir()
    (tmp_path / "torchvision-0.20.dist-info").mkdir()
    assert Machine.here().torch is None
    (tmp_path / "torch-2.9.0+cu128.dist-info").mkdir()
    assert Machine.here().torch == "2.9.0+cu128"


@pytest.mark.parametrize("value", ["", "9" * 5000, "²", "-1", "8(x2)", "\udcff", "8,8"])
def test_any_variable_is_survived(texts: Callable[..., str], value: str) -> None:
    variables = {"SLURM_NTASKS_PER_NODE": value, "LOCAL_WORLD_SIZE": value, "MASTER_PORT": value, "TORCHELASTIC_RUN_ID": "1"}
    for rule in ("launch.two-launchers", "launch.port"):
        assert "Traceback" not in texts(rule, "dense", machine=Machine(variables, value))


def test_slurms_short_form_is_read(texts: Callable[..., str]) -> None:
    variables = {"SLURM_STEP_TASKS_PER_NODE": "8(x2)", "LOCAL_WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "1"}
    assert "64 processes" in texts("launch.two-launchers", "dense", machine=Machine(variables))

"""Problems of a recipe under settings, with GPUs and a machine if a test wants them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from preheat.check import Machine, check
from preheat.errors import Problem
from preheat.hardware import Cluster
from preheat.recipe import catalog, load

RECIPES = Path(__file__).parent / "recipes"

Check = Callable[..., list[Problem]]


@pytest.fixture
def problems() -> Check:
    """`problems("dense", "model.heads=3", gpus="8")`: what `check` says, in its order."""

    def run(name: str, *sets: str, gpus: str | None = None, machine: Machine | None = None) -> list[Problem]:
        recipe = name if name in catalog() else str(RECIPES / f"{name}.toml")
        return check(load(recipe, sets), Cluster.parse(gpus) if gpus else None, machine)

    return run


@pytest.fixture
def texts(problems: Check) -> Callable[..., str]:
    """All that one rule says, in one text."""

    def run(rule: str, name: str, *sets: str, gpus: str | None = None, machine: Machine | None = None) -> str:
        return "\n".join(str(problem) for problem in problems(name, *sets, gpus=gpus, machine=machine) if problem.rule == rule)

    return run

"""The examples of the repository are recipes without an error."""

from pathlib import Path

import pytest

from preheat.check import check
from preheat.recipe import load

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_sound(path: Path) -> None:
    assert [str(problem) for problem in check(load(str(path))) if problem.severity != "note"] == []

"""The examples of the repository, the README's among them, are recipes without an error."""

import re
from pathlib import Path

import pytest

from preheat.check import check
from preheat.recipe import load

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_sound(path: Path) -> None:
    assert complaints(path) == []


def test_the_recipe_in_the_readme_is_sound(tmp_path: Path) -> None:
    [block] = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    path = tmp_path / "mine.toml"
    path.write_text(block)
    assert complaints(path) == []


def complaints(path: Path) -> list[str]:
    return [str(problem) for problem in check(load(str(path))) if problem.severity != "note"]

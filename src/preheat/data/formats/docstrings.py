"""The docstrings of a Python file as one readable document: qualified name, then text, `>>>` examples included."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

MIN_CHARACTERS = 400
"""A file whose docstrings are shorter than this teaches nothing."""


def extract(code: str, label: str) -> str | None:
    """All docstrings in source order, each under its dotted name; `label` is the path of the file. None if the code has a syntax error."""
    try:
        with warnings.catch_warnings():
            # Other people's invalid escape sequences are no news.
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    module = label.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return "\n\n".join(f"{name}\n\n{text.strip()}" for name, text in _named(tree, module))


def _named(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Iterator[tuple[str, str]]:
    text = ast.get_docstring(node)
    if text and text.strip():
        yield name, text
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _named(child, f"{name}.{child.name}")

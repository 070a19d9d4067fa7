"""Scripts that are written without spaces, and how wide characters are: what a line break means hangs on both."""

from __future__ import annotations

import re

UNSPACED = "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uff65\U00020000-\U0003ffff"
"""Thai, Lao, Tibetan, Myanmar, Khmer, Japanese and Chinese with their punctuation, as ranges inside of a character class."""
_WIDE = re.compile(
    "[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\U00020000-\U0003ffff]+"
)


def columns(line: str) -> int:
    """The width of a line on a screen: Chinese, Japanese and Korean characters take two columns (Unicode's East Asian Width)."""
    return len(line) if line.isascii() else len(line) + sum(map(len, _WIDE.findall(line)))

"""From bytes to text: what is no UTF-8, no Unix line end or no character of a text is mended and counted."""

from __future__ import annotations

import re
from collections import Counter

from preheat.data.document import Reading

BINARY_SHARE, SLIPS = 0.05, 8
"""A file or record with more unreadable characters than this is no text; so few may be slips, however short it is."""

RETURNS, CONTROLS, INVALID = "carriage returns made line feeds", "control characters removed", "invalid UTF-8 replaced"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CONTROL_BYTES = bytes(byte for byte in range(32) if byte not in b"\t\n") + b"\x7f"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_ESCAPED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def decoded(data: bytes) -> tuple[str, Counter[str]]:
    """Text with Unix line ends and without control characters, and what was mended."""
    body = data.removeprefix(_BYTE_ORDER_MARK)
    returns = body.count(b"\r")
    if returns:
        body = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    # In UTF-8 these bytes are never part of another character.
    plain = body.translate(None, _CONTROL_BYTES)
    text = plain.decode("utf-8", "replace")
    if text.isascii() and len(text) == len(data) and not returns:
        return text, Counter()
    mended = {
        "byte-order mark removed": int(data.startswith(_BYTE_ORDER_MARK)),
        RETURNS: returns,
        CONTROLS: len(body) - len(plain),
        INVALID: text.count("\ufffd") - plain.count(b"\xef\xbf\xbd"),
    }
    return text, +Counter(mended)


def is_binary(text: str, mended: Counter[str]) -> str:
    """How much of a decoded file was unreadable, if that is too much for a text; else nothing."""
    damage = mended[CONTROLS] + mended[INVALID]
    return f"{damage:_} unreadable characters" if damage > max(BINARY_SHARE * len(text), SLIPS) else ""


def unescaped(text: str, reading: Reading) -> str:
    r"""Text without what only an escape can bring into it: `\ud83d`, `\u0000`, `\r`."""
    if not _ESCAPED.search(text):
        return text
    if "\r" in text:
        reading.repaired[RETURNS] += text.count("\r")
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    for pattern, put, what in ((_CONTROL, "", CONTROLS), (_SURROGATE, "\ufffd", "lone surrogates replaced")):
        text, count = pattern.subn(put, text)
        if count:
            reading.repaired[what] += count
    return text

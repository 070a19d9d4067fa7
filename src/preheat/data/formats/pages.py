"""HTML pages to their main text, by resiliparse in a process of its own."""

from __future__ import annotations

import atexit
import codecs
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

from preheat.errors import refuse

SECONDS = 10.0
"""Processor time for a page; a page of a megabyte takes half a second, and a few nested ten thousand deep take minutes."""

_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.-]{1,40})", re.IGNORECASE)
_HEAD = 4096
_worker: subprocess.Popen[bytes] | None = None


_WEB = re.compile(
    r"ascii|iso8859-\d+|cp125\d|cp866|cp874|cp932|cp949|koi8-[ru]|gbk|gb2312|gb18030|big5(?:hkscs)?|euc_jp|euc_kr|shift_jis|iso2022_jp"
    r"|mac-roman|tis-620"
)
"""Python's names of the encodings that pages may be in (WHATWG Encoding); its other codecs do other things than decode text."""


def declared_encoding(page: bytes) -> str | None:
    """The encoding that a page names, unless that is UTF-8 or unknown. Browsers read ASCII and Latin-1 as Windows-1252."""
    match = _CHARSET.search(page, 0, _HEAD)
    if match is None:
        return None
    try:
        name = codecs.lookup(match[1].decode()).name
    except LookupError:
        return None
    if name in ("ascii", "iso8859-1"):
        return "cp1252"
    return name if _WEB.fullmatch(name) else None


def to_utf8(page: bytes) -> bytes:
    """The page in UTF-8: as it is where it is valid, else read in the encoding that it names."""
    try:
        page.decode()
    except UnicodeDecodeError:
        name = declared_encoding(page)
        return page if name is None else page.decode(name, "replace").encode("utf-8", "replace")
    return page


def main_text(page: str) -> str | None:
    """The text of a page without its menus, headers and footers; None if that took more than `SECONDS` or crashed.

    Raises:
        PreheatError: resiliparse is not installed.
    """
    global _worker
    if _worker is None:
        if importlib.util.find_spec("resiliparse") is None:
            refuse("data.no-package", "reading HTML needs the Python package resiliparse", "", "Install it: pip install 'preheat[data]'")
        command = [sys.executable, "-P", str(Path(__file__).with_name("page_worker.py")), str(SECONDS)]
        _worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    text = _answer(_worker, page.encode())
    if text is None:
        stop()
    return text


def _answer(worker: subprocess.Popen[bytes], page: bytes) -> str | None:
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        worker.stdin.write(len(page).to_bytes(8, "big") + page)
        worker.stdin.flush()
    except BrokenPipeError:
        return None
    head = worker.stdout.read(8)
    if len(head) < 8:
        return None
    size = int.from_bytes(head, "big")
    text = worker.stdout.read(size)
    return text.decode() if len(text) == size else None


@atexit.register
def stop() -> None:
    """End the process; the next page starts another."""
    global _worker
    if _worker is None:
        return
    worker, _worker = _worker, None
    worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:  # Half a page was still on its way.
                continue

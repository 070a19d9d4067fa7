"""Globs on the local disk, and as expressions that a path can be held against."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path

from preheat.errors import refuse

_GLOB = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]")


def names(root: str, pattern: str) -> Iterator[str]:
    """What a glob matches below `root`, hidden files and folders aside; `**` is any number of folders.

    Links to folders are followed, and `**` enters each folder once: links that lead in a circle end there, where `glob.glob` goes round.

    Raises:
        PreheatError: a folder that `**` comes to cannot be listed.
    """
    parts = pattern.split("/")
    if "**" not in parts:
        yield from glob.glob(pattern, root_dir=root)  # noqa: PTH207, unlike Path.glob, it leaves hidden files alone.
        return
    deep = parts.index("**")
    before, after = "/".join(parts[:deep]), "/".join(parts[deep + 1 :]) or "*"
    for start in sorted(glob.glob(before, root_dir=root)) if before else [""]:  # noqa: PTH207
        for folder in _folders(Path(root, start)):
            for name in names(str(folder), after):
                yield str(Path(start, folder.relative_to(Path(root, start)), name))


def _folders(top: Path) -> Iterator[Path]:
    """A folder and all below it, each once: by its own name rather than by that of a link to it."""
    waiting, seen = [top], set()
    links: list[Path] = []
    while waiting or links:
        folder = waiting.pop() if waiting else links.pop(0)
        real = os.path.realpath(folder)
        if real in seen or not folder.is_dir():
            continue
        seen.add(real)
        yield folder
        try:
            with os.scandir(folder) as entries:
                below = sorted((entry for entry in entries if not entry.name.startswith(".") and _is_folder(entry)), key=lambda e: e.name)
        except OSError as error:
            refuse("data.no-files", f"the folder cannot be listed: {error.strerror}", "", "Correct its permissions", file=folder)
        waiting += [Path(entry.path) for entry in reversed(below) if not entry.is_symlink()]
        links += [Path(entry.path) for entry in below if entry.is_symlink()]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether a name leads to a folder; a link that leads to itself leads nowhere."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def expression(pattern: str) -> re.Pattern[str]:
    """A glob as a regular expression: `**/` is any number of folders, `*` and `?` stay inside one."""
    simple = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    out, position = [], 0
    for match in _GLOB.finditer(pattern):
        out.append(re.escape(pattern[position : match.start()]))
        token = match[0]
        out.append(
            simple.get(token) or "[" + ("^" if token[1] == "!" else "") + re.escape(token[1:-1].removeprefix("!")).replace(r"\-", "-") + "]"
        )
        position = match.end()
    out.append(re.escape(pattern[position:]))
    return re.compile("".join(out), re.DOTALL)

"""The files of evaluation tasks: found by globs, read line by line, and known again by their checksums.

Two rooms read them: cleaning keeps their text out of the training data, and evaluation scores them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from preheat import recipe
from preheat.data.document import File
from preheat.data.formats import records, streams
from preheat.data.sources import resolve
from preheat.errors import PreheatError, Problem, Where, refuse

KEY, ALSO = "evaluation.tasks", "data.decontaminate.also"


def find(globs: Sequence[str], folder: Path, key: str = KEY) -> list[File]:
    """The files that globs of a recipe match, sorted by id; relative globs start at `folder`.

    Args:
        key: what names them in the recipe, for messages.

    Raises:
        PreheatError: a glob matches no file, or two files would have the same id.
    """
    if not globs:
        return []
    try:
        return _by_id(resolve(recipe.Source(name="tasks", paths=tuple(globs)), folder))
    except PreheatError as error:
        own = [replace(problem, got=problem.got.removeprefix("source tasks: "), where=Where(key=key)) for problem in error.problems]
        raise PreheatError(*own) from error


def kept_out(data: recipe.Data, globs: Sequence[str], folder: Path) -> list[File]:
    """The files whose text is kept out of the training data, sorted by id: none where decontamination is off or the data are token ids.

    Args:
        globs: the recipe's `evaluation.tasks`.

    Raises:
        PreheatError: see `find`.
    """
    if not data.decontaminate.enabled or all(source.format == "tokens" for source in data.source):
        return []
    found = {file.path: file for file in [*find(globs, folder), *find(data.decontaminate.also, folder, ALSO)]}
    return _by_id(found.values())


def _by_id(files: Iterable[File]) -> list[File]:
    ordered = sorted(files, key=lambda file: file.id)
    for before, after in pairwise(ordered):
        if before.id == after.id:
            got = f"{before.path} and {after.path} are both called {before.id}"
            refuse(KEY, got, "tasks are told apart by these names", "Rename one, or name both from a folder above", key=KEY)
    return ordered


def names(files: Sequence[File]) -> list[str]:
    """What each task is called in results: its file's name without what follows the first dot, or its whole id where others share that."""
    short = [Path(file.id).name.partition(".")[0] or file.id for file in files]
    return [name if short.count(name) == 1 else file.id for name, file in zip(short, files, strict=True)]


def lines(file: File) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, with their numbers from 1; unpacked as its name tells.

    Raises:
        PreheatError: it cannot be read to its end, or a line has more than 256 MiB.
    """
    try:
        for number, (line, cut) in enumerate(records.lines(streams.chunks(file), records.MAX_RECORD), start=1):
            if cut:
                refuse(KEY, f"a line of more than {records.MAX_RECORD:_} bytes", "one record a line", file=file.path, line=number)
            plain = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if plain.strip():
                yield number, plain
    except (OSError, streams.Damage) as error:
        _unreadable(file, error)


def checksums(files: Iterable[File]) -> dict[str, str]:
    """Id -> SHA-256 of each file.

    Raises:
        PreheatError: one cannot be read.
    """
    found = {}
    for file in files:
        whole = hashlib.sha256()
        try:
            with streams.open_file(file) as stream:
                for piece in streams.pieces(stream):
                    whole.update(piece)
        except OSError as error:
            _unreadable(file, error)
        found[file.id] = whole.hexdigest()
    return found


def _unreadable(file: File, error: Exception) -> NoReturn:
    refuse(KEY, f"it cannot be read: {error}", "", "Repair the file", file=file.path, key=KEY)


def changes(before: Mapping[str, str], now: Mapping[str, str], fix: str) -> list[Problem]:
    """How the files that are to be kept out differ from those that text was kept clean of, both as `checksums` gives them."""
    said = {
        ("is new", "the text was not kept clean of it"): sorted(now.keys() - before.keys()),
        ("is no longer named", "the text was kept clean of it"): sorted(before.keys() - now.keys()),
        ("has changed", "the text was kept clean of what it held then"): sorted(
            n for n in now.keys() & before.keys() if now[n] != before[n]
        ),
    }
    return [
        Problem("data.tasks", f"the task {name} {what}", want, fix, Where(key=KEY))
        for (what, want), found in said.items()
        for name in found
    ]

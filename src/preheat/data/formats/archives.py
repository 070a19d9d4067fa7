"""The files inside zip and tar archives, read in place: nothing is ever written to disk, so no member's name can lead anywhere."""

from __future__ import annotations

import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Self, cast

from preheat.data.document import File
from preheat.data.formats import streams
from preheat.data.formats.streams import Damage, packing, pieces, unpacked

# What the standard library's readers raise when the numbers in a header are nonsense.
_BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError, ValueError, OverflowError, struct.error)
_BROKEN_TAR = (tarfile.TarError, ValueError, OverflowError)
_LONGEST_HEADER = 1 << 20
"""Bytes of a member's name or attributes in a tar."""
_TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


@dataclass(frozen=True)
class Member:
    """A file of an archive: its name, how its bytes come, and a fault that keeps it from being read at all."""

    name: str
    content: Iterator[bytes]
    fault: str = ""


def is_archive(name: str) -> bool:
    """Whether a file is a zip or a tar by its name."""
    return name.lower().endswith((".zip", *_TARS))


def members(file: File) -> Iterator[Member]:
    """The files of an archive in its own order; each must be read before the next is asked for.

    Raises:
        OSError: the archive cannot be opened.
        Damage: the rest of the archive cannot be read.
    """
    with streams.open_file(file) as stream:
        yield from _zipped(stream) if file.path.lower().endswith(".zip") else _tarred(stream, file)


def _zipped(stream: BinaryIO) -> Iterator[Member]:
    try:
        with zipfile.ZipFile(stream) as archive:
            for entry in archive.infolist():
                if entry.is_dir() or _hidden(entry.filename):
                    continue
                fault = "encrypted" if entry.flag_bits & 1 else _nested(entry.filename)
                yield Member(entry.filename, iter(()) if fault else _member(_unzipped(archive, entry), entry.filename), fault)
    except _BROKEN_ZIP as error:
        raise Damage(str(error)) from None


def _unzipped(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    made = 0
    try:
        with archive.open(entry) as content:
            for piece in pieces(cast(BinaryIO, content)):
                made += len(piece)
                if made > streams.RATIO_FROM and made > streams.MAX_RATIO * entry.compress_size:
                    raise Damage(f"it unpacks to more than {streams.MAX_RATIO} times its size")
                yield piece
    except (*_BROKEN_ZIP, OSError, EOFError) as error:
        raise Damage(str(error)) from None


def _tarred(stream: BinaryIO, file: File) -> Iterator[Member]:
    source = cast(BinaryIO, _Unpacked(unpacked(pieces(stream), packing(file.path))))
    try:
        # Zeros in the middle are those between archives that were put together.
        header = _header_class()
        with tarfile.open(fileobj=source, mode="r|", tarinfo=header, ignore_zeros=True) as archive:
            while (entry := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # It would remember all of them.
                content = archive.extractfile(entry) if entry.isreg() and not _hidden(entry.name) else None
                if content is None:
                    continue
                # A sparse file is mostly holes that take no space in the archive.
                fault = "sparse file" if entry.issparse() else _nested(entry.name)
                yield Member(entry.name, iter(()) if fault else _member(_untarred(cast(BinaryIO, content)), entry.name), fault)
    except _BROKEN_TAR as error:
        raise Damage(str(error)) from None
    if header.fault:
        raise Damage(header.fault)


class _Header(tarfile.TarInfo):
    """How the headers of a tar are read. `tarfile` by itself takes a broken header, and the place where a tar was cut, for its end, and
    reads a long name or a list of attributes into memory, however long it says it is.
    """

    ended = False
    """Whether the block before was one of zeros, which end an archive."""
    fault = ""
    """What was wrong with a header first; what comes after it is looked for."""


def _header_class() -> type[_Header]:
    """Headers of one archive."""

    class Header(_Header):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
            if cls.ended and not buf.strip(b"\0"):
                buf = buf if len(buf) == tarfile.BLOCKSIZE else b""
            elif len(buf) < tarfile.BLOCKSIZE:
                raise Damage(cls.fault or "it ends early")
            cls.ended = not buf.strip(b"\0")
            try:
                found = super().frombuf(buf, encoding, errors)
            except tarfile.HeaderError as error:
                if buf and not cls.ended:
                    cls.fault = cls.fault or f"the header of a member is broken ({error})"
                raise
            extended = found.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, *tarfile.GNU_TYPES)
            if found.size < 0 or (extended and found.type != tarfile.GNUTYPE_SPARSE and found.size > _LONGEST_HEADER):
                raise Damage(f"the header of a member says that it has {found.size:_} bytes")
            return found

    return Header


def _untarred(content: BinaryIO) -> Iterator[bytes]:
    try:
        yield from pieces(content)
    except _BROKEN_TAR as error:
        raise Damage(str(error)) from None


def _hidden(name: str) -> bool:
    """Whether a member or a folder on its way is hidden, as the `__MACOSX/._NAME` of a Mac's archives; globs leave those alone, too."""
    return any(part.startswith(".") and part.strip(".") for part in name.replace("\\", "/").split("/"))


def _nested(name: str) -> str:
    return "archive inside an archive" if is_archive(name) else ""


def _member(content: Iterator[bytes], name: str) -> Iterator[bytes]:
    return unpacked(content, packing(name))


class _Unpacked(io.RawIOBase):
    """Pieces of bytes as a file that can be read forwards, as tarfile wants it."""

    def __init__(self, content: Iterator[bytes]) -> None:
        self._content, self._rest = content, b""

    def read(self, size: int = -1) -> bytes:
        while len(self._rest) < size:
            piece = next(self._content, None)
            if piece is None:
                break
            self._rest += piece
        out, self._rest = self._rest[:size], self._rest[size:]
        return out

"""The bytes of a file, wherever it lies and however it is packed, in pieces: memory does not grow with the file.

What is readable of a damaged archive is read; `Damage` tells that the rest is not.
"""

from __future__ import annotations

import bz2
import errno
import importlib
import lzma
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from preheat.data.document import File
from preheat.errors import refuse

CHUNK = 1 << 20
MAX_RATIO, RATIO_FROM = 200, 64 << 20
"""What unpacks to more than so many times its size, from so many bytes on, is no text but a trap. JSON of web pages has 3 to 10."""
XZ_MEMORY = 256 << 20
"""Bytes of memory an xz file may ask for; `xz -9` asks for 65 MiB."""


class Damage(Exception):
    """The rest of a stream cannot be read; the message says why."""


class _Unpacker(Protocol):
    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What broken input raises."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def feed(self, data: bytes) -> Iterator[bytes]: ...


class _Gzip:
    errors = (zlib.error,)

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data and not self._inner.eof:
            yield self._inner.decompress(data, CHUNK)
            data = self._inner.unconsumed_tail


class _Bounded:
    """bz2 and lzma, which keep their input until it is asked for."""

    errors = (OSError, EOFError, lzma.LZMAError)

    def __init__(self, inner: bz2.BZ2Decompressor | lzma.LZMADecompressor) -> None:
        self._inner = inner

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def feed(self, data: bytes) -> Iterator[bytes]:
        yield self._inner.decompress(data, CHUNK)
        while not self._inner.eof and not self._inner.needs_input:
            yield self._inner.decompress(b"", CHUNK)


class _Zstandard:
    """The library hands over all that its input unpacks to; a few kilobytes of input bound that."""

    def __init__(self) -> None:
        try:
            import zstandard
        except ImportError:
            refuse(
                "data.no-package", "reading .zst files needs the Python package zstandard", "", "Install it: pip install 'preheat[data]'"
            )
        self.errors = (zstandard.ZstdError,)
        self._inner = zstandard.ZstdDecompressor().decompressobj()

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._unused

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._unused = b""
        for start in range(0, len(data), 4096):
            yield self._inner.decompress(data[start : start + 4096])
            if self._inner.eof:
                self._unused = self._inner.unused_data + data[start + 4096 :]
                return


_UNPACKERS: dict[str, Callable[[], _Unpacker]] = {
    ".gz": _Gzip,
    ".tgz": _Gzip,
    ".bz2": lambda: _Bounded(bz2.BZ2Decompressor()),
    ".xz": lambda: _Bounded(lzma.LZMADecompressor(memlimit=XZ_MEMORY)),
    ".zst": _Zstandard,
}


def packing(name: str) -> str:
    """The suffix that says how a file is packed; empty if it is not."""
    return next((suffix for suffix in _UNPACKERS if name.lower().endswith(suffix)), "")


def open_file(file: File) -> BinaryIO:
    """The raw bytes of a file, to be closed; at its start, whatever part of it is meant.

    Raises:
        OSError: it cannot be opened.
    """
    if "://" not in file.path:
        if not stat.S_ISREG(Path(file.path).stat().st_mode):
            # Opening a pipe waits for its writer, and a device has no end.
            raise OSError(errno.EINVAL, "it is no regular file")
        return Path(file.path).open("rb")
    return cast(BinaryIO, importlib.import_module("fsspec").open(file.path, "rb").open())


def chunks(file: File) -> Iterator[bytes]:
    """The bytes of a file or of its part, unpacked as its name tells.

    Raises:
        OSError: it cannot be opened or read.
        Damage: the rest of the archive cannot be unpacked.
    """
    with open_file(file) as stream:
        stream.seek(file.start)
        left = None if file.end is None else file.end - file.start
        yield from unpacked(pieces(stream, left), packing(file.path))


def pieces(stream: BinaryIO, left: int | None = None) -> Iterator[bytes]:
    """What a stream still holds, or at most `left` bytes of it."""
    while left is None or left > 0:
        piece = stream.read(CHUNK if left is None else min(CHUNK, left))
        if not piece:
            return
        if left is not None:
            left -= len(piece)
        yield piece


def unpacked(packed: Iterable[bytes], suffix: str) -> Iterator[bytes]:
    """The content of all members (gzip) or frames (zstd, xz, bz2) of a stream, one after the other.

    Raises:
        Damage: it ends early, is broken, or grows out of all proportion.
    """
    return _members(packed, _UNPACKERS[suffix]) if suffix else iter(packed)


def _members(packed: Iterable[bytes], unpacker: Callable[[], _Unpacker]) -> Iterator[bytes]:
    member, eaten, made, anything = unpacker(), 0, 0, False
    for data in packed:
        eaten += len(data)
        while data:
            if member.eof:
                data = data.lstrip(b"\0")  # Tapes and xz pad with zeros.
                if not data:
                    break
                member = unpacker()
            anything = True
            try:
                for piece in member.feed(data):
                    made += len(piece)
                    if made > RATIO_FROM and made > MAX_RATIO * eaten:
                        raise Damage(f"it unpacks to more than {MAX_RATIO} times its size")
                    if piece:
                        yield piece
            except member.errors as error:
                raise Damage(str(error)) from None
            data = member.unused_data if member.eof else b""
    if anything and not member.eof:
        raise Damage("it ends early")

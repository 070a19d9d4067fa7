"""`manifest.json` of a prepared folder: what went in, what was dropped and why, what came out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from preheat.errors import Problem, Where, refuse

SCHEMA = "preheat.data/1"
FILE_NAME = "manifest.json"


@dataclass(frozen=True)
class Inputs:
    """What was read. `listing` is a hash of names and sizes, cheap to compare; `sha256` one of all contents."""

    files: int
    bytes: int
    listing: str
    sha256: str
    against: Mapping[str, str] = field(default_factory=dict)
    """Prepared folders whose documents were left out here -> their fingerprints then."""
    tasks: Mapping[str, str] = field(default_factory=dict)
    """Files of evaluation tasks whose text was left out -> their SHA-256 then."""


@dataclass(frozen=True)
class TokenizerUsed:
    """The tokenizer, saved in the folder as `file`. Every document ends with `eod`, and begins with `bos` where there is one."""

    kind: str
    file: str
    vocab_size: int
    eod: int
    fingerprint: str
    bos: int | None = None
    eod_name: str = ""
    """How the tokenizer writes `eod`."""
    bos_name: str | None = None


@dataclass(frozen=True)
class Funnel:
    """From the documents read to those kept: `documents` = dropped ones + `kept`. Bytes are of what the files hold, unpacked."""

    documents: int
    bytes: int
    repaired: Mapping[str, int]
    """What was mended while reading -> how often."""
    edited: Mapping[str, int]
    """Cleaning step -> documents it changed."""
    dropped: Mapping[str, Mapping[str, int]]
    """Step -> reason -> documents."""
    kept: int

    def __str__(self) -> str:
        steps = [f"{step}: {', '.join(f'{n:,} {reason}' for reason, n in reasons.items())}" for step, reasons in self.dropped.items()]
        dropped = f"{self.documents - self.kept:,} dropped" + (f" ({'; '.join(steps)})" if steps else "")
        edited = "; documents edited: " + ", ".join(f"{count:,} {what}" for what, count in self.edited.items()) if self.edited else ""
        mended = "".join(f"; {count:,} {what}" for what, count in self.repaired.items())
        return f"documents: {self.documents:,} read, {dropped}, {self.kept:,} kept{edited}{mended}"


@dataclass(frozen=True)
class Split:
    """One side of a source: `prefix`.bin and .idx, or those of `shards`, one after the other, where there are any.

    `tokens` counts the end of each document, `bytes` are those of the text in UTF-8.
    """

    prefix: str
    documents: int
    tokens: int
    bytes: int
    shards: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedSource:
    """What became of a source."""

    name: str
    licence: str
    format: str
    policy: str
    funnel: Funnel
    train: Split
    held_out: Split


@dataclass(frozen=True)
class FileEntry:
    """Size in bytes and SHA-256 of a file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Index:
    """How the index of the documents was made, by which later preparations know them: the version of the rules, and the parameters of the
    MinHash bands, None where there are none.
    """

    rules: int
    signature: tuple[int, ...] | None


@dataclass(frozen=True)
class Manifest:
    """The whole prepared folder.

    `configuration` is a hash of what was asked for: sources, cleaning, tokenizer, vocabulary size. `fingerprint` is one of that and of the
    content of all files: two folders with the same one train the same model.
    """

    schema: str
    configuration: str
    fingerprint: str
    inputs: Inputs
    tokenizer: TokenizerUsed
    dtype: str
    sources: tuple[PreparedSource, ...]
    files: Mapping[str, FileEntry]
    index: Index | None = None
    """None for token ids that were imported."""

    def source(self, name: str) -> PreparedSource:
        """A source by name.

        Raises:
            PreheatError: there is none of that name.
        """
        found = next((source for source in self.sources if source.name == name), None)
        if found is None:
            refuse(
                "data.source", f"there is no source {name!r}", f"there are {', '.join(s.name for s in self.sources)}", "Name one of them"
            )
        return found

    def save(self, folder: Path) -> None:
        """Write `manifest.json`."""
        (folder / FILE_NAME).write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", "utf-8")

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read `manifest.json` and hold the sizes of all files against it.

        Raises:
            PreheatError: there is no manifest, it is of another version, or a file is missing or has another size.
        """
        path = folder / FILE_NAME
        try:
            content = path.read_bytes()
        except OSError:
            refuse("data.manifest", "there is no prepared data", "", "Prepare it: preheat data prepare RECIPE", file=folder)
        try:
            manifest = _ADAPTER.validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            got = f"{'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}"
            refuse("data.manifest", got, f"a manifest of schema {SCHEMA}", "Prepare the data again, into a new folder", file=path)
        if manifest.schema != SCHEMA:
            refuse("data.manifest", f"schema {manifest.schema!r}", f"this version reads {SCHEMA!r}", "Prepare the data again", file=path)
        for name, entry in manifest.files.items():
            file = folder / name
            size = file.stat().st_size if file.is_file() else None
            if size != entry.size:
                got = "the file is missing" if size is None else f"the file has {size:_} bytes"
                refuse("data.damaged", got, f"the manifest says {entry.size:_}", "Delete the folder and prepare again", file=file)
        return manifest

    def damage(self, folder: Path) -> list[Problem]:
        """The files whose content is not what was written, by their SHA-256."""
        return [
            Problem(
                "data.damaged",
                "the content changed",
                "it has another checksum",
                "Delete the folder and prepare again",
                Where(str(folder / name)),
            )
            for name, entry in self.files.items()
            if entry_of(folder / name).sha256 != entry.sha256
        ]


def entry_of(path: Path) -> FileEntry:
    """Size and checksum of a file."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return FileEntry(path.stat().st_size, digest)


_ADAPTER = TypeAdapter(Manifest)

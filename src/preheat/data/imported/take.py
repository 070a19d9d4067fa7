"""From files of ready token ids to a prepared folder: checked, divided into training and held-out side, with a manifest."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import IO

import numpy as np

from preheat import recipe
from preheat.data import indexed, split
from preheat.data import tokenizer as tokenizers
from preheat.data.document import Document, exclude
from preheat.data.imported.documents import EMPTY, Found, documents, is_empty
from preheat.data.imported.formats import Ids, TokenFile, recognised
from preheat.data.manifest import SCHEMA, FileEntry, Funnel, Inputs, Manifest, PreparedSource, Split, entry_of
from preheat.data.pipeline.run import Progress
from preheat.data.pipeline.writing import DOCUMENTS, EXCLUSIONS
from preheat.data.prepare import configuration, existing, listing, refuse_names
from preheat.data.sources import File, resolve
from preheat.data.tokenizer import Tokenizer
from preheat.data.workspace import CONTENT, workspace
from preheat.errors import PreheatError, Problem, RunFailed, refuse

FORMAT = "tokens"
SIDES = ("train", "held_out")


def take(data: recipe.Data, tokenizer: recipe.Tokenizer, vocab_size: int, *, folder: Path, out: Path, progress: Progress) -> Manifest:
    """Take the sources of `data`, all of format "tokens", into the folder `out`, or find them there.

    The ids stay as they are; a document gets an end where it has none. The held-out side is chosen by a hash of the ids, so that a document
    stays on its side when the data grows. The files are read twice, memory holds the longest document.

    Raises:
        PreheatError: a file is foreign or damaged, an id is outside of the vocabulary, or documents have no ends.
        RunFailed: the disk is full.
    """
    refuse_names(data)
    texts = [source.name for source in data.source if source.format != FORMAT]
    if texts:
        fix = "Prepare the text into a folder of its own, and import its .bin and .idx beside the others"
        refuse(
            "data.import", f"the sources {', '.join(texts)} are text", f'here all have format = "{FORMAT}"', fix, key="data.source.format"
        )
    if tokenizer.kind == "train-bpe":
        got = 'the tokenizer is of kind "train-bpe"'
        refuse("data.import", got, "ids are of a tokenizer that exists", 'Name it: kind = "gpt2" or "file"', key="tokenizer.kind")
    found = existing(data, tokenizer, vocab_size, folder, out, progress)
    if found is not None:
        return found
    built = tokenizers.build(tokenizer, vocab_size, folder=folder, texts=())
    files = [resolve(source, folder) for source in data.source]
    try:
        with workspace(out) as work:
            try:
                content = work / CONTENT
                built.save(content)
                (content / EXCLUSIONS).touch()
                taken = [
                    _source(source, recognised(own), data, built, content, progress) for source, own in zip(data.source, files, strict=True)
                ]
                asked = configuration(data, tokenizer, vocab_size)
                inputs = _inputs(files, listing(data, tokenizer, folder, files))
                _manifest(content, asked, inputs, tokenizer, built, taken).save(content)
            except (PreheatError, OSError):
                shutil.rmtree(work, ignore_errors=True)  # Unlike a preparation, the next one begins anew.
                raise
    except OSError as error:
        got = f"the imported data cannot be written: {error.strerror or error}"
        raise RunFailed(Problem("data.write", got, "", "Make room, and import again")) from error
    return Manifest.load(out)


def _source(
    source: recipe.Source, files: Sequence[TokenFile], data: recipe.Data, tokenizer: Tokenizer, content: Path, progress: Progress
) -> PreparedSource:
    """Write both sides of a source."""
    kinds = sorted({file.format for file in files})
    progress(f"{source.name}: {len(files):,} files, {', '.join(kinds)}, {sum(file.file.size for file in files) / 1e6:.1f} MB")
    found = Found()
    positions = array("Q", (split.position(_key(ids)) for _, ids in documents(files, tokenizer, found) if not is_empty(ids)))
    if not positions:
        got = f"source {source.name}: no document among {found.documents:_}"
        refuse("data.empty", got, "one document at least must be trained on", "Correct its paths", key="data.source.paths")
    if tokenizer.bos is not None and found.begun != len(positions):
        got = f"source {source.name}: {found.begun:_} of {len(positions):_} documents begin with {tokenizer.bos}"
        want = f"tokenizer.bos puts {tokenizer.decode([tokenizer.bos])} before each"
        refuse("data.import", got, want, "Remove tokenizer.bos, or import ids that begin with it", key="tokenizer.bos")
    held_out = split.held_out(source.name, np.array(positions, np.uint64), data.held_out)
    sides = _write(source.name, documents(files, tokenizer, Found()), held_out.tolist(), tokenizer, content, data.shard_bytes)
    repaired = {what: count for what, count in sorted(found.mended.items()) if count}
    dropped = {"read": {EMPTY: found.empty}} if found.empty else {}
    size = sum(file.file.size for file in files)
    funnel = Funnel(found.documents, size, repaired, {}, dropped, len(positions))
    progress(f"{source.name}: {funnel}")
    return PreparedSource(source.name, source.licence, FORMAT, "", funnel, *sides)


def _write(
    name: str, found: Iterator[tuple[str, Ids]], held_out: list[bool], tokenizer: Tokenizer, content: Path, limit: int | None
) -> list[Split]:
    """Documents as `NAME_train` and `NAME_held_out`, and their lines in `documents.jsonl`, training documents first; those without
    text in `exclusions.jsonl`.
    """
    dtype, lengths = indexed.dtype_for(tokenizer.vocab_size), tokenizer.byte_lengths()
    counts = dict.fromkeys(SIDES, (0, 0, 0))
    later = content.parent / "held_out.jsonl"
    with ExitStack() as stack:
        limits = dict(zip(SIDES, (limit, None), strict=True))
        writers = [stack.enter_context(indexed.Writer(content / f"{name}_{side}", dtype, limits[side])) for side in SIDES]
        lines: list[IO[str]] = [
            stack.enter_context(path.open(mode, encoding="utf-8")) for path, mode in ((content / DOCUMENTS, "a"), (later, "w"))
        ]
        excluded, sides = stack.enter_context((content / EXCLUSIONS).open("a", encoding="utf-8")), iter(held_out)
        for label, ids in found:
            if is_empty(ids):
                row = asdict(exclude(Document(name, label, ""), "read", EMPTY))
                excluded.write(json.dumps(row, ensure_ascii=False) + "\n")
                continue
            held = next(sides)
            side, size = SIDES[held], int(lengths[ids].sum())
            writers[held].add(ids)
            row = {"source": name, "split": side, "id": label, "bytes": size, "tokens": len(ids)}
            lines[held].write(json.dumps(row, ensure_ascii=False) + "\n")
            known = counts[side]
            counts[side] = known[0] + 1, known[1] + len(ids), known[2] + size
    with (content / DOCUMENTS).open("ab") as stream:
        stream.write(later.read_bytes())
    numbered = re.compile(re.escape(f"{name}_{SIDES[0]}-") + r"[0-9]+")
    shards = tuple(sorted(path.stem for path in content.glob("*.idx") if numbered.fullmatch(path.stem)))
    return [Split(f"{name}_{side}", *counts[side], shards if side == SIDES[0] else ()) for side in SIDES]


def _key(ids: Ids) -> bytes:
    """What the side of a document hangs on: its ids, whatever the type in which a file holds them."""
    return hashlib.sha256(ids.astype("<i8").tobytes()).digest()


def _inputs(files: Sequence[Sequence[File]], names: str) -> Inputs:
    flat = [file for own in files for file in own]
    digests = "\n".join(entry_of(Path(file.path)).sha256 for file in flat)
    return Inputs(len(flat), sum(file.size for file in flat), names, hashlib.sha256(digests.encode()).hexdigest())


def _manifest(
    content: Path, asked: str, inputs: Inputs, tokenizer: recipe.Tokenizer, built: Tokenizer, taken: Sequence[PreparedSource]
) -> Manifest:
    files: dict[str, FileEntry] = {path.name: entry_of(path) for path in sorted(content.iterdir())}
    identity = {"configuration": asked, "files": {name: entry.sha256 for name, entry in files.items()}}
    dtype = str(indexed.dtype_for(built.vocab_size))
    return Manifest(SCHEMA, asked, recipe.fingerprint(identity), inputs, built.used(tokenizer.kind), dtype, tuple(taken), files)

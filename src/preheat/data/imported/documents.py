"""From pieces of ids to documents, each with one end-of-document token, at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from preheat.data.imported.formats import Ids, Piece, TokenFile
from preheat.data.tokenizer import Tokenizer
from preheat.errors import refuse

ADDED, DIVIDED, EMPTY = "end of document added", "divided at an end of document", "empty"


@dataclass
class Found:
    """What was seen. `mended` counts documents whose end was added, and ends inside of what the file calls a document."""

    documents: int = 0
    mended: Counter[str] = field(default_factory=Counter)
    empty: int = 0
    begun: int = 0
    """Documents that begin with the token that the recipe puts before a document."""


def documents(files: Iterable[TokenFile], tokenizer: Tokenizer, found: Found) -> Iterator[tuple[str, Ids]]:
    """Label and ids of each document of a source, in order; `found` counts along. `is_empty` tells those without text.

    A document ends at the end-of-document token, and where its file says that one ends. So a document that llm.c has cut at the end of
    a shard goes on in the next one, but not in a file that says where its documents begin; and files of raw ids need the token.

    Raises:
        PreheatError: an id is outside of the vocabulary, or raw ids have no end of document.
    """
    held: list[Ids] = []
    label, seen, raw = "", False, ""
    for piece in _checked(files, tokenizer):
        raw = raw or ("" if piece.ends else piece.label)
        if piece.ends and held:
            found.mended[ADDED] += 1
            yield _document(label, [*held, _end(tokenizer)], tokenizer, found)
            held = []
        ends = np.flatnonzero(piece.ids == tokenizer.eod) + 1
        seen = seen or len(ends) > 0
        begin = 0
        for end in ends.tolist():
            label = label if held else _moved(piece.label, begin)
            found.mended[DIVIDED] += piece.ends and end < len(piece.ids)
            yield _document(label, [*held, piece.ids[begin:end]], tokenizer, found)
            held, begin = [], end
        if begin < len(piece.ids):
            label = label if held else _moved(piece.label, begin)
            held.append(piece.ids[begin:])
        if piece.ends and held:
            found.mended[ADDED] += 1
            yield _document(label, [*held, _end(tokenizer)], tokenizer, found)
            held = []
        elif piece.ends and not len(piece.ids):
            yield _document(piece.label, [piece.ids], tokenizer, found)
    if raw and not seen:
        got = f"{raw}: no id is {tokenizer.eod}"
        want = f"the tokenizer ends documents with {tokenizer.eod} ({tokenizer.decode([tokenizer.eod])})"
        refuse("data.import", got, want, "Name the tokenizer that the ids were made with, or its `eod`", key="tokenizer")
    if held:
        found.mended[ADDED] += 1
        yield _document(label, [*held, _end(tokenizer)], tokenizer, found)


def is_empty(ids: Ids) -> bool:
    """Whether nothing is in a document but its end."""
    return len(ids) < 2


def _document(label: str, parts: list[Ids], tokenizer: Tokenizer, found: Found) -> tuple[str, Ids]:
    ids = parts[0] if len(parts) == 1 else np.concatenate([part.astype(np.int64) for part in parts])
    found.documents += 1
    if is_empty(ids):
        found.empty += 1
    else:
        found.begun += tokenizer.bos is not None and int(ids[0]) == tokenizer.bos
    return label, ids


def _end(tokenizer: Tokenizer) -> Ids:
    return np.array([tokenizer.eod], np.int64)


def _moved(label: str, by: int) -> str:
    """The label of what begins `by` ids later."""
    name, mark, number = label.rpartition("@")
    return f"{name}@{int(number) + by}" if mark else f"{label}+{by}" if by else label


def _checked(files: Iterable[TokenFile], tokenizer: Tokenizer) -> Iterator[Piece]:
    """The pieces of all files.

    Raises:
        PreheatError: an id is outside of the vocabulary.
    """
    for file in files:
        for piece in file.pieces():
            if len(piece.ids) and (int(piece.ids.min()) < 0 or int(piece.ids.max()) >= tokenizer.vocab_size):
                first = int(np.flatnonzero((piece.ids < 0) | (piece.ids >= tokenizer.vocab_size))[0])
                got = f"{_moved(piece.label, first)}: the id is {piece.ids[first]:_}"
                want = f"the tokenizer has {tokenizer.vocab_size:_} entries"
                refuse("data.import", got, want, "Name the tokenizer that the ids were made with", file=file.file.path)
            yield piece

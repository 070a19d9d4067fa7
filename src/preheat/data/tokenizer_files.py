"""Other files of tokenizers as the content of a `tokenizer.json`: tiktoken's ranks, SentencePiece's models. Nothing in them is run."""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from preheat.data.encoders import LLAMA3_PATTERN, all_merges, byte_names
from preheat.errors import refuse

LLAMA3_RANKS = 128_000
LLAMA3_SPECIAL = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    *(f"<|reserved_special_token_{n}|>" for n in range(4)),
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|reserved_special_token_4|>",
    "<|eot_id|>",
    *(f"<|reserved_special_token_{n}|>" for n in range(5, 251)),
)
"""The 256 special tokens that Llama 3 puts behind the 128,000 entries of its file, in their order."""
SPACE = "▁"
"""How SentencePiece writes a space."""
_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def tokenizer_json(path: Path) -> str:
    """The content of a tokenizer.json, of whatever kind the file is.

    Raises:
        PreheatError: it cannot be read.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        refuse("tokenizer.file", f"{error.strerror}", "", "Correct the path of the tokenizer", file=path)
    if path.suffix != ".json" and _is_ranks(raw):
        return json.dumps(_from_ranks(raw, path), ensure_ascii=False)
    if path.suffix == ".model":
        return json.dumps(_from_sentencepiece(raw, path), ensure_ascii=False)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        refuse("tokenizer.file", "the file is no text", "", "Name a tokenizer.json, a .tiktoken or a .model", file=path)


def _is_ranks(raw: bytes) -> bool:
    first = raw[:400].split(b"\n", 1)[0].split()
    return len(first) == 2 and first[1].isdigit()


def _from_ranks(raw: bytes, path: Path) -> dict[str, Any]:
    """Lines of a token in base64 and its rank, which is its id. The file does not say how text is split and which special tokens
    follow: those of Llama 3 are known here.
    """
    names = {byte: name for name, byte in byte_names().items()}
    vocab: dict[str, int] = {}
    for number, line in enumerate(raw.splitlines(), start=1):
        try:
            token, rank = line.split()
            vocab["".join(names[byte] for byte in base64.b64decode(token, validate=True))] = int(rank)
        except (ValueError, binascii.Error):
            refuse("tokenizer.file", f"{line[:40]!r}", "a line is a token in base64 and its rank", "Fetch it again", file=path, line=number)
    if sorted(vocab.values()) != list(range(len(vocab))) or not set(byte_names()) <= vocab.keys():
        got = f"{len(vocab):_} tokens with ranks up to {max(vocab.values(), default=-1):_}"
        refuse("tokenizer.file", got, "every rank from 0 on once, and every byte", "Fetch it again", file=path)
    if len(vocab) != LLAMA3_RANKS:
        got, want = f"{len(vocab):_} tokens", f"Llama 3 has {LLAMA3_RANKS:_}, and a file of ranks does not say how others split text"
        refuse("tokenizer.file", got, want, "Name its tokenizer.json instead", file=path)
    splits = {"type": "Split", "pattern": {"Regex": LLAMA3_PATTERN}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    added = [{"id": len(vocab) + n, "content": name, "special": True} | _FLAGS for n, name in enumerate(LLAMA3_SPECIAL)]
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [splits, byte_level]},
        "post_processor": None,
        "decoder": byte_level | {"use_regex": True},
        "model": {"type": "BPE", "ignore_merges": True, "vocab": vocab, "merges": all_merges(vocab)},
    }


_NORMAL, _CONTROL, _UNUSED, _BYTE = 1, 3, 5, 6
_KINDS = {1: "unigram", 2: "BPE", 3: "word", 4: "character"}


def _from_sentencepiece(raw: bytes, path: Path) -> dict[str, Any]:
    """A model as `sentencepiece_model.proto` describes it: pieces in field 1, trainer in 2, normalizer in 3."""
    try:
        fields = list(_fields(raw))
        pieces = [_piece(content) for number, content in fields if number == 1]
        trainer, normalizer = (dict(_fields(b"".join(c for n, c in fields if n == number))) for number in (2, 3))
        name = normalizer.get(1, b"").decode()
        kind = trainer.get(3, 1)
    except (ValueError, IndexError, struct.error, TypeError, AttributeError, UnicodeDecodeError) as error:
        refuse("tokenizer.file", f"no SentencePiece model that can be read ({error})", "", "Fetch it again", file=path)
    bytes_ = {piece for piece, _, of in pieces if of == _BYTE}
    lossy = [
        (kind != 2, f"the model is a {_KINDS.get(kind, kind)} model", "only BPE models are read"),
        (len(bytes_) != 256, f"{len(bytes_)} pieces stand for single bytes", "256 do, so that every text can be written (byte_fallback)"),
        (
            name != "identity" or bool(normalizer.get(2)),
            f"the text is normalized by {name or 'rules of its own'}",
            "identity: the text stays as it is",
        ),
        (bool(normalizer.get(4, 1)), "white space is removed", "remove_extra_whitespaces = false"),
        (any(of not in (_NORMAL, 2, _CONTROL, _UNUSED, _BYTE) for *_, of in pieces), "there are user-defined pieces", "none"),
    ]
    for wrong, got, want in lossy:
        if wrong:
            refuse("tokenizer.file", got, want, "Choose another tokenizer, or one converted to a tokenizer.json", file=path)
    vocab = {piece: number for number, (piece, _, _) in enumerate(pieces)}
    ordered = sorted((-score, number, piece) for number, (piece, score, of) in enumerate(pieces) if of == _NORMAL)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prefix = [{"type": "Prepend", "prepend": SPACE}] if normalizer.get(3, 1) else []
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": n, "content": piece, "special": True} | _FLAGS for n, (piece, _, of) in enumerate(pieces) if of in (2, _CONTROL)
        ],
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, spaces]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": _decoders(bool(prefix))},
        "model": {
            "type": "BPE",
            "unk_token": next((piece for piece, _, of in pieces if of == 2), None),
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocab,
            "merges": all_merges({piece: rank for rank, (*_, piece) in enumerate(ordered)}),
        },
    }


def _decoders(prefix: bool) -> Sequence[dict[str, Any]]:
    strip: list[dict[str, Any]] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    return [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]


def _piece(content: bytes) -> tuple[str, float, int]:
    """Text, score and kind of a piece."""
    fields = dict(_fields(content))
    (score,) = struct.unpack("<f", fields.get(2, b"\0" * 4))
    return fields[1].decode() if 1 in fields else "", score, fields.get(3, _NORMAL)


def _fields(raw: bytes) -> Iterator[tuple[int, Any]]:
    """Number and content of each field of a message of protocol buffers: an integer, or bytes."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(raw, at)
            yield number, value
            continue
        size, at = _varint(raw, at) if wire == 2 else ({1: 8, 5: 4}.get(wire, -1), at)
        if size < 0 or at + size > len(raw):
            raise ValueError(f"a field at byte {at} ends behind the file")
        yield number, raw[at : at + size]
        at += size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError(f"no number ends at byte {at}")

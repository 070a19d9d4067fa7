"""Files of other tokenizers against the programs that made them, and the tokens that end and begin a document."""

import base64
import json
from pathlib import Path

import pytest
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat import recipe
from preheat.data import tokenizer_files
from preheat.data.encoders import LLAMA3_PATTERN
from preheat.data.tokenizer import Tokenizer, build, train
from preheat.errors import PreheatError

FIXTURES = Path(__file__).parents[1] / "fixtures/tokenizers"
# The ids that sentencepiece 0.2.3 gives with these models, which it learned from a page of English.
PUBLISHED = json.loads((FIXTURES / "sentencepiece.json").read_text("utf-8"))
any_text = st.text(max_size=100) | st.text(" \n\t\r'sdtAé1\uff12Ⅷ½_.-\u00a0\u2003\u3000\u0301我🙂<|endoftext|>", max_size=60)


def from_file(path, vocab_size=200_000, **fields):
    return build(recipe.Tokenizer(kind="file", path=path.name, **fields), vocab_size, folder=path.parent, texts=())


@pytest.mark.parametrize("name", ["prefixed", "bare"])
def test_sentencepiece_models_give_the_ids_of_sentencepiece(name):
    tokenizer = from_file(FIXTURES / f"{name}.model")
    assert (tokenizer.vocab_size, tokenizer.eod) == (420, 2)
    for text, ids in PUBLISHED[name]:
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == text
        # Where a space is put before the text, it is one byte more.
        assert tokenizer.byte_lengths()[ids].sum() == len(text.encode()) + (name == "prefixed")


@settings(max_examples=200, deadline=None)
@given(any_text.filter(lambda text: "▁" not in text))
def test_every_text_comes_back_from_sentencepiece_models(text):
    for name in ("prefixed", "bare"):
        tokenizer = from_file(FIXTURES / f"{name}.model")
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert not {0, 1, 2} & set(ids)


def test_sentencepiece_models_are_saved_as_a_tokenizer_json_that_means_the_same(tmp_path):
    tokenizer = from_file(FIXTURES / "prefixed.model", bos="<s>")
    tokenizer.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.fingerprint, loaded.bos, loaded.eod) == (tokenizer.fingerprint, 1, 2)
    assert loaded.encode_document("Hello world").tolist() == [1, *dict(map(tuple_of, PUBLISHED["prefixed"]))["Hello world"], 2]
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert library.encode("Hello world").ids == tokenizer.encode("Hello world")
    assert library.decode(tokenizer.encode("Hello world")) == "Hello world"


def tuple_of(row):
    return row[0], tuple(row[1])


def test_models_that_lose_text_are_refused():
    with pytest.raises(PreheatError, match="a unigram model; only BPE models are read"):
        from_file(FIXTURES / "unigram.model")


@pytest.mark.parametrize("size", range(0, 6000, 251))
def test_a_cut_model_is_refused(tmp_path, size):
    (tmp_path / "x.model").write_bytes((FIXTURES / "prefixed.model").read_bytes()[:size])
    with pytest.raises(PreheatError, match=r"x\.model"):
        from_file(tmp_path / "x.model")


@pytest.fixture(scope="module")
def learned():
    return train(["some words and other words, another word and the others in these words"] * 3, 276)


@pytest.fixture(scope="module")
def ranks(learned):
    """The entries of the learned tokenizer, single bytes first, as tiktoken counts them."""
    return {piece: rank for rank, piece in enumerate(piece for piece in learned.pieces if piece)}


@pytest.fixture
def llama3(ranks, tmp_path, monkeypatch):
    """A file as Llama 3's, with fewer entries."""
    monkeypatch.setattr(tokenizer_files, "LLAMA3_RANKS", len(ranks))
    lines = [base64.b64encode(piece) + b" %d\n" % rank for piece, rank in ranks.items()]
    (tmp_path / "tokenizer.model").write_bytes(b"".join(lines))
    return tmp_path / "tokenizer.model"


def test_ranks_give_the_ids_of_tiktoken_and_of_the_tokenizers_library(llama3, ranks):
    tokenizer = from_file(llama3)
    judge = tiktoken.Encoding("judge", pat_str=LLAMA3_PATTERN, mergeable_ranks=ranks, special_tokens={})
    library = tokenizers.Tokenizer.from_str(tokenizer.content)
    library.encode_special_tokens = True

    @settings(max_examples=200, deadline=None)
    @given(any_text)
    def check(text):
        ids = tokenizer.encode(text)
        assert ids == judge.encode_ordinary(text) == library.encode(text).ids
        assert tokenizer.decode(ids) == text

    check()
    long = "others " * 40_000 + "\n \n" * 50_000 + " \t" + "words"
    assert tokenizer.encode(long) == library.encode(long).ids


def test_llama3_has_its_special_tokens_behind_the_ranks(llama3, ranks):
    # From Meta's tokenizer.py: 256 of them; in the real file these are 128000, 128001 and 128009.
    tokenizer = from_file(llama3, bos="<|begin_of_text|>")
    assert tokenizer.vocab_size == len(ranks) + 256
    assert (tokenizer.bos, tokenizer.eod) == (len(ranks), len(ranks) + 1)
    assert tokenizer.decode([len(ranks) + 9, len(ranks) + 255]) == "<|eot_id|><|reserved_special_token_250|>"
    ids = tokenizer.encode_document("words <|end_of_text|> words").tolist()
    assert (ids[0], ids[-1]) == (tokenizer.bos, tokenizer.eod)
    assert max(ids[1:-1]) < len(ranks)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.replace(b" 9\n", b" 10\n", 1), "every rank from 0 on once"),
        (lambda raw: raw + b"!!! 270\n", "a token in base64"),
        (lambda raw: raw + b"YQ==\n", "a token in base64"),
        (lambda raw: raw[: raw.rindex(b"\n", 0, -1) + 1], "a file of ranks does not say how others split text"),
    ],
)
def test_damaged_and_unknown_ranks_are_refused(llama3, change, message):
    llama3.write_bytes(change(llama3.read_bytes()))
    with pytest.raises(PreheatError, match=message):
        from_file(llama3)


def test_the_end_of_a_document_is_one_token_of_the_vocabulary(llama3):
    # Case D15: the name of another tokenizer's token.
    with pytest.raises(
        PreheatError, match=r"'<\|endoftext\|>', which is no token of the vocabulary.*own end of a document is '<\|end_of_text\|>'"
    ):
        from_file(llama3, eod="<|endoftext|>")
    with pytest.raises(PreheatError, match=r"tokenizer\.bos is '<s>', which is no token"):
        from_file(llama3, bos="<s>")
    with pytest.raises(PreheatError, match="to end and to begin a document"):
        from_file(llama3, bos="<|end_of_text|>")
    tokenizer = from_file(llama3, eod="<|eot_id|>")
    assert tokenizer.decode([tokenizer.eod]) == "<|eot_id|>"
    assert tokenizer.bos is None
    assert tokenizer.encode_document("")[-1] == tokenizer.eod


def test_chosen_ends_are_part_of_the_fingerprint_and_come_back(llama3, tmp_path):
    plain, chosen = from_file(llama3), from_file(llama3, eod="<|eot_id|>", bos="<|begin_of_text|>")
    assert plain.fingerprint != chosen.fingerprint
    for number, tokenizer in enumerate((plain, chosen)):
        folder = tmp_path / str(number)
        folder.mkdir()
        tokenizer.save(folder)
        loaded = Tokenizer.load(folder)
        assert (loaded.eod, loaded.bos, loaded.fingerprint) == (tokenizer.eod, tokenizer.bos, tokenizer.fingerprint)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"eos_token": 5}', "no name of a token"),
        ('{"eos_token": "<x>"}', "no token of the"),
    ],
)
def test_a_foreign_tokenizer_config_is_refused(learned, tmp_path, content, message):
    learned.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(PreheatError, match=message):
        Tokenizer.load(tmp_path)


def test_a_tokenizer_config_as_transformers_writes_it(learned, tmp_path):
    learned.save(tmp_path)
    config = {"eos_token": {"content": "<|endoftext|>", "lstrip": False}, "bos_token": "<|endoftext|>", "add_bos_token": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert (Tokenizer.load(tmp_path).eod, Tokenizer.load(tmp_path).bos) == (learned.eod, None)

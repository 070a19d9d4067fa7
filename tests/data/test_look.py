"""verify, stats, sample and merge: what the commands say of prepared data, against what was put into it."""

import hashlib
import json
import random
import subprocess
import sys

import numpy as np
import pytest

from preheat import recipe
from preheat.data import Manifest, indexed, prepare, sample, statistics, verify
from preheat.errors import PreheatError

WORDS = [a + b + c for a in "bcdfgst" for b in "aeiou" for c in ("", "n", "r")]


def text(seed, words=200):
    return " ".join(random.Random(seed).choices(WORDS, k=words)).capitalize() + "."


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Twenty texts of one to twenty hundred letters and more; three copies of one, a near-copy of another, and an empty file."""
    place = tmp_path_factory.mktemp("look")
    (place / "a").mkdir()
    for number in range(20):
        (place / f"a/{number:02}.txt").write_text(text(number, 100 + 20 * number))
    for copy in ("x", "y", "z"):
        (place / f"a/{copy}.txt").write_text(text(3, 160).upper())
    (place / "a/near.txt").write_text(text(5) + " indeed and more")
    (place / "a/05.txt").write_text(text(5))
    (place / "a/void.txt").write_text("")
    data = recipe.Data.model_validate({"source": [{"name": "a", "paths": ["a/*.txt"]}], "held_out": "10%"})
    prepare(data, recipe.Tokenizer(kind="train-bpe"), 300, folder=place, out=place / "out", progress=lambda line: None)
    return place / "out"


@pytest.fixture
def copied(prepared, tmp_path):
    """A copy that may be damaged, and a function that writes the changed checksums into its manifest."""
    for path in prepared.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())

    def sign():
        tree = json.loads((tmp_path / "manifest.json").read_text())
        for name in tree["files"]:
            content = (tmp_path / name).read_bytes()
            tree["files"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        (tmp_path / "manifest.json").write_text(json.dumps(tree))

    return tmp_path, sign


def test_what_was_written_is_in_order(prepared):
    assert verify(prepared) == []


def test_changed_bytes_are_found(copied):
    folder, _ = copied
    path = folder / "documents.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"a"', b'"b"', 1))
    assert [(p.rule, p.where.file) for p in verify(folder)] == [("data.damaged", str(path))]


def test_missing_and_cut_files_are_problems_too(copied):
    folder, _ = copied
    path = folder / "a_train.bin"
    path.write_bytes(path.read_bytes()[:-2])
    assert [(p.rule, p.where.file) for p in verify(folder)] == [("data.damaged", str(path))]
    path.unlink()
    assert [(p.got, p.where.file) for p in verify(folder)] == [("the file is missing", str(path))]
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(PreheatError, match="a manifest of schema"):
        verify(folder)


def test_contradictions_are_found_where_checksums_fit(copied):
    """A tokenizer that put no end, ids of another vocabulary, an index of another file."""
    folder, sign = copied
    manifest = Manifest.load(folder)
    path = folder / "a_train.bin"
    ids = np.fromfile(path, "<u2")
    for change, rules in (
        (lambda ids: np.where(ids == manifest.tokenizer.eod, 7, ids), {"data.count"}),
        (lambda ids: np.where(np.arange(len(ids)) == 1, manifest.tokenizer.eod, ids), {"data.count"}),
        (lambda ids: np.where(np.arange(len(ids)) == 1, 300, ids), {"data.ids"}),
        (lambda ids: np.roll(ids, 1), {"data.count"}),
    ):
        change(ids).astype("<u2").tofile(path)
        sign()
        assert {p.rule for p in verify(folder)} == rules
    ids.tofile(path)
    index = (folder / "a_train.idx").read_bytes()
    (folder / "a_train.idx").write_bytes(index[:34] + (7).to_bytes(4, "little") + index[38:])
    sign()
    assert {p.rule for p in verify(folder)} == {"data.indexed"}


def test_statistics_count_what_was_planted(prepared):
    own = statistics(prepared)["a"]
    assert (own.funnel.documents, own.funnel.kept) == (25, 20)
    # Four equal texts and a pair of similar ones.
    assert own.clusters == {2: 1, 4: 1}
    (pair,) = own.pairs
    assert {pair["gone"], pair["kept"]} == {"a/05.txt", "a: a/near.txt"}
    assert pair["similarity"] == pytest.approx(196 / 199, abs=0.005)
    lengths = np.diff(indexed.IndexedDataset(prepared / "a_train").starts_of_documents())
    assert (own.lengths[0], own.lengths[-1], own.lengths[3]) == (lengths.min(), lengths.max(), np.sort(lengths)[(len(lengths) - 1) // 2])
    rows = [json.loads(line) for line in (prepared / "documents.jsonl").read_text().splitlines()]
    assert own.bytes_per_token == pytest.approx(sum(row["bytes"] for row in rows) / sum(row["tokens"] for row in rows))


def test_a_sample_is_drawn_by_its_seed_alone(prepared):
    first = sample(prepared, "a", 5)
    assert len({document.id for document in first}) == 5
    assert sample(prepared, "a", 5) == first
    assert sample(prepared, "a", 3) == first[:3]
    assert sample(prepared, "a", 5, seed=2) != first
    assert len(sample(prepared, "a", 1000)) == Manifest.load(prepared).sources[0].train.documents
    assert "".join(first[0].pieces[:-1]) == first[0].text


def test_the_commands(prepared, copied):
    folder, _ = copied

    def call(*arguments, code=0):
        done = subprocess.run([sys.executable, "-m", "preheat", "data", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout

    assert json.loads(call("verify", str(prepared), "--json"))["ok"]
    assert json.loads(call("stats", str(prepared), "--json"))["sources"]["a"]["clusters"] == {"2": 1, "4": 1}
    shown = json.loads(call("sample", str(prepared), "--count", "2", "--split", "held_out", "--json"))["documents"]["a"]
    assert [d["id"] for d in shown] == [d.id for d in sample(prepared, "a", 2, split="held_out")]
    (folder / "documents.jsonl").write_bytes(b"x" * (folder / "documents.jsonl").stat().st_size)
    assert ": 1 problem\n" in call("verify", str(folder), code=1)


def test_merged_parts_are_the_whole(tmp_path):
    generator = np.random.default_rng(1)
    documents = [generator.integers(0, 60_000, length) for length in (3, 0, 5, 1, 9, 2)]
    dtype = np.dtype("<u2")
    indexed.write(tmp_path / "whole", documents, dtype)
    for name, part in (("a", documents[:2]), ("b", []), ("c", documents[2:])):
        indexed.write(tmp_path / name, part, dtype)
    indexed.merge([tmp_path / name for name in "abc"], tmp_path / "merged", dtype)
    for suffix in ("bin", "idx"):
        assert (tmp_path / f"merged.{suffix}").read_bytes() == (tmp_path / f"whole.{suffix}").read_bytes()
    with pytest.raises(PreheatError, match="int32 is wanted"):
        indexed.merge([tmp_path / "a"], tmp_path / "wide", np.dtype("<i4"))

"""Ready token ids, written here byte by byte as their programs write them, as prepared data."""

import json
import struct

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from preheat import recipe
from preheat.data import IndexedDataset, Manifest, documents, indexed, prepare, take, verify
from preheat.data.tokenizer import train
from preheat.errors import PreheatError, RunFailed

VOCAB = 280
WORDS = [
    "the cat sat on the mat",
    "a dog ran to the house and back",
    "in the beginning was the word",
    "rain falls on the plain",
    "the end of it",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train(WORDS * 20, VOCAB)


@pytest.fixture
def folder(tmp_path, tokenizer):
    place = tmp_path / "recipe"
    place.mkdir()
    (place / "t.json").write_text(tokenizer.content, "utf-8")
    return place


@pytest.fixture
def texts(tokenizer):
    """Ids of 60 documents without their ends."""
    return [tokenizer.encode(f"{WORDS[n % 5]} number {n} {WORDS[(n + 1) % 5]}") for n in range(60)]


def imported(folder, pattern="*.bin", held_out="10%", name="web", vocab_size=VOCAB, **fields):
    data = recipe.Data.model_validate(
        {"source": [{"name": name, "paths": [pattern], "format": "tokens", "licence": "CC0"}], "held_out": held_out}
    )
    spec = recipe.Tokenizer(kind="file", path="t.json", **fields)
    return take(data, spec, vocab_size, folder=folder, out=folder.parent / "out", progress=lambda line: None)


def found(out, name="web"):
    """All documents of both sides, as lists of ids."""
    sides = (IndexedDataset(out / f"{name}_{side}") for side in ("train", "held_out"))
    return [side.document(n).tolist() for side in sides for n in range(len(side))]


def expected(texts, tokenizer):
    return sorted([*text, tokenizer.eod] for text in texts)


def llmc(path, ids, magic=20240520, version=1, dtype="<u2"):
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(ids)
    path.write_bytes(header.tobytes() + np.array(ids, dtype).tobytes())


def test_llmc_shards_with_a_document_over_their_border(folder, texts, tokenizer):
    # fineweb.py of llm.c puts the end before each document and cuts shards at a number of ids.
    stream = [i for text in texts for i in (tokenizer.eod, *text)]
    llmc(folder / "train_000000.bin", stream[:501])
    llmc(folder / "train_000001.bin", stream[501:])
    manifest = imported(folder)
    out = folder.parent / "out"
    assert sorted(found(out)) == expected(texts, tokenizer)
    (source,) = manifest.sources
    assert source.train.documents + source.held_out.documents == 60
    assert source.funnel.repaired == {"end of document added": 1}  # the last one
    assert source.funnel.dropped == {"read": {"empty": 1}}  # before the first one
    assert source.train.bytes + source.held_out.bytes == sum(len(tokenizer.decode(text).encode()) for text in texts)
    assert source.licence == "CC0"
    assert verify(out) == []
    assert Manifest.load(out) == manifest


def test_llama3_shards_of_llmc_have_wide_ids(folder, texts, tokenizer):
    llmc(folder / "a.bin", [i for text in texts for i in (*text, tokenizer.eod)], magic=20240801, version=7, dtype="<u4")
    imported(folder)
    assert sorted(found(folder.parent / "out")) == expected(texts, tokenizer)


def test_nanogpt_raw_ids(folder, texts, tokenizer):
    np.array([i for text in texts for i in (*text, tokenizer.eod)], "<u2").tofile(folder / "train.bin")
    manifest = imported(folder)
    assert sorted(found(folder.parent / "out")) == expected(texts, tokenizer)
    assert manifest.sources[0].funnel.repaired == {}


def test_megatron_pairs_in_any_type_and_with_several_sequences(folder, texts, tokenizer):
    ends = [np.array([*text, tokenizer.eod]) for text in texts]
    indexed.write(folder / "a", ends[:30], np.dtype("<i4"))
    # As --split-sentences writes: documents of two sequences each; the second half without ends.
    parts = [(text[:3], text[3:]) for text in texts[30:]]
    lengths = [len(part) for pair in parts for part in pair]
    offsets = np.concatenate(([0], np.cumsum(lengths[:-1]))) * 2
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 60, 31)
    index = head + np.array(lengths, "<i4").tobytes() + offsets.astype("<i8").tobytes() + np.arange(0, 61, 2, dtype="<i8").tobytes()
    (folder / "b.idx").write_bytes(index)
    np.array([i for text in texts[30:] for i in text], "<u2").tofile(folder / "b.bin")
    manifest = imported(folder, "[ab].*")
    assert sorted(found(folder.parent / "out")) == expected(texts, tokenizer)
    assert manifest.sources[0].funnel.repaired == {"end of document added": 30}
    assert manifest.dtype == "uint16"


@pytest.mark.parametrize("kind", ["stream.arrow", "file.arrow", "x.parquet"])
@pytest.mark.parametrize("lists", [pyarrow.list_(pyarrow.int32()), pyarrow.large_list(pyarrow.int64())])
def test_tables_of_datasets(folder, texts, tokenizer, kind, lists):
    rows = [[*text, tokenizer.eod] for text in texts] + [[], None]
    table = pyarrow.table({"input_ids": pyarrow.array(rows, lists), "attention_mask": [[1] * len(row or []) for row in rows]})
    if kind == "x.parquet":
        pyarrow.parquet.write_table(table, folder / kind, row_group_size=7)
    else:
        new = pyarrow.ipc.new_stream if kind.startswith("stream") else pyarrow.ipc.new_file
        with new(folder / kind, table.schema) as stream:
            stream.write_table(table, max_chunksize=7)
    manifest = imported(folder, "*.arrow" if kind.endswith("arrow") else "*.parquet")
    assert sorted(found(folder.parent / "out")) == expected(texts, tokenizer)
    assert manifest.sources[0].funnel.dropped == {"read": {"empty": 2}}
    assert {d.text for d in documents(folder.parent / "out", "web", first=60)} <= {tokenizer.decode(text) for text in texts}


def test_a_document_that_holds_several_is_divided(folder, tokenizer):
    a, b, end = tokenizer.encode("one text"), tokenizer.encode("another"), tokenizer.eod
    indexed.write(folder / "x", [np.array([*a, end, *b, end]), np.array([*b, end, *a])], np.dtype("<u2"))
    manifest = imported(folder, held_out="0%")
    assert found(folder.parent / "out") == [[*a, end], [*b, end], [*b, end], [*a, end]]
    assert manifest.sources[0].funnel.repaired == {"divided at an end of document": 2, "end of document added": 1}


def test_a_document_stays_on_its_side_when_the_data_grows(folder, texts, tokenizer):
    def held(number):
        np.array([i for text in texts[:number] for i in (*text, tokenizer.eod)], "<u2").tofile(folder / "train.bin")
        data = recipe.Data.model_validate({"source": [{"name": "web", "paths": ["*.bin"], "format": "tokens"}], "held_out": "20%"})
        out = folder.parent / f"out{number}"
        take(data, recipe.Tokenizer(kind="file", path="t.json"), VOCAB, folder=folder, out=out, progress=lambda line: None)
        side = IndexedDataset(out / "web_held_out")
        return {tuple(side.document(n).tolist()) for n in range(len(side))}

    few, many = held(40), held(60)
    assert few <= many
    assert few


def test_a_beginning_is_counted_and_asked_for(folder, texts, tokenizer):
    tree = json.loads(tokenizer.content)
    tree["added_tokens"].append(tree["added_tokens"][0] | {"id": VOCAB, "content": "<|begin|>"})
    (folder / "t.json").write_text(json.dumps(tree))
    stream = [i for text in texts for i in (VOCAB, *text, tokenizer.eod)]
    np.array(stream, "<u2").tofile(folder / "train.bin")
    manifest = imported(folder, bos="<|begin|>", vocab_size=VOCAB + 1)
    assert (manifest.tokenizer.bos, manifest.tokenizer.eod) == (VOCAB, tokenizer.eod)
    assert verify(folder.parent / "out") == []
    np.array(stream[1:], "<u2").tofile(folder / "train.bin")
    (folder.parent / "out").rename(folder.parent / "before")
    with pytest.raises(PreheatError, match=r"59 of 60 documents begin with 280.*tokenizer\.bos"):
        imported(folder, bos="<|begin|>", vocab_size=VOCAB + 1)
    assert not (folder.parent / "out").exists()


def test_found_again_and_no_other_data_in_its_place(folder, texts, tokenizer):
    np.array([i for text in texts for i in (*text, tokenizer.eod)], "<u2").tofile(folder / "train.bin")
    first = imported(folder)
    assert imported(folder) == first
    with pytest.raises(PreheatError, match="another configuration"):
        imported(folder, held_out="20%")
    np.array([5, tokenizer.eod], "<u2").tofile(folder / "more.bin")
    with pytest.raises(PreheatError, match="sources have changed"):
        imported(folder)


def spoiled(folder, tokenizer):
    """Contents by what is wrong with them."""
    good = np.array([5, 6, tokenizer.eod] * 3, "<u2").tobytes()
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, 9
    return {
        "odd": good + b"\0",
        "beyond": np.array([5, 6, tokenizer.eod, 7, VOCAB], "<u2").tobytes(),
        "no end": np.array([5, 6, 7], "<u2").tobytes(),
        "short": header.tobytes() + good[:-2],
        "header": header.tobytes()[:100],
        "version": header.tobytes()[:4] + b"\2" + header.tobytes()[5:] + good,
        "checkpoint": (20240326).to_bytes(4, "little") + good,
        "nothing": b"",
        "only ends": np.array([tokenizer.eod] * 3, "<u2").tobytes(),
    }


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("odd", "19 bytes.*even"),
        ("beyond", r"x\.bin@4: the id is 280; the tokenizer has 280 entries"),
        ("no end", r"no id is 0; .*<\|endoftext\|>"),
        ("short", "1_040 bytes.*9 ids, which take 1_042"),
        ("header", "100 bytes.*1_024"),
        ("version", "version 2.*version 1"),
        ("checkpoint", "a model checkpoint of llm.c"),
        ("nothing", "no document among 0"),
        ("only ends", "no document among 3"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_and_leaves_nothing(folder, tokenizer, what, message):
    (folder / "x.bin").write_bytes(spoiled(folder, tokenizer)[what])
    with pytest.raises(PreheatError, match=message):
        imported(folder)
    assert [path.name for path in folder.parent.iterdir()] == ["recipe"]


@pytest.mark.parametrize("kind", ["<u4", "<i4", "<i8"])
def test_wide_ids_without_their_index_are_no_raw_ids(folder, texts, tokenizer, kind):
    """Read as 16-bit ones, every second id would be 0."""
    ids = np.concatenate([np.array([*text, tokenizer.eod]) for text in texts])
    (folder / "x.bin").write_bytes(ids.astype(kind).tobytes())
    with pytest.raises(PreheatError, match=r"ids of 32 or 64 bits.*Put its \.idx beside it"):
        imported(folder)


def test_ids_that_wrapped_are_refused(folder, tokenizer):
    """shoarora/transformers-trainers #12, case D22: the id 36,917 of a vocabulary of 119,546, kept in 16 bits with a sign."""
    ids = np.array([5, 36_917, tokenizer.eod]).astype("<i2")
    assert ids[1] == -28_619
    indexed.write(folder / "a", [ids], np.dtype("<i2"))
    with pytest.raises(PreheatError, match=r"a\.bin#0\+1: the id is -28_619; the tokenizer has 280 entries"):
        imported(folder)


def test_what_raw_ids_leave_open_ends_before_a_file_of_documents(folder, texts, tokenizer):
    ids = [*texts[0], tokenizer.eod, *texts[1]]
    (folder / "a.bin").write_bytes(np.array(ids, "<u2").tobytes())
    indexed.write(folder / "b", [np.array([*text, tokenizer.eod]) for text in texts[2:9]], np.dtype("<u2"))
    manifest = imported(folder)
    assert sorted(found(folder.parent / "out")) == expected(texts[:9], tokenizer)
    assert manifest.sources[0].funnel.repaired == {"end of document added": 1}


def test_documents_without_text_are_on_record(folder, texts, tokenizer):
    indexed.write(folder / "a", [np.array(ids) for ids in ([tokenizer.eod], texts[0], [], texts[1])], np.dtype("<u2"))
    imported(folder)
    rows = [json.loads(line) for line in (folder.parent / "out/exclusions.jsonl").read_text().splitlines()]
    assert [(row["source"], row["id"], row["step"], row["reason"]) for row in rows] == [
        ("web", "a.bin#0", "read", "empty"),
        ("web", "a.bin#2", "read", "empty"),
    ]
    assert sorted(found(folder.parent / "out")) == expected(texts[:2], tokenizer)


def test_shards_of_a_source_are_its_own(folder, texts, tokenizer):
    """One source is called as the other one's shards begin."""
    for name, part in (("a", texts[:20]), ("b", texts[20:40])):
        indexed.write(folder / name, [np.array([*text, tokenizer.eod]) for text in part], np.dtype("<u2"))
    sources = [{"name": name, "paths": [path], "format": "tokens"} for name, path in (("web_train-x", "a.bin"), ("web", "b.bin"))]
    data = recipe.Data.model_validate({"source": sources, "held_out": "10%", "shard_size": 1e-7})
    manifest = take(
        data, recipe.Tokenizer(kind="file", path="t.json"), VOCAB, folder=folder, out=folder.parent / "out", progress=lambda line: None
    )
    for source in manifest.sources:
        assert len(source.train.shards) > 1
        assert all(shard.startswith(f"{source.name}_train-0") for shard in source.train.shards)
    assert verify(folder.parent / "out") == []


def test_tables_without_ids_are_refused(folder):
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"]}), folder / "x.parquet")
    with pytest.raises(PreheatError, match=r"text \(string\); ids are lists of integers in input_ids"):
        imported(folder, "*.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"input_ids": [[1, None]]}), folder / "x.parquet")
    with pytest.raises(PreheatError, match="1 ids that are null"):
        imported(folder, "*.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"input_ids": [[1, -2]]}), folder / "x.parquet")
    with pytest.raises(PreheatError, match=r"x\.parquet#0\+1: the id is -2"):
        imported(folder, "*.parquet")
    twice = pyarrow.Table.from_arrays([pyarrow.array([[1]])] * 2, names=["input_ids", "input_ids"])
    pyarrow.parquet.write_table(twice, folder / "x.parquet")
    with pytest.raises(PreheatError, match=r"input_ids \(list.*\), input_ids \(list.*one column of that name"):
        imported(folder, "*.parquet")
    for name in ("x.parquet", "x.arrow", "x.csv"):
        (folder / name).write_bytes(b"PAR1 something else")
        with pytest.raises(PreheatError, match=rf"x\.{name[2:]}"):
            imported(folder, name)


def test_a_cut_arrow_file_is_refused(folder, texts, tokenizer):
    table = pyarrow.table({"input_ids": [[*text, tokenizer.eod] for text in texts]})
    with pyarrow.ipc.new_stream(folder / "x.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=7)
    whole = (folder / "x.arrow").read_bytes()
    for size in range(0, len(whole) - 8, 97):
        (folder / "x.arrow").write_bytes(whole[:size])
        with pytest.raises(PreheatError, match=r"x\.arrow|no document"):
            imported(folder, "*.arrow")


def test_text_and_ids_do_not_mix(folder, texts, tokenizer):
    np.array([i for text in texts for i in (*text, tokenizer.eod)], "<u2").tofile(folder / "train.bin")
    (folder / "a.txt").write_text("words")
    sources = [{"name": "ids", "paths": ["*.bin"], "format": "tokens"}, {"name": "prose", "paths": ["*.txt"]}]
    data = recipe.Data.model_validate({"source": sources})
    asked = (data, recipe.Tokenizer(kind="file", path="t.json"), VOCAB)
    with pytest.raises(PreheatError, match="prose are text"):
        take(*asked, folder=folder, out=folder.parent / "out", progress=print)
    with pytest.raises(PreheatError, match=r"ids are token ids; .*preheat data import"):
        prepare(*asked, folder=folder, out=folder.parent / "out", progress=print)


def test_a_learned_tokenizer_cannot_have_made_the_ids(folder, texts):
    data = recipe.Data.model_validate({"source": [{"name": "ids", "paths": ["*.bin"], "format": "tokens"}]})
    with pytest.raises(PreheatError, match="train-bpe"):
        take(data, recipe.Tokenizer(kind="train-bpe"), VOCAB, folder=folder, out=folder.parent / "out", progress=print)


def test_a_full_disk_is_said_and_leaves_nothing(folder, texts, tokenizer, monkeypatch):
    np.array([i for text in texts for i in (*text, tokenizer.eod)], "<u2").tofile(folder / "train.bin")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(indexed.Writer, "add", full)
    with pytest.raises(RunFailed, match="No space left"):
        imported(folder)
    assert not (folder.parent / "out").exists()
    monkeypatch.undo()
    imported(folder)


def test_verify_counts_beginnings(folder, texts, tokenizer):
    tree = json.loads(tokenizer.content)
    tree["added_tokens"].append(tree["added_tokens"][0] | {"id": VOCAB, "content": "<|begin|>"})
    (folder / "t.json").write_text(json.dumps(tree))
    np.array([i for text in texts for i in (VOCAB, *text, tokenizer.eod)], "<u2").tofile(folder / "train.bin")
    imported(folder, bos="<|begin|>", vocab_size=VOCAB + 1)
    path = folder.parent / "out/web_train.bin"
    ids = np.fromfile(path, "<u2")
    ids[0] = 5
    ids.tofile(path)
    (_, problem) = verify(folder.parent / "out")
    assert "documents that begin with the token 280" in problem.got

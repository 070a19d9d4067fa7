"""The whole way from files to a prepared folder, on small corpora, and what happens when it is disturbed."""

import errno
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
import tokenizers
from pyarrow import parquet

from preheat import recipe
from preheat.data import IndexedDataset, Manifest, Tokenizer, documents, prepare
from preheat.data.pipeline import Context, local_backend, plan
from preheat.data.pipeline.local import InProcess, Processes
from preheat.data.pipeline.run import Meter
from preheat.data.pipeline.stages import BY_NAME
from preheat.data.sources import File
from preheat.data.workspace import workspace
from preheat.errors import PreheatError, RunFailed
from preheat.units import Quantity

SYLLABLES = [a + b for a in "bcdfglmnprst" for b in ("a", "e", "i", "o", "u", "an", "er")]
VOCAB_SIZE = 400


def speech(seed, words=200):
    """Text with the shape of prose: invented words, sentences, paragraphs."""
    generator = random.Random(seed)
    sentences = []
    for _ in range(words // 10):
        sentence = " ".join("".join(generator.choices(SYLLABLES, k=generator.randint(1, 3))) for _ in range(10))
        sentences.append(sentence.capitalize() + ".")
    return "\n\n".join(" ".join(sentences[i : i + 5]) for i in range(0, len(sentences), 5)) + "\n"


@pytest.fixture
def folder(tmp_path):
    """Two sources: 40 speeches with a duplicate, a near-duplicate and a stub, and 30 records, three of them bad."""
    place = tmp_path / "recipe"
    (place / "speeches").mkdir(parents=True)
    for i in range(40):
        (place / f"speeches/{i:02}.txt").write_text(speech(i))
    (place / "speeches/copy.txt").write_text(speech(3).upper())
    (place / "speeches/reprint.txt").write_text(speech(4).replace(".", " indeed.", 1))
    (place / "speeches/stub.txt").write_text("Too short.")
    rows = [json.dumps({"text": speech(100 + i)}) for i in range(27)] + ['{"text": "broken', "[]", json.dumps({"text": speech(5)})]
    (place / "records.jsonl").write_text("\n".join(rows))
    return place


def data(*more, **fields):
    sources = [
        {"name": "speeches", "paths": ["speeches/*.txt"], "licence": "CC0-1.0"},
        {"name": "records", "paths": ["records.jsonl"], "format": "jsonl", "policy": "reference"},
        *more,
    ]
    return recipe.Data.model_validate({"source": sources, "held_out": "10%"} | fields)


def run(folder, out, spec=None, tokenizer=None, vocab_size=VOCAB_SIZE, workers=1):
    lines = []
    spec, tokenizer = spec or data(), tokenizer or recipe.Tokenizer(kind="train-bpe")
    manifest = prepare(spec, tokenizer, vocab_size, folder=folder, out=out, progress=lines.append, workers=workers)
    return manifest, "\n".join(lines)


def content(out):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()}


def rows(out, name):
    return [json.loads(line) for line in (out / name).read_text("utf-8").splitlines()]


def test_every_document_is_accounted_for(folder, tmp_path):
    out = tmp_path / "out"
    manifest, _ = run(folder, out)
    speeches, records = manifest.sources
    assert (speeches.funnel.documents, speeches.funnel.kept) == (43, 40)
    assert speeches.funnel.dropped == {"clean": {"too short": 1}, "duplicate": {"same text": 1}, "near-duplicate": {"similar text": 1}}
    assert speeches.funnel.bytes == sum(p.stat().st_size for p in (folder / "speeches").iterdir())
    assert (records.funnel.documents, records.funnel.kept) == (30, 27)
    assert records.funnel.dropped == {"read": {"broken JSON": 1, "no JSON object": 1}, "duplicate": {"same text": 1}}
    # Of equal texts the one with the lowest id stays, of similar ones the longest.
    assert {(r["source"], r["id"], r["step"], r["detail"].partition(",")[0]) for r in rows(out, "exclusions.jsonl")} == {
        ("speeches", "speeches/stub.txt", "clean", "11 characters"),
        ("speeches", "speeches/copy.txt", "duplicate", "as speeches: speeches/03.txt"),
        ("speeches", "speeches/04.txt", "near-duplicate", "to speeches: speeches/reprint.txt"),
        ("records", "records.jsonl:28", "read", ""),
        ("records", "records.jsonl:29", "read", ""),
        ("records", "records.jsonl:30", "duplicate", "as speeches: speeches/05.txt"),
    }
    assert {r["head"] for r in rows(out, "exclusions.jsonl") if r["id"].endswith("stub.txt")} == {"Too short."}


def test_what_is_on_disk_is_the_text(folder, tmp_path):
    out = tmp_path / "out"
    manifest, _ = run(folder, out)
    tokenizer = Tokenizer.load(out)
    library = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    seen = {}
    for source in manifest.sources:
        for side in (source.train, source.held_out):
            dataset = IndexedDataset(out / side.prefix)
            assert (len(dataset), dataset.token_count) == (side.documents, side.tokens)
            texts = []
            for number in range(len(dataset)):
                ids = dataset.document(number).tolist()
                assert ids[-1] == tokenizer.eod
                assert tokenizer.eod not in ids[:-1]
                texts.append(library.decode(ids[:-1]))
            assert sum(len(text.encode()) for text in texts) == side.bytes
            assert side.documents > 0
            seen[side.prefix] = texts
    assert set(seen) == {"speeches_train", "speeches_held_out", "records_train", "records_held_out"}
    labels = {(r["source"], r["split"]): [] for r in rows(out, "documents.jsonl")}
    for r in rows(out, "documents.jsonl"):
        labels[r["source"], r["split"]].append(r["id"])
    for label, text in zip(labels["speeches", "train"], seen["speeches_train"], strict=True):
        assert text == (folder / label).read_text()
    everything = [text for texts in seen.values() for text in texts]
    assert len(everything) == len(set(everything)) == 67


def test_order_of_files_number_of_processes_and_size_of_shards_change_nothing(folder, tmp_path, monkeypatch):
    _, log = run(folder, tmp_path / "a")
    assert "2 shards; 1 process" in log
    (folder / "speeches").rename(folder / "old")
    (folder / "speeches").mkdir()
    for path in sorted((folder / "old").iterdir(), reverse=True):
        (folder / "speeches" / path.name).write_bytes(path.read_bytes())
    for size, workers, shards in ((20_000, 2, 4), (1, 3, 60)):
        monkeypatch.setattr(plan, "MIN_SHARD", size)
        _, log = run(folder, tmp_path / str(size), workers=workers)
        found = re.search(r"in (\d+) shards; (\d) processes", log)
        assert (int(found[1]) > shards, int(found[2])) == (True, workers)
        assert content(tmp_path / "a") == content(tmp_path / str(size))


def test_a_second_run_finds_the_first(folder, tmp_path):
    first, _ = run(folder, tmp_path / "out")
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()}
    second, log = run(folder, tmp_path / "out")
    assert first == second
    assert "using the prepared data" in log
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()} == before
    (folder / "speeches").rename(folder / "gone")
    third, log = run(folder, tmp_path / "out")
    assert third == first
    assert "no longer there" in log


def test_the_fingerprint_tells_other_texts(folder, tmp_path):
    first, _ = run(folder, tmp_path / "a")
    path = folder / "speeches/07.txt"
    path.write_text(path.read_text().swapcase())
    second, _ = run(folder, tmp_path / "b")
    assert first.configuration == second.configuration
    assert first.inputs.listing == second.inputs.listing
    assert first.inputs.sha256 != second.inputs.sha256
    assert first.fingerprint != second.fingerprint


def test_names_of_files_need_not_be_text(folder, tmp_path):
    (folder / "speeches" / os.fsdecode(b"caf\xe9\n.txt")).write_text(speech(500))
    run(folder, tmp_path / "out")
    assert "speeches/caf\\udce9\n.txt" in {r["id"] for r in rows(tmp_path / "out", "documents.jsonl")}


def test_another_configuration_or_other_texts_are_refused(folder, tmp_path):
    out = tmp_path / "out"
    run(folder, out)
    before = content(out)
    for change in ({"vocab_size": 401}, {"spec": data(held_out="11%")}, {"spec": data(dedup={"near": False})}):
        with pytest.raises(PreheatError, match="another configuration"):
            run(folder, out, **change)
    (folder / "speeches/new.txt").write_text(speech(77))
    with pytest.raises(PreheatError, match=r"sources have changed \(45 files now\); they had 44"):
        run(folder, out)
    assert content(out) == before


def test_a_folder_of_someone_else_is_left_alone(folder, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    run(folder, out)  # An empty one is as good as none.
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    with pytest.raises(PreheatError, match="no prepared data"):
        run(folder, other)
    with pytest.raises(PreheatError, match="no prepared data"):
        run(folder, other / "thesis.tex")
    assert content(other) == {"thesis.tex": hashlib.sha256(b"years of work").hexdigest()}


def test_damage_is_noticed(folder, tmp_path):
    out = tmp_path / "out"
    manifest, _ = run(folder, out)
    path = out / "speeches_train.bin"
    original = path.read_bytes()
    assert manifest.damage(out) == []
    path.write_bytes(original[:-2] + b"\x01\x01")
    assert [str(p.where) for p in manifest.damage(out)] == [str(path)]
    path.write_bytes(original[:-2])
    with pytest.raises(PreheatError, match=r"speeches_train\.bin: the file has .* bytes"):
        run(folder, out)
    path.unlink()
    with pytest.raises(PreheatError, match="is missing"):
        Manifest.load(out)
    for text in ("", "{}", '{"schema": "preheat.data/9"}', (out / "manifest.json").read_text().replace("preheat.data/1", "preheat.data/9")):
        (out / "manifest.json").write_text(text)
        with pytest.raises(PreheatError, match=r"manifest\.json"):
            Manifest.load(out)
    with pytest.raises(PreheatError, match="no prepared data"):
        Manifest.load(tmp_path)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (recipe.Data(), "names no source"),
        (data({"name": "Speeches", "paths": ["records.jsonl"]}), "2 sources are called 'speeches'"),
        (data({"name": "x", "paths": ["empty.txt"]}), r"source x: nothing is left; documents: 1 read, 1 dropped \(read: 1 empty\), 0 kept"),
        (data({"name": "x", "paths": ["speeches/0*.txt"]}), r"source x: nothing is left; .* 10 dropped \(duplicate: 10 same text\)"),
        (
            data({"name": "x", "paths": ["records.jsonl"], "format": "jsonl", "text_field": "body"}),
            r"30 of 30 documents .*no field 'body'.*text_field",
        ),
        (data({"name": "x", "paths": ["one.txt"]}), "source x has 1 document"),
        (data({"name": "x", "paths": ["none/*.txt"]}), "no file matches"),
        (data(held_out="100%"), "100% held out"),
    ],
)
def test_bad_input_is_refused_and_what_was_done_waits_aside(folder, tmp_path, spec, message):
    (folder / "empty.txt").write_text("")
    (folder / "one.txt").write_text(speech(999))
    with pytest.raises(PreheatError, match=message):
        run(folder, tmp_path / "runs/out", spec)
    assert not (tmp_path / "runs").exists() or [p.name for p in (tmp_path / "runs").iterdir()] in ([], [".out.partial"])


def test_every_source_that_is_refused_is_named_with_an_example(folder, tmp_path):
    (folder / "table.csv").write_text("a,b\n1,2\n" * 50)
    (folder / "again.txt").write_text(speech(5))
    spec = data(
        {"name": "short", "paths": ["speeches/stub.txt"]},
        {"name": "csv", "paths": ["table.csv"], "format": "jsonl"},
        {"name": "prose", "paths": ["table.csv"], "thresholds": {"letters.min_share": 0.9}},
    )
    with pytest.raises(PreheatError) as caught:
        run(folder, tmp_path / "out", spec, workers=2)
    said = [str(problem) for problem in caught.value.problems]
    assert len(said) == 3
    for problem, example in zip(
        said, ("stub.txt: too short (11 characters)", "table.csv:1: broken JSON", "table.csv: few letters ("), strict=True
    ):
        assert f"for example {example}" in problem.replace("speeches/", "")
    spec = data({"name": "copies", "paths": ["speeches/05.txt"]}, {"name": "again", "paths": ["again.txt"]})
    with pytest.raises(PreheatError) as caught:
        run(folder, tmp_path / "out", spec)
    first, second = map(str, caught.value.problems)
    assert "source copies: nothing is left" in first
    assert "for example speeches/05.txt went for speeches: speeches/05.txt" in first
    assert "source again: nothing is left" in second


def test_a_file_that_changes_meanwhile_is_refused(folder, tmp_path, monkeypatch):
    """Half of it might be of the one kind and half of the other."""
    path = folder / "records.jsonl"
    check = sys.modules["preheat.data.pipeline.reading"]._digest

    def changing(file):
        if file.path == str(path):
            path.write_text(path.read_text() + "\n")
        return check(file)

    with monkeypatch.context() as patch:
        patch.setattr("preheat.data.pipeline.reading._digest", changing)
        with pytest.raises(RunFailed, match=r"records\.jsonl: the file changed while the data was prepared"):
            run(folder, tmp_path / "runs/out")
    run(folder, tmp_path / "runs/out")
    run(folder, tmp_path / "expected")
    assert content(tmp_path / "runs/out") == content(tmp_path / "expected")


def test_a_file_that_cannot_be_divided_because_it_cannot_be_read_is_excluded(folder, tmp_path, monkeypatch):
    """When the work is planned, a large file is opened for its line ends."""
    monkeypatch.setattr(plan, "MIN_SHARD", 1)
    opened = sys.modules["preheat.data.formats.streams"].open_file

    def denied(file):
        if file.id == "records.jsonl":
            raise PermissionError(13, "Permission denied")
        return opened(file)

    monkeypatch.setattr("preheat.data.formats.streams.open_file", denied)
    with pytest.raises(PreheatError, match=r"source records: 1 of 1 .*records\.jsonl: cannot be read \(Permission denied\)"):
        run(folder, tmp_path / "out")


def test_a_tokenizer_that_does_not_fit_leaves_nothing(folder, tmp_path):
    with pytest.raises(PreheatError, match=r"model\.vocab_size is 100_000"):
        run(folder, tmp_path / "runs/out", vocab_size=100_000)
    assert [p.name for p in (tmp_path / "runs").iterdir()] == [".out.partial"]
    _, log = run(folder, tmp_path / "runs/out")
    assert "read: 2 of 2 tasks were done before" in log
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["out"]


def test_a_file_of_a_tokenizer_is_looked_at_before_the_text_is(folder, tmp_path):
    run(folder, tmp_path / "first")
    shutil.copy(tmp_path / "first/tokenizer.json", folder)
    chosen = recipe.Tokenizer(kind="file", path="tokenizer.json")
    with pytest.raises(PreheatError, match=r"model\.vocab_size is 300"):
        run(folder, tmp_path / "out", tokenizer=chosen, vocab_size=300)
    assert not (tmp_path / ".out.partial/read").exists()
    run(folder, tmp_path / "out", tokenizer=chosen)
    for side in ("speeches_train.bin", "records_train.bin", "documents.jsonl"):
        assert content(tmp_path / "out")[side] == content(tmp_path / "first")[side]


def test_without_held_out_and_without_near_duplicates(folder, tmp_path):
    spec = data(held_out=str(Quantity.parse("0%")), dedup={"near": False})
    manifest, _ = run(folder, tmp_path / "out", spec)
    assert [s.held_out.documents for s in manifest.sources] == [0, 0]
    assert len(IndexedDataset(tmp_path / "out/speeches_held_out")) == 0
    assert manifest.source("speeches").funnel.kept == 41


def test_documents_are_shown_with_their_ids(folder, tmp_path):
    out = tmp_path / "out"
    manifest, _ = run(folder, out)
    shown = documents(out, "speeches", first=1, last=2)
    assert len(shown) == 3
    assert [d.id for d in shown] == sorted(d.id for d in shown)
    assert shown[0].text == (folder / shown[0].id).read_text()
    assert shown[0].ids[-1] == manifest.tokenizer.eod
    assert len(documents(out, "records", split="held_out", first=10**6)) == manifest.source("records").held_out.documents
    with pytest.raises(PreheatError, match="there are speeches, records"):
        documents(out, "books")


@pytest.mark.parametrize(
    "call", ["preheat.data.indexed.Writer.add", "preheat.data.pipeline.texts.TextsWriter.add", "numpy.save", "shutil.move"]
)
def test_a_full_disk_is_a_failed_run_and_the_next_one_goes_on(folder, tmp_path, monkeypatch, call):
    def full(*_):
        raise OSError(28, "No space left on device")

    run(folder, tmp_path / "expected")
    with monkeypatch.context() as patch:
        patch.setattr(call, full)
        with pytest.raises(RunFailed, match=r"No space left.*what is done stays done"):
            run(folder, tmp_path / "runs/out")
    assert not (tmp_path / "runs/out").exists()
    run(folder, tmp_path / "runs/out")
    assert content(tmp_path / "runs/out") == content(tmp_path / "expected")


def test_a_place_where_nothing_can_be_made_is_wrong_input(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file/out", tmp_path / "file/deep/out", Path("/proc/out")):
        with pytest.raises(PreheatError, match=r"the folder cannot be made: .*Choose another folder") as caught:
            run(folder, out)
        assert caught.value.exit_code == 2
    assert (tmp_path / "file").read_text() == "mine"

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(RunFailed, match="No space left"):
        run(folder, tmp_path / "out")


def test_a_step_says_how_far_it_is_and_when_it_will_be_done(monkeypatch):
    # Four workers and eight shards of 10 MB, each of which takes 20 s. Of those that are being done half is taken to be done: when
    # the first is, (10 + 4 x 10 / 2) of 80 MB in 20 s.
    clock, lines = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    shards = tuple(plan.Shard(0, (File("x", "x", 10_000_000),)) for _ in range(8))
    planned = plan.Plan(data(), recipe.Tokenizer(kind="gpt2"), VOCAB_SIZE, "", shards)
    meter = Meter(planned, BY_NAME["read"], range(8), 4, lines.append, None)
    for number, second in enumerate((20, 20, 20, 20, 40, 40, 40, 40)):
        clock[0] = second
        meter.count(number)
    assert lines == ["read: 10 of 80 MB, 1.5 MB/s, 33 s left", "read: 50 of 80 MB, 1.6 MB/s, 9 s left"]


def test_on_a_terminal_a_bar_shows_how_far_each_step_is(folder, tmp_path):
    seen, lines = [], []
    how = {"folder": folder, "out": tmp_path / "out", "progress": lines.append, "workers": 1}
    prepare(data(), recipe.Tokenizer(kind="train-bpe"), VOCAB_SIZE, **how, bar=lambda *shown: seen.append(shown))
    read = [(share, amount) for step, share, amount in seen if step == "read"]
    assert [share for share, _ in read] == sorted(share for share, _ in read)
    assert read[-1][0] == 1
    assert read[-1][1].endswith("MB/s, 0 s left")
    last = {step: share for step, share, _ in seen}
    assert set(last.values()) == {1}
    assert {"read", "sign", "compare", "tokenizer", "encode", "list"} <= last.keys()
    assert not any(" left" in line for line in lines)


def test_a_step_that_is_not_divided_by_shards_is_measured_in_tasks(monkeypatch):
    """Also where it has as many tasks as there are shards, as `compare` has from 16 to 256 of them."""
    clock, lines = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    made = plan.Plan(data(), recipe.Tokenizer(kind="gpt2"), VOCAB_SIZE, "", (plan.Shard(0, (File("x", "x", 10_000_000),)),) * 20)
    assert BY_NAME["compare"].count(made) == 20
    meter = Meter(made, BY_NAME["compare"], range(20), 1, lines.append, None)
    clock[0] = 10
    meter.count(0)
    assert lines == ["compare: 1 of 20 tasks, 2 min 3 s left"]  # Of the second one half is done: 10 s for 1.5 tasks, and 18.5 are left.


def test_half_files_and_damaged_ones_are_not_taken_for_whole(folder, tmp_path, monkeypatch):
    """What a task left is held against its record: cut files, changed bytes, missing files, other versions of the record."""
    run(folder, tmp_path / "expected")
    out, work = tmp_path / "runs/out", tmp_path / "runs/.out.partial"
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["preheat.data.prepare"], "_finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(folder, out)
    texts, sizes, sides = work / "read/00000/texts.bin", work / "sign/00001/documents.npy", work / "divide/00000/sides.npy"
    texts.write_bytes(texts.read_bytes()[:-1])
    sizes.write_bytes(sizes.read_bytes()[:-1] + b"\x01")
    sides.unlink()
    (work / "exact/00000/record.json").write_text("{")
    (work / "encode/00000/record.json").write_text("[]")
    (work / "encode/.00001.half").mkdir()
    (work / "encode/.00001.half/train.bin").write_bytes(b"half")
    _, log = run(folder, out)
    assert "read: 1 of 2 tasks were done before" in log
    assert "sign: 1 of 2" in log
    assert content(out) == content(tmp_path / "expected")


def test_a_change_redoes_what_depends_on_it_and_nothing_else(folder, tmp_path, monkeypatch):
    out = tmp_path / "runs/out"

    def interrupted(vocab_size=VOCAB_SIZE, **fields):
        """The steps of which something was done before."""
        lines = []
        arguments = {"data": data(**fields), "tokenizer": recipe.Tokenizer(kind="train-bpe"), "vocab_size": vocab_size}
        with pytest.raises(ZeroDivisionError):
            prepare(**arguments, folder=folder, out=out, progress=lines.append)
        return [line.split(":")[0] for line in lines if "were done before" in line]

    monkeypatch.setattr(sys.modules["preheat.data.prepare"], "_finish", lambda *_: 1 / 0)
    before = ["read", "check", "sign", "exact", "band", "group", "compare", "divide", "tokenizer", "encode", "merge", "list"]
    assert interrupted() == []
    assert interrupted() == before
    assert interrupted(401) == before[:8]
    assert interrupted(401, held_out="20%") == before[:7]
    assert interrupted(401, held_out="20%", dedup={"jaccard": 0.99}) == before[:6]
    with monkeypatch.context() as patch:
        patch.setattr("preheat.data.dedup.SIGNATURE", (0,))
        assert interrupted(401, held_out="20%", dedup={"jaccard": 0.99}) == [name for name in before if name != "sign"]
    interrupted(401, held_out="20%", dedup={"jaccard": 0.99})
    text = folder / "speeches/07.txt"
    text.write_text(text.read_text())  # The same bytes, but who knows: it is read again, and what follows is still there.
    assert interrupted(401, held_out="20%", dedup={"jaccard": 0.99}) == before
    text.write_text(speech(7007))
    # Half of what concerns shards, and the search for groups, which comes to the same bands.
    assert interrupted(401, held_out="20%", dedup={"jaccard": 0.99}) == ["read", "check", "sign", "group"]


ONE, TWO, UNDER, FAR = ("x/one.txt", "x/two.txt", "x/under.txt", "x/far.txt")
PAIRS = {"pairs": ["x/pairs.jsonl"]}


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"a": [ONE, UNDER], "b": [TWO, FAR]}, {"z": [ONE, UNDER], "b": [TWO, FAR]}),
        ({"a": [ONE, TWO], "b": [UNDER]}, {"a": [ONE], "b": [TWO, UNDER]}),
        (PAIRS | {"few": ["x/few/*.txt"]}, PAIRS),
        (PAIRS, PAIRS | {"few": ["x/few/*.txt"]}),
    ],
    ids=["another name", "a file in another source", "a source less", "a source more"],
)
def test_work_for_other_sources_is_not_taken_for_this(tmp_path, monkeypatch, before, now):
    """Though the texts of a task are the same: which of two equal texts stays hangs on their sources, what is said of it on its name, and
    how the groups of similar texts are divided on the number of shards.
    """
    place = tmp_path / "x"
    (place / "few").mkdir(parents=True)
    for name, seed, end in (("one", 1, "Straße"), ("two", 1, "STRASSE"), ("under", 2, ""), ("far", 3, "")):  # The second is longer.
        (place / f"{name}.txt").write_text(f"{speech(seed, 400)}\n{end}\n")
    for number in range(20):
        (place / f"few/{number}.txt").write_text(speech(100 + number, 40))
    pairs = [text for n in range(200, 220) for text in (speech(n, 40), speech(n, 40).replace(".", " indeed.", 1))]
    (place / "pairs.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in pairs))
    monkeypatch.setattr(plan, "MIN_SHARD", 2_000)
    monkeypatch.setattr("preheat.data.pipeline.duplicates.GROUP_TASKS", 1)

    def prepared(sources, out):
        rows = [
            {"name": name, "paths": paths, "policy": "reference"} | ({"format": "jsonl"} if name == "pairs" else {})
            for name, paths in sources.items()
        ]
        return run(tmp_path, out, recipe.Data.model_validate({"source": rows, "held_out": "0%"}))

    prepared(now, tmp_path / "expected")
    out = tmp_path / "runs/out"
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["preheat.data.prepare"], "_finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepared(before, out)
    prepared(now, out)
    assert content(out) == content(tmp_path / "expected")
    assert b"duplicate" in (out / "exclusions.jsonl").read_bytes()


def test_tasks_need_whatever_they_read(folder, tmp_path, monkeypatch):
    """Otherwise a change would not reach them."""
    current, seen = [], set()

    def folder_of(self, stage, number=0):
        if current:
            seen.add((*current, stage, number))
        return self.work / stage / f"{number:05}"

    def recorded(stage):
        def run_task(context, number, place):
            current[:] = [stage.name, number]
            stage.run(context, number, place)
            current.clear()

        return replace(stage, run=run_task)

    monkeypatch.setattr(Context, "folder", folder_of)
    monkeypatch.setattr(Context, "once", lambda self, name, make: make())
    monkeypatch.setattr(plan, "MIN_SHARD", 20_000)
    monkeypatch.setattr("preheat.data.pipeline.local.BY_NAME", {name: recorded(stage) for name, stage in BY_NAME.items()})
    spec = data(dedup={"paragraphs": True, "paragraph_places": 2, "paragraph_words": 5})
    run(folder, tmp_path / "out", spec)
    made = plan.Plan(spec, recipe.Tokenizer(kind="train-bpe"), VOCAB_SIZE, "", tuple(plan.Shard(int(i >= 3), ()) for i in range(5)))
    for stage, number, read, other in seen:
        needs = BY_NAME[stage].needs(made, number)
        through_exact = read in ("read", "sign") and ("exact", 0) in needs
        assert (read, other) in needs or through_exact, (stage, number, read, other)
    assert {stage for stage, *_ in seen} == BY_NAME.keys() - {"read"}


def test_more_shards_than_files_may_be_open(tmp_path, monkeypatch):
    """A mapped file is an open file; 1,024 of them are allowed on many machines, and a terabyte has 4,000 shards."""
    (tmp_path / "x").mkdir()
    for number in range(120):
        (tmp_path / f"x/{number:03}.txt").write_text(speech(number // 2, 60))
    monkeypatch.setattr(plan, "MIN_SHARD", 1)
    monkeypatch.setattr("preheat.data.pipeline.duplicates.GROUP_TASKS", 2)
    monkeypatch.setattr("preheat.data.pipeline.duplicates.MOST_GROUP_TASKS", 2)
    monkeypatch.setattr("preheat.data.pipeline.paragraphs.KEY_TASKS", 2)
    monkeypatch.setattr("preheat.data.pipeline.texts._OPEN", 4)
    asked = {"source": [{"name": "x", "paths": ["x/*.txt"], "policy": "reference"}], "dedup": {"paragraphs": True, "paragraph_places": 2}}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        manifest, said = run(tmp_path, tmp_path / "out", recipe.Data.model_validate(asked))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "120 shards" in said
    assert manifest.sources[0].funnel.kept == 60


def test_two_at_once_do_not_mix(tmp_path):
    with workspace(tmp_path / "out") as work:
        (work / "content/x").write_text("first")
        with pytest.raises(PreheatError, match="another process"), workspace(tmp_path / "out"):
            pass
    assert (tmp_path / "out/x").read_text() == "first"
    with pytest.raises(PreheatError, match="filled by someone else"), workspace(tmp_path / "out") as work:
        (work / "content/x").write_text("second")
    assert (tmp_path / "out/x").read_text() == "first"


SCRIPT = """
import sys
from pathlib import Path
from preheat import recipe
from preheat.data import prepare
from preheat.data.pipeline import Context, plan
from preheat.data.pipeline.stages import BY_NAME

plan.MIN_SHARD = 20_000
folder, out = map(Path, sys.argv[1:])
spec = recipe.Data.model_validate_json((folder / "data.json").read_text())
prepare(spec, recipe.Tokenizer(kind="train-bpe"), 400, folder=folder, out=out, workers=2,
        progress=lambda line: print(line, flush=True))
"""


def alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_killed_at_any_moment(folder, tmp_path):
    """kill -9 of the main process, after lines that it prints and at other moments; workers end by themselves, and the last run goes on."""
    (folder / "data.json").write_text(json.dumps(data().model_dump(mode="json")))
    (tmp_path / "script.py").write_text(SCRIPT)
    run(folder, tmp_path / "expected")
    out = tmp_path / "runs/out"
    command = [sys.executable, str(tmp_path / "script.py"), str(folder), str(out)]
    for lines, seconds in ((1, 0.0), (1, 0.3), (2, 0.0), (3, 0.05), (4, 0.0)):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            for _ in range(lines):
                process.stdout.readline()
            time.sleep(seconds)
            os.kill(process.pid, signal.SIGKILL)
        assert not out.exists()
        deadline = time.monotonic() + 10
        while alive(process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not alive(process.pid)
    log = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "read: 5 of 5 tasks were done before" in log
    assert content(out) == content(tmp_path / "expected")
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["out"]


def test_a_worker_that_dies_is_a_failed_run(folder, tmp_path, monkeypatch):
    died = r"the worker process that did the task read [01] died"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", shutil.which("false"))
        with pytest.raises(
            RunFailed, match=rf"{died} with exit code 1; it read .*(records\.jsonl|42 other files, the last is .*stub\.txt)"
        ):
            run(folder, tmp_path / "runs/out", workers=2)
        (tmp_path / "killed").write_text("#!/bin/sh\nread line\nkill -SEGV $$\n")
        (tmp_path / "killed").chmod(0o700)
        patch.setattr(sys, "executable", str(tmp_path / "killed"))
        with pytest.raises(RunFailed, match=rf"{died} of SIGSEGV; it read"):
            run(folder, tmp_path / "runs/out", workers=2)
    assert not (tmp_path / "runs/out").exists()


def test_parquet_is_read_by_others(folder, tmp_path):
    """A damaged file has crashed its library before; who calls it lives to tell which one it was."""
    table = pyarrow.table({"text": [speech(300 + number) for number in range(5)]})
    parquet.write_table(table, folder / "table.parquet")
    spec = data({"name": "table", "paths": ["table.parquet"], "format": "parquet"})
    places = [plan.Shard(number, ()) for number in range(3)]
    made = plan.Plan(spec, recipe.Tokenizer(kind="train-bpe"), VOCAB_SIZE, "", tuple(places))
    assert isinstance(local_backend(made, 1), Processes)
    assert isinstance(local_backend(replace(made, data=data()), 1), InProcess)
    manifest, _ = run(folder, tmp_path / "out", spec)
    assert manifest.source("table").funnel.kept == 5


def test_what_a_worker_finds_wrong_is_said_as_if_it_had_happened_here(folder, tmp_path):
    with pytest.raises(PreheatError, match=r"model\.vocab_size is 100_000") as caught:
        run(folder, tmp_path / "runs/out", vocab_size=100_000, workers=2)
    assert (caught.value.exit_code, caught.value.problems[0].where.key) == (2, "model.vocab_size")

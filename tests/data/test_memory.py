"""What a process holds does not grow with the text, and what single tasks hold for each document is what the documentation says."""

import json
import random
import tracemalloc

import numpy as np
import pytest

from preheat import recipe
from preheat.data import dedup
from preheat.data.clean.words import Splitter
from preheat.data.pipeline import Context, Plan, divided
from preheat.data.pipeline.arrays import ArrayWriter
from preheat.data.pipeline.stages import in_order
from preheat.data.pipeline.tasks import perform
from preheat.data.pipeline.texts import LabelsWriter, Library, TextsWriter, batches, texts
from preheat.data.sources import resolve

WORDS = [a + b + c for a in "bcdfgst" for b in "aeiou" for c in ("", "n", "r", "l", "m")]


def sentence(generator, words):
    return " ".join(generator.choices(WORDS, k=words))


def peaks(folder, rows, steps, least=1):
    """The most that a task of each of some steps holds, in bytes; the steps up to them are done as well."""
    folder.mkdir(parents=True)
    with (folder / "a.jsonl").open("w") as stream:
        stream.writelines(json.dumps({"text": text}) + "\n" for text in rows)
    spec = {"name": "a", "paths": ["a.jsonl"], "format": "jsonl", "policy": "reference", "thresholds": {"length.min_characters": least}}
    data = recipe.Data.model_validate({"source": [spec]})
    plan = Plan(data, recipe.Tokenizer(kind="train-bpe"), 300, str(folder), divided([resolve(data.source[0], folder)], 1 << 62))
    context, out = Context(folder, plan), dict.fromkeys(steps, 0)
    for stage in in_order(plan):
        for number in range(stage.count(plan)):
            if stage.name in steps:
                tracemalloc.start()
            perform(context, stage, number)
            if stage.name in steps:
                out[stage.name] = max(out[stage.name], tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
        if stage.name == steps[-1]:
            break
    return out


def growth(folder, rows, sizes, steps, least=1):
    """Bytes that each further document costs."""
    peaks(folder / "first", rows[:10], steps, least)  # What is imported and remembered once is no part of it.
    few, many = (peaks(folder / str(size), rows[:size], steps, least) for size in sizes)
    return {step: (many[step] - few[step]) / (sizes[1] - sizes[0]) for step in steps}


STEPS = ("exact", "band", "group", "compare", "divide")


def test_what_single_tasks_hold_for_a_document(tmp_path):
    generator = random.Random(1)
    rows = [sentence(generator, 9) for _ in range(9000)]
    found = growth(tmp_path, rows, (3000, 9000), STEPS)
    assert {step: held for step, held in found.items() if held > 80} == {}
    assert found["compare"] < 1


def test_what_single_tasks_hold_for_a_document_that_is_there_twice(tmp_path, monkeypatch):
    """Changed a little, so that it shares some 50 bands; each of sixteen tasks compares a sixteenth of them."""
    monkeypatch.setattr("preheat.data.pipeline.duplicates.BATCH", 20_000)
    generator = random.Random(1)
    texts = [sentence(generator, 30) for _ in range(2400)]
    rows = [row for text in texts for row in (text, text[:-10])]
    found = growth(tmp_path, rows, (1600, 4800), STEPS)
    assert {step: held for step, held in found.items() if held > 80 and step != "compare"} == {}
    assert found["compare"] < 4000 / 16


def test_reading_and_signing_hold_no_shard(tmp_path, monkeypatch):
    """One shard, whatever its size: its exclusions and its signatures, 512 bytes each, are written as they come."""
    monkeypatch.setattr("preheat.data.pipeline.duplicates.BATCH", 20_000)
    monkeypatch.setattr("preheat.data.pipeline.reading.AT_ONCE", 50)
    generator = random.Random(2)
    rows = [sentence(generator, 9) for _ in range(4000)]
    kept = growth(tmp_path, rows, (1000, 4000), ("read", "sign"))
    gone = growth(tmp_path / "gone", rows, (1000, 4000), ("read",), least=10_000)
    # Of the file, which is smaller than what is read at once, every byte is held several times; an exclusion would take 700.
    assert max(*kept.values(), *gone.values()) < 250


def test_words_are_remembered_up_to_their_length(monkeypatch):
    """Chinese sentences and encoded pictures stand between spaces as words do, and none of them comes again."""
    monkeypatch.setattr("preheat.data.clean.words.CHARACTERS", 20_000)
    splitter = Splitter()
    tracemalloc.start()
    for number in range(400):
        assert splitter.words([f"{number}" + "x" * 5_000]).characters == len(f"{number}") + 5_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500_000  # of 2,000,000


@pytest.mark.parametrize("boilerplate", [0, 60])
def test_comparing_a_large_group_holds_arrays_not_objects(boilerplate, monkeypatch):
    """Documents that share bands in one group: some 50 bytes for each band that is shared, and the shingles that are granted memory."""
    generator = random.Random(3)
    head = sentence(generator, boilerplate)
    whole = [f"{head} {sentence(generator, 100 - boilerplate)}" for _ in range(400 if boilerplate else 2000)]
    rows = whole if boilerplate else [*whole, *(text[:-30] for text in whole)]
    found = dedup.shingles(rows)
    equal = [dedup.equal_bands(band, np.arange(len(rows))) for band in dedup.bands(found)]
    members, roots = dedup.groups(equal)
    shared = tuple(np.concatenate(part) for part in zip(*((pair[0], pair[1] * 64 + n) for n, pair in enumerate(equal)), strict=True))
    order = np.lexsort((members, roots))
    monkeypatch.setattr("preheat.data.dedup.near.CACHE_BYTES", 200_000)
    tracemalloc.start()
    gone = dedup.near_duplicates(members[order], roots[order], shared, lambda n: map(found.distinct, n.tolist()), 0.45)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(gone) == (0 if boilerplate else len(whole))
    assert len(shared[0]) > 2 * len(rows)
    assert peak < 400_000 + 60 * len(shared[0]) + 400 * len(gone)


def test_arrays_in_pieces_have_the_bytes_of_whole_ones(tmp_path):
    for shape in ((5,), (3, 7), (0,), (4, 0)):
        whole = np.arange(np.prod(shape), dtype="<u8").reshape(shape)
        np.save(tmp_path / "whole.npy", whole)
        with ArrayWriter(tmp_path / "pieces.npy", whole.dtype, shape) as out:
            for begin in range(0, shape[-1], 2):
                out.add(whole[..., begin : begin + 2])
        assert (tmp_path / "pieces.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_any_text_and_label_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("preheat.data.pipeline.texts._OPEN", 2)
    folders = [tmp_path / name for name in "abcd"]
    everything = [[], ["", "ä", "line\nbreak"], ["x" * 10], ["", "z"]]
    for folder, own in zip(folders, everything, strict=True):
        folder.mkdir(parents=True)
        with TextsWriter(folder) as out, LabelsWriter(folder) as names:
            for number, text in enumerate(own):
                out.add(text)
                names.add(f"{folder.name}\n{number}é")
    books = Library(folders)
    flat = [(folder, own, text) for folder, part in zip(folders, everything, strict=True) for own, text in enumerate(part)]
    assert len(books) == len(flat)
    for number in [*range(len(flat)), *reversed(range(len(flat)))]:
        folder, own, text = flat[number]
        assert books.text(number) == text
        assert books.label(number) == f"{folder.name}\n{own}é"
    books.close()
    assert [list(texts(folder)) for folder in folders] == everything


def test_many_short_texts_fill_a_batch(tmp_path):
    assert max(map(len, batches(iter([""] * 1000), 10_000))) <= 100
    assert [len(batch) for batch in batches(iter(["x" * 9901] * 3), 10_000)] == [1, 1, 1]

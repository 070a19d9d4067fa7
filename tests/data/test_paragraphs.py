"""Repeated paragraphs: where a text has them, which place keeps one, and that nothing is lost with the others."""

import json
import random
import shutil
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st

from preheat import recipe
from preheat.data import Manifest, dedup, prepare, statistics
from preheat.data.dedup.paragraphs import paragraph_keys, paragraphs
from preheat.data.pipeline import plan
from preheat.data.pipeline.index import Earlier
from preheat.data.shards import opened
from preheat.data.tokenizer import Tokenizer
from preheat.data.verify import verify
from preheat.errors import PreheatError

BPE = recipe.Tokenizer(kind="train-bpe")


def words(seed, count=25):
    """A paragraph of words that no other seed has."""
    generator = random.Random(seed)
    return " ".join("".join(generator.choices("abcdefghiklmnoprstuvwy", k=7)) for _ in range(count))


SHARED = [words(f"shared {n}") for n in range(4)]


def document(*parts):
    """Paragraphs between blank lines: a number is one of the shared ones, another text a paragraph of its own."""
    return "\n\n".join(SHARED[part] if isinstance(part, int) else words(part) for part in parts) + "\n"


def write(folder, **sources):
    folder.mkdir(parents=True, exist_ok=True)
    for name, texts in sources.items():
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))


def run(folder, out, *sources, held_out="0%", policy="reference", workers=1, **asked):
    """The manifest of a prepared folder, and what was said meanwhile."""
    rows = [{"name": name, "paths": [f"{name}.jsonl"], "format": "jsonl", "policy": policy} for name in sources]
    settings = {"near": False, "paragraphs": True, "paragraph_places": 2} | asked
    data = recipe.Data.model_validate({"source": rows, "held_out": held_out, "dedup": settings})
    said = []
    manifest = prepare(data, BPE, 280, folder=folder, out=folder / out, progress=said.append, workers=workers)
    return manifest, "\n".join(said)


def documents(out):
    """Label -> side and text of each document that training or evaluation sees."""
    manifest, tokenizer = Manifest.load(out), Tokenizer.load(out)
    rows = [json.loads(line) for line in (out / "documents.jsonl").read_text().splitlines()]
    sides = [(s, side) for source in manifest.sources for s, side in ((source.train, "train"), (source.held_out, "held_out"))]
    texts = [tokenizer.decode(opened(out, s).document(n)[:-1].tolist()) for s, _ in sides for n in range(s.documents)]
    return {row["id"]: (row["split"], text) for row, text in zip(rows, texts, strict=True)}


def exclusions(out):
    return [json.loads(line) for line in (out / "exclusions.jsonl").read_text().splitlines()]


def pieces(text):
    (split,) = paragraphs([text])
    return list(split.pieces)


WRAPPED = "Thus hard-wrapped text has the lines of a paragraph\none below the other, none of them as long as a\nline on a web page."
LINE = "On a page of the web a paragraph is a line, and the next line is the next paragraph: no blank line stands between these two, often."


def test_where_paragraphs_are():
    assert len(LINE) > 120
    assert pieces(f"{WRAPPED}\n\n* one\n* two\n  \n\nx") == [WRAPPED, "* one\n* two", "x"]
    assert pieces(f"Home\nNews\n{LINE}\n{LINE}\nmore\nand more\n") == ["Home\nNews", LINE, LINE, "more\nand more"]
    assert pieces("") == pieces("\n\n") == []


def test_words_are_counted_as_elsewhere():
    """As runs of letters and digits; in a script without spaces each character is one."""
    (split,) = paragraphs(["one, two - three's (four) five six\n\none\n\n--\n\n日本語の文字は"])
    assert split.words == (7, 1, 0, 7)


def test_the_same_but_for_case_space_and_form():
    keys = paragraph_keys(["Caf\u00e9  au\nlait", "CAFE\u0301 au lait", "caf\u00e9 au lait!"])
    assert (keys[0] == keys[1]).all()
    assert (keys[0] != keys[2]).all()


LINES = st.sampled_from(["a b c", "x", "  y", words(1, 16), LINE])
GAPS = st.sampled_from(["\n", "\n", "\n\n", "\n \n\n", "\n\n\n"])


@given(st.lists(st.tuples(LINES, GAPS)), st.sampled_from(["", "\n", "\n\n"]), st.booleans(), st.data())
def test_what_is_left_has_exactly_the_other_paragraphs(lines, lead, ended, data):
    text = (lead if lines else "") + "".join(line + gap for line, gap in lines)
    text = text if ended else text.rstrip("\n ")
    (split,) = paragraphs([text])
    assert split.lead + "".join(piece + gap for piece, gap in zip(split.pieces, split.gaps, strict=True)) == text
    gone = data.draw(st.sets(st.sampled_from(range(len(split.pieces))))) if split.pieces else set()
    left = split.without(gone)
    assert pieces(left) == [piece for number, piece in enumerate(split.pieces) if number not in gone]
    if not gone:
        assert left == text
    elif left:
        assert left.startswith(split.lead)
        assert left.endswith(split.gaps[-1])


def test_gaps():
    text = f"a\n\n\nb\n\nc\n{LINE}\nd\n"
    split = paragraphs([text])[0]
    assert split.without({1}) == f"a\n\n\nc\n{LINE}\nd\n"
    # Between lines of a web page a blank line stands for what went: "c" and "d" were two paragraphs, and stay two.
    assert split.without({0, 1, 3}) == "c\n\nd\n"
    assert split.without({4}) == f"a\n\n\nb\n\nc\n{LINE}\n"


def test_which_place_keeps_a_paragraph(tmp_path):
    first = [document("a1", 0, "a2"), document(1, "a3")]
    second = [document(0, "b1", "b2", "b3", "b4"), document("b5", 2), document("b6", 2, "b7", 1, 2), document(3, "b8"), document(3, "b9")]
    write(tmp_path, first=first, second=second)
    manifest, _ = run(tmp_path, "out", "first", "second")
    left = {label: text for label, (_, text) in documents(tmp_path / "out").items()}
    lowest = min((3, 4), key=lambda n: dedup.key(second[n]))
    expected = {
        "first.jsonl:1": first[0],
        "first.jsonl:2": first[1],
        # The source that is named first, then the longest document, and in it the first place, then the lowest key.
        "second.jsonl:1": document("b1", "b2", "b3", "b4"),
        "second.jsonl:2": document("b5"),
        "second.jsonl:3": document("b6", 2, "b7"),
        f"second.jsonl:{lowest + 1}": second[lowest],
        f"second.jsonl:{8 - lowest}": document("b9" if lowest == 3 else "b8"),
    }
    assert left == expected
    details = Counter((row["id"], row["step"], row["reason"], row["detail"]) for row in exclusions(tmp_path / "out"))
    edit = ("edit", "repeated paragraph removed")
    assert details == Counter(
        [
            ("second.jsonl:1", *edit, "paragraph 1, 25 words, as paragraph 2 of first: first.jsonl:1, 2 places in all"),
            ("second.jsonl:2", *edit, "paragraph 2, 25 words, as paragraph 2 of second: second.jsonl:3, 3 places in all"),
            ("second.jsonl:3", *edit, "paragraph 4, 25 words, as paragraph 1 of first: first.jsonl:2, 2 places in all"),
            ("second.jsonl:3", *edit, "paragraph 5, 25 words, as paragraph 2 of second: second.jsonl:3, 3 places in all"),
            (
                f"second.jsonl:{8 - lowest}",
                *edit,
                f"paragraph 1, 25 words, as paragraph 1 of second: second.jsonl:{lowest + 1}, 2 places in all",
            ),
        ]
    )
    assert {row["head"] for row in exclusions(tmp_path / "out")} == {text[:200] for text in SHARED}
    assert [source.funnel.edited for source in manifest.sources] == [{}, {"repeated paragraphs removed": 4}]
    assert [source.funnel.kept for source in manifest.sources] == [2, 5]
    assert "5 kept; documents edited: 4 repeated paragraphs removed" in str(manifest.sources[1].funnel)
    assert [(s.train.documents, s.train.bytes) for s in manifest.sources] == [
        (2, sum(len(text) for text in first)),
        (5, sum(len(text) for label, text in expected.items() if label.startswith("second"))),
    ]
    assert verify(tmp_path / "out") == []


def test_so_many_places(tmp_path):
    texts = [document(f"a{n}", 0, *([1] if n < 2 else [])) for n in range(3)]
    write(tmp_path, a=texts)
    for places, counts in ((2, [1, 1]), (3, [1, 2]), (4, [3, 2])):
        run(tmp_path, f"out{places}", "a", paragraph_places=places)
        left = "".join(text for _, text in documents(tmp_path / f"out{places}").values())
        assert [left.count(shared) for shared in SHARED[:2]] == counts
    run(tmp_path, "default", "a", paragraph_places=recipe.Dedup().paragraph_places)
    assert [text for _, text in documents(tmp_path / "default").values()] == texts


def test_so_many_words(tmp_path):
    write(tmp_path, a=[document(0, "a1"), document("a2", 0)])
    run(tmp_path, "as they are", "a", paragraph_words=26)
    assert exclusions(tmp_path / "as they are") == []
    run(tmp_path, "shorter", "a", paragraph_words=25)
    assert len(exclusions(tmp_path / "shorter")) == 1


def test_a_document_with_hardly_anything_else_goes(tmp_path):
    short, enough = " ".join(["short"] * 19), "\n\n".join(["one two three four five"] * 4)
    texts = [
        document(0, 1, "long one"),
        f"{SHARED[0]}\n\n{short}\n",
        f"{SHARED[1]}\n\n{enough}\n",
        f"{short} but alone among all of these and long enough to pass, with {words(7, 15)}\n",
    ]
    write(tmp_path, a=texts)
    manifest, _ = run(tmp_path, "out", "a")
    left = {label: text for label, (_, text) in documents(tmp_path / "out").items()}
    assert left == {"a.jsonl:1": texts[0], "a.jsonl:3": f"{enough}\n", "a.jsonl:4": texts[3]}
    (funnel,) = [source.funnel for source in manifest.sources]
    assert funnel.dropped == {"paragraph": {"nothing but repeated paragraphs": 1}}
    assert (funnel.documents, funnel.kept, funnel.edited) == (4, 3, {"repeated paragraphs removed": 1})
    (row,) = [row for row in exclusions(tmp_path / "out") if row["step"] == "paragraph"]
    assert (row["id"], row["detail"], row["head"]) == ("a.jsonl:2", "1 of 2 paragraphs", texts[1][:200])


POOL = [words(f"pool {n}", 20 + n) for n in range(6)] + ["Introduction", "no more than a few words"]
DOCUMENT = st.lists(st.integers(0, len(POOL) - 1), min_size=1, max_size=6)


# A failure takes seconds to try again, minutes to make small.
@settings(max_examples=5, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(DOCUMENT, min_size=1, max_size=6), st.lists(DOCUMENT, min_size=1, max_size=6), st.integers(2, 4), st.randoms())
def test_no_paragraph_of_a_document_that_stays_is_lost(tmp_path_factory, a, b, places, randomly):
    """Nor is one left twice where there are enough of them, and neither the order nor the shards matter."""
    folder = tmp_path_factory.mktemp("run")
    texts = {}
    for name, chosen in (("a", a), ("b", b)):
        texts[name] = ["\n\n".join([*(POOL[n] for n in own), words(f"own {name}{i}", 30)]) for i, own in enumerate(chosen)]
        # Some that have nothing of their own, and one that is a near copy.
        texts[name] += ["\n\n".join(POOL[n] for n in chosen[0]), words(f"more {name}", 200), words(f"less {name}", 200)]
        texts[name].append(texts[name][0] + " with an end")
    write(folder, **texts)
    run(folder, "before", "a", "b", held_out="30%", near=True, paragraphs=False)
    try:
        run(folder, "out", "a", "b", held_out="30%", near=True, paragraph_places=places)
    except PreheatError:
        reject()  # Nothing would be left on a side of a source, which is a test of its own.
    before, after = documents(folder / "before"), documents(folder / "out")
    stood = Counter(piece for _, text in before.values() for piece in text.strip().split("\n\n") if len(piece.split()) >= 20)
    stands = Counter(piece for _, text in after.values() for piece in text.strip().split("\n\n") if len(piece.split()) >= 20)
    assert stands.keys() == stood.keys()
    for piece, count in stood.items():
        # Fewer are left than there were if a document is left out that became equal to another one.
        assert stands[piece] == 1 if count >= places else stands[piece] in range(1, count + 1)
    assert len({text for _, text in after.values()}) == len(after)
    for label, (side, text) in after.items():
        assert side == before[label][0]
        own = iter(before[label][1].strip().split("\n\n"))
        assert all(piece in own for piece in text.strip().split("\n\n"))
    trained = {piece for side, text in after.values() if side == "train" for piece in text.strip().split("\n\n")}
    again = {piece for piece, count in stood.items() if count >= places}
    for piece in again & {p for side, text in before.values() if side == "train" for p in text.strip().split("\n\n")}:
        assert piece in trained

    for own in texts.values():
        randomly.shuffle(own)
    write(folder, **texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "MIN_SHARD", 700)
        run(folder, "shuffled", "a", "b", held_out="30%", near=True, paragraph_places=places)
    assert sorted(documents(folder / "shuffled").values()) == sorted(after.values())


def test_shards_and_workers_change_nothing(tmp_path, monkeypatch):
    texts = [document(f"own {n}", n % 4, (n + 1) % 3) for n in range(30)]
    write(tmp_path, a=texts[:20], b=texts[20:])
    one, _ = run(tmp_path, "one", "a", "b", held_out="10%")
    monkeypatch.setattr(plan, "MIN_SHARD", 900)
    several, said = run(tmp_path, "several", "a", "b", held_out="10%", workers=2)
    assert "2 processes" in said
    assert several.files == one.files


def test_training_keeps_what_both_sides_have(tmp_path):
    texts = [document(f"own {n}", *(f"more {n} {m}" for m in range(n)), 0) for n in range(12)]
    write(tmp_path, a=texts)
    run(tmp_path, "out", "a", held_out="40%")
    found = documents(tmp_path / "out")
    keeps = [label for label, (_, text) in found.items() if SHARED[0] in text]
    assert len(keeps) == 1
    longest = max((label for label, (side, _) in found.items() if side == "train"), key=lambda label: int(label.partition(":")[2]))
    assert keeps == [longest]
    assert found["a.jsonl:12"][0] == "held_out" or longest == "a.jsonl:12"


def test_a_side_that_would_be_empty_is_refused(tmp_path):
    write(tmp_path, a=[document(0, 1, "one", "two"), document("three", "four", 2, 3)], b=[document(0, 1), document(2, 3)])
    with pytest.raises(PreheatError, match=r"source b: the side train, documents: 2, holds only paragraphs.* for example b.jsonl:1"):
        run(tmp_path, "out", "a", "b")
    assert not (tmp_path / "out").exists()


def test_the_copy_that_goes_keeps_nothing(tmp_path):
    """Of two documents with a paragraph the longer one goes as a near copy of a third: so it stays in the shorter one."""
    long = words("long", 300)
    write(
        tmp_path, a=[f"{long} and then some more words\n\n{words('end')}", words("b", 40)], b=[f"{long}\n\n{SHARED[0]}", document("c", 0)]
    )
    run(tmp_path, "out", "a", "b", near=True)
    found = documents(tmp_path / "out")
    assert "b.jsonl:1" not in found
    assert found["b.jsonl:2"][1] == document("c", 0)


def test_documents_that_become_equal(tmp_path):
    """The same text with different paragraphs of others behind it."""
    texts = [document(n, *(f"{n} {m}" for m in range(9))) for n in (1, 2, 3)]
    verse = "\n\n".join(words(f"line {n}", 8) for n in range(9))
    write(tmp_path, a=[*texts, f"{verse}\n"], b=[*(f"{verse}\n\n{SHARED[n]}\n" for n in (1, 2, 3)), document("f", "g")])
    manifest, _ = run(tmp_path, "verse", "a", "b")
    assert manifest.sources[1].funnel.dropped == {"paragraph": {"the same text without repeated paragraphs": 3}}
    assert {row["detail"] for row in exclusions(tmp_path / "verse") if row["step"] == "paragraph"} == {"as a: a.jsonl:4"}
    assert set(documents(tmp_path / "verse")) == {*(f"a.jsonl:{n}" for n in (1, 2, 3, 4)), "b.jsonl:4"}
    run(tmp_path, "before", "a", paragraphs=False)
    manifest, _ = run(tmp_path, "after", "b", against=["before"])
    assert manifest.sources[0].funnel.dropped == {"paragraph": {"the same text without repeated paragraphs of before": 3}}
    assert verify(tmp_path / "after") == []


def test_code_is_left_alone_unless_it_is_named(tmp_path):
    write(tmp_path, a=[document(0, "a1"), document(0, "a2")])
    with pytest.raises(PreheatError, match="every source has the policy 'code'"):
        run(tmp_path, "out", "a", policy="code")
    with pytest.raises(PreheatError, match="there is no source 'b'; there are a"):
        run(tmp_path, "out", "a", paragraph_sources=["b"])
    block = "\n".join(f"    total += weights[{n}] * (values[{n}] - mean)" for n in range(6))
    texts = [
        f"def {name}(weights, values, mean):\n    # {words(name, 25)}\n    total = 0\n\n{block}\n\n    return {name} / total\n"
        for name in "fgh"
    ]
    write(tmp_path, a=texts)
    run(tmp_path, "code", "a", policy="code", paragraph_sources=["a"])
    assert len(exclusions(tmp_path / "code")) == 2
    write(tmp_path, a=[document(0, "a1"), document(0, "a2")], b=[document("b1", 0), document("b2", 1), document("b3", "b4", 1)])
    run(tmp_path, "one", "a", "b", paragraph_sources=["b"])
    assert [row["id"] for row in exclusions(tmp_path / "one")] == ["b.jsonl:2"]


def test_what_earlier_folders_have_goes(tmp_path):
    write(tmp_path, old=[document("o1", 0), document("o2", "o3")], new=[document(0, "n1"), document("n2", 1, "n3"), document("n4", 1)])
    run(tmp_path, "before", "old", paragraphs=False)
    run(tmp_path, "after", "new", against=["before"])
    left = {label: text for label, (_, text) in documents(tmp_path / "after").items()}
    assert left == {"new.jsonl:1": document("n1"), "new.jsonl:2": document("n2", 1, "n3"), "new.jsonl:3": document("n4")}
    details = [row["detail"] for row in exclusions(tmp_path / "after") if row["id"] == "new.jsonl:1"]
    assert details == ["paragraph 1, 25 words, as paragraph 2 of old: old.jsonl:1 of before, 2 places in all"]
    # Its index is of the texts as they are now, so that a third folder finds the original again, and no paragraph that went.
    write(tmp_path, third=[document("n4"), document(1, "t1"), document("t2", "t3")])
    run(tmp_path, "last", "third", against=["before", "after"])
    assert set(documents(tmp_path / "last")) == {"third.jsonl:2", "third.jsonl:3"}
    assert [row["detail"] for row in exclusions(tmp_path / "last")] == [
        "as new: new.jsonl:3 of after",
        "paragraph 1, 25 words, as paragraph 2 of new: new.jsonl:2 of after, 2 places in all",
    ]


def test_the_index_is_of_the_texts_that_the_folder_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "MIN_SHARD", 900)
    write(
        tmp_path,
        a=[document(f"a{n}", n % 3, f"b{n}") for n in range(12)],
        b=[document(0, 1), *(document(0, f"x{n}", f"y{n}") for n in range(6))],
    )
    run(tmp_path, "out", "a", "b", held_out="30%", near=True)
    texts = [text for _, text in documents(tmp_path / "out").values()]
    rows, bands = np.load(tmp_path / "out/index.npy"), np.load(tmp_path / "out/index_bands.npy")
    assert [row["key"].tobytes() for row in rows] == [dedup.key(text) for text in texts]
    assert rows["bytes"].tolist() == [len(text.encode()) for text in texts]
    assert rows["characters"].tolist() == list(map(len, texts))
    assert np.array_equal(bands, dedup.bands(dedup.shingles(texts)))
    earlier = Earlier(tmp_path, ["out"])
    assert [earlier.text(number) for number in range(len(texts))] == texts


def test_as_if_the_texts_had_come_without_them(tmp_path):
    """Also for the tokenizer that is learned: prepared again, what is left gives the same tokens."""
    write(tmp_path, a=[document(f"a{n}", n % 3, f"b{n}") for n in range(12)])
    once, _ = run(tmp_path, "once", "a")
    write(tmp_path, a=[text for _, text in documents(tmp_path / "once").values()])
    again, _ = run(tmp_path, "again", "a")
    assert exclusions(tmp_path / "again") == []
    for name in ("tokenizer.json", "a_train.bin", "a_train.idx", "index.npy"):
        assert again.files[name] == once.files[name]


def test_interrupted_work_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "MIN_SHARD", 900)
    write(tmp_path, a=[document(f"a{n}", n % 3, f"b{n}") for n in range(12)])
    whole, _ = run(tmp_path, "whole", "a")
    finish = prepare.__globals__["_finish"]
    monkeypatch.setitem(prepare.__globals__, "_finish", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, "out", "a")
    monkeypatch.setitem(prepare.__globals__, "_finish", finish)
    work = tmp_path / ".out.partial"
    count = len(list((work / "repeated").iterdir()))
    assert count > 2
    shutil.rmtree(work / "repeated/00001")
    (work / "shorten/00000/texts.bin").write_bytes(b"")
    manifest, said = run(tmp_path, "out", "a")
    assert f"repeated: {count - 1} of {count} tasks were done before" in said
    assert f"shorten: {count - 1} of {count} tasks were done before" in said
    assert manifest.files == whole.files


def test_another_threshold_reads_nothing_again(tmp_path, monkeypatch):
    write(tmp_path, a=[document(f"a{n}", n % 3, f"b{n}") for n in range(12)])
    whole, _ = run(tmp_path, "whole", "a", paragraph_places=3)
    finish = prepare.__globals__["_finish"]
    monkeypatch.setitem(prepare.__globals__, "_finish", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, "out", "a", paragraph_words=30)
    monkeypatch.setitem(prepare.__globals__, "_finish", finish)
    manifest, said = run(tmp_path, "out", "a", paragraph_places=3)
    assert "divide: 1 of 1 tasks were done before" in said
    assert "paragraph:" not in said
    assert "encode:" not in said
    assert manifest.files == whole.files


def test_what_is_shown_of_them(tmp_path):
    write(tmp_path, a=[document(f"a{n}", 0, *([1] if n < 4 else [])) for n in range(9)])
    run(tmp_path, "out", "a")
    own = statistics(tmp_path / "out")["a"]
    assert (own.paragraphs, own.paragraph_words) == (8 + 3, 25 * 11)
    assert [found["places"] for found in own.frequent] == [9, 4]
    assert [found["head"] for found in own.frequent] == [text[:200] for text in SHARED[:2]]
    assert all(found["kept"].startswith("paragraph ") and " of a: a.jsonl:" in found["kept"] for found in own.frequent)

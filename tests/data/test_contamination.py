"""Text of evaluation tasks is kept out: what counts as the same words, what is said of a document that goes, what a change changes."""

import gzip
import json
import random
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat import recipe
from preheat.data import Manifest, prepare, statistics
from preheat.data.clean import Benchmarks
from preheat.data.clean.rule import Text
from preheat.data.document import File
from preheat.errors import PreheatError

QUESTION = "Which of the following planets has the largest number of known moons as of the year two thousand twenty?"
WORDS = QUESTION.split()
PLAIN = "I embrace with great satisfaction the opportunity which now presents itself of congratulating you on the prospects of our affairs."


def write(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
    return File(path.name, str(path), path.stat().st_size)


def benchmarks(folder, *rows, ngram=13):
    return Benchmarks([write(folder / "task.jsonl", *rows)], ngram)


def shared(known, text):
    return known.shared(Text(text))


def test_case_punctuation_and_spacing_do_not_matter(tmp_path):
    known = benchmarks(tmp_path, {"question": QUESTION, "deep": {"passage": [PLAIN]}}, {"question": "Short one?"})
    assert shared(known, PLAIN.replace("satisfaction", "joy").replace("presents", "gives")) is None
    assert shared(known, f"So it begins. {QUESTION}").place == "task.jsonl:1"
    assert shared(known, f"So it begins. {PLAIN}").place == "task.jsonl:1"
    assert shared(known, f"So it begins. {' -- '.join(WORDS[2:15]).upper()}").size == 13
    assert shared(known, f"So it begins. {' '.join(WORDS[2:14])} or so") is None
    assert shared(known, "Short one? Which of the following planets?") is None


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        ("don't you think it's a state-of-the-art solution", "Don\u2019t you think it\u2019s a state of the art solution"),
        ("the “first” café serves tea at 3,000 metres above", 'the "first" cafe\u0301 serves tea at 3 000 metres above'),
        ("full\u00adtext search engines of our time are built this way", "fulltext search engines of our time are built this way"),
        ("ﬁnd the ﬁrst of \uff11\uff12 words that are wide", "find the first of 12 words that are wide"),
        ("中华人民共和国的首都是哪个城市", "中华人民共和国的首都,是哪个城市"),
        ("STRASSE und Fluss in der Stadt sind alle gesperrt", "Straße und Fluß in der Stadt sind alle gesperrt"),
    ],
)
def test_the_form_of_characters_does_not_matter(tmp_path, asked, written):
    assert shared(benchmarks(tmp_path, {"question": asked}, ngram=8), f"Before. {written}! After.") is not None


def test_chinese_is_found_in_a_text_without_spaces(tmp_path):
    """A run of more than 200 characters without a space is one word, if it is not Chinese."""
    asked = "下列哪个城市是中华人民共和国的首都"
    text = "从前有一个人住在山里他每天都去河边打水" * 20
    found = shared(benchmarks(tmp_path, {"question": asked}), text + asked + text)
    assert (found.size, found.start) == (len(asked), len(text) + 1)
    assert shared(benchmarks(tmp_path, {"question": asked}), "x" * 201 + asked.replace("城", "x") + text) is None


def test_what_is_said_of_a_document(tmp_path):
    known = benchmarks(tmp_path, {"id": "a"}, {"question": QUESTION}, {"question": f"Tell me: {QUESTION}"})
    found = shared(known, f"Two words, {' '.join(WORDS[:15])} or anything else?")
    assert found == (15, 3, "task.jsonl:2", " ".join(WORDS[:15]))
    assert str(found) == f"task.jsonl:2: 15 words, from word 3 on: {' '.join(WORDS[:15])}"
    longest = shared(known, f"{' '.join(WORDS[:13])}. And then: {' '.join(WORDS[2:])}")
    assert (longest.size, longest.start) == (len(WORDS) - 2, 16)
    first, second = " ".join(WORDS[:13]), " ".join(WORDS[1:14])
    assert shared(benchmarks(tmp_path, [first], [second]), " ".join(WORDS[:14])) == (13, 1, "task.jsonl:1", first)  # and no 14 of either
    long = "word " * 30 + "x" * 190
    assert len(shared(benchmarks(tmp_path, {"q": long}), long).words) == 200


def test_a_question_shorter_than_the_overlap_counts_as_a_whole(tmp_path):
    """Otherwise nothing would keep it out; of fewer than 8 words many a text has some by chance."""
    short = "Which of these planets has the largest rings?"
    known = benchmarks(tmp_path, {"question": QUESTION}, {"question": short}, {"question": "Which planet has rings?"})
    assert (known.size, known.too_short) == (len(WORDS) - 12 + 1, 1)
    assert shared(known, f"{PLAIN} {short}").size == 8
    assert shared(known, f"{PLAIN} {short} {QUESTION}").size == len(WORDS)
    assert shared(known, f"{PLAIN} {short.replace('largest', 'smallest')}") is None
    assert shared(known, f"{PLAIN} Which planet has rings?") is None


PIECES = [
    "a",
    "B",
    "can't",
    "can\u2019t",
    "well-known",
    "U.S.",
    "1,000",
    "cafe\u0301",
    "ﬁ",
    "so\u00adft",
    "İ",
    "人民",
    "人",
    "か\u3099き",
    "㍿",
    "हिन्दी",
    "-",
    "x_y",
    "\u0301",
]
GAPS = [" ", "\n", ", ", "\u00a0", " — ", "。"]
text = st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(GAPS)), max_size=24).map(lambda parts: "".join(map("".join, parts)))


def words(text):
    """By the Unicode names and categories of the characters of the whole text."""
    out = ""
    for character in unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()):
        kind = unicodedata.category(character)
        if unicodedata.name(character, "").startswith("CJK"):
            out += f" {character} "
        elif kind != "Cf":
            out += character if kind[0] in "LNM" else " "
    return [word for word in out.split() if any(map(str.isalnum, word))]


def windows(words, n):
    return {tuple(words[start : start + n]) for start in range(len(words) - n + 1)}


@given(
    rows=st.lists(st.lists(text, max_size=3), min_size=1, max_size=4), ends=st.tuples(text, text), taken=st.data(), ngram=st.integers(5, 13)
)
@settings(max_examples=300, deadline=None)
def test_exactly_the_documents_go_that_a_comparison_of_all_words_finds(tmp_path_factory, rows, ends, taken, ngram):
    """Sets of tuples of words in place of hashes, over the whole text in place of its runs."""
    known = Benchmarks([write(tmp_path_factory.mktemp("task") / "t.jsonl", *rows)], ngram)
    source = taken.draw(st.sampled_from([text for row in rows for text in row] or [""]))
    begin, end = sorted(taken.draw(st.tuples(st.integers(0, len(source)), st.integers(0, len(source)))))
    document = f"{ends[0]}{source[begin:end]}{ends[1]}"
    looked_for = {}
    for number, row in enumerate(rows, start=1):
        for text in map(words, row):
            if len(text) >= min(8, ngram):
                looked_for.setdefault(f"t.jsonl:{number}", set()).update(windows(text, min(ngram, len(text))))
    own = words(document)
    common = {place for place, grams in looked_for.items() if any(gram in windows(own, len(gram)) for gram in grams)}
    found = known.shared(Text(document))
    assert (found is not None) == bool(common)
    if found is not None:
        assert found.place in common
        run = own[found.start - 1 :][: found.size]
        assert any(windows(run, n) <= looked_for[found.place] for n in range(5, 14) if n <= len(run))
        assert set(run) <= set(words(found.words)) or found.words.endswith("…")


def test_the_fingerprint_covers_what_is_looked_for_and_where(tmp_path):
    rows = ({"q": QUESTION}, {"q": PLAIN})
    variants = [
        benchmarks(tmp_path, *rows),
        benchmarks(tmp_path, *rows, ngram=12),
        benchmarks(tmp_path, *reversed(rows)),
        benchmarks(tmp_path, rows[0]),
        Benchmarks([write(tmp_path / "other.jsonl", *rows)], 13),
    ]
    assert len({known.fingerprint for known in variants}) == len(variants)
    assert benchmarks(tmp_path, *rows).fingerprint == variants[0].fingerprint


@pytest.mark.parametrize("line", ["{broken", "[" * 100_000, '{"q": ' + "1" * 5000 + "}"])
def test_a_task_that_cannot_be_read_is_refused(tmp_path, line):
    file = write(tmp_path / "task.jsonl", {"question": QUESTION})
    Path(file.path).write_text(f"{json.dumps({'question': QUESTION})}\n\n{line}\n")
    with pytest.raises(PreheatError, match=r"task.jsonl:3.*no JSON"):
        Benchmarks([file], 13)


SYLLABLES = [a + b + c for a in "bcdfgst" for b in "aeiou" for c in ("", "n", "r")]


@pytest.fixture
def folder(tmp_path):
    """Forty documents, of which two hold a question, and a task."""
    for number in range(40):
        own = " ".join(random.Random(number).choices(SYLLABLES, k=60))
        held = {7: f" {QUESTION}", 8: f" {PLAIN}"}.get(number, "")
        write_text(tmp_path / f"text/{number:02}.txt", f"{own}.{held}")
    write(tmp_path / "tasks/moons.jsonl", {"question": QUESTION, "choices": ["Saturn", "Mars"], "label": 0})
    return tmp_path


def write_text(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "utf-8")


def run(folder, out="out", tasks=("tasks/*.jsonl",), **decontaminate):
    said = []
    data = {"source": [{"name": "s", "paths": ["text/*.txt"]}], "held_out": "10%", "decontaminate": decontaminate}
    asked = (recipe.Data.model_validate(data), recipe.Tokenizer(kind="train-bpe"), 300)
    manifest = prepare(*asked, folder=folder, out=folder / out, progress=said.append, task_globs=tasks, workers=1)
    return manifest, "\n".join(said)


def gone(folder, out="out"):
    rows = map(json.loads, (folder / out / "exclusions.jsonl").read_text("utf-8").splitlines())
    return {row["id"]: row["detail"].partition(" words")[0] for row in rows if row["step"] == "contamination"}


def test_the_tasks_of_a_recipe_are_kept_out_unless_it_says_otherwise(folder):
    manifest, said = run(folder)
    assert gone(folder) == {"text/07.txt": f"tasks/moons.jsonl:1: {len(WORDS)}"}
    assert manifest.sources[0].funnel.dropped == {"contamination": {"evaluation text": 1}}
    assert list(manifest.inputs.tasks) == ["tasks/moons.jsonl"]
    assert f"keeping out evaluation text: {len(WORDS) - 12} runs of up to 13 words of 1 records in tasks/moons.jsonl" in said
    own = statistics(folder / "out")["s"]
    assert own.tasks == {"tasks/moons.jsonl": 1}
    expected = {"gone": "text/07.txt", "task": "tasks/moons.jsonl:1", "words": len(WORDS), "start": 61, "text": QUESTION}
    assert own.shared == [expected]

    off, _ = run(folder, "off", enabled=False)
    assert (gone(folder, "off"), off.inputs.tasks, off.sources[0].funnel.dropped) == ({}, {}, {})


def test_texts_that_are_not_evaluated_can_be_kept_out_as_well(folder):
    write(folder / "more/private.jsonl", {"anything": [PLAIN]})
    run(folder, also=["more/*.jsonl", "tasks/moons.jsonl"])
    assert sorted(gone(folder)) == ["text/07.txt", "text/08.txt"]
    run(folder, "only", tasks=(), also=["more/*.jsonl"])
    assert sorted(gone(folder, "only")) == ["text/08.txt"]


def test_packed_tasks_are_read(folder):
    (folder / "tasks/moons.jsonl.gz").write_bytes(gzip.compress((folder / "tasks/moons.jsonl").read_bytes()))
    run(folder, tasks=("tasks/*.gz",))
    assert list(gone(folder)) == ["text/07.txt"]


def test_tasks_that_are_not_there_or_share_a_name_are_refused(folder):
    with pytest.raises(PreheatError, match=r"evaluation.tasks: .*no file matches 'nothing.jsonl'"):
        run(folder, tasks=("nothing.jsonl",))
    with pytest.raises(PreheatError, match=r"decontaminate.also: .*no file matches 'nothing.jsonl'"):
        run(folder, also=["nothing.jsonl"])
    write(folder / "other/tasks/moons.jsonl", {"question": PLAIN})
    write(folder / "another/tasks/moons.jsonl", {"question": QUESTION})
    with pytest.raises(PreheatError, match=r"both called moons.jsonl"):
        run(folder, tasks=(str(folder / "other/tasks/*.jsonl"), str(folder / "another/tasks/*.jsonl")))
    assert not (folder / "out").exists()


def test_a_changed_task_is_named_and_prepared_anew(folder):
    before, _ = run(folder)
    assert "using the prepared data" in run(folder)[1]
    with pytest.raises(PreheatError, match=r"no file matches 'task/\*\.jsonl'"):
        run(folder, tasks=("task/*.jsonl",))  # A slip of the pen does not pass for the tasks that the folder was kept clean of.
    write(folder / "tasks/moons.jsonl", {"question": QUESTION, "choices": ["Saturn", "Mars"], "label": 1})
    with pytest.raises(PreheatError, match=r"the task tasks/moons.jsonl has changed"):
        run(folder)
    after, _ = run(folder, "again")
    assert before.files == after.files  # The label is no text ...
    assert before.fingerprint != after.fingerprint  # ... and still another task.
    write(folder / "tasks/new.jsonl", {"question": PLAIN})
    with pytest.raises(PreheatError, match=r"the task tasks/new.jsonl is new"):
        run(folder, "again")
    (folder / "tasks/moons.jsonl").unlink()
    with pytest.raises(PreheatError, match=r"the task tasks/moons.jsonl is no longer named"):
        run(folder, "again")


def test_without_tasks_nothing_depends_on_them(folder):
    """The fingerprint is that of the files and of the configuration, as it was before there were tasks."""
    manifest, said = run(folder, tasks=())
    identity = {"configuration": manifest.configuration, "files": {name: entry.sha256 for name, entry in manifest.files.items()}}
    assert manifest.fingerprint == recipe.fingerprint(identity)
    assert manifest.inputs.tasks == {}
    assert "evaluation" not in said
    assert Manifest.load(folder / "out") == manifest


def test_ten_thousand_questions_cost_little(tmp_path):
    """A table of what may be there spares most words the search: with one it reads some 10 MB a second, and did 4 without."""
    rows = [{"q": " ".join(f"q{number}y{i}" for i in range(30))} for number in range(10_000)]
    known = benchmarks(tmp_path, *rows)
    texts = [Text(" ".join(f"w{(number * 7 + i) % 5000}" for i in range(1000))) for number in range(300)]
    begin = time.process_time()
    assert not any(known.shared(text) for text in texts)
    assert time.process_time() - begin < 300 * 5900 / 1e6  # Bytes at a megabyte a second.

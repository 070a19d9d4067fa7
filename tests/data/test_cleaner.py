"""What a source asks for beyond its policy: thresholds, language, masking, quality."""

import json
import random
from importlib import metadata

import pytest

from preheat.data.clean import Benchmarks, Cleaner
from preheat.data.clean.edits import ADDRESS, EMAIL, without_personal_data
from preheat.data.document import Document, File
from preheat.errors import PreheatError, RunFailed
from preheat.recipe import Quality, Source

ENGLISH = (
    "I embrace with great satisfaction the opportunity which now presents itself of congratulating you on the present favorable "
    "prospects of our public affairs. The recent accession of the important state of North Carolina to the Constitution of the United "
    "States, the rising credit and respectability of our country, are circumstances auspicious in an eminent degree."
)
GERMAN = (
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen begabt und sollen einander "
    "im Geist der Brüderlichkeit begegnen. Jeder hat Anspruch auf die in dieser Erklärung verkündeten Rechte und Freiheiten ohne "
    "irgendeinen Unterschied."
)


def cleaner(benchmarks=None, **fields):
    return Cleaner(Source(name="s", paths=("x",), **fields), benchmarks)


def document(text, score=None):
    return Document("s", "a.txt", text, score)


def reason(clean, text, score=None):
    done = clean(document(text, score))
    assert (done.document is None) != (done.exclusion is None)
    return "" if done.exclusion is None else f"{done.exclusion.step}: {done.exclusion.reason}"


def test_edits_are_on_record():
    done = cleaner()(document(f"Home | About | Contact\n\n{ENGLISH}\u200b"))
    assert done.document == document(ENGLISH + "\n")
    assert [(e.step, e.reason, e.id) for e in done.altered] == [
        ("edit", "navigation lines removed", "a.txt"),
        ("edit", "characters normalised", "a.txt"),
    ]
    size = len(ENGLISH) + 1  # A line feed ends it; a blank line before it and the invisible space behind it went.
    assert done.altered[1].detail == f"{size + 1} characters became {size}"


def test_a_dropped_document_keeps_its_head_and_numbers():
    done = cleaner()(document("3.14 " * 100))
    assert (done.exclusion.reason, done.exclusion.detail, done.exclusion.head) == ("few letters", "0% letters", ("3.14 " * 100)[:200])


def test_thresholds_of_a_source():
    assert reason(cleaner(), "Too little.") == "clean: too short"
    assert reason(cleaner(thresholds={"length.min_characters": 5.0}), "Enough.") == ""
    with pytest.raises(PreheatError, match=r"policy 'prose' has no threshold 'gopher.min_words'.*length.min_characters"):
        cleaner(thresholds={"gopher.min_words": 5.0})
    assert reason(cleaner(policy="gopher", thresholds={"gopher.min_words": 500.0}), ENGLISH) == "clean: gopher: too few words"


@pytest.mark.parametrize(("number", "shown"), [("nan", "nan"), ("inf", "inf"), ("-0.1", "-0.1")])
def test_a_threshold_that_means_nothing_is_refused(number, shown):
    """Nothing is above a NaN, so it would switch its rule off."""
    with pytest.raises(PreheatError, match=rf"length.min_characters is {shown}; a finite number"):
        cleaner(thresholds={"length.min_characters": float(number)})


def test_a_text_of_which_nothing_is_left_is_no_document():
    lenient = cleaner(thresholds={"length.min_characters": 0.0, "letters.min_share": 0.0})
    assert reason(lenient, "Home | About | Contact") == "clean: empty"
    assert reason(cleaner(policy="c4", thresholds={"c4.min_sentences": 0.0}), "no end mark") == "clean: empty"


def test_language():
    only = cleaner(language="en")
    assert reason(only, ENGLISH) == ""
    assert reason(only, GERMAN) == "language: not en"
    assert reason(cleaner(language="de"), GERMAN) == ""
    for code, near in (("eng", "en"), ("xx", "xmf"), ("gr", "gl")):
        with pytest.raises(PreheatError, match=rf"{code!r} is no language that the model knows; .*\b{near}\b"):
            cleaner(language=code)
    mixed = " ".join(f"{a} {b}" for a, b in zip(ENGLISH.split(), GERMAN.split() * 2, strict=False))
    assert reason(cleaner(language="en", min_language_score=0.99), mixed).startswith("language: ")
    assert reason(cleaner(language="en", min_language_score=0.0, policy="reference"), ENGLISH) == ""


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Write to jane.doe+x@mail.example.org, please.", f"Write to {EMAIL}, please."),
        ("<a@b.co>", f"<{EMAIL}>"),
        ("at 8.8.8.8 and 93.184.216.34:80", f"at {ADDRESS} and {ADDRESS}:80"),
        ("at 192.168.0.1, 10.1.2.3, 127.0.0.1", "at 192.168.0.1, 10.1.2.3, 127.0.0.1"),
        ("section 1.2.3.4.5 or 999.1.1.1", "section 1.2.3.4.5 or 999.1.1.1"),
        ("user@localhost, @name, a @ b", "user@localhost, @name, a @ b"),
        ("version v1.2.3.4", "version v1.2.3.4"),
        ("jörg.müller@bücher.example, иван@пример.рф", f"{EMAIL}, {EMAIL}"),
        ("a@xn--bcher-kva.xn--p1ai.", f"{EMAIL}."),
        ("邮箱user@example.com谢谢、地址8.8.8.8的", f"邮箱{EMAIL}谢谢、地址{ADDRESS}的"),
        ("連絡先はinfo@例え.jpまで", f"連絡先は{EMAIL}まで"),
        ("ติดต่อuser@example.org นะ, 메일 a@b.co으로", f"ติดต่อ{EMAIL} นะ, 메일 {EMAIL}으로"),
        ("a@b.c1, 2001:db8::1", "a@b.c1, 2001:db8::1"),
    ],
)
def test_personal_data(text, masked):
    assert without_personal_data(text) == masked
    assert without_personal_data(masked) == masked


def test_masking_is_asked_for():
    text = f"{ENGLISH} Write to someone@example.org."
    assert cleaner()(document(text)).document.text == text + "\n"
    done = cleaner(mask_personal_data=True)(document(text))
    assert done.document.text == f"{ENGLISH} Write to {EMAIL}.\n"
    assert done.altered[-1].reason == "personal data masked"


def test_quality_by_a_field():
    clean = cleaner(quality=Quality(field="score", at_least=2.5))
    assert reason(clean, ENGLISH, 2.5) == ""
    assert reason(clean, ENGLISH, 2.4) == "quality: low score"


def test_quality_by_a_scorer(monkeypatch):
    """A scorer is code that a person installed; a recipe only names it."""
    scorers = {"length": len, "broken": lambda text: 1 / 0, "nan": lambda text: float("nan")}

    class Entry:
        dist = None

        def __init__(self, name):
            self.name = name

        def load(self):
            return scorers[self.name]

    monkeypatch.setattr(metadata, "entry_points", lambda group: [Entry(name) for name in scorers] if group == "preheat.quality" else [])
    assert reason(cleaner(quality=Quality(scorer="length", at_least=10)), ENGLISH) == ""
    assert reason(cleaner(quality=Quality(scorer="length", at_least=10_000)), ENGLISH) == "quality: low score"
    assert reason(cleaner(quality=Quality(scorer="nan", at_least=0)), ENGLISH) == "quality: low score"
    with pytest.raises(RunFailed, match=r"a.txt: the quality scorer failed: ZeroDivisionError"):
        cleaner(quality=Quality(scorer="broken", at_least=0))(document(ENGLISH))
    with pytest.raises(PreheatError, match=r"'os.system'.*broken, length, nan"):
        cleaner(quality=Quality(scorer="os.system", at_least=0))


@pytest.mark.parametrize("fields", [{}, {"field": "a", "scorer": "b"}])
def test_quality_has_one_origin(fields):
    with pytest.raises(PreheatError, match="`field` or `scorer`"):
        cleaner(quality=Quality(at_least=1, **fields))


def test_a_verdict_depends_on_the_document_alone(tmp_path):
    """In any order, in fresh processes or used ones."""
    (tmp_path / "task.jsonl").write_text(json.dumps({"question": GERMAN}), "utf-8")
    asked = Benchmarks([File("task.jsonl", str(tmp_path / "task.jsonl"), 0)], 13)
    texts = [ENGLISH, GERMAN, f"{ENGLISH} {GERMAN}", "x", f"{ENGLISH}\n{ENGLISH}\n" * 3, "Word " * 300]
    texts += [" ".join(random.Random(seed).choices(ENGLISH.split(), k=200)) for seed in range(30)]
    options = {"policy": "web", "language": "en", "mask_personal_data": True}
    alone = {text: cleaner(asked, **options)(document(text)) for text in texts}
    used = cleaner(asked, **options)
    for seed in range(3):
        for text in random.Random(seed).sample(texts, len(texts)):
            assert used(document(text)) == alone[text]


def test_the_fingerprint_covers_what_a_verdict_depends_on(tmp_path):
    (tmp_path / "task.jsonl").write_text(json.dumps({"question": GERMAN}), "utf-8")
    variants = [
        cleaner(),
        cleaner(policy="web"),
        cleaner(thresholds={"length.min_characters": 7.0}),
        cleaner(language="en"),
        cleaner(language="en", min_language_score=0.5),
        cleaner(mask_personal_data=True),
        cleaner(quality=Quality(field="score", at_least=1)),
        cleaner(quality=Quality(field="score", at_least=2)),
        cleaner(Benchmarks([File("task.jsonl", str(tmp_path / "task.jsonl"), 0)], 13)),
    ]
    assert len({variant.fingerprint for variant in variants}) == len(variants)
    assert cleaner().fingerprint == cleaner().fingerprint

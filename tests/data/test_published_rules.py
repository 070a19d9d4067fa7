"""The rules of Gopher, C4 and FineWeb on texts whose verdict follows by counting, and word counts against spaCy's."""

import random
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.data.clean import POLICIES, Policy, apply
from preheat.data.clean.gopher import duplicates
from preheat.data.clean.rule import Text
from preheat.data.clean.words import Splitter, sentences, split

WORDS = [f"{a}{b}{c}" for a in ("tra", "ven", "mol", "sig") for b in ("to", "ra", "ne", "li") for c in ("ster", "ding", "le", "nd")]


def prose(count, seed=1):
    """Sentences of ten words without a repeated 3-gram to speak of, with stop words."""
    chance = random.Random(seed)
    out = []
    for _ in range(count):
        words = [chance.choice(WORDS) + chance.choice("aeiou") for _ in range(8)]
        out.append(f"Of the {' '.join(words)} with {chance.choice(WORDS)}.")
    return out


def verdict(text, policy):
    return reason(text, POLICIES[policy])


def reason(text, policy):
    dropped = apply(text, policy)[1]
    return dropped.reason if dropped else ""


PAGE = "\n".join(" ".join(prose(5, seed)) for seed in range(6))


@pytest.mark.parametrize("policy", ["gopher", "c4", "fineweb", "web"])
def test_a_page_of_sentences_stays(policy):
    assert verdict(PAGE, policy) == ""


# What spaCy 3.8's blank English tokenizer makes of each run.
@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("plain", ["plain"]),
        ("end.", ["end", "."]),
        ('"Yes,"', ['"', "Yes", ",", '"']),
        ("don't", ["do", "n't"]),
        ("America's", ["America", "'s"]),
        ("we'll", ["we", "'ll"]),
        ("cannot,", ["can", "not", ","]),
        ("well-digested", ["well", "-", "digested"]),
        ("word--word", ["word", "--", "word"]),
        ("1,000.5", ["1,000.5"]),
        ("$5", ["$", "5"]),
        ("10%", ["10", "%"]),
        ("10km", ["10", "km"]),
        ("1941-1945", ["1941", "-", "1945"]),
        ("U.S.", ["U.S."]),
        ("Mr.", ["Mr."]),
        ("e.g.", ["e.g."]),
        ("J.", ["J."]),
        ("(see", ["(", "see"]),
        ("wait...", ["wait", "..."]),
        ("and/or", ["and/or"]),
        ("he/she", ["he", "/", "she"]),
        ("https://example.org/a-b?c=d.", ["https://example.org/a-b?c=d", "."]),
        ("name@example.com,", ["name@example.com", ","]),
        ("''", ["''"]),
        ("#tag", ["#", "tag"]),
        ("•", ["•"]),
        ("24M", ["24", "M"]),
        ("US$220", ["US$", "220"]),
        ("°C.", ["°", "C", "."]),
        ("a.k.a.", ["a.k.a", "."]),
        ("pm.", ["pm", "."]),
        ("(1):", ["(", "1", "):"]),
    ],
)
def test_words_are_split_like_spacys(run, words):
    assert split(run) == words


@given(st.text(st.characters(exclude_categories=["Cs", "Z", "Cc"]), min_size=1, max_size=30))
def test_splitting_loses_no_character(run):
    assert "".join(split(run)) == run
    assert all(split(run))


@given(st.lists(st.text("ab.,'-1(", min_size=1, max_size=6), max_size=40), st.integers(0, 3))
def test_a_splitter_that_has_seen_much_says_the_same(runs, before):
    fresh, used = Splitter(), Splitter()
    for position in range(before):
        used.words([*runs[position::2], f"x{position}"])
    one, other = fresh.words(runs), used.words(runs)
    assert one.hashes.tolist() == other.hashes.tolist()
    assert one.lengths.tolist() == other.lengths.tolist() == [len(word) for run in runs for word in split(run)]
    assert (one.alphabetic, one.characters, one.plain.tolist()) == (other.alphabetic, other.characters, other.plain.tolist())


def test_a_splitter_forgets_and_goes_on(monkeypatch):
    monkeypatch.setattr("preheat.data.clean.words.MEMORY", 10)
    used = Splitter()
    for position in range(50):
        runs = [f"word{position + i}" for i in range(5)]
        assert used.words(runs).hashes.tolist() == Splitter().words(runs).hashes.tolist()
        assert len(used._number) <= 16


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("One. Two! Three?", 3),
        ("He said so...  And left.", 1),
        ("Mr. Smith of the U.S. came.", 1),
        ("no end", 1),
        ('"Go." He went.', 2),
        ("", 0),
    ],
)
def test_sentences(line, count):
    assert sentences(line, float("inf")) == count
    assert [min(sentences(line, most), most) for most in (1, 2)] == [min(count, most) for most in (1, 2)]


def slow_repeated(words, n):
    """Table A1's duplicate n-grams by the letter: from the left, without overlap."""
    seen, place, characters = set(), 0, 0
    while place + n <= len(words):
        gram = tuple(words[place : place + n])
        if gram in seen:
            characters += sum(map(len, gram))
            place += n
        else:
            seen.add(gram)
            place += 1
    return characters


def slow_gopher(text):
    """The n-gram part of the repetition rules, word by word."""
    words = [word for run in text.split() for word in split(run)]
    shares = {2: 0.20, 3: 0.18, 4: 0.16, 5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
    for n in (2, 3, 4):
        grams = Counter(" ".join(words[i : i + n]) for i in range(len(words) - n + 1))
        if grams:
            gram, count = grams.most_common(1)[0]
            if len(gram) * count / len(text) > shares[n]:
                return f"gopher: one {n}-gram again and again"
    for n in range(5, 11):
        if slow_repeated(words, n) / len(text) > shares[n]:
            return f"gopher: repeated {n}-grams"
    return ""


@given(st.integers(0, 2**32), st.integers(20, 200), st.integers(2, 60), st.integers(0, 4))
@settings(max_examples=150, deadline=None)
def test_repeated_ngrams_as_the_table_defines_them(seed, length, vocabulary, copies):
    chance = random.Random(seed)
    words = [chance.choice(WORDS[:vocabulary]) + str(chance.randrange(vocabulary)) for _ in range(length)]
    for _ in range(copies):
        start, size, at = chance.randrange(length), chance.randrange(3, 25), chance.randrange(length)
        words[at:at] = words[start : start + size]
    text = " ".join(words)
    got = reason(text, Policy(("gopher repetition",), POLICIES["gopher"].numbers))
    assert got == slow_gopher(text)


@given(st.lists(st.sampled_from(["a", "bb", "ccc", ""]), max_size=12))
def test_duplicates_are_what_is_no_first_occurrence(parts):
    firsts = [part for position, part in enumerate(parts) if part not in parts[:position]]
    assert duplicates(parts) == (len(parts) - len(firsts), sum(map(len, parts)) - sum(map(len, firsts)))


BASE = " ".join(prose(12))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (" ".join(prose(4)), "gopher: too few words"),
        ("\n".join([*prose(7), *prose(1, 9) * 4]), "gopher: repeated lines"),
        ("\n\n".join([*prose(7), *prose(1, 9) * 4]), "gopher: repeated paragraphs"),
        ("\n".join(f"- {line}" for line in prose(12)), "gopher: bullets"),
        ("\n".join(f"{line[:-1]}..." for line in prose(12)), "gopher: lines that end in an ellipsis"),
        (BASE.replace("Of the", "# #"), "gopher: hashes and ellipses"),
        (BASE.replace("Of the ", "").replace(" with", ""), "gopher: stop words"),
        (" ".join(f"the {a}" for a in "bcdfghjklmnpqrstvwxz" * 3 if a), "gopher: repeated 10-grams"),
        (" ".join(f"{word} {i} {i}7" for i, word in enumerate(BASE.split()[:90])), "gopher: words without a letter"),
        (
            " ".join(f"{a}{b}{c} {b}{d}" for a in "bdg" for b in "aei" for c in "lmn" for d in "rst") + " the be",
            "gopher: length of the words",
        ),
    ],
)
def test_gopher(text, reason):
    got = verdict(text, "gopher")
    assert got == reason or (reason.split(":")[0] == got.split(":")[0] == "gopher" and "gram" in got and "gram" in reason)


@pytest.mark.parametrize(
    ("text", "left", "reason"),
    [
        (f"{PAGE}\nMenu item without an end\n", PAGE, ""),
        (f"{PAGE}\nToo short.\n", PAGE, ""),
        (f"{PAGE}\nPlease turn on Javascript to see this.\n", PAGE, ""),
        (f"{PAGE}\nOur cookie policy is worth reading today.\n", PAGE, ""),
        (f"{PAGE}\nA line with {'x' * 1001} in it.\n", PAGE, ""),
        (f"{PAGE}\nAnd so on and on...\n", PAGE, ""),
        (PAGE.replace("Of", "Of[12]", 1), PAGE, ""),
        (f"{PAGE}\nThere is a {{ in here.\n", None, "c4: curly bracket"),
        (f"{PAGE}\nLorem ipsum dolor sit amet.\n", None, "c4: lorem ipsum"),
        ("\n".join(prose(4)), None, "c4: too few sentences"),
        ("One line. " * 5, ("One line. " * 5).strip(), ""),
    ],
)
def test_c4(text, left, reason):
    assert verdict(text, "c4") == reason
    if left is not None:
        assert apply(text, POLICIES["c4"])[0].text == left


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\n".join(line[:-1] for line in prose(9)), "fineweb: lines without an end mark"),
        ("\n".join([*prose(3), *(f"Item {i}." for i in range(7))]), "fineweb: short lines"),
        ("\n".join([*prose(60), prose(60)[0]]), "fineweb: repeated lines"),
        ("\n".join([*prose(200), prose(200)[0]]), ""),
        ("\n\n\n\n\n".join(prose(9)), "fineweb: a list"),
        ("\n".join(f"{line[:-1]}\u3002" for line in prose(9)), ""),
        ("\n \n", "fineweb: empty"),
    ],
)
def test_fineweb(text, reason):
    assert verdict(text, "fineweb") == reason


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize(
    "text", ["^" * 1_000_000, "a" * 200_000, " " * 1_000_000 + "x", "[" * 300_000, "a@" * 200_000, "1." * 300_000, "# " * 200_000]
)
def test_a_megabyte_without_structure_takes_no_time(policy, text):
    """openai/tiktoken #15, #195, #245."""
    start = time.process_time()
    reason = verdict(text, policy)
    assert time.process_time() - start < 5
    assert reason or policy == "fineweb"


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("text", ["", " ", "\n\n\n", ".", "a", "\u2028", "…", "\x85 \u3000"])
def test_next_to_nothing_is_dropped_without_an_error(policy, text):
    assert verdict(text, policy)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=400), st.sampled_from(sorted(POLICIES)))
@settings(max_examples=150, deadline=None)
def test_no_text_makes_a_rule_fail(text, policy):
    verdict(text, policy)
    assert Text(text).words.characters <= len(text)

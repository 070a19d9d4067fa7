"""Planted duplicates are found, boilerplate is no duplicate, and order does not matter."""

import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.data import dedup
from preheat.data.dedup.grams import Shingles

WORDS = [f"w{i:x}" for i in range(4000)]


def page(seed, length=150):
    generator = random.Random(seed)
    return " ".join(generator.choices(WORDS, k=length))


def edited(text, share, seed):
    """The text with a share of its words replaced, as in a reprint."""
    generator = random.Random(seed)
    return " ".join(generator.choice(WORDS) if generator.random() < share else word for word in text.split())


def five_grams(text):
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}


def jaccard(a, b):
    return len(five_grams(a) & five_grams(b)) / len(five_grams(a) | five_grams(b))


def near(texts, threshold=0.5):
    """Number of each document that goes -> its match, in the way the pipeline asks for it: by groups, the longest document first."""
    bands = dedup.bands(dedup.shingles(texts))
    everyone = np.arange(len(texts))
    equal = [dedup.equal_bands(band, everyone) for band in bands]
    members, roots = dedup.groups(equal)
    order = sorted(range(len(members)), key=lambda i: (roots[i], -len(texts[members[i]]), dedup.key(texts[members[i]])))
    documents = np.concatenate([pair[0] for pair in equal])
    numbers = np.concatenate([number * len(texts) + pair[1] for number, pair in enumerate(equal)])

    def load(numbers):
        found = dedup.shingles([texts[number] for number in numbers])
        return (found.distinct(i) for i in range(len(found)))

    return dedup.near_duplicates(members[order], roots[order], (documents, numbers), load, threshold)


def test_same_text_but_for_case_and_space():
    same = ["The  Union\n", "the union", "THE\tUNION", "the\u00a0union", "Cafe\u0301", "CAFÉ"]
    keys = [dedup.key(text) for text in same]
    assert len(set(keys[:4])) == 1
    assert keys[4] == keys[5]
    assert len({*keys, dedup.key("the union!"), dedup.key("theunion")}) == 4


def exact(keys, *ranks):
    return dedup.exact_duplicates(
        np.array([np.frombuffer(key, "<u8") for key in keys]).reshape(-1, 4), tuple(map(np.array, ranks))
    ).tolist()


def test_which_exact_duplicate_stays():
    keys = [dedup.key(text) for text in ("a", "b", "A", "a ", "b", "c")]
    assert exact(keys, [3, 1, 2, 4, 0, 0]) == [2, 4, -1, 2, -1, -1]
    assert exact(keys, [0] * 6) == [-1, -1, 0, 0, 1, -1]
    assert exact(keys, [0] * 6, [5, 4, 3, 2, 1, 0]) == [3, 4, 3, -1, -1, -1]
    assert exact([], []) == []


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=1), st.integers(0, 2), st.integers(0, 2))))
def test_exact_duplicates_as_a_dictionary_would_find_them(rows):
    """Also where only the first 64 of the 256 bits are the same."""
    keys = [bytes(8) + key * 24 for key, *_ in rows]
    best = {key: min((rank, second, n) for n, (k, rank, second) in enumerate(rows) if k == key[-1:]) for key in keys}
    assert exact(keys, [r for _, r, _ in rows], [s for *_, s in rows]) == [
        -1 if best[k][2] == n else best[k][2] for n, k in enumerate(keys)
    ]


@pytest.mark.parametrize(("share", "least"), [(0.0, 1.0), (0.01, 1.0), (0.05, 0.97)])
def test_planted_copies_are_found(share, least):
    originals = [page(i) for i in range(100)]
    copies = [edited(text, share, i) + f" end{i}" for i, text in enumerate(originals)]
    above = [i for i in range(100) if jaccard(originals[i], copies[i]) >= 0.5]
    gone = near(originals + copies)
    found = sum(i in gone or i + 100 in gone for i in above)
    assert len(above) >= 85
    assert found >= least * len(above)


def test_shared_boilerplate_is_no_duplicate():
    boilerplate = page("boilerplate", 130)
    assert near([f"{boilerplate} {page(i)}" for i in range(60)]) == {}


def test_similarities_are_exact():
    originals = [page(i) for i in range(30)]
    texts = originals + [edited(text, 0.03, i) for i, text in enumerate(originals)]
    gone = near(texts)
    assert gone
    for number, match in gone.items():
        assert match.similarity == jaccard(texts[number], texts[match.kept])
        assert match.similarity >= 0.5
        assert match.kept not in gone


def test_the_longest_stays():
    text = page(1)
    versions = [text, text + " and more", text + " and"]
    assert {n: m.kept for n, m in near(versions).items()} == {0: 1, 2: 1}


def test_a_higher_threshold_keeps_more():
    text = page(1)
    pair = [text, edited(text, 0.04, 1)]
    similarity = jaccard(*pair)
    assert 0.5 < similarity < 0.9
    assert near(pair, similarity)
    assert not near(pair, similarity + 1e-9)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(24)))
def test_order_does_not_matter(order):
    texts = [edited(page(i // 4), 0.03, i) for i in range(24)]
    expected = {(texts[n], texts[m.kept]) for n, m in near(texts).items()}
    shuffled = [texts[i] for i in order]
    assert {(shuffled[n], shuffled[m.kept]) for n, m in near(shuffled).items()} == expected
    assert expected


def test_short_documents_are_alike_only_if_equal():
    assert near(["cat", "dog", "the cat", "the dog sat", "a b c d", "a b c e", "!!!", "???", ""]) == {}
    assert len(near(["the cat sat", "The cat, sat."])) == 1


def test_shingles_are_the_sets_of_words_that_a_regular_expression_finds():
    texts = [page(i, 30 + i) for i in range(9)] + [
        "Don't \u201cquote\u201d x_y caf\u00e9 \u00c9T\u00c9 1,000 b-c d. e f",
        "a b c d",
        "",
        "ÄÖ ß\u0301 x y z q",
    ]
    found = dedup.shingles(texts)
    for number, text in enumerate(texts):
        assert len(found.distinct(number)) == max(len({tuple(g) for g in windows(re.findall(r"\w+", text.casefold()))}), 1)
    for a in range(len(texts)):
        for b in range(a):
            common = five_grams(texts[a]) & five_grams(texts[b])
            assert len(np.intersect1d(found.distinct(a), found.distinct(b))) == len(common)


def windows(words):
    return [words[i : i + 5] for i in range(len(words) - 4)]


def test_a_script_without_spaces_has_a_word_a_character():
    sentence = "机器学习模型需要大量的高质量文本数据"
    assert len(dedup.shingles([sentence]).hashes) == len(sentence) - 4
    assert near([sentence * 3, sentence * 3 + "。再见"]) != {}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text("ab c我_\n.", max_size=40), max_size=12), st.integers(1, 60))
def test_values_depend_on_the_text_alone(texts, size):
    """Not on the process, the other texts of the batch, or where in it a text stands. A text longer than a slice is cut between words."""
    together = dedup.shingles(texts)
    for number, text in enumerate(texts):
        alone = dedup.shingles([text])
        assert np.array_equal(alone.hashes, together.hashes[together.offsets[number] : together.offsets[number + 1]])


def test_a_long_text_is_cut_between_words(monkeypatch):
    text = page(1, 400)
    whole = dedup.shingles([text]).hashes
    monkeypatch.setattr("preheat.data.dedup.grams.SLICE", 100)
    assert np.array_equal(dedup.shingles([text]).hashes, whole)


def test_values_are_the_same_in_every_process():
    # Fixed by integer arithmetic; Python's own hash() of a text differs from run to run.
    assert dedup.shingles(["one two three four five six"]).hashes.tolist() == [13137730515124157670, 10966156599953603913]


def test_the_s_curve_is_met():
    """Pairs of a known similarity become candidates as often as the formula says (Leskovec, Rajaraman, Ullman, section 3.4)."""
    generator = random.Random(5)
    for overlap in (40, 60):
        caught, similarities = 0, []
        for _ in range(150):
            shared = [generator.getrandbits(64) for _ in range(overlap)]
            sets = [np.array(shared + [generator.getrandbits(64) for _ in range(100 - overlap)], np.uint64) for _ in range(2)]
            both = dedup.bands(Shingles(np.concatenate(sets), np.array([0, 100, 200])))
            caught += bool((both[:, 0] == both[:, 1]).any())
            similarities.append(overlap / (200 - overlap))
        expected = dedup.caught(similarities[0])
        assert expected == pytest.approx(1 - (1 - similarities[0] ** 4) ** 64)
        assert abs(caught / 150 - expected) < 4 * (expected * (1 - expected) / 150) ** 0.5 + 1e-9


def test_groups_are_the_connected_components():
    edges = [(5, 1), (9, 5), (2, 7), (12, 11), (11, 10), (10, 9)]
    members, roots = dedup.groups([(np.array([a for a, _ in edges]), np.array([b for _, b in edges]))])
    assert dict(zip(members.tolist(), roots.tolist(), strict=True)) == {1: 1, 5: 1, 9: 1, 10: 1, 11: 1, 12: 1, 2: 2, 7: 2}
    assert len(dedup.groups([])[0]) == 0


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=60))
def test_groups_as_a_search_would_find_them(edges):
    reach = {a: {a} for edge in edges for a in edge}
    for a, b in edges:
        union = reach[a] | reach[b]
        for member in union:
            reach[member] = union
    members, roots = dedup.groups([(np.array([a for a, _ in edges], np.int64), np.array([b for _, b in edges], np.int64))])
    assert dict(zip(members.tolist(), roots.tolist(), strict=True)) == {a: min(reach[a]) for a in reach}


def test_little_memory_changes_nothing(monkeypatch):
    texts = [edited(page(i // 8), 0.03, i) for i in range(48)]
    expected = near(texts)
    assert expected
    monkeypatch.setattr("preheat.data.dedup.near.CACHE_BYTES", 1)
    assert near(texts) == expected


def test_boilerplate_that_everyone_shares_costs_no_square(monkeypatch):
    """A band that more documents share than are compared: copies are still found, by their other bands."""
    monkeypatch.setattr("preheat.data.dedup.near.BUCKET", 4)
    boilerplate = page("boilerplate", 100)
    texts = [f"{boilerplate} {page(i)}" for i in range(60)] + [f"{boilerplate} {edited(page(i), 0.01, i)} more" for i in range(10)]
    assert set(near(texts)) == set(range(10))

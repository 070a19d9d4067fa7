import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.errors import PreheatError
from preheat.evaluate.baselines import KneserNey, Unigram, baselines

A, B, C = 0, 1, 2


def test_kneser_ney_by_hand() -> None:
    """Training text a b a b c, vocabulary of 4, order 2.

    Bigrams: ab 2, ba 1, bc 1. D_2 = n1 / (n1 + 2 n2) = 2 / (2 + 2) = 1/2.
    Kinds of tokens before: a 1 (from ba), b 1 (from ab), c 1 (from bc); D_1 = 3 / (3 + 0) = 1, three kinds in all.
    p_1(w) = max(1 - 1, 0) / 3 + 1 * 3 / 3 * 1/4 = 1/4 for each w.
    p(b | a) = (2 - 1/2) / 2 + 1/2 * 1 / 2 * 1/4 = 13/16; p(c | a) = 1/16.
    p(a | b) = (1 - 1/2) / 2 + 1/2 * 2 / 2 * 1/4 = 3/8;   p(b | b) = 1/8.
    c begins no bigram: p(w | c) = p_1(w) = 1/4.
    """
    model = KneserNey(np.array([A, B, A, B, C]), vocab_size=4, order=2)
    for text, probability in (([A, B], 13 / 16), ([A, C], 1 / 16), ([B, A], 3 / 8), ([B, B], 1 / 8), ([C, 3], 1 / 4)):
        assert model.log_probabilities(np.array(text)).tolist() == pytest.approx([math.log(probability)])


def test_kneser_ney_counts_what_comes_before_and_not_how_often() -> None:
    """ "San Francisco" many times: Francisco (2) follows one token only, so after an unknown context it is no likelier than 4.

    Text: 1 2 1 2 1 2 1 2 3 4 (unigram counts of 2: four, of 4: one); kinds before 1: {2}, 2: {1}, 3: {2}, 4: {3}.
    """
    model = KneserNey(np.array([1, 2, 1, 2, 1, 2, 1, 2, 3, 4]), vocab_size=6, order=2)
    after_unknown = [model.log_probabilities(np.array([5, token]))[0] for token in (2, 4)]
    assert after_unknown[0] == pytest.approx(after_unknown[1])


@given(data=st.data(), vocab_size=st.integers(2, 6), order=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_probabilities_after_every_context_sum_to_one(data: st.DataObject, vocab_size: int, order: int) -> None:
    ids = st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=40)
    training, context = np.array(data.draw(ids)), data.draw(ids)
    model = KneserNey(training, vocab_size, order)
    following = [math.exp(model.log_probabilities(np.array([*context, token]))[-1]) for token in range(vocab_size)]
    assert sum(following) == pytest.approx(1)
    assert min(following) > 0
    assert np.exp(Unigram(training, vocab_size).log_probability).sum() == pytest.approx(1)


@given(
    training=st.lists(st.integers(0, 4), min_size=8, max_size=60),
    text=st.lists(st.integers(0, 4), min_size=2, max_size=12),
    order=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_kneser_ney_agrees_with_its_definition_on_dictionaries(training: list[int], text: list[int], order: int) -> None:
    """The recursion as the paper prints it, on sets and tuples."""

    def grams(length: int) -> list[tuple[int, ...]]:
        return [tuple(training[at : at + length]) for at in range(len(training) - length + 1)]

    def count(gram: tuple[int, ...]) -> int:
        if len(gram) == order:
            return grams(order).count(gram)
        return len({longer[0] for longer in grams(len(gram) + 1) if longer[1:] == gram})

    def probability(word: int, context: tuple[int, ...]) -> float:
        shorter = probability(word, context[1:]) if context else 1 / 5
        counts = {other: count((*context, other)) for other in range(5)}
        total = sum(counts.values())
        if total == 0:
            return shorter
        all_counts = [count(gram) for gram in set(grams(len(context) + 1))]
        ones, twos = all_counts.count(1), all_counts.count(2)
        discount = ones / (ones + 2 * twos) if ones else 0.5
        kinds = sum(value > 0 for value in counts.values())
        return (max(counts[word] - discount, 0) + discount * kinds * shorter) / total

    expected = [math.log(probability(text[at], tuple(text[max(0, at - order + 1) : at]))) for at in range(1, len(text))]
    assert KneserNey(np.array(training), 5, order).log_probabilities(np.array(text)).tolist() == pytest.approx(expected)


def test_a_vocabulary_whose_four_grams_do_not_fit_64_bits() -> None:
    """200,000^4 > 2^63. The pattern repeats, so that the next token is nearly certain."""
    period = np.array([199_999, 150_000, 199_998, 3, 100_000])
    model = KneserNey(np.tile(period, 40), vocab_size=200_000, order=4)
    assert np.exp(model.log_probabilities(np.tile(period, 3)))[4:].min() > 0.9


def test_unigram_by_hand() -> None:
    """(c + 1) / (N + V): a 3 of 4, vocabulary of 4."""
    model = Unigram(np.array([A, A, A, B]), vocab_size=4)
    assert np.exp(model.log_probabilities(np.array([C, A, B, C]))).tolist() == pytest.approx([4 / 8, 2 / 8, 1 / 8])


def test_scores_are_of_the_held_out_tokens_and_their_bytes() -> None:
    training = np.array([1, 2, 3, 0] * 50, np.uint16)
    token_bytes = np.array([0, 1, 2, 4])
    scores = baselines(training, {"web": np.array([1, 2, 3, 0, 1], np.uint16)}, token_bytes)["web"]
    assert {name: (score.tokens, score.bytes) for name, score in scores.items()} == {"unigram": (4, 7), "4-gram": (4, 7)}
    assert scores["unigram"].bits_per_token == pytest.approx(2, abs=0.01)
    assert scores["unigram"].bits_per_byte == pytest.approx(8 / 7, abs=0.01)
    # The text repeats itself, so every shorter context has one kind of token before it and knows nothing: 2 bits each for the two tokens
    # with less than three tokens of context, almost none for the two others.
    assert scores["4-gram"].bits_per_token == pytest.approx((2 + 2 + 0 + 0) / 4, abs=0.01)
    assert baselines(training, {"web": np.array([1, 2, 3, 0, 1])}, token_bytes, max_tokens=2)["web"]["unigram"].bytes == 6


def test_a_million_training_tokens_take_seconds() -> None:
    rng = np.random.default_rng(0)
    training = (rng.zipf(1.3, 1_200_000) % 4096).astype(np.uint16)
    begin = time.process_time()
    KneserNey(training, 4096, 4).log_probabilities(training[:50_000])
    assert time.process_time() - begin < 20


@pytest.mark.parametrize("training", [[], [1], [1, 7]])
def test_training_tokens_that_give_no_model_are_refused(training: list[int]) -> None:
    with pytest.raises(PreheatError, match="the training data"):
        baselines(np.array(training, np.int64), {"web": np.array([1, 2])}, np.array([0, 1, 1]))

"""What counting gives: unigram and Kneser-Ney n-gram models over the same tokens, for a sense of how much a model has learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from preheat.evaluate.score import Ids, Score, beginning, refuse_texts, score

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def baselines(
    training: Ids, texts: Mapping[str, Ids], token_bytes: npt.NDArray[np.integer], *, max_tokens: int | None = None
) -> dict[str, dict[str, Score]]:
    """Source -> `unigram` and `4-gram` -> score, on exactly the tokens that `held_out` scores.

    Args:
        training: the tokens that the run consumed, in order.
        texts: source -> token ids of its held-out documents.
        token_bytes: for each token id, how many bytes it stands for; as many entries as the vocabulary has.
        max_tokens: score only so many tokens from the beginning of each text.

    Raises:
        PreheatError: a text or the training tokens are too few, or hold ids that the tokenizer does not have.
    """
    refuse_texts({"the training data": training}, token_bytes, None)
    refuse_texts(texts, token_bytes, max_tokens)
    vocab_size = len(token_bytes)
    unigram, four_gram = Unigram(training, vocab_size), KneserNey(training, vocab_size, order=4)
    scores: dict[str, dict[str, Score]] = {}
    for source, ids in texts.items():
        read = beginning(ids, max_tokens)
        nats = {"unigram": -unigram.log_probabilities(read).sum(), "4-gram": -four_gram.log_probabilities(read).sum()}
        scores[source] = {name: score(source, float(value), read, token_bytes) for name, value in nats.items()}
    return scores


class Unigram:
    """Relative frequencies with one added to every count (Laplace's rule), so that a token never seen has a probability."""

    def __init__(self, training: Ids, vocab_size: int) -> None:
        counts = np.bincount(np.asarray(training, np.int64), minlength=vocab_size)
        self.log_probability: Floats = np.log((counts + 1) / (len(training) + vocab_size))

    def log_probabilities(self, ids: Ids) -> Floats:
        """ln p of `ids[1:]`."""
        return self.log_probability[ids[1:]]


@dataclass(frozen=True)
class _Level:
    """The n-grams of one length. Each is a rank into `keys`; a key is (rank of its first n-1 tokens) * vocab_size + its last token."""

    keys: Integers
    counts: Floats
    """Occurrences at the highest order; below it, how many different tokens come before the n-gram: 0 where it only begins the data."""
    discount: float
    context_counts: Floats
    """Rank of an (n-1)-gram -> sum of the counts of the n-grams that begin with it."""
    context_kinds: Floats
    """Rank of an (n-1)-gram -> how many different tokens follow it."""


class KneserNey:
    """Interpolated Kneser-Ney with one discount per order (Chen & Goodman 1999, section 2.7; discounts of Ney, Essen & Kneser 1994).

    p_n(w | h) = max(c(hw) - D_n, 0) / c(h) + D_n * N(h) / c(h) * p_(n-1)(w | shorter h), down to p_0 = 1 / vocab_size, where N(h) is how
    many different tokens follow h and D_n = n1 / (n1 + 2 n2) from the numbers of n-grams with count 1 and 2. A context that was
    never seen passes on to the shorter one. The tables are sorted arrays of keys: memory of about 100 bytes per training token.
    """

    def __init__(self, training: Ids, vocab_size: int, order: int) -> None:
        self.vocab_size = vocab_size
        ids = np.asarray(training, np.int64)
        ranks = np.zeros(len(ids), np.int64)  # of the n-gram that ends at each position; the empty one has rank 0
        found: list[tuple[Integers, Integers]] = []
        for length in range(1, min(order, len(ids)) + 1):
            # The n-grams that end at position length - 1 and later: the context ends one position earlier.
            contexts = ranks if length == 1 else ranks[:-1]
            keys, first, longer, counts = np.unique(
                contexts * vocab_size + ids[length - 1 :], return_index=True, return_inverse=True, return_counts=True
            )
            if found:
                # Each kind of n-gram is one more kind of token before the (n-1)-gram at its end.
                shorter = found[-1][0]
                found[-1] = shorter, np.bincount(ranks[1:][first], minlength=len(shorter))
            found.append((keys, counts))
            ranks = longer
        sizes = [1, *(len(keys) for keys, _ in found)]
        self.levels = [_level(keys, counts, vocab_size, size) for (keys, counts), size in zip(found, sizes, strict=False)]

    def log_probabilities(self, ids: Ids) -> Floats:
        """ln p of each of `ids[1:]` given the tokens before it."""
        tokens = np.asarray(ids, np.int64)
        probability = np.full(len(tokens), 1 / self.vocab_size)
        contexts = np.zeros(len(tokens), np.int64)  # ranks of the (n-1)-grams before each position, -1 where never seen
        for level in self.levels:
            ranks = _ranks(level.keys, contexts * self.vocab_size + tokens)
            total = np.where(contexts >= 0, level.context_counts[contexts], 0)
            met = total > 0
            count = np.where(ranks >= 0, level.counts[ranks], 0)[met]
            held_back = level.discount * level.context_kinds[contexts[met]]
            probability[met] = (np.maximum(count - level.discount, 0) + held_back * probability[met]) / total[met]
            contexts = np.concatenate(([-1], ranks[:-1]))
        return np.log(probability[1:])


def _level(keys: Integers, counts: Integers, vocab_size: int, contexts: int) -> _Level:
    context_of = keys // vocab_size
    ones, twos = int((counts == 1).sum()), int((counts == 2).sum())
    # Where no n-gram occurs once, the estimate of 0 would leave unseen tokens without probability.
    discount = ones / (ones + 2 * twos) if ones else 0.5
    return _Level(
        keys,
        counts.astype(np.float64),
        discount,
        np.bincount(context_of, weights=counts, minlength=contexts).astype(np.float64),
        np.bincount(context_of, weights=counts > 0, minlength=contexts).astype(np.float64),
    )


def _ranks(keys: Integers, wanted: Integers) -> Integers:
    """The place of each wanted key among the sorted keys, -1 where it is missing."""
    places = np.searchsorted(keys, wanted)
    places[places == len(keys)] = 0
    return np.where(keys[places] == wanted, places, -1)

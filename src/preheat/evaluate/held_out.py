"""Loss and bits per byte of a model on text that it was not trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from preheat.arithmetic import Rope
from preheat.evaluate.score import Ids, Score, beginning, refuse_texts, score
from preheat.model import Transformer, documents, inference

TOKENS_AT_ONCE = 16_384
"""Tokens of one forward pass."""


Scorer = Callable[[Tensor, Tensor], float]
"""(inputs, labels), both rows x width token ids -> the sum of -ln p of the labels."""


def scorer(model: Transformer, rope: Rope | None = None, eod: int | None = None) -> Scorer:
    """That of a model in one process, under the autocast of the caller.

    Args:
        rope: rotary positions in place of the model's own.
        eod: the end-of-document token, where a token sees only its own document.
    """

    def nats(inputs_BT: Tensor, labels_BT: Tensor) -> float:
        device = model.output_weight.device
        inputs_BT = inputs_BT.to(device)
        seen = documents(inputs_BT, eod) if eod is not None else None
        with inference(model):
            losses = model(inputs_BT, labels_BT.to(device), rope=rope, documents_BT=seen)
        return float(losses.cross_entropy.item())

    return nats


def held_out(
    nats: Scorer,
    texts: Mapping[str, Ids],
    token_bytes: npt.NDArray[np.integer],
    *,
    seq_len: int,
    max_tokens: int | None = None,
) -> dict[str, Score]:
    """Score the held-out text of each source.

    A text is cut into windows of `seq_len` tokens that overlap by one: the last label of a window is the first input of the next. So every
    token but the very first of the text is scored exactly once, with at most `seq_len` tokens of context, of which the first of a
    window sees one. Contexts run over the end-of-document token into the document before, as they do in training.

    Args:
        nats: scores rows of tokens; see `scorer`.
        texts: source -> token ids of its held-out documents, one after the other, each ended by the end-of-document token.
        token_bytes: for each token id, how many bytes it stands for; 0 for the end-of-document token.
        seq_len: tokens of a window.
        max_tokens: score only so many tokens from the beginning of each text.

    Raises:
        PreheatError: a text has fewer than two tokens, or ids that the tokenizer does not have.
        RunFailed: a loss is not finite.
    """
    refuse_texts(texts, token_bytes, max_tokens)
    scores = {}
    for source, ids in texts.items():
        read = beginning(ids, max_tokens)
        scores[source] = score(source, _all_nats(nats, read, seq_len), read, token_bytes)
    return scores


def _all_nats(nats: Scorer, ids: Ids, seq_len: int) -> float:
    """The sum of -ln p over `ids[1:]`, added up in fp64."""
    windows, rest = divmod(len(ids) - 1, seq_len)
    rows = max(1, TOKENS_AT_ONCE // seq_len)
    spans = [(start * seq_len, min(start + rows, windows) * seq_len, seq_len) for start in range(0, windows, rows)]
    if rest:
        spans.append((windows * seq_len, len(ids) - 1, rest))
    total = 0.0
    for begin, end, width in spans:
        span = torch.from_numpy(ids[begin : end + 1].astype(np.int64))
        total += nats(span[:-1].view(-1, width), span[1:].view(-1, width))
    return total

"""How well a stretch of text is predicted: nats, tokens and the bytes they stand for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from preheat.errors import Problem, RunFailed, refuse

Ids = npt.NDArray[np.integer]
"""Token ids in any integer format, one after the other; an np.memmap will do."""


@dataclass(frozen=True)
class Score:
    """The likelihood of a text. The first token of the text has no context: it is not scored and its bytes do not count."""

    nats: float
    """Sum of -ln p over the scored tokens, end-of-document tokens among them."""
    tokens: int
    """How many tokens were scored."""
    bytes: int
    """UTF-8 bytes that exactly the scored tokens stand for; an end-of-document token stands for none."""

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    @property
    def bits_per_token(self) -> float:
        return self.loss / math.log(2)

    @property
    def bits_per_byte(self) -> float:
        """The figure that compares models with different tokenizers."""
        return self.nats / math.log(2) / self.bytes


def beginning(ids: Ids, max_tokens: int | None) -> Ids:
    """The part of a text that is read when at most `max_tokens` of its tokens are scored."""
    return ids if max_tokens is None else ids[: max_tokens + 1]


def score(source: str, nats: float, ids: Ids, token_bytes: npt.NDArray[np.integer]) -> Score:
    """The score of `ids[1:]`.

    Args:
        source: whose text it is, for the message.
        nats: sum of -ln p over `ids[1:]`.
        ids: the text that was read.
        token_bytes: for each token id, how many bytes it stands for; 0 for the end-of-document token.

    Raises:
        RunFailed: the sum is not finite.
    """
    if not math.isfinite(nats):
        raise RunFailed(
            Problem(
                "evaluate.not-finite",
                f"the held-out loss of {source} is {nats}",
                "a finite number",
                "The weights are damaged: take an earlier checkpoint",
            )
        )
    return Score(nats, len(ids) - 1, int(token_bytes[ids[1:]].sum(dtype=np.int64)))


def refuse_texts(texts: Mapping[str, Ids], token_bytes: npt.NDArray[np.integer], max_tokens: int | None) -> None:
    """Refuse held-out texts that give no score.

    Raises:
        PreheatError: a source has fewer than two tokens or no bytes, or `max_tokens` is not positive.
    """
    if max_tokens is not None and max_tokens < 1:
        refuse("evaluate.max-tokens", f"{max_tokens} held-out tokens", "at least 1", "Raise the limit")
    for source, ids in texts.items():
        read = beginning(ids, max_tokens)
        if len(read) < 2:
            refuse("evaluate.text", f"{source}: {len(ids)} tokens", "at least 2", "Add documents or raise data.held_out")
        highest = int(read.max())
        if highest >= len(token_bytes):
            refuse("evaluate.text", f"{source}: token id {highest}", f"the tokenizer has {len(token_bytes)} entries", "Tokenize it again")
        if not token_bytes[read[1:]].any():
            refuse("evaluate.text", f"{source}: {len(read) - 1} tokens that stand for no bytes", "some text", "Read more of it")

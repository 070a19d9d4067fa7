"""Text from a model, one token at a time, with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from preheat.arithmetic import Rope
from preheat.errors import Problem, RunFailed, refuse
from preheat.model.cache import Cache
from preheat.model.inference import inference
from preheat.model.transformer import Transformer


def generate(
    model: Transformer,
    prompt_ids: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    rope: Rope | None = None,
    stop: Collection[int] = (),
) -> list[int]:
    """Continue a prompt; the result depends on nothing but the arguments.

    Args:
        prompt_ids: at least one token id.
        max_new_tokens: how many tokens to make at most.
        temperature: the logits are divided by it; 0 always takes the most likely token.
        top_p: draw from the smallest set of likeliest tokens whose probabilities reach this sum (arXiv 1904.09751).
        rope: rotary positions in place of the model's own.
        stop: token ids that end the text.

    Returns:
        The new token ids, without the prompt and without the token that ended the text.

    Raises:
        PreheatError: an argument is out of range, or the text would outgrow the table of learned positions.
        RunFailed: the logits are not finite.
    """
    _refuse_arguments(model, prompt_ids, max_new_tokens, temperature, top_p)
    device = model.output_weight.device
    generator = torch.Generator().manual_seed(seed)
    cache = Cache(model.config, len(prompt_ids) + max_new_tokens)
    new_ids: list[int] = []
    tokens_BT = torch.tensor([list(prompt_ids)], dtype=torch.int64, device=device)
    with inference(model):
        while len(new_ids) < max_new_tokens:
            hidden_BTD = model(tokens_BT, rope=rope, cache=cache)
            token = _draw(model.logits(hidden_BTD[0, -1]).float().cpu(), temperature, top_p, generator)
            if token in stop:
                break
            new_ids.append(token)
            tokens_BT = torch.tensor([[token]], device=device)
    return new_ids


def _draw(logits_V: Tensor, temperature: float, top_p: float, generator: torch.Generator) -> int:
    if not logits_V.isfinite().all():
        raise RunFailed(Problem("model.not-finite", "the logits are not finite", "", "The weights are damaged: take an earlier checkpoint"))
    if temperature == 0:
        return int(logits_V.argmax())
    # In fp64 and with the maximum at 0, so that a temperature near 0 does not overflow.
    scaled_V = (logits_V.double() - logits_V.max()) / temperature
    probabilities_V, order_V = scaled_V.softmax(-1).sort(descending=True, stable=True)
    before_V = probabilities_V.cumsum(-1) - probabilities_V
    kept = probabilities_V[before_V < top_p]
    return int(order_V[torch.multinomial(kept, 1, generator=generator)])


def _refuse_arguments(model: Transformer, prompt_ids: Sequence[int], max_new_tokens: int, temperature: float, top_p: float) -> None:
    if not prompt_ids:
        refuse("generate.prompt", "the prompt has no token", "at least one", "Begin with the end-of-document token or some text")
    vocab_size = model.config.vocab_size
    unknown = [token for token in prompt_ids if not 0 <= token < vocab_size]
    if unknown:
        refuse(
            "generate.prompt", f"token id {unknown[0]}", f"ids below {vocab_size}, the model's vocab_size", "Use the model's own tokenizer"
        )
    if max_new_tokens < 0:
        refuse("generate.max-new-tokens", f"{max_new_tokens} new tokens", "0 or more", "")
    if not 0 <= temperature < float("inf"):
        refuse("generate.temperature", f"temperature {temperature}", "0 or a positive number", "")
    if not 0 < top_p <= 1:
        refuse("generate.top-p", f"top_p {top_p}", "more than 0 and at most 1", "")
    length = len(prompt_ids) + max_new_tokens
    if model.config.max_positions is not None and length > model.config.max_positions:
        refuse(
            "model.max_positions",
            f"{len(prompt_ids)} prompt tokens and {max_new_tokens} new ones",
            f"the table of learned positions has {model.config.max_positions} rows",
            "Shorten the prompt or ask for fewer tokens",
        )

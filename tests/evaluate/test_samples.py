"""What a model is given before a prompt, and where its text ends."""

import pytest
import torch

from preheat.evaluate import evaluation, sample_texts


def test_a_prompt_begins_as_texts_began_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a token of its own for the beginning, that one stands before the prompt; the end is another."""
    seen = []

    def generate(_model: object, ids: list[int], *, stop: tuple[int, ...], **_: object) -> list[int]:
        seen.append((ids, stop))
        return [104, 105]

    monkeypatch.setattr(evaluation, "generate", generate)
    options = {"start": 1, "end_of_document": 2, "seed": 0, "rope": None}
    told = sample_texts(torch.nn.Identity(), ["a", ""], lambda text: list(text.encode()), lambda ids: bytes(ids).decode(), **options)
    assert seen == [([1, 97], (2,)), ([1], (2,))]
    assert told == [{"prompt": "a", "text": "hi"}, {"prompt": "", "text": "hi"}]

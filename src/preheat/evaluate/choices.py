"""Multiple choice by likelihood: the model's answer is the choice that it finds most likely after the context."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from preheat.arithmetic import Rope
from preheat.data import File, tasks
from preheat.errors import PreheatError, Problem, RunFailed, refuse
from preheat.evaluate.score import Ids
from preheat.model import Transformer, inference

TOKENS_AT_ONCE = 8_192
"""Tokens of one forward pass, padding among them."""
CONTEXT_TOKENS, CONTINUATION_TOKENS, CONTINUATIONS = 64, 16, 4
"""Size of a question that is made from held-out text."""
TRIES = 10
"""Draws per question wanted, before documents that share their text leave some out."""


@dataclass(frozen=True)
class Question:
    """A context and at least two continuations of it, one of them right. No part is empty."""

    context_ids: tuple[int, ...]
    choices_ids: tuple[tuple[int, ...], ...]
    choice_bytes: tuple[int, ...]
    """Length of each choice in UTF-8 bytes."""
    label: int
    """Which choice is right, from 0."""


@dataclass(frozen=True)
class ChoiceScore:
    """Share of the questions that were answered right, under two conventions, and what to compare it with."""

    questions: int
    accuracy: float
    """By the sum of ln p of a choice's tokens."""
    accuracy_stderr: float
    """Standard error of a share: sqrt(p (1 - p) / questions)."""
    accuracy_per_byte: float
    """By the sum of ln p over the choice's length in bytes, which takes away the advantage of short choices."""
    accuracy_per_byte_stderr: float
    chance: float
    """Expected accuracy of guessing."""
    shortened: int
    """Questions of which the beginning was cut off: with their longest choice they are longer than what the model was trained on."""


def score_questions(model: Transformer, questions: Sequence[Question], *, seq_len: int, rope: Rope | None = None) -> ChoiceScore:
    """Answer questions by likelihood, with at most `seq_len` tokens of context and choice: the end of a longer question counts.

    Raises:
        PreheatError: there is no question, or a choice alone is longer.
        RunFailed: a likelihood is not finite.
    """
    if not questions:
        refuse("evaluate.questions", "there is no question to answer", "at least one", "Add questions")
    shown = [_shortened(question, seq_len) for question in questions]
    sums = iter(choice_log_likelihoods(model, shown, rope=rope))
    right = right_per_byte = 0
    for question in questions:
        likelihoods = np.array([next(sums) for _ in question.choices_ids])
        right += int(likelihoods.argmax() == question.label)
        right_per_byte += int((likelihoods / question.choice_bytes).argmax() == question.label)
    count = len(questions)
    accuracy, per_byte = right / count, right_per_byte / count
    chance = sum(1 / len(question.choices_ids) for question in questions) / count
    return ChoiceScore(
        count,
        accuracy,
        _stderr(accuracy, count),
        per_byte,
        _stderr(per_byte, count),
        chance,
        sum(a is not b for a, b in zip(shown, questions, strict=True)),
    )


def _shortened(question: Question, seq_len: int) -> Question:
    """The question with as much of the end of its context as all its choices leave room for; itself where that is all of it."""
    # The last token of a choice is predicted and never read.
    room = seq_len + 1 - max(map(len, question.choices_ids))
    if room < 1:
        got = f"a choice has {seq_len + 1 - room:_} tokens"
        refuse("evaluate.questions", got, f"the model was trained on sequences of {seq_len:_}", "Leave the question out")
    return question if len(question.context_ids) <= room else replace(question, context_ids=question.context_ids[-room:])


def choice_log_likelihoods(model: Transformer, questions: Sequence[Question], *, rope: Rope | None = None) -> list[float]:
    """The sum of ln p of the tokens of every choice after its context, question by question.

    Sequences of similar length share a batch and are padded on the right, which a causal model does not see from the left.

    Raises:
        RunFailed: a likelihood is not finite.
    """
    pairs = [(question.context_ids, choice) for question in questions for choice in question.choices_ids]
    longest_first = sorted(range(len(pairs)), key=lambda index: -len(pairs[index][0]) - len(pairs[index][1]))
    sums = [0.0] * len(pairs)
    with inference(model):
        while longest_first:
            width = sum(map(len, pairs[longest_first[0]])) - 1
            rows = max(1, TOKENS_AT_ONCE // width)
            batch, longest_first = longest_first[:rows], longest_first[rows:]
            for index, value in zip(batch, _batch(model, [pairs[index] for index in batch], width, rope), strict=True):
                sums[index] = value
    if not np.isfinite(sums).all():
        raise RunFailed(
            Problem(
                "evaluate.not-finite", "the likelihood of a choice is not finite", "", "The weights are damaged: take an earlier checkpoint"
            )
        )
    return sums


def _batch(model: Transformer, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], width: int, rope: Rope | None) -> list[float]:
    device = model.output_weight.device
    tokens_BT = torch.zeros(len(pairs), width, dtype=torch.int64)
    labels_BT = torch.zeros_like(tokens_BT)
    in_choice_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
    for row, (context, choice) in enumerate(pairs):
        ids = torch.tensor(context + choice)
        tokens_BT[row, : len(ids) - 1], labels_BT[row, : len(ids) - 1] = ids[:-1], ids[1:]
        in_choice_BT[row, len(context) - 1 : len(ids) - 1] = True
    in_choice_BT = in_choice_BT.to(device)
    hidden_BTD = model(tokens_BT.to(device), rope=rope)
    losses_N = model.token_losses(hidden_BTD[in_choice_BT], labels_BT.to(device)[in_choice_BT])
    sums_B: Tensor = torch.zeros(len(pairs), dtype=torch.float64, device=device)
    sums_B.index_add_(0, in_choice_BT.nonzero()[:, 0], -losses_N.double())
    return [float(value) for value in sums_B]


def continuation_questions(
    ids: Ids, *, end_of_document: int, token_bytes: npt.NDArray[np.integer], count: int, seed: int
) -> list[Question]:
    """Questions from held-out text of one source: which of four continuations is the real one?

    A question takes 64 tokens and the 16 that follow them at a random place in a document, and 16 tokens at random places in three other
    documents. Only documents of at least 80 tokens take part. The result depends on nothing but the arguments.

    Args:
        ids: token ids of the held-out documents, each ended by `end_of_document`.
        token_bytes: for each token id, how many bytes it stands for.
        count: how many questions. Fewer come back where documents share their text, none where fewer than four are long enough.
        seed: another seed makes other questions.
    """
    ends = np.flatnonzero(np.asarray(ids) == end_of_document)
    starts = np.concatenate(([0], ends + 1))[:-1]
    size = CONTEXT_TOKENS + CONTINUATION_TOKENS
    documents = [(int(start), int(end)) for start, end in zip(starts, ends, strict=True) if end - start >= size]
    if len(documents) < CONTINUATIONS:
        return []
    # random() is the one method whose values Python promises to keep between versions.
    draw = random.Random(seed).random
    questions: list[Question] = []
    for _ in range(TRIES * count):
        if len(questions) == count:
            break
        chosen = _distinct(draw, len(documents), CONTINUATIONS)
        start, end = documents[chosen[0]]
        context_start = start + int(draw() * (end - start - size + 1))
        choice_starts = [context_start + CONTEXT_TOKENS]
        for other in chosen[1:]:
            start, end = documents[other]
            choice_starts.append(start + int(draw() * (end - start - CONTINUATION_TOKENS + 1)))
        choices = [tuple(int(token) for token in ids[at : at + CONTINUATION_TOKENS]) for at in choice_starts]
        if len(set(choices)) < CONTINUATIONS:
            continue  # boilerplate that several documents share: the question would have two right answers
        label = int(draw() * CONTINUATIONS)
        choices.insert(label, choices.pop(0))
        context = tuple(int(token) for token in ids[context_start : context_start + CONTEXT_TOKENS])
        lengths = tuple(int(token_bytes[list(choice)].sum()) for choice in choices)
        questions.append(Question(context, tuple(choices), lengths, label))
    return questions


def _distinct(draw: Callable[[], float], below: int, count: int) -> list[int]:
    """`count` different numbers below `below`."""
    chosen: list[int] = []
    while len(chosen) < count:
        number = int(draw() * below)
        if number not in chosen:
            chosen.append(number)
    return chosen


def load_questions(file: File, encode: Callable[[str], Sequence[int]], *, start: int) -> list[Question]:
    """Questions from a JSONL file, packed or not, with lines `{"question": "…", "choices": ["…", "…"], "label": 0}`.

    `question` may be called `context`.
    The model reads `start`, the id that stood before a text in training, the question, and a choice after one space. Spaces at
    the ends of question and choice do not count. Blank lines are allowed.

    Raises:
        PreheatError: the file cannot be read or holds no question, or lines have another form: all of them at once, with their numbers.
    """
    questions: list[Question] = []
    problems: list[Problem] = []
    for number, line in tasks.lines(file):
        try:
            questions.append(_question(line, file.path, number, encode, start))
        except PreheatError as error:
            problems.extend(error.problems)
    if problems:
        raise PreheatError(*problems)
    if not questions:
        refuse("questions.file", "the file holds no question", "", "Write one JSON object a line", file=file.path)
    return questions


def _question(line: bytes, path: str, number: int, encode: Callable[[str], Sequence[int]], start: int) -> Question:
    def wrong(got: str, want: str = "") -> NoReturn:
        refuse("questions.line", got, want, "", file=path, line=number)

    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError:
        wrong("the line is no UTF-8")
    except (ValueError, RecursionError) as error:
        wrong(f"the line is no JSON: {error}")
    if not isinstance(record, dict):
        wrong(f"the line is a {type(record).__name__}", 'an object {"question": …, "choices": […], "label": …}')
    names = [name for name in ("question", "context") if name in record]
    if len(names) != 1:
        wrong(f"{len(names)} of the keys question and context", "exactly one")
    context, choices, label = record[names[0]], record.get("choices"), record.get("label")
    if not isinstance(context, str):
        wrong(f"{names[0]} is no text")
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(choice, str) and choice.strip() for choice in choices):
        wrong("choices is no list of texts", "at least two, none of them empty")
    texts = [choice.strip() for choice in choices]
    if len(set(texts)) < len(texts):
        wrong("two choices are the same text")
    if type(label) is not int or not 0 <= label < len(choices):
        wrong(f"label is {label!r}", f"a number from 0 to {len(choices) - 1}, the place of the right choice")
    try:
        lengths = tuple(len(text.encode()) for text in texts)
        context_ids = (start, *encode(context.strip()))
        return Question(context_ids, tuple(tuple(encode(f" {text}")) for text in texts), lengths, label)
    except UnicodeEncodeError:
        wrong("the line escapes half a surrogate pair, which is no character")


def _stderr(share: float, count: int) -> float:
    return float((share * (1 - share) / count) ** 0.5)

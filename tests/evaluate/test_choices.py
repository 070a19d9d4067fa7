import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.data import File
from preheat.errors import PreheatError, RunFailed
from preheat.evaluate import Question, choices, continuation_questions, load_questions, score_questions
from preheat.evaluate.choices import choice_log_likelihoods
from preheat.model import Transformer, build
from preheat.recipe import Model

MODEL = Model(layers=2, hidden=16, heads=2, ffn_hidden=16, vocab_size=260, rope_theta=10_000.0, init_std=0.3)
IDS = st.lists(st.integers(0, 259), min_size=1, max_size=9).map(tuple)
QUESTIONS = st.lists(st.tuples(IDS, st.lists(IDS, min_size=2, max_size=4)), min_size=1, max_size=6)


def alone(transformer: Transformer, context: tuple[int, ...], choice: tuple[int, ...]) -> float:
    """ln p of the choice, one sequence by itself, in fp64."""
    with torch.no_grad():
        rows = transformer.logits(transformer(torch.tensor([context + choice])))[0].double().log_softmax(-1)
    return sum(float(rows[len(context) + at - 1, token]) for at, token in enumerate(choice))


@given(parts=QUESTIONS, at_once=st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_likelihoods_in_padded_batches_are_those_of_each_sequence_alone(
    parts: list[tuple[tuple[int, ...], list[tuple[int, ...]]]], at_once: int
) -> None:
    transformer = build(MODEL, seed=0)
    questions = [Question(context, tuple(options), tuple(1 for _ in options), 0) for context, options in parts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choices, "TOKENS_AT_ONCE", at_once)
        got = choice_log_likelihoods(transformer, questions)
    assert got == pytest.approx([alone(transformer, context, choice) for context, options in parts for choice in options], rel=1e-4)


def uniform() -> Transformer:
    """Every token has probability 1/260, so a choice is as likely as it is short."""
    transformer = build(MODEL, seed=0)
    with torch.no_grad():
        transformer.embedding.weight.zero_()
    return transformer


def test_accuracies_by_hand() -> None:
    """With all tokens equally likely the sum prefers the fewest tokens, and the mean per byte the fewest tokens per byte.

    Choices of 1 token / 1 byte (1 token per byte) and 2 tokens / 8 bytes (1/4 token per byte); the short one is right in 3 of 4.
    Standard error of 3 in 4 as of 1 in 4: the root of 3/16 over 4.
    """
    questions = [Question((1,), ((2,), (3, 4)), (1, 8), label) for label in (0, 0, 0, 1)]
    score = score_questions(uniform(), questions, seq_len=64)
    assert (score.questions, score.accuracy, score.accuracy_per_byte, score.chance) == (4, 0.75, 0.25, 0.5)
    assert score.accuracy_stderr == score.accuracy_per_byte_stderr == pytest.approx(0.216506, abs=1e-6)


def test_chance_is_that_of_questions_with_different_numbers_of_choices() -> None:
    questions = [Question((1,), ((2,), (3,)), (1, 1), 0), Question((1,), ((2,), (3,), (4,), (5,)), (1, 1, 1, 1), 0)]
    assert score_questions(uniform(), questions, seq_len=64).chance == pytest.approx((1 / 2 + 1 / 4) / 2)


def test_the_end_of_a_long_question_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 8 positions there is room for 9 tokens, as the last is only predicted: 6 of context beside choices of at most 3."""
    long = Question(tuple(range(20)), ((1, 2, 3), (4,)), (3, 1), 0)
    fits = Question(tuple(range(6)), ((1, 2, 3), (4,)), (3, 1), 0)
    seen: list[Question] = []

    def noted(model: Transformer, questions: list[Question], **_: object) -> list[float]:
        seen.extend(questions)
        return [0.0] * 4

    monkeypatch.setattr(choices, "choice_log_likelihoods", noted)
    assert score_questions(uniform(), [long, fits], seq_len=8).shortened == 1
    assert [question.context_ids for question in seen] == [tuple(range(14, 20)), tuple(range(6))]
    with pytest.raises(PreheatError, match="a choice has 3 tokens"):
        score_questions(uniform(), [fits], seq_len=2)


def test_no_questions_and_damaged_weights() -> None:
    with pytest.raises(PreheatError, match="no question"):
        score_questions(uniform(), [], seq_len=64)
    transformer = build(MODEL, seed=0)
    with torch.no_grad():
        transformer.norm.weight.fill_(float("nan"))
    with pytest.raises(RunFailed, match="not finite"):
        score_questions(transformer, [Question((1,), ((2,), (3,)), (1, 1), 0)], seq_len=64)
    assert transformer.training


def documents(lengths: list[int], end: int = 0) -> np.ndarray:
    """Document d is d, d+1, d+2, …, so that a token's place and document can be read from it."""
    parts = [np.append(np.arange(1, length + 1) + 1000 * number, end) for number, length in enumerate(lengths, 1)]
    return np.concatenate(parts) if parts else np.array([], np.int64)


@given(lengths=st.lists(st.integers(0, 200), max_size=9), seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_questions_continue_one_document_with_pieces_of_others(lengths: list[int], seed: int) -> None:
    token_bytes = np.full(20_000, 3)
    questions = continuation_questions(documents(lengths), end_of_document=0, token_bytes=token_bytes, count=5, seed=seed)
    assert len(questions) == (5 if sum(length >= 80 for length in lengths) >= 4 else 0)
    for question in questions:
        assert np.diff((*question.context_ids, *question.choices_ids[question.label])).tolist() == [1] * 79
        assert len(question.context_ids) == 64
        assert question.choice_bytes == (48, 48, 48, 48)
        assert all(np.diff(choice).tolist() == [1] * 15 for choice in question.choices_ids)
        owners = {choice[0] // 1000 for choice in question.choices_ids}
        assert len(owners) == 4
        assert all(lengths[owner - 1] >= 80 for owner in owners)


def test_questions_depend_on_the_seed_and_put_the_right_choice_everywhere() -> None:
    def make(seed: int) -> list[Question]:
        return continuation_questions(documents([100] * 8), end_of_document=0, token_bytes=np.ones(20_000), count=200, seed=seed)

    assert make(1) == make(1) != make(2)
    places = [question.label for question in make(1)]
    assert all(30 <= places.count(label) <= 70 for label in range(4))


def test_boilerplate_makes_no_question_with_two_right_answers() -> None:
    same = np.tile(np.append(np.full(90, 7), 0), 6)
    assert continuation_questions(same, end_of_document=0, token_bytes=np.ones(9), count=5, seed=0) == []


def encode(text: str) -> list[int]:
    return list(text.encode())


def load(path: Path) -> list[Question]:
    return load_questions(File(path.name, str(path), 0), encode, start=256)


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), "utf-8")
    return path


def test_a_question_file_is_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "q.jsonl",
        {"question": "What falls? ", "choices": ["rain", " é "], "label": 1},
        "",
        {"context": "Up", "choices": ["a", "b", "c"], "label": 0, "id": 7},
    )
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    first, second = load(path)
    assert first == Question((256, *b"What falls?"), (tuple(b" rain"), tuple(" é".encode())), (4, 2), 1)
    assert second.context_ids == (256, *b"Up")


GOOD = {"question": "q", "choices": ["a", "b"], "label": 0}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "q", ', "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"label": ' + "1" * 5000 + "}", "no JSON"),
        ("[1]", "the line is a list"),
        ({"choices": ["a", "b"], "label": 0}, "0 of the keys"),
        (GOOD | {"context": "q"}, "2 of the keys"),
        (GOOD | {"question": 7}, "question is no text"),
        (GOOD | {"choices": ["a"]}, "at least two"),
        (GOOD | {"choices": "ab"}, "at least two"),
        (GOOD | {"choices": ["a", "  "]}, "at least two"),
        (GOOD | {"choices": ["a", " a"]}, "same text"),
        (GOOD | {"label": 2}, "from 0 to 1"),
        (GOOD | {"label": -1}, "from 0 to 1"),
        (GOOD | {"label": True}, "label is True"),
        (GOOD | {"label": "A"}, "label is 'A'"),
        ('{"question": "\\ud83d", "choices": ["a", "b"], "label": 0}', "surrogate"),
    ],
)
def test_lines_of_another_form_are_refused_with_their_number(tmp_path: Path, line: object, message: str) -> None:
    path = write(tmp_path / "q.jsonl", GOOD, line, GOOD)
    with pytest.raises(PreheatError, match=message) as caught:
        load(path)
    assert [(problem.where.file, problem.where.line) for problem in caught.value.problems] == [(str(path), 2)]


def test_all_wrong_lines_are_named_at_once_and_bytes_that_are_no_text_too(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(b'{"question": "\xff"}\n' + json.dumps(GOOD).encode() + b"\n7")
    with pytest.raises(PreheatError) as caught:
        load(path)
    assert [problem.where.line for problem in caught.value.problems] == [1, 3]


def test_a_missing_and_an_empty_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PreheatError, match=r"none.jsonl.*cannot be read"):
        load(tmp_path / "none.jsonl")
    with pytest.raises(PreheatError, match="no question"):
        load(write(tmp_path / "q.jsonl", "", " "))

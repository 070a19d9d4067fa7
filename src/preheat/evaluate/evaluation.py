"""The whole offline evaluation of a model as one record: held-out loss beside n-gram baselines, multiple choice, sampled text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from preheat.arithmetic import Rope
from preheat.errors import refuse
from preheat.evaluate.baselines import baselines
from preheat.evaluate.choices import ChoiceScore, Question, score_questions
from preheat.evaluate.held_out import held_out, scorer
from preheat.evaluate.score import Ids, Score
from preheat.evaluate.tasks import Task
from preheat.model import Transformer, generate

SAMPLE_TOKENS = 80
TEMPERATURE, TOP_P = 0.8, 0.95
BASELINES = {"unigram": "unigram", "4-gram": "kneser_ney_4gram"}
"""Name of a baseline -> its key in the record."""


def evaluate(
    model: Transformer,
    texts: Mapping[str, Ids],
    token_bytes: npt.NDArray[np.integer],
    *,
    training: Ids,
    tasks: Mapping[str, Task],
    questions: Mapping[str, Sequence[Question]],
    seq_len: int,
    rope: Rope | None,
    eod: int | None = None,
) -> dict[str, Any]:
    """Score a model.

    Args:
        texts: source -> ids of its held-out documents, each ended by the end-of-document token.
        token_bytes: bytes that each id stands for.
        training: the tokens that the baselines learn from: those that the run consumed.
        tasks: name -> a task of the recipe or of the command line.
        questions: name -> questions made from held-out text; a task without any is left out.
        seq_len: tokens of context.
        eod: the end-of-document token, where the model was trained to see only a token's own document.
    """
    for name in tasks.keys() & questions.keys():
        refuse("evaluation.tasks", f"a task is called {name}", "so are the questions made from held-out text", "Rename its file")
    asked = {name: task.questions for name, task in tasks.items()} | {name: own for name, own in questions.items() if own}
    scores = held_out(scorer(model, rope, eod), texts, token_bytes, seq_len=seq_len)
    beside = baselines(training, texts, token_bytes)
    overall = _sum(scores.values())
    return {
        "held_out": {
            source: score_record(score) | {BASELINES[name]: s.bits_per_byte for name, s in beside[source].items()}
            for source, score in scores.items()
        },
        "overall": score_record(overall),
        "baselines": {key: score_record(_sum(scores[name] for scores in beside.values())) for name, key in BASELINES.items()},
        "baseline_training_tokens": len(training),
        "choices": {name: _choice_record(score_questions(model, own, seq_len=seq_len, rope=rope)) for name, own in asked.items()},
        "tasks": {name: {"file": task.file, "sha256": task.sha256, "kept_out": task.kept_out} for name, task in tasks.items()},
    }


def sample_texts(
    model: Transformer,
    prompts: Sequence[str],
    encode: Callable[[str], list[int]],
    decode: Callable[[Sequence[int]], str],
    *,
    start: int,
    end_of_document: int,
    seed: int,
    rope: Rope | None,
    max_new_tokens: int = SAMPLE_TOKENS,
    temperature: float = TEMPERATURE,
    top_p: float = TOP_P,
) -> list[dict[str, str]]:
    """A continuation of each prompt; an empty prompt starts a new document.

    Args:
        start: the id that stood before the first one of a text in training.
        end_of_document: where a continuation ends.
    """
    samples = []
    for prompt in prompts:
        ids = [start, *encode(prompt)]
        new = generate(
            model,
            ids,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            rope=rope,
            stop=(end_of_document,),
        )
        samples.append({"prompt": prompt, "text": decode(new)})
    return samples


def score_record(score: Score) -> dict[str, Any]:
    """A score as JSON: loss in nats per token, bits per byte, and what was scored."""
    return {"loss": score.loss, "bits_per_byte": score.bits_per_byte, "tokens": score.tokens, "bytes": score.bytes}


def _choice_record(score: ChoiceScore) -> dict[str, Any]:
    return {
        "n": score.questions,
        "accuracy": score.accuracy,
        "stderr": score.accuracy_stderr,
        "accuracy_bytes": score.accuracy_per_byte,
        "stderr_bytes": score.accuracy_per_byte_stderr,
        "chance": score.chance,
        "shortened": score.shortened,
    }


def _sum(scores: Iterable[Score]) -> Score:
    """All texts as one: the sum of the likelihoods over the sum of the bytes."""
    parts = list(scores)
    return Score(sum(s.nats for s in parts), sum(s.tokens for s in parts), sum(s.bytes for s in parts))

"""How good a model is, offline: held-out loss, n-gram baselines to compare it with, multiple choice by likelihood, sampled text."""

from preheat.evaluate.baselines import baselines
from preheat.evaluate.choices import ChoiceScore, Question, continuation_questions, load_questions, score_questions
from preheat.evaluate.evaluation import evaluate, sample_texts, score_record
from preheat.evaluate.held_out import Scorer, held_out, scorer
from preheat.evaluate.score import Score

__all__ = [
    "ChoiceScore",
    "Question",
    "Score",
    "Scorer",
    "baselines",
    "continuation_questions",
    "evaluate",
    "held_out",
    "load_questions",
    "sample_texts",
    "score_questions",
    "score_record",
    "scorer",
]

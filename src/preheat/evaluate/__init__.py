"""How good a model is, offline: held-out loss, n-gram baselines to compare it with, multiple choice by likelihood, sampled text."""

from preheat.evaluate.baselines import baselines
from preheat.evaluate.choices import ChoiceScore, Question, continuation_questions, load_questions, score_questions
from preheat.evaluate.evaluation import evaluate, sample_texts, score_record
from preheat.evaluate.held_out import Scorer, held_out, scorer
from preheat.evaluate.score import Score
from preheat.evaluate.tasks import Task, find_tasks, load_tasks

__all__ = [
    "ChoiceScore",
    "Question",
    "Score",
    "Scorer",
    "Task",
    "baselines",
    "continuation_questions",
    "evaluate",
    "find_tasks",
    "held_out",
    "load_questions",
    "load_tasks",
    "sample_texts",
    "score_questions",
    "score_record",
    "scorer",
]

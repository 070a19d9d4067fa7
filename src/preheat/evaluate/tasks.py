"""The tasks of an evaluation: those that its recipe names, or those of the command line."""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from preheat.data import File, tasks
from preheat.errors import PreheatError
from preheat.evaluate.choices import Question, load_questions


@dataclass(frozen=True)
class Task:
    """A file of multiple-choice questions."""

    file: str
    """Its id: its path below the folder where its glob starts."""
    sha256: str
    questions: list[Question]
    kept_out: bool
    """Whether the training data was kept clean of exactly this file."""


def find_tasks(given: Sequence[str], named: Sequence[str], folder: Path) -> list[File]:
    """The files of the tasks.

    Args:
        given: paths or globs of the command line; they take the place of the recipe's.
        named: the recipe's `evaluation.tasks`.
        folder: where the recipe's relative globs start.

    Raises:
        PreheatError: one matches no file.
    """
    try:
        if given:
            # A file may be called like a glob.
            return tasks.find([glob.escape(text) if Path(text).is_file() else text for text in given], Path.cwd(), "--task")
        return tasks.find(named, folder)
    except PreheatError as error:
        moved = f"The run's recipe lay in {folder}: bring the tasks back there, or name them with --task"
        fix = "Correct the path" if given else moved
        raise PreheatError(*(replace(problem, want="", fix=fix) for problem in error.problems)) from error


def load_tasks(
    files: Sequence[File], encode: Callable[[str], Sequence[int]], *, start: int, kept_out: Mapping[str, str]
) -> dict[str, Task]:
    """Name -> task.

    Args:
        start: the id that stood before the first one of a text in training.
        kept_out: the files that the training data was kept clean of, and their checksums.

    Raises:
        PreheatError: a file cannot be read, or a line of it is no question.
    """
    sums, known = tasks.checksums(files), frozenset(kept_out.values())
    return {
        name: Task(file.id, sums[file.id], load_questions(file, encode, start=start), sums[file.id] in known)
        for name, file in zip(tasks.names(files), files, strict=True)
    }

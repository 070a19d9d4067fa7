"""The step that says which documents stay, and on which side."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NoReturn

import numpy as np

from preheat.data import split
from preheat.data.pipeline.duplicates import COMPARE, EXACT, address, documents, gone, library
from preheat.data.pipeline.plan import Plan
from preheat.data.pipeline.reading import CHECK, Counts, refuse_empty
from preheat.data.pipeline.tasks import Context, Reference, Stage
from preheat.errors import PreheatError, Problem

GONE, TRAIN, HELD_OUT = 0, 1, 2
SIDES = "sides.npy"
SIDE_NAMES = {TRAIN: "train", HELD_OUT: "held_out"}


def _divide(context: Context, number: int, folder: Path) -> None:
    """For each document whether it goes, is trained on or is held out."""
    plan, positions, books = context.plan, documents(context, "position"), library(context)
    stays_for, similar = gone(context)
    sides = np.where(stays_for < 0, np.uint8(TRAIN), np.uint8(GONE))
    sides[similar["number"]] = GONE
    problems: list[Problem] = []
    for source, spec in enumerate(plan.data.source):
        own = plan.shards_of(source)
        left = np.arange(books.firsts[own[0]], books.firsts[own[-1] + 1])
        left = left[sides[left] != GONE]
        try:
            if not len(left):
                _refuse_nothing_left(context, source)
            sides[left[split.held_out(spec.name, positions[left], plan.data.held_out)]] = HELD_OUT
        except PreheatError as error:
            problems += error.problems
    if problems:
        raise PreheatError(*problems)
    np.save(folder / SIDES, sides)


def _refuse_nothing_left(context: Context, source: int) -> NoReturn:
    """Refuse a source whose documents are all duplicates of others."""
    books, own = library(context), context.plan.shards_of(source)
    begin, end = books.firsts[own[0]], books.firsts[own[-1] + 1]
    stays_for, similar = gone(context)
    kept = int(stays_for[begin]) if stays_for[begin] >= 0 else int(similar["kept"][similar["number"] == begin][0])
    counts = Counts.load([context.folder(CHECK.name, source)])
    equal = int((stays_for[begin:end] >= 0).sum())
    counts.dropped["duplicate"] = Counter({"same text": equal})
    counts.dropped["near-duplicate"] = Counter({"similar text": end - begin - equal})
    refuse_empty(context.plan.data.source[source].name, counts, f"{books.label(begin)} went for {address(context, kept)}")


def duplicates_found(plan: Plan) -> list[Reference]:
    """What a step needs that asks which documents go, and with it all texts."""
    return [(EXACT.name, 0), *((COMPARE.name, task) for task in range(COMPARE.count(plan)))]


def _divide_settings(context: Context, number: int) -> object:
    return [str(context.plan.data.held_out), [source.name for source in context.plan.data.source]]


def _divide_needs(plan: Plan, number: int) -> list[Reference]:
    return [*duplicates_found(plan), *((CHECK.name, source) for source in range(len(plan.data.source)))]


DIVIDE = Stage("divide", lambda plan: 1, _divide, _divide_settings, _divide_needs)

"""What becomes of a document of a source: the steps of its policy, then language, quality and contamination."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata

from preheat import recipe
from preheat.data.clean import language
from preheat.data.clean.contamination import Benchmarks
from preheat.data.clean.policy import STEPS, Policy, policy_of
from preheat.data.clean.rule import Dropped, Text
from preheat.data.document import EMPTY, Document, Exclusion, exclude
from preheat.errors import Problem, RunFailed, refuse

CONTAMINATION = "contamination"
STEP_NAMES = ("clean", "language", "quality", CONTAMINATION)
"""The steps at which a document can go here, in this order; an edit's record has the step "edit"."""
SCORERS = "preheat.quality"
"""The group of entry points in which packages offer quality scorers."""
RULES_VERSION = 4
"""Counts up when the same policy would treat a text otherwise than before."""


@dataclass(frozen=True)
class Cleaned:
    """What became of a document: either `document` (edited) or `exclusion`; and a record for each edit that changed it."""

    document: Document | None
    exclusion: Exclusion | None
    altered: tuple[Exclusion, ...]


class Cleaner:
    """Cleans the documents of one source. A verdict depends on the document and the recipe, not on what came before it."""

    def __init__(self, source: recipe.Source, benchmarks: Benchmarks | None = None) -> None:
        """Everything that the source asks for is looked up now.

        Args:
            benchmarks: what must not be in a document.

        Raises:
            PreheatError: a threshold, a scorer or a package is missing.
        """
        self._source = source
        self._policy = policy_of(source)
        self._scorer, self._scorer_release = (None, "") if source.quality is None else _scorer(source.quality)
        self._benchmarks = benchmarks
        if source.language is not None:
            language.refuse_unknown(source.language)

    @property
    def fingerprint(self) -> str:
        """Changes when the verdict on a document may."""
        scorer = None if self._source.quality is None else [self._source.quality.model_dump(), self._scorer_release]
        tasks = None if self._benchmarks is None else self._benchmarks.fingerprint
        spoken = (self._source.language, self._source.min_language_score)
        whole = [RULES_VERSION, self._policy.steps, sorted(self._policy.numbers.items()), spoken, scorer, tasks]
        return hashlib.sha256(json.dumps(whole).encode()).hexdigest()

    def __call__(self, document: Document) -> Cleaned:
        """Clean a document.

        Raises:
            RunFailed: the scorer failed.
        """
        text, dropped, changes = apply(document.text, self._policy)
        altered = tuple(Exclusion(document.source, document.id, "edit", name, detail, "") for name, detail in changes)
        step = STEP_NAMES[0]
        if dropped is None and not text.text.strip():
            dropped = Dropped(EMPTY, "nothing is left of it")
        if dropped is None:
            step, dropped = self._judged(document, text)
        if dropped is not None:
            return Cleaned(None, exclude(document, step, dropped.reason, dropped.detail), altered)
        return Cleaned(replace(document, text=text.text), None, altered)

    def _judged(self, document: Document, text: Text) -> tuple[str, Dropped | None]:
        """The first of the later steps at which a document goes."""
        _, spoken, quality, _ = STEP_NAMES
        if self._source.language is not None:
            found, sure = language.identify(text.text)
            if found != self._source.language:
                return spoken, Dropped(f"not {self._source.language}", f"{found}, {sure:.2f}")
            if sure < self._source.min_language_score:
                return spoken, Dropped("unclear language", f"{found}, {sure:.2f}")
        if self._source.quality is not None:
            score = document.score if self._scorer is None else self._scored(document, text.text)
            if score is None or not score >= self._source.quality.at_least:
                return quality, Dropped("low score", f"{score}")
        if self._benchmarks is not None:
            shared = self._benchmarks.shared(text)
            if shared is not None:
                return CONTAMINATION, Dropped("evaluation text", str(shared))
        return "", None

    def _scored(self, document: Document, text: str) -> float:
        assert self._scorer is not None
        try:
            return float(self._scorer(text))
        except Exception as error:  # Other people's code.
            got = f"{document.source}: {document.id}: the quality scorer failed: {type(error).__name__}: {error}"
            raise RunFailed(Problem("data.scorer", got, "", "Correct the scorer")) from error


def apply(raw: str, policy: Policy) -> tuple[Text, Dropped | None, list[tuple[str, str]]]:
    """The edited text, why it goes (or None), and what each edit changed, white space around the text aside."""
    text = Text(raw)
    changes: list[tuple[str, str]] = []
    for name in policy.steps:
        outcome = STEPS[name][0](text, policy.numbers)
        if isinstance(outcome, Dropped):
            return text, outcome, changes
        if outcome is not None and outcome != text.text:
            if outcome.strip() != text.text.strip():
                changes.append((name, f"{len(text.text):,} characters became {len(outcome):,}"))
            text = Text(outcome)
    return text, None, changes


def _scorer(quality: recipe.Quality) -> tuple[Callable[[str], float] | None, str]:
    """The function that scores and the release of its package; None where the record holds the score."""
    if (quality.field is None) == (quality.scorer is None):
        refuse("data.quality", "`quality` names neither or both", "`field` or `scorer`", "Name one of them", key="data.source.quality")
    if quality.scorer is None:
        return None, ""
    found = {entry.name: entry for entry in metadata.entry_points(group=SCORERS)}
    if quality.scorer not in found:
        known = ", ".join(sorted(found)) or "none"
        got = f"no installed package offers the quality scorer {quality.scorer!r}"
        refuse("data.quality", got, f"entry points in {SCORERS}: {known}", "Install it", key="data.source.quality.scorer")
    entry = found[quality.scorer]
    function: Callable[[str], float] = entry.load()
    return function, "" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"

"""All that is asked of a plan at once, as a page or as plain values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol

from preheat.errors import Problem
from preheat.plan.advice import advise as advise_on
from preheat.plan.limits import Limits
from preheat.plan.planner import LayoutPlan, Planner, Way
from preheat.plan.run import RunPlan
from preheat.plan.search import search as search_layouts
from preheat.plan.summary import head_json, other_program, plan_json, search_json
from preheat.plan.text import advice_lines, own_lines, search_lines
from preheat.recipe import Loaded


class Proof(Protocol):
    """What a room above finds when it builds the model."""

    @property
    def agrees(self) -> bool:
        """Whether the plan was right."""
        ...

    def lines(self) -> list[str]:
        """For a terminal."""
        ...

    def json(self) -> dict[str, Any]:
        """As plain values."""
        ...


class Answer:
    """The recipe's own layout on a cluster, and where they are asked for the search, advice and the proof."""

    def __init__(
        self,
        planner: Planner,
        loaded: Loaded,
        refused: tuple[Problem, ...],
        whole: Callable[[LayoutPlan], RunPlan],
        limits: Limits,
        *,
        search: int | None = None,
        advise: bool = False,
        proof: Callable[[Planner], Proof] | None = None,
    ) -> None:
        """
        Args:
            refused: why the recipe's own layout can't be; empty where it can.
            whole: the whole run of a layout.
            search: how many layouts to search for; none when None.
            proof: builds the model, handed in from a room above.
        """
        self.planner, self.refused, self.whole, self.limits = planner, refused, whole, limits
        self.own = planner.plan(Way.of(loaded.recipe)) if not refused else None
        self.run = whole(self.own) if self.own is not None else None
        self.other = other_program(planner, self.own.way) if self.own is not None else None
        self.found = search_layouts(planner, loaded, search) if search is not None else None
        ranked = [(found, whole(found.plan)) for found in self.found.best] if self.found is not None else []
        self.kept = [(found, run) for found, run in ranked if limits.over(run) is None]
        self.advised = advise_on(planner, loaded, self.own) if advise and self.own is not None else None
        self.proof = proof(planner) if proof is not None and self.own is not None else None

    @property
    def good(self) -> bool:
        """Whether there is a layout that fits within the limits: the recipe's own, or one that was found. A proof must agree."""
        if self.proof is not None and not self.proof.agrees:
            return False
        if self.found is not None:
            return bool(self.kept)
        return self.own is not None and self.own.fits and self.run is not None and self.limits.over(self.run) is None

    def json(self, problem_json: Callable[[Problem], dict[str, Any]]) -> dict[str, Any]:
        """The shape that `--json` promises, but for `schema`."""
        if self.own is not None and self.run is not None:
            answer = plan_json(self.planner, self.own, self.run) | {"other_program": asdict(self.other) if self.other else None}
            answer["over_limits"] = self.limits.over(self.run)
        else:
            answer = head_json(self.planner) | {"fits": False, "refused": [problem_json(problem) for problem in self.refused]}
        if self.found is not None:
            answer |= search_json(self.found, self.kept, self.whole)
        if self.advised is not None:
            answer["advice"] = asdict(self.advised)
        if self.proof is not None:
            answer["proof"] = self.proof.json()
        return answer

    def lines(self) -> list[str]:
        """A page for a terminal."""
        if self.own is not None and self.run is not None:
            lines = own_lines(self.planner, self.own, self.run, self.other)
            over = self.limits.over(self.run)
            lines += [f"  the recipe's own layout takes {over}"] if over else []
        else:
            lines = ["the recipe's own layout is refused:", *(f"  {problem}" for problem in self.refused)]
        if self.found is not None:
            lines += ["", *search_lines(self.planner, self.found, self.kept, self.own, self.limits)]
        if self.advised is not None and self.own is not None:
            lines += ["", *advice_lines(self.advised, self.own)]
        if self.proof is not None:
            lines += ["", *self.proof.lines()]
        return lines

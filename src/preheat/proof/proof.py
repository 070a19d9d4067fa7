"""What ranks of the real engine have, beside what the plan says: parameters, and activations of a micro-batch.

What is built is the engine that trains (`preheat.parallel`), so that the plan for preheat is what is held against it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from math import gcd
from typing import Any

from preheat.arithmetic import layout, rank_parameters
from preheat.arithmetic.memory import MemoryModel, Step
from preheat.errors import Problem, RunFailed, refuse
from preheat.recipe import Precision, Recipe, beyond_training

PARAMETERS_APART = 0.01
"""Share by which a rank's parameters may differ: the first of the ranks that shard a tensor has up to a row more of it."""
KEPT_APART = 0.03
"""Share by which bytes of activations may differ: loss and norms keep a few bytes a token that are not counted."""


@dataclass(frozen=True)
class Figure:
    """Something that was built, and planned."""

    built: int
    planned: float

    @property
    def apart(self) -> float:
        """Built over planned, less one."""
        return self.built / self.planned - 1 if self.planned else float(self.built > 0)


@dataclass(frozen=True)
class RankProof:
    """One rank."""

    rank: int
    pipeline_rank: int
    parameters: Figure
    kept: Figure | None
    """Bytes of activations that a micro-batch of the first stage keeps; None where they can't be measured."""
    why_not: str

    @property
    def agrees(self) -> bool:
        """Whether it is as planned."""
        return abs(self.parameters.apart) <= PARAMETERS_APART and (self.kept is None or abs(self.kept.apart) <= KEPT_APART)

    def line(self) -> str:
        """For a terminal."""
        held = f"{self.parameters.built:,} parameters, planned {self.parameters.planned:,.0f} ({self.parameters.apart:+.2%})"
        if self.kept is None:
            kept = f"activations not measured: {self.why_not}"
        else:
            built, planned = self.kept.built / 2**30, self.kept.planned / 2**30
            kept = f"a micro-batch keeps {built:.3f} GiB, planned {planned:.3f} ({self.kept.apart:+.2%})"
        return f"  rank {self.rank:,} (pipeline rank {self.pipeline_rank}): {held}; {kept}"


@dataclass(frozen=True)
class Proof:
    """Built ranks beside the plan."""

    world: int
    ranks: tuple[RankProof, ...]

    @property
    def agrees(self) -> bool:
        """Whether all that was built is as planned."""
        return all(rank.agrees for rank in self.ranks)

    def lines(self) -> list[str]:
        """For a terminal."""
        verdict = "it is as planned" if self.agrees else "IT IS NOT AS PLANNED"
        head = f"proof: preheat's own engine at {self.world:,} ranks, on the meta device under a fake process group: {verdict}"
        return [head, *(rank.line() for rank in self.ranks)]

    def json(self) -> dict[str, Any]:
        """As plain values."""
        return {"agrees": self.agrees, **asdict(self)}


def prove(recipe: Recipe, world: int) -> Proof:
    """Build the first rank of the first and of the last pipeline rank at the real number of ranks, each in a process of its own.

    Raises:
        ValueError: the layout does not divide the ranks or the layers.
        PreheatError: this engine has no such matrix products.
        RunFailed: a rank could not be built.
    """
    if "precision.fp8_recipe" in beyond_training(recipe):
        got = f'fp8_recipe = "{recipe.precision.fp8_recipe}": preheat\'s own engine, which a proof builds, has no such products'
        refuse("plan.prove", got, "tensorwise or rowwise", "Add --set precision.fp8_recipe=tensorwise, or leave --prove out")
    stages = recipe.parallel.pipeline
    return Proof(world, tuple(_prove(recipe, world, pipeline_rank) for pipeline_rank in sorted({0, stages - 1})))


def _prove(recipe: Recipe, world: int, pipeline_rank: int) -> RankProof:
    rank = pipeline_rank * (world // recipe.parallel.pipeline)
    request = json.dumps({"recipe": recipe.model_dump(mode="json"), "ranks": world, "rank": rank})
    command = [sys.executable, "-m", "preheat.proof.rank"]
    done = subprocess.run(command, input=request, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RunFailed(Problem("plan.prove", f"rank {rank} of {world} could not be built: {last}", "", "Plan without --prove"))
    built = json.loads(done.stdout.splitlines()[-1])
    kept = Figure(built["kept"], _planned_kept(recipe, world, pipeline_rank)) if built["kept"] is not None else None
    parameters = Figure(built["parameters"], _planned_parameters(recipe, world, pipeline_rank))
    return RankProof(rank, pipeline_rank, parameters, kept, built["why_not"])


def _planned_parameters(recipe: Recipe, world: int, pipeline_rank: int) -> float:
    parallel, sizes = recipe.parallel, layout(recipe.parallel, world)
    rows = parallel.tensor * -(-recipe.model.vocab_size // parallel.tensor)  # this engine does not pad the vocabulary
    count = rank_parameters(recipe.model, parallel, pipeline_rank, rows)
    if parallel.sharding == "none":
        return count.total
    dense, expert = (copies // gcd(copies, parallel.replicate) for copies in (sizes.dense_dp, sizes.expert_dp))
    return count.dense / (dense * parallel.context) + count.experts / expert


def _planned_kept(recipe: Recipe, world: int, pipeline_rank: int) -> int:
    """Of a micro-batch, as what twice its samples take more, so that what does not grow with them does not count."""
    stage = recipe.stage[0]
    samples, tokens = stage.micro_size or recipe.batch.micro_size, stage.seq_len or recipe.batch.seq_len
    precision = Precision(compute="bf16") if recipe.precision.compute == "auto" else recipe.precision
    model = MemoryModel(recipe.model, precision, recipe.optimizer)
    few, many = (
        model.per_rank(recipe.parallel, world, Step(size, tokens, 1))[pipeline_rank].activations for size in (samples, 2 * samples)
    )
    return many - few

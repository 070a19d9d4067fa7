"""A plan as plain values, of the shape that `--json` promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from preheat.arithmetic import stage_parallel
from preheat.arithmetic.memory import Memory
from preheat.plan.planner import GIB, LayoutPlan, Phase, Planner, Way
from preheat.plan.programs import PROGRAMS
from preheat.plan.run import RunPlan, assumptions
from preheat.plan.search import Found, Search
from preheat.recipe import beyond_training

CONVENTION = "causal"
"""How MFU counts FLOPs, see `arithmetic.Flops`: the convention that metrics.jsonl has too."""


def layout_json(plan: LayoutPlan, run: RunPlan) -> dict[str, Any]:
    """One layout: memory, speed, and the whole run."""
    main = plan.main
    return {
        "fits": plan.fits,
        "memory": {
            "max_gib": plan.fullest.total / GIB,
            "usable_gib": plan.gpu.usable / GIB,
            "room_gib": plan.room / GIB,
            "breakdown": _breakdown(plan.fullest),
            "per_stage": [
                {"rank": memory.rank, "total_gib": memory.total / GIB, "breakdown": _breakdown(memory)} for memory in plan.per_rank
            ],
            "in_stage": plan.fullest_phase.segment.stage.name,
        },
        "throughput": {
            "tokens_per_s_per_gpu": main.step.tokens_per_s_per_gpu,
            "tokens_per_s": main.step.tokens_per_s_per_gpu * plan.ranks,
            "mfu": main.step.mfu(CONVENTION),
            "hfu": main.step.hfu,
            "convention": CONVENTION,
            "mfu_by_convention": {name: main.step.mfu(name) for name in ("causal", "full_square", "megatron")},
            "bound": main.step.bound,
            "in_stage": main.segment.stage.name,
        },
        "step_time_s": main.step.seconds,
        "step_time_breakdown": main.step.parts,
        "run": _run_json(plan, run),
    }


def head_json(planner: Planner) -> dict[str, Any]:
    """What is planned for what, whatever the layout."""
    cluster = planner.cluster
    gpu = cluster.gpu
    return {
        "recipe": planner.recipe.name,
        "cluster": {"gpus": cluster.count, "gpu": gpu.name, "price_usd_per_hour": gpu.price, "price_source": gpu.price_source},
        "program": planner.program.name,
        "number_format": planner.format,
        "beyond_training": beyond_training(planner.recipe),
    }


def plan_json(planner: Planner, plan: LayoutPlan, run: RunPlan) -> dict[str, Any]:
    """The recipe's own layout on a cluster."""
    return {
        **head_json(planner),
        "layout": layout_of(planner, plan.way),
        **layout_json(plan, run),
        "assumptions": assumptions(planner),
    }


def layout_of(planner: Planner, way: Way) -> dict[str, Any]:
    """The sizes of a layout by name."""
    parallel = way.parallel
    named = {name: getattr(parallel, name) for name in _NAMED}
    return named | {"data": planner.replicas(parallel), "micro_size": way.micro_size, "recompute": parallel.recompute.kind}


_NAMED = ("tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor", "sharding", "sequence", "schedule")


@dataclass(frozen=True)
class OtherProgram:
    """What the same layout comes to under the other training program."""

    name: str
    program: str
    """For `--program`."""
    fits: bool
    memory: int
    """Bytes on the fullest GPU."""
    tokens_per_s_per_gpu: float


def other_program(planner: Planner, way: Way) -> OtherProgram:
    """The same layout under the program that is not planned for."""
    [other] = [program for name, program in PROGRAMS.items() if name != planner.program.name]
    plan = Planner(planner.recipe, planner.cluster, other).plan(way)
    return OtherProgram(other.memory.name, other.name, plan.fits, plan.fullest.total, plan.main.step.tokens_per_s_per_gpu)


def search_json(found: Search, kept: Sequence[tuple[Found, RunPlan]], whole: Callable[[LayoutPlan], RunPlan]) -> dict[str, Any]:
    """What a search found: layouts, the front of time and memory, and how many were left out why."""
    return {
        "layouts": [{"set": list(layout.settings), **layout_json(layout.plan, run)} for layout, run in kept],
        "front": [{"set": list(layout.settings), **layout_json(layout.plan, whole(layout.plan))} for layout in found.front],
        "considered": found.considered,
        "left_out": found.left_out,
    }


def _breakdown(memory: Memory) -> dict[str, float]:
    return {name: size / GIB for name, size in memory.parts()}


def _run_json(plan: LayoutPlan, run: RunPlan) -> dict[str, Any]:
    saving = run.saving
    return {
        "days": run.days,
        "gpu_hours": run.days * 24 * plan.ranks,
        "cost_usd": run.cost,
        "steps": sum(phase.segment.steps for phase in plan.phases),
        "tokens": plan.phases[-1].segment.end.tokens,
        "checkpoint_interval_steps": saving.interval_steps,
        "checkpoint_interval_s": saving.interval,
        "goodput": saving.goodput,
        "goodput_as_the_recipe_saves": saving.goodput_of_recipe,
        "failures": saving.failures,
        "hours_between_failures": saving.mean_time_between / 3600,
        "checkpoint_gb": saving.bytes / 1e9,
        "checkpoint_disk_gb": run.checkpoint_disk / 1e9,
        "data_disk_gb": run.data_disk / 1e9,
        "sources": {name: asdict(use) for name, use in run.sources.items()},
        "tokens_per_parameter": run.tokens_per_parameter,
        "expected_loss": asdict(run.loss) if run.loss is not None else None,
        "phases": [_phase_json(plan, phase) for phase in plan.phases],
    }


def _phase_json(plan: LayoutPlan, phase: Phase) -> dict[str, Any]:
    segment = phase.segment
    return {
        "stage": segment.stage.name,
        "start_tokens": segment.start.tokens,
        "tokens": segment.end.tokens - segment.start.tokens,
        "steps": segment.steps,
        "batch_size": segment.batch_size,
        "seq_len": segment.seq_len,
        "context": stage_parallel(plan.way.parallel, segment.stage).context,
        "micro_batches": phase.micro_batches,
        "step_time_s": phase.step.seconds,
        "bubble": phase.bubble,
        "mfu": phase.step.mfu(CONVENTION),
        "days": phase.seconds / 86_400,
    }

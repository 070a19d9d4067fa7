"""A plan as a page for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preheat.plan.advice import MUCH_EXCHANGE, Advice, Advised
from preheat.plan.limits import Limits
from preheat.plan.picture import PART_NAMES, memory_bars, time_bars
from preheat.plan.planner import GIB, LayoutPlan, Phase, Planner
from preheat.plan.run import CHINCHILLA, RunPlan, assumptions
from preheat.plan.search import Found, Search
from preheat.plan.summary import CONVENTION, OtherProgram, layout_of
from preheat.recipe import beyond_training
from preheat.units import rounded

_MOST_PHASES = 16


def own_lines(planner: Planner, plan: LayoutPlan, run: RunPlan, other: OtherProgram | None) -> list[str]:
    """The recipe's own layout: memory, a step, the run."""
    left = beyond_training(planner.recipe)
    return [
        f"{planner.recipe.name} on {planner.cluster}, as {planner.program.memory.name} trains it in {planner.format}",
        f"  {_layout(planner, plan)}",
        "",
        *_memory(plan),
        "",
        *_step(plan),
        *([f"  {_other(other)}"] if other is not None else []),
        *([f"  preheat itself shows and exports but does not train {', '.join(left)}"] if left else []),
        "",
        *_run(planner, plan, run),
    ]


def _layout(planner: Planner, plan: LayoutPlan) -> str:
    values = layout_of(planner, plan.way)
    sizes = [f"{name} {values[name]}" for name in ("tensor", "pipeline", "context", "expert", "expert_tensor") if values[name] != 1]
    pieces = [f"{values['virtual_pipeline']} pieces a rank"] if values["virtual_pipeline"] != 1 else []
    again = plan.way.parallel.recompute
    layers = f" of {again.layers} layers a rank" if again.layers is not None else ""
    rest = [f"data {values['data']}", f"micro-batches of {values['micro_size']}", f"sharding {values['sharding']}"]
    return ", ".join([*sizes, *pieces, *rest, f"recompute {again.kind}{layers}"])


def _memory(plan: LayoutPlan) -> list[str]:
    total, room, usable = (size / GIB for size in (plan.fullest.total, plan.room, plan.gpu.usable))
    verdict = f"fits: {total:.1f} GiB" if plan.fits else f"does not fit: {total:.1f} GiB"
    stage = f" in stage {plan.fullest_phase.segment.stage.name}" if len({phase.segment.stage.name for phase in plan.phases}) > 1 else ""
    head = f"{verdict} on the fullest GPU{stage}; {room:.1f} GiB may be taken (:) of the {usable:.1f} GiB that there are (|)"
    return [head, *(f"  {line}" for line in memory_bars(plan))]


def _step(plan: LayoutPlan) -> list[str]:
    main = plan.main.step
    if_only = "" if plan.fits else ", if it fitted"
    head = (
        f"a step: {main.seconds:.3g} s{if_only}, {main.tokens_per_s_per_gpu:,.0f} tokens/s a GPU, "
        f"MFU {main.mfu(CONVENTION):.1%} ({CONVENTION} FLOPs of {main.peak / 1e12:,.0f} TFLOP/s), HFU {main.hfu:.1%}"
    )
    conventions = f"MFU with full-square attention {main.mfu('full_square'):.1%}, as Megatron-LM counts {main.mfu('megatron'):.1%}"
    return [head, f"  {conventions}", f"  bound by: {PART_NAMES[main.bound]}", *(f"  {line}" for line in time_bars(main))]


def _other(other: OtherProgram) -> str:
    verdict = "fits" if other.fits else "does not fit"
    return (
        f"as {other.name} trains it: {verdict} with {other.memory / GIB:.1f} GiB, {other.tokens_per_s_per_gpu:,.0f} tokens/s a GPU"
        f" (--program {other.program})"
    )


def _run(planner: Planner, plan: LayoutPlan, run: RunPlan) -> list[str]:
    saving, tokens = run.saving, plan.phases[-1].segment.end.tokens
    steps = sum(phase.segment.steps for phase in plan.phases)
    cost = f"${run.cost:,.0f} at ${plan.gpu.price:.2f} a GPU and hour" if run.cost is not None else f"no price is known for {plan.gpu.name}"
    lines = [
        f"the run: {_days(run.days)}, {cost}",
        f"  {rounded(tokens)} tokens in {steps:,} steps; {run.days * 24 * plan.ranks:,.0f} GPU hours",
        *_phases(plan),
        f"  failures: {_count(saving.failures)} expected, one in {_hours(saving.mean_time_between / 3600)}",
        f"  checkpoints: best every {saving.interval_steps:,} steps ({_hours(saving.interval / 3600)}) -> goodput {saving.goodput:.1%}; "
        f"as often as the recipe says {saving.goodput_of_recipe:.1%}",
        f"  a save: {saving.bytes / 1e9:,.1f} GB, training waits {saving.blocking:.1f} s, on disk after {saving.flush:.1f} s",
        f"  disk: {run.checkpoint_disk / 1e9:,.0f} GB of checkpoints that stay, {run.data_disk / 1e9:,.0f} GB of tokens",
        f"  sources: {', '.join(_source(name, use.tokens, use.epochs) for name, use in run.sources.items())}",
        f"  {run.tokens_per_parameter:.1f} tokens a parameter, {run.tokens_per_parameter / CHINCHILLA:.3g} times Chinchilla's",
    ]
    if run.loss is not None:
        beyond = "; larger than anything that was fitted" if run.loss.extrapolated else ""
        lines.append(f"  expected loss: {run.loss.low:.2f} to {run.loss.high:.2f} nats a token{beyond}")
    return [*lines, "", "assumed, and from where:", *(f"  {name:<11} {source}" for name, source in assumptions(planner).items())]


def _phases(plan: LayoutPlan) -> list[str]:
    if len(plan.phases) == 1:
        return []
    chosen: Sequence[Phase] = plan.phases[:_MOST_PHASES]
    lines = [
        f"    {phase.segment.stage.name:<16} {phase.segment.batch_size:>6} x {phase.segment.seq_len:<7} {phase.segment.steps:>9,} steps of"
        f" {phase.step.seconds:8.3f} s  bubble {phase.bubble:5.1%}  MFU {phase.step.mfu(CONVENTION):5.1%}  {_days(phase.seconds / 86_400)}"
        for phase in chosen
    ]
    rest = plan.phases[len(chosen) :]
    if rest:
        lines.append(f"    and {len(rest)} more, {_days(sum(phase.seconds for phase in rest) / 86_400)}")
    return lines


def _source(name: str, tokens: float, epochs: float | None) -> str:
    return f"{name} {rounded(tokens)}" + (f" ({epochs:.2f} epochs)" if epochs is not None else "")


def search_lines(
    planner: Planner, found: Search, kept: Sequence[tuple[Found, RunPlan]], own: LayoutPlan | None, limits: Limits
) -> list[str]:
    """The best layouts with reasons, the front, why others are not there."""
    lines = [f"{found.considered:,} layouts considered; the fastest of each kind that fit:"]
    if not found.best:
        none = f"none of {found.considered:,} layouts fits" if found.considered else "no layout divides the recipe"
        lines = [f"{none} on {planner.cluster}"]
    elif not kept:
        lines = [f"no layout {limits.told()}; {_needed(planner, found.best[0], limits)}"]
    for place, (layout, run) in enumerate(kept, start=1):
        lines += [f"{place:>3}. {_figures(layout.plan, run)}", f"     {_why(layout.plan, own)}", f"     {_sets(layout)}"]
    if found.best:
        lines += ["", _own_place(planner, own, found)]
    if found.front:
        lines += ["", "time against memory: no layout is both faster and smaller than one of these"]
        lines += [f"     {_brief(layout.plan)}  {_sets(layout)}" for layout in found.front]
    lines += ["", "left out:", *(f"  {count:>7,} {reason}" for reason, count in found.left_out.items())]
    return lines


def _figures(plan: LayoutPlan, run: RunPlan) -> str:
    cost = f", ${run.cost:,.0f}" if run.cost is not None else ""
    return f"{_days(run.days)}{cost}, {plan.main.step.seconds:.3g} s a step, {_brief(plan)}"


def _brief(plan: LayoutPlan) -> str:
    return f"MFU {plan.main.step.mfu(CONVENTION):5.1%} {plan.fullest.total / GIB:5.1f} GiB"


def _sets(layout: Found) -> str:
    return " ".join(f"--set {setting}" for setting in layout.settings) or "the recipe's own layout"


def _why(plan: LayoutPlan, own: LayoutPlan | None) -> str:
    """What takes other time than in the recipe's own layout, or what takes most."""
    step = plan.main.step
    if own is None or own.way == plan.way:
        longest = sorted(step.parts.items(), key=lambda part: -part[1])[:3]
        return ", ".join(f"{PART_NAMES[name]} {seconds / step.seconds:.0%}" for name, seconds in longest)
    change = 1 - plan.seconds / own.seconds
    head = f"{abs(change):.1%} {'shorter' if change >= 0 else 'longer'} than the recipe's own layout"
    return f"{head}: {differences(plan, own)}"


def differences(plan: LayoutPlan, own: LayoutPlan) -> str:
    """The three parts of a step that differ most, in seconds."""
    ours, theirs = plan.main.step.parts, own.main.step.parts
    changes = sorted(((ours[name] - theirs[name], name) for name in ours), key=lambda change: -abs(change[0]))
    return ", ".join(f"{PART_NAMES[name]} {change:+.3g} s" for change, name in changes[:3] if abs(change) >= 1e-4)


def _own_place(planner: Planner, own: LayoutPlan | None, found: Search) -> str:
    first = found.best[0].plan
    if own is None:
        return "the recipe's own layout is not among them: `preheat check` refuses it, see above"
    if not own.fits:
        return f"the recipe's own layout is not among them: it needs {own.fullest.total / GIB:.1f} GiB of {own.room / GIB:.1f}"
    slower = own.seconds / first.seconds - 1
    faster = sum(layout.plan.seconds < own.seconds for layout in found.best)
    if slower < 0.01:
        return f"the recipe's own layout is as fast as the first to {max(slower, 0):.1%}"
    more = "or more " if faster == len(found.best) else ""
    return f"the recipe's own layout comes after {faster} {more}of these: {slower:.1%} longer than the first: {differences(own, first)}"


def _needed(planner: Planner, fastest: Found, limits: Limits) -> str:
    run_days = fastest.plan.seconds / 86_400
    days = f"the fastest takes {_days(run_days)} of training"
    if limits.days is not None and run_days > limits.days > 0:
        return f"{days}: at its speed a GPU, {round(planner.cluster.count * run_days / limits.days):,} GPUs would do"
    return days


def advice_lines(advised: Advised, own: LayoutPlan) -> list[str]:
    """What to change first."""
    lines = []
    if advised.memory_short:
        lines += [f"memory is short of {(own.fullest.total - own.room) / GIB:.1f} GiB; what takes less:"]
        lines += list(_advice(advised.memory, own)) or ["  nothing that the rules allow"]
    share = advised.exchange_share
    more = f"more than {MUCH_EXCHANGE:.0%}: look there first" if share > MUCH_EXCHANGE else f"{MUCH_EXCHANGE:.0%} would be much"
    lines.append(f"speed: exchange that nothing hides is {share:.1%} of a step ({more}); what is faster:")
    return lines + (list(_advice(advised.speed, own)) or ["  nothing that was tried"])


def _advice(trials: Sequence[Advice], own: LayoutPlan) -> Iterator[str]:
    for trial in trials:
        fits = "fits" if trial.fits else "does not fit"
        time = f"{abs(trial.speedup):.1%} {'shorter' if trial.speedup > 0 else 'longer'}" if trial.speedup else "as long"
        yield (
            f"  {trial.what}: {time}, MFU {own.main.step.mfu():.1%} -> {trial.mfu:.1%}, "
            f"{own.fullest.total / GIB:.1f} -> {trial.memory / GIB:.1f} GiB ({fits})"
        )
        if trial.settings:
            yield "      " + " ".join(f"--set {setting}" for setting in trial.settings)


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def _days(days: float) -> str:
    return f"{days:,.1f} days" if days >= 2 else f"{days * 24:,.1f} hours" if days * 24 >= 1 else f"{days * 1440:,.1f} minutes"


def _hours(hours: float) -> str:
    return _days(hours / 24)

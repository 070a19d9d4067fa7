"""A rehearsal in plain words, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from preheat.interop.toml_text import document
from preheat.rehearse.events import events
from preheat.rehearse.reasons import shown
from preheat.rehearse.rehearsal import Leg
from preheat.rehearse.twin import Twin

SCHEMA = "preheat.rehearsal/1"
NAMES = {"loss": "loss", "grad_norm": "gradient norm", "held_out": "held-out loss"}


def as_json(twin: Twin, legs: Sequence[Leg]) -> dict[str, Any]:
    """The shape that `--json` promises; without legs that of `--explain`."""
    value: dict[str, Any] = {
        "schema": SCHEMA,
        "recipe": twin.recipe.model_dump(mode="json"),
        "axes": {name: {"real": size, "twin": asdict(twin.axes)[name]} for name, size in asdict(twin.real).items()},
        "changes": [asdict(change) for change in twin.changes],
        "events": [asdict(event) for event in events(twin.recipe)],
        "not_rehearsed": list(twin.not_rehearsed),
    }
    if legs:
        value |= {"ok": all(leg.agrees for leg in legs)}
        value["legs"] = [asdict(leg) | {"agrees": leg.agrees} for leg in legs]
    return value


def explained(twin: Twin) -> str:
    """The twin as a recipe file that says in comments what is different and why."""
    processes = f"{twin.axes.ranks} process" + ("es" if twin.axes.ranks > 1 else "")
    lines = [f"# The twin of a recipe, for {processes}. Real value -> that of the twin, by the reason:"]
    for why in dict.fromkeys(change.why for change in twin.changes):
        lines += [f"# {why}:", *(f"#   {each.key}: {shown(each.real)} -> {shown(each.twin)}" for each in twin.changes if each.why == why)]
    lines += ["# What happens, by the step:", *(f"#   {event.step}: {event.what}" for event in events(twin.recipe))]
    lines += ["# What is not rehearsed:", *(f"#   {what}" for what in twin.not_rehearsed)]
    return "\n".join(lines) + "\n\n" + document(twin.recipe.model_dump(mode="json", exclude_defaults=True))


def tables(twin: Twin, legs: Sequence[Leg]) -> list[tuple[str, list[list[str]]]]:
    """The report: headings, each with its rows."""
    twins = asdict(twin.axes)
    axes = [["axis", "real", "twin"], *([name, f"{size:_}", str(twins[name])] for name, size in asdict(twin.real).items() if size > 1)]
    return [
        ("How it is split", axes if len(axes) > 1 else [["one process, as the recipe has it"]]),
        ("What happened, by the step", [[str(event.step), event.what] for event in events(twin.recipe)]),
        ("What ran, and its largest relative differences from one process", [_head(), *map(_row, legs)]),
        ("What this says nothing about", [[what] for what in twin.not_rehearsed]),
    ]


def verdict(twin: Twin, legs: Sequence[Leg]) -> str:
    """One sentence, and for what disagrees where and by how much."""
    wrong = [leg for leg in legs if not leg.agrees]
    if not wrong:
        return f"{twin.recipe.name}: every layout agrees with one process, through a kill and a resume elsewhere"
    lines = []
    for leg in wrong:
        for name, found in leg.differences.items():
            if found.largest > leg.tolerance:
                more = f"more than {leg.tolerance:g}"
                lines.append(f"{leg.name}: {NAMES[name]} differs by {found.largest:.1e} at step {found.step}, {more}")
    if twin.recipe.model.experts is not None:
        lines.append("A near-tie between two experts may fall the other way in another order of adding up: then the steps before agree")
    return "\n".join(lines)


def _head() -> list[str]:
    return ["", "processes", "layout", "steps", "ended", *NAMES.values(), "seconds", ""]


def _row(leg: Leg) -> list[str]:
    split = " ".join(f"{axis} {size}" for axis, size in leg.split.items()) or "-"
    found = [f"{leg.differences[name].largest:.1e}" if name in leg.differences else "-" for name in NAMES]
    judged = ("agrees" if leg.agrees else "DISAGREES") if leg.differences else ""
    return [leg.name, str(leg.processes), split, f"{leg.first}-{leg.last}", leg.end, *found, f"{leg.seconds:.0f}", judged]

"""The dress rehearsal: a shrunken twin of a recipe, in its own layout, on this machine, before the cluster is paid for."""

from preheat.rehearse.events import Event, events
from preheat.rehearse.reasons import Change
from preheat.rehearse.rehearsal import TOLERANCES, Difference, Leg, rehearse
from preheat.rehearse.report import as_json, explained, tables, verdict
from preheat.rehearse.twin import Twin, twin

__all__ = [
    "TOLERANCES",
    "Change",
    "Difference",
    "Event",
    "Leg",
    "Twin",
    "as_json",
    "events",
    "explained",
    "rehearse",
    "tables",
    "twin",
    "verdict",
]

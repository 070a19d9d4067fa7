"""Named rules over a recipe, and the report of all that they find."""

from preheat.check import batch as _batch
from preheat.check import bounds as _bounds
from preheat.check import data as _data
from preheat.check import engine as _engine
from preheat.check import experts as _experts
from preheat.check import launch as _launch
from preheat.check import layout as _layout
from preheat.check import memory as _memory
from preheat.check import model as _model
from preheat.check import precision as _precision
from preheat.check import schedule as _schedule
from preheat.check.engine import untrained
from preheat.check.machine import Machine
from preheat.check.reading import READING
from preheat.check.registry import RULES, Finding, Rule, check, refuse_absurd, rule
from preheat.check.subject import Subject

__all__ = ["READING", "RULES", "Finding", "Machine", "Rule", "Subject", "check", "refuse_absurd", "rule", "untrained"]

del _batch, _bounds, _data, _engine, _experts, _launch, _layout, _memory, _model, _precision, _schedule

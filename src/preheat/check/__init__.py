"""Named rules over a recipe, and the report of all that they find."""

from preheat.check import model as _model
from preheat.check import run as _run
from preheat.check.registry import RULES, Finding, Rule, check, rule

__all__ = ["RULES", "Finding", "Rule", "check", "rule"]

del _model, _run

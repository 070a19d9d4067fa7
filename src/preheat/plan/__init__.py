"""The planner: seconds of a step for any layout on any cluster, and how wrong that has been on runs that others published."""

from preheat.plan.accuracy import Accuracy, Calibration, calibrate, calibration_json
from preheat.plan.advice import Advice, Advised, advise
from preheat.plan.answer import Answer
from preheat.plan.constants import Constants, Software, shipped
from preheat.plan.limits import Limits
from preheat.plan.planner import LayoutPlan, Planner, Way
from preheat.plan.programs import PROGRAMS, program
from preheat.plan.published_memory import predicted_memory
from preheat.plan.rows import Run, Runs, read_runs
from preheat.plan.run import RunPlan, whole_run
from preheat.plan.search import Found, Search, other_layouts_would_do, refusals, search
from preheat.plan.step import StepModel, StepTime
from preheat.plan.summary import OtherProgram, layout_json, other_program, plan_json, search_json

__all__ = [
    "PROGRAMS",
    "Accuracy",
    "Advice",
    "Advised",
    "Answer",
    "Calibration",
    "Constants",
    "Found",
    "LayoutPlan",
    "Limits",
    "OtherProgram",
    "Planner",
    "Run",
    "RunPlan",
    "Runs",
    "Search",
    "Software",
    "StepModel",
    "StepTime",
    "Way",
    "advise",
    "calibrate",
    "calibration_json",
    "layout_json",
    "other_layouts_would_do",
    "other_program",
    "plan_json",
    "predicted_memory",
    "program",
    "read_runs",
    "refusals",
    "search",
    "search_json",
    "shipped",
    "whole_run",
]

"""The planner: seconds of a step for any layout on any cluster, and how wrong that has been on runs that others published."""

from preheat.plan.accuracy import Accuracy, Calibration, calibrate, summary
from preheat.plan.constants import Constants, Software, shipped
from preheat.plan.rows import Run, Runs, read_runs
from preheat.plan.step import StepModel, StepTime

__all__ = [
    "Accuracy",
    "Calibration",
    "Constants",
    "Run",
    "Runs",
    "Software",
    "StepModel",
    "StepTime",
    "calibrate",
    "read_runs",
    "shipped",
    "summary",
]

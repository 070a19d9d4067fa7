"""Where model, data, timeline and recovery meet."""

from preheat.train.checkpoint import Checkpoint, load, newest
from preheat.train.device import Device, choose
from preheat.train.loop import Evaluator, Judge, Record, Sink, Trainer
from preheat.train.run_folder import RunFolder
from preheat.train.start import plan, sample_order, start

__all__ = [
    "Checkpoint",
    "Device",
    "Evaluator",
    "Judge",
    "Record",
    "RunFolder",
    "Sink",
    "Trainer",
    "choose",
    "load",
    "newest",
    "plan",
    "sample_order",
    "start",
]

"""Where model, data, timeline and recovery meet."""

from preheat.train.device import Device, choose
from preheat.train.files import read_json, write_json
from preheat.train.loop import Evaluator, Judge, Record, Sink, Trainer
from preheat.train.planned import sample_order
from preheat.train.run_folder import RunFolder
from preheat.train.start import Invocation, start
from preheat.train.trained import Trained, load_trained
from preheat.train.tune import Try, best_try, setting, tries

__all__ = [
    "Device",
    "Evaluator",
    "Invocation",
    "Judge",
    "Record",
    "RunFolder",
    "Sink",
    "Trained",
    "Trainer",
    "Try",
    "best_try",
    "choose",
    "load_trained",
    "read_json",
    "sample_order",
    "setting",
    "start",
    "tries",
    "write_json",
]

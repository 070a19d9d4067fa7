"""Where model, data, timeline and recovery meet."""

from preheat.train.device import Device
from preheat.train.files import write_json
from preheat.train.loop import Evaluator, Judge, Record, Sink, Trainer
from preheat.train.run_folder import RunFolder
from preheat.train.start import sample_order, start
from preheat.train.trained import Trained, load_trained

__all__ = [
    "Device",
    "Evaluator",
    "Judge",
    "Record",
    "RunFolder",
    "Sink",
    "Trained",
    "Trainer",
    "load_trained",
    "sample_order",
    "start",
    "write_json",
]

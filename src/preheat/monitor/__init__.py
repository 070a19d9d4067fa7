"""Numbers in, verdicts out: spikes, throughput, and one file per sink. TensorBoard has a module of its own, so that this needs no torch."""

from preheat.monitor.console import Console
from preheat.monitor.jsonl import JsonLines, Lines, last_line, read_lines
from preheat.monitor.spikes import SpikeDetector, Verdict
from preheat.monitor.throughput import Pace, Smoothed, model_flops_utilization

__all__ = [
    "Console",
    "JsonLines",
    "Lines",
    "Pace",
    "Smoothed",
    "SpikeDetector",
    "Verdict",
    "last_line",
    "model_flops_utilization",
    "read_lines",
]

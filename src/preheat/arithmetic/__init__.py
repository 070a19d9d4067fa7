"""Pure functions of a recipe: parameters, FLOPs, layout and the timeline. Nothing else computes these numbers."""

from preheat.arithmetic.flops import Flops, flops_per_token
from preheat.arithmetic.layout import Layout, layout, smallest_world
from preheat.arithmetic.parameters import Parameters, head_dim, kv_heads, padded_vocab, parameters
from preheat.arithmetic.schedule import SHAPES, LearningRate
from preheat.arithmetic.timeline import Clock, Segment, Step, Timeline

__all__ = [
    "SHAPES",
    "Clock",
    "Flops",
    "Layout",
    "LearningRate",
    "Parameters",
    "Segment",
    "Step",
    "Timeline",
    "flops_per_token",
    "head_dim",
    "kv_heads",
    "layout",
    "padded_vocab",
    "parameters",
    "smallest_world",
]

"""Pure functions of a recipe: parameters, FLOPs, bytes, layout, pipeline and the timeline. Nothing else computes these numbers."""

from preheat.arithmetic.flops import Flops, flops_per_token
from preheat.arithmetic.layout import Layout, Mesh, layout, meshes, smallest_world, stage_parallel
from preheat.arithmetic.memory import States, rank_states, states
from preheat.arithmetic.parameters import (
    Parameters,
    RankParameters,
    dense_layers,
    head_dim,
    kv_heads,
    padded_vocab,
    parameters,
    rank_parameters,
)
from preheat.arithmetic.pipeline import Chunk, balanced_split, bubble, pipeline_split
from preheat.arithmetic.ramp import linear_ramp
from preheat.arithmetic.rotary import Rope, attention_factor, rotary_frequencies
from preheat.arithmetic.schedule import SHAPES, LearningRate, Piece
from preheat.arithmetic.timeline import Clock, Segment, Step, Timeline, Unrunnable

__all__ = [
    "SHAPES",
    "Chunk",
    "Clock",
    "Flops",
    "Layout",
    "LearningRate",
    "Mesh",
    "Parameters",
    "Piece",
    "RankParameters",
    "Rope",
    "Segment",
    "States",
    "Step",
    "Timeline",
    "Unrunnable",
    "attention_factor",
    "balanced_split",
    "bubble",
    "dense_layers",
    "flops_per_token",
    "head_dim",
    "kv_heads",
    "layout",
    "linear_ramp",
    "meshes",
    "padded_vocab",
    "parameters",
    "pipeline_split",
    "rank_parameters",
    "rank_states",
    "rotary_frequencies",
    "smallest_world",
    "stage_parallel",
    "states",
]

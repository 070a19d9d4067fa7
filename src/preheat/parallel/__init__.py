"""A model over many ranks: tensor, sequence, pipeline, context, expert and data parallelism, applied to plain modules from outside."""

from preheat.parallel.blocks import own_block
from preheat.parallel.engine import Engine, Objective

__all__ = ["Engine", "Objective", "own_block"]

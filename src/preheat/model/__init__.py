"""The model on one device: plain modules, their initial weights, and text generation. Knows nothing of data, training or parallelism."""

from preheat.model.balance import Balance, finish_step, routers
from preheat.model.cache import Cache
from preheat.model.generate import generate
from preheat.model.inference import inference
from preheat.model.init import build, init_weights, initial_values
from preheat.model.mask import documents
from preheat.model.mup import is_hidden_matrix, width_factor
from preheat.model.transformer import Losses, Transformer

__all__ = [
    "Balance",
    "Cache",
    "Losses",
    "Transformer",
    "build",
    "documents",
    "finish_step",
    "generate",
    "inference",
    "init_weights",
    "initial_values",
    "is_hidden_matrix",
    "routers",
    "width_factor",
]

"""The model on one device: plain modules, their initial weights, and text generation. Knows nothing of data, training or parallelism."""

from preheat.model.cache import Cache
from preheat.model.generate import generate
from preheat.model.inference import inference
from preheat.model.init import build, init_weights
from preheat.model.mask import documents
from preheat.model.transformer import Losses, Transformer

__all__ = ["Cache", "Losses", "Transformer", "build", "documents", "generate", "inference", "init_weights"]

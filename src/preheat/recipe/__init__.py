"""The recipe: its schema, its loading, and the catalog that preheat ships."""

from preheat.recipe.architecture import Experts, LatentAttention, Model, MultiTokenPrediction, RopeScaling, WidthTransfer
from preheat.recipe.beyond_training import beyond_training
from preheat.recipe.fields import RateChange, WeightChange
from preheat.recipe.load import Loaded, Origin, catalog, fingerprint, load
from preheat.recipe.schema import (
    Batch,
    Checkpoint,
    Data,
    Dedup,
    Evaluation,
    Ignore,
    Optimizer,
    Parallel,
    Precision,
    Ramp,
    RateSegment,
    Recipe,
    Recompute,
    Schedule,
    Source,
    Stage,
    Tokenizer,
)

__all__ = [
    "Batch",
    "Checkpoint",
    "Data",
    "Dedup",
    "Evaluation",
    "Experts",
    "Ignore",
    "LatentAttention",
    "Loaded",
    "Model",
    "MultiTokenPrediction",
    "Optimizer",
    "Origin",
    "Parallel",
    "Precision",
    "Ramp",
    "RateChange",
    "RateSegment",
    "Recipe",
    "Recompute",
    "RopeScaling",
    "Schedule",
    "Source",
    "Stage",
    "Tokenizer",
    "WeightChange",
    "WidthTransfer",
    "beyond_training",
    "catalog",
    "fingerprint",
    "load",
]

"""The recipe: its schema, its loading, and the catalog that preheat ships."""

from preheat.recipe.load import Loaded, Origin, catalog, fingerprint, json_schema, load
from preheat.recipe.schema import (
    Batch,
    Checkpoint,
    Data,
    Dedup,
    Evaluation,
    Model,
    Optimizer,
    Parallel,
    Precision,
    Ramp,
    Recipe,
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
    "Loaded",
    "Model",
    "Optimizer",
    "Origin",
    "Parallel",
    "Precision",
    "Ramp",
    "Recipe",
    "Schedule",
    "Source",
    "Stage",
    "Tokenizer",
    "catalog",
    "fingerprint",
    "json_schema",
    "load",
]

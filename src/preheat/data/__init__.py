"""Data: from sources of text to token ids on disk that training and evaluation read."""

from preheat.data.indexed import IndexedDataset
from preheat.data.inspect import Shown, documents, held_out_tokens
from preheat.data.manifest import Manifest, PreparedSource, Split
from preheat.data.order import SampleOrder, StageSamples, Usage
from preheat.data.prepare import prepare
from preheat.data.sources import Document, Reading, read
from preheat.data.tokenizer import Tokenizer

__all__ = [
    "Document",
    "IndexedDataset",
    "Manifest",
    "PreparedSource",
    "Reading",
    "SampleOrder",
    "Shown",
    "Split",
    "StageSamples",
    "Tokenizer",
    "Usage",
    "documents",
    "held_out_tokens",
    "prepare",
    "read",
]

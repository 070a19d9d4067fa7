"""Data: from sources of text to token ids on disk that training and evaluation read."""

from preheat.data import tasks
from preheat.data.imported import take
from preheat.data.indexed import IndexedDataset
from preheat.data.inspect import Shown, documents, held_out_tokens, sample
from preheat.data.manifest import Manifest, PreparedSource, Split
from preheat.data.mixture import Share, mixture
from preheat.data.order import SampleOrder, StageSamples, Usage
from preheat.data.prepare import planned, prepare
from preheat.data.shards import Shards, opened
from preheat.data.sources import Document, File, Reading, read
from preheat.data.statistics import s_curve, statistics
from preheat.data.tokenizer import Tokenizer
from preheat.data.verify import verify

__all__ = [
    "Document",
    "File",
    "IndexedDataset",
    "Manifest",
    "PreparedSource",
    "Reading",
    "SampleOrder",
    "Shards",
    "Share",
    "Shown",
    "Split",
    "StageSamples",
    "Tokenizer",
    "Usage",
    "documents",
    "held_out_tokens",
    "mixture",
    "opened",
    "planned",
    "prepare",
    "read",
    "s_curve",
    "sample",
    "statistics",
    "take",
    "tasks",
    "verify",
]

"""All steps of a preparation, in their order."""

from __future__ import annotations

from preheat.data.pipeline.assigning import DIVIDE, TOKENIZER
from preheat.data.pipeline.duplicates import BAND, COMPARE, EXACT, GROUP, SIGN
from preheat.data.pipeline.reading import CHECK, READ
from preheat.data.pipeline.writing import ENCODE, LIST, MERGE

STAGES = (READ, CHECK, SIGN, EXACT, BAND, GROUP, COMPARE, DIVIDE, TOKENIZER, ENCODE, MERGE, LIST)
BY_NAME = {stage.name: stage for stage in STAGES}

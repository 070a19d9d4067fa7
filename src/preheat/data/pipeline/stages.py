"""All steps of a preparation."""

from __future__ import annotations

from preheat.data.pipeline.assigning import DIVIDE
from preheat.data.pipeline.duplicates import BAND, COMPARE, EXACT, GROUP, SIGN
from preheat.data.pipeline.learning import TOKENIZER
from preheat.data.pipeline.paragraphs import PARAGRAPH, REPEATED, SETTLE, SHORTEN
from preheat.data.pipeline.plan import Plan
from preheat.data.pipeline.reading import CHECK, READ
from preheat.data.pipeline.tasks import Stage
from preheat.data.pipeline.writing import ENCODE, LIST, MERGE

STAGES = (READ, CHECK, SIGN, EXACT, BAND, GROUP, COMPARE, DIVIDE, PARAGRAPH, REPEATED, SHORTEN, SETTLE, TOKENIZER, ENCODE, MERGE, LIST)
BY_NAME = {stage.name: stage for stage in STAGES}


def in_order(plan: Plan) -> list[Stage]:
    """The steps as they are done. A tokenizer that is not learned from the text comes first, lest one that does not fit costs time."""
    return sorted(STAGES, key=lambda stage: stage is not TOKENIZER or bool(TOKENIZER.needs(plan, 0)))

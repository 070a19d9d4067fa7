"""Made-up text for a rehearsal: words of an invented language, some of them frequent, different in each source."""

from __future__ import annotations

import json
import random
from pathlib import Path

WORDS, WORDS_A_SENTENCE, SENTENCES = 400, 12, 10
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


def write_text(file: Path, tokens: int, seed: str) -> None:
    """Write documents as JSON lines that have at least so many tokens, four fifths of them to train on, whatever tokenizer reads them."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 4))) for _ in range(WORDS)]
    weights = [1 / rank for rank in range(1, WORDS + 1)]
    documents = max(60, -(-2 * tokens // (SENTENCES * WORDS_A_SENTENCE)))
    with file.open("w", encoding="utf-8") as out:
        for _ in range(documents):
            sentences = (" ".join(draw.choices(words, weights, k=WORDS_A_SENTENCE)).capitalize() + "." for _ in range(SENTENCES))
            out.write(json.dumps({"text": " ".join(sentences)}) + "\n")

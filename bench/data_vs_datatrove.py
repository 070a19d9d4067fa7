"""preheat and datatrove side by side: the same text, the same machine, the same number of processes.

    python bench/data_vs_datatrove.py --datatrove PYTHON [--mb 20] [--workers 2] [--repeat 1]

`PYTHON` is an interpreter that has datatrove (with its extras io and processing) and spaCy; it runs the other side in processes of its own.
Each part is timed on both sides one after the other, `--repeat` times, and the best time of each counts. Both read the same JSON lines.

- near-duplicates: MinHash signatures over word 5-grams to the documents that stay. datatrove: 14 bands of 8, its defaults; preheat: 64 of 4
  and the exact similarity of every candidate pair.
- tokens: GPT-2's tokenizer to files of ids.
- all: reading, the quality filters of Gopher, C4 and FineWeb, near-duplicates, tokens. preheat: policy "web", which holds these rules and
  edits before them. The text is speeches, which all of these rules keep.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from near_duplicates import documents, with_copies

from preheat import recipe
from preheat.data.pipeline import Context, Plan, divided, local_backend
from preheat.data.pipeline.stages import STAGES
from preheat.data.sources import resolve, split_file
from preheat.data.tokenizer import gpt2

OTHER = """
import sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.filters import C4QualityFilter, FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.pipeline.writers import JsonlWriter

def go(work, name, pipeline, workers, tasks):
    LocalPipelineExecutor(pipeline=pipeline, tasks=tasks, workers=workers, logging_dir=f"{work}/logs/{name}").run()

def near(work, source, workers):
    config, at = MinhashConfig(), f"{work}/minhash"
    go(work, "signatures", [JsonlReader(source), MinhashDedupSignature(f"{at}/s", config)], workers, workers)
    go(work, "buckets", [MinhashDedupBuckets(f"{at}/s", f"{at}/b", config=config)], workers, config.num_buckets)
    go(work, "cluster", [MinhashDedupCluster(f"{at}/b", f"{at}/r", config=config)], 1, 1)
    keep = JsonlWriter(f"{work}/kept", compression=None)
    go(work, "filter", [JsonlReader(source), MinhashDedupFilter(f"{at}/r"), keep], workers, workers)

def tokens(work, source, workers, tokenizer):
    go(work, "tokens", [JsonlReader(source), DocumentTokenizer(f"{work}/tokens", tokenizer, f"{work}/scratch",
       eos_token="<|endoftext|>", shuffle_documents=False)], workers, workers)

if __name__ == "__main__":
    part, work, source, workers, tokenizer = sys.argv[1:]
    workers = int(workers)
    if part in ("near", "tokens"):
        near(work, source, workers) if part == "near" else tokens(work, source, workers, tokenizer)
    else:
        filters = [GopherRepetitionFilter(), GopherQualityFilter(), C4QualityFilter(), FineWebQualityFilter()]
        go(work, "filters", [JsonlReader(source), *filters, JsonlWriter(f"{work}/filtered", compression=None)], workers, workers)
        near(work, f"{work}/filtered", workers)
        tokens(work, f"{work}/kept", workers, tokenizer)
"""
STEPS = {"near": ("sign", "exact", "band", "group", "compare"), "tokens": ("encode", "merge")}
POLICIES = {"near": "reference", "tokens": "reference", "all": "web"}


def ours(part: str, source: Path, work: Path, workers: int) -> float:
    """Seconds that preheat takes for a part; what comes before it is done but not counted."""
    spec = {"name": "all", "paths": [str(source / "*.jsonl")], "format": "jsonl", "policy": POLICIES[part]}
    data = recipe.Data.model_validate({"source": [spec], "held_out": "1%"})
    files = resolve(data.source[0], source)
    size = max(sum(file.size for file in files) // (8 * workers), 1)
    parts = [piece for file in files for piece in split_file(data.source[0], file, size)]
    plan = Plan(data, recipe.Tokenizer(kind="gpt2"), 50_304, str(source), divided([parts], size))
    work.mkdir()
    plan.save(work)
    context = Context(work, plan)
    backend = local_backend(plan, workers)
    seconds = 0.0
    try:
        list(backend.run(context, STAGES[0].name, [0]))  # The workers start.
        for stage in STAGES:
            start = time.perf_counter()
            list(backend.run(context, stage.name, range(stage.count(plan))))
            if part == "all" or stage.name in STEPS[part]:
                seconds += time.perf_counter() - start
    finally:
        backend.close()
    return seconds


def theirs(python: str, part: str, source: Path, work: Path, workers: int, tokenizer: Path) -> float:
    """Seconds that datatrove takes, without the time that its interpreter takes to start and to import it."""
    script = work.parent / "other.py"
    script.write_text(OTHER)
    imports = _timed(lambda: subprocess.run([python, "-c", OTHER.partition("def go")[0]], check=True, capture_output=True))
    command = [python, str(script), part, str(work), str(source), str(workers), str(tokenizer)]
    return _timed(lambda: subprocess.run(command, check=True, capture_output=True)) - imports


def _timed(do: Callable[[], object]) -> float:
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


def main() -> None:
    """Time both sides, print MB/s and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datatrove", required=True, metavar="PYTHON")
    parser.add_argument("--mb", type=float, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        source = place / "source"
        source.mkdir()
        texts = with_copies(documents(int(options.mb * 1e6 / 1.1), prose=True))
        for number in range(options.workers):
            rows = (json.dumps({"text": text, "id": str(n)}) + "\n" for n, text in enumerate(texts[number :: options.workers]))
            (source / f"{number}.jsonl").write_text("".join(rows), "utf-8")
        size = sum(len(text.encode()) for text in texts) / 1e6
        (place / "tokenizer.json").write_text(gpt2(None).content, "utf-8")
        print(f"{len(texts):,} documents, {size:.1f} MB, {options.workers} processes\n{'':10}{'preheat':>12}{'datatrove':>12}   ratio")
        for part in POLICIES:
            best = [float("inf")] * 2
            for turn in range(options.repeat):
                work = place / f"{part}-{turn}"
                best[0] = min(best[0], ours(part, source, Path(f"{work}-ours"), options.workers))
                other = theirs(options.datatrove, part, source, Path(f"{work}-theirs"), options.workers, place / "tokenizer.json")
                best[1] = min(best[1], other)
            print(f"{part:10}{size / best[0]:7.2f} MB/s{size / best[1]:7.2f} MB/s{best[1] / best[0]:7.1f}x", flush=True)


if __name__ == "__main__":
    main()

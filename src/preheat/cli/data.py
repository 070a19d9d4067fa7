"""`preheat data`: prepare text for training, and look at what was prepared."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from preheat.cli.options import AsJson, DataPath, RecipeName, Sets, data_folder
from preheat.cli.output import complain, print_json, problem_json, table, visible
from preheat.cli.progress import shown
from preheat.recipe import load

if TYPE_CHECKING:
    from preheat.data import Shown

app = typer.Typer(help="Prepare text for training, and look at what was prepared.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="DATA", help="A folder of prepared data.")]
SourceName = Annotated[str | None, typer.Option("--source", help="Only this source.")]
Documents = Annotated[int, typer.Option("--documents", min=1, help="Documents to show from the beginning and from the end.")]
Count = Annotated[int, typer.Option("--count", min=1, help="Documents of each source.")]
Seed = Annotated[int, typer.Option("--seed", help="Another number draws other documents.")]
SplitName = Annotated[Literal["train", "held_out"], typer.Option("--split", help="Which side of the source.")]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Processes, or jobs of a Slurm array at once [default: one a core; 64].")
]
Slurm = Annotated[
    Path | None, typer.Option("--slurm", metavar="SCRIPT", help="Write a script that submits Slurm arrays, and do nothing else.")
]
Sbatch = Annotated[str, typer.Option("--sbatch", metavar="OPTIONS", help="Options of every sbatch in that script.")]
Ray = Annotated[str | None, typer.Option("--ray", metavar="ADDRESS", help='Work on a Ray cluster that sees this folder; "auto" finds it.')]

HEAD = 400
"""Characters of a document that are shown."""
COLORS = ("\x1b[48;5;254m\x1b[38;5;16m", "\x1b[48;5;250m\x1b[38;5;16m")
"""Token after token, so that one sees where each ends."""


@app.command()
def prepare(
    recipe: RecipeName,
    data: DataPath = None,
    sets: Sets = None,
    workers: Workers = None,
    slurm: Slurm = None,
    sbatch: Sbatch = "",
    ray: Ray = None,
    as_json: AsJson = False,
) -> None:
    """Read, clean, deduplicate, split and tokenize the sources of a recipe. Interrupted, it goes on where it was."""
    from preheat.data import planned
    from preheat.data import prepare as prepare_data

    loaded = load(recipe, tuple(sets or ()))
    out = data_folder(data, loaded.recipe.name)
    asked = (loaded.recipe.data, loaded.recipe.tokenizer, loaded.recipe.model.vocab_size)
    task_globs = loaded.recipe.evaluation.tasks
    if slurm is not None:
        from preheat.data.pipeline.slurm import script

        changes = [part for text in sets or () for part in ("--set", text)]
        finish = shlex.join([sys.executable, "-m", "preheat", "data", "prepare", recipe, "--data", str(out.absolute()), *changes])
        plan = planned(*asked, folder=loaded.folder, out=out, task_globs=task_globs)
        text = script(plan, finish, at_once=workers or 64, options=sbatch)
        slurm.write_text(text, "utf-8")
        print(text, end="")
        return
    backend = None
    if ray is not None:
        from preheat.data.pipeline.ray_cluster import RayCluster

        backend = RayCluster(ray)
    with shown(silent=as_json) as (progress, bar):
        manifest = prepare_data(
            *asked,
            folder=loaded.folder,
            out=out,
            progress=progress,
            task_globs=task_globs,
            workers=workers,
            backend=backend,
            bar=bar,
        )
    if as_json:
        print_json(asdict(manifest))


@app.command("import")
def import_(recipe: RecipeName, data: DataPath = None, sets: Sets = None, as_json: AsJson = False) -> None:
    """Take ready token ids, sources of format "tokens": Megatron's .bin and .idx, llm.c, nanoGPT, tables with a column input_ids."""
    from preheat.data import take

    loaded = load(recipe, tuple(sets or ()))
    asked = (loaded.recipe.data, loaded.recipe.tokenizer, loaded.recipe.model.vocab_size)
    with shown(silent=as_json) as (progress, _):
        manifest = take(*asked, folder=loaded.folder, out=data_folder(data, loaded.recipe.name), progress=progress)
    if as_json:
        print_json(asdict(manifest))


@app.command()
def mix(recipe: RecipeName, data: DataPath = None, sets: Sets = None, as_json: AsJson = False) -> None:
    """Show what each stage will take from each prepared source: weight, samples, tokens, epochs."""
    from preheat.arithmetic import Timeline
    from preheat.data import Manifest, StageSamples, mixture

    loaded = load(recipe, tuple(sets or ()))
    asked = loaded.recipe
    manifest = Manifest.load(data_folder(data, asked.name))
    samples = Timeline(asked).stage_samples()
    stages = [StageSamples(s.mix, s.seq_len or asked.batch.seq_len, n) for s, n in zip(asked.stage, samples, strict=True)]
    tokens = {name: manifest.source(name).train.tokens for stage in asked.stage for name in stage.mix}
    shares = dict(zip((stage.name for stage in asked.stage), mixture(stages, tokens), strict=True))
    if as_json:
        rows = {stage: [asdict(share) | {"warning": share.warning} for share in own] for stage, own in shares.items()}
        print_json({"schema": "preheat.data-mix/1", "stages": rows})
        return
    heads = ["stage", "source", "weight", "samples", "tokens", "epochs", "epochs so far"]
    lines = [
        [stage, s.source, f"{s.weight:.4g}", f"{s.samples:_}", f"{s.tokens:_}", f"{s.epochs:.3f}", f"{s.epochs_so_far:.3f}"]
        for stage, own in shares.items()
        for s in own
    ]
    print(table([heads, *lines]))
    for stage, own in shares.items():
        for share in own:
            if share.warning:
                print(f"warning: stage {stage}: {share.source} {share.warning}", file=sys.stderr)


@app.command()
def inspect(
    folder: Folder, source: SourceName = None, documents: Documents = 1, split: SplitName = "train", as_json: AsJson = False
) -> None:
    """Show the counts of prepared data and the first and last documents of each source as training sees them."""
    from preheat.data import Manifest
    from preheat.data import documents as read_documents

    manifest = Manifest.load(folder)
    names = [source] if source else [entry.name for entry in manifest.sources]
    shown = {name: read_documents(folder, name, split=split, first=documents, last=documents) for name in names}
    if as_json:
        print_json({"schema": "preheat.inspect/1", "documents": _documents(shown)})
        return
    rows = [["source", "documents", "tokens", "held-out tokens", "licence"]]
    rows += [[s.name, f"{s.train.documents:_}", f"{s.train.tokens:_}", f"{s.held_out.tokens:_}", s.licence] for s in manifest.sources]
    print(table(rows))
    _print(shown)


@app.command()
def sample(
    folder: Folder, source: SourceName = None, count: Count = 3, seed: Seed = 1, split: SplitName = "train", as_json: AsJson = False
) -> None:
    """Show some documents at random, the same ones for the same seed."""
    from preheat.data import Manifest
    from preheat.data import sample as draw

    names = [source] if source else [entry.name for entry in Manifest.load(folder).sources]
    shown = {name: draw(folder, name, count, split=split, seed=seed) for name in names}
    if as_json:
        print_json({"schema": "preheat.inspect/1", "documents": _documents(shown)})
    else:
        _print(shown)


@app.command()
def verify(folder: Folder, as_json: AsJson = False) -> None:
    """Read every byte of prepared data and hold it against the manifest. Exit code 1 if something differs."""
    from preheat.data import verify as read_everything

    problems = read_everything(folder)
    if as_json:
        print_json({"schema": "preheat.data-verify/1", "ok": not problems, "problems": [problem_json(problem) for problem in problems]})
    else:
        complain(problems)
        print(
            f"{folder}: {len(problems)} problem{'s' * (len(problems) != 1)}"
            if problems
            else f"{folder}: all files are as they were written"
        )
    raise typer.Exit(bool(problems))


@app.command()
def stats(folder: Folder, as_json: AsJson = False) -> None:
    """Show what went and why, the lengths of documents, and the duplicates: how they cluster, and pairs near the threshold."""
    from preheat.data import s_curve, statistics
    from preheat.data.statistics import QUANTILES

    found = statistics(folder)
    if as_json:
        sources = {name: asdict(source) for name, source in found.items()}
        print_json({"schema": "preheat.data-stats/1", "sources": sources, "quantiles": QUANTILES, "s_curve": s_curve()})
        return
    heads = ["source", "tokens", "bytes a token", *(f"{q} %" for q in QUANTILES)]
    rows = [[name, f"{s.tokens:_}", f"{s.bytes_per_token:.2f}", *(f"{n:_}" for n in s.lengths)] for name, s in found.items()]
    print("tokens of a document at quantiles\n" + table([heads, *rows]) + "\n")
    for name, own in found.items():
        print(visible(f"{name}: {own.funnel}"))
        if own.clusters:
            print("  clusters of duplicates: " + ", ".join(f"{count:_} of {size:_}" for size, count in own.clusters.items()))
        for pair in own.pairs:
            print("  " + visible(f"{pair['similarity']:.2f} {pair['gone']} went for {pair['kept']}: {pair['head'][:80]!r}"))
        if own.tasks:
            print(visible("  evaluation text: " + ", ".join(f"{count:_} of {task}" for task, count in own.tasks.items())))
        for shared in own.shared:
            print("  " + visible(f"{shared['gone']} has {shared['words']:_} words in a row of {shared['task']}: {shared['text'][:80]!r}"))
        if own.paragraphs:
            print(f"  repeated paragraphs removed: {own.paragraphs:_}, {own.paragraph_words:_} words; the most frequent:")
        for paragraph in own.frequent:
            print("  " + visible(f"{paragraph['places']:_} places, kept as {paragraph['kept']}: {paragraph['head'][:80]!r}"))
    curve = ", ".join(f"{chance:.3f} at {similarity}" for similarity, chance in s_curve().items())
    print(f"\nMinHash proposes a pair for comparison with a probability of {curve} (Jaccard similarity of 5-grams)")


def _documents(shown: dict[str, list[Shown]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [{"id": d.id, "ids": d.ids, "text": d.text} for d in found] for name, found in shown.items()}


def _print(shown: dict[str, list[Shown]]) -> None:
    """Documents with their ids; on a terminal the tokens in two colours."""
    for name, found in shown.items():
        for document in found:
            ends = f"{list(document.ids[:8])} … {list(document.ids[-4:])}"
            print("\n" + visible(f"{name}: {document.id}") + f": {len(document.ids):_} tokens {ends}".rstrip())
            print(_colored(document) if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else _lines(document.text[:HEAD]))
            if len(document.text) > HEAD:
                print("…")


def _lines(text: str) -> str:
    """A text of several lines without what a terminal would take for a command."""
    return "\n".join("\t".join(map(visible, line.split("\t"))) for line in text.split("\n"))


def _colored(document: Shown) -> str:
    out, length = [], 0
    for number, piece in enumerate(document.pieces):
        if length > HEAD:
            break
        out.append(COLORS[number % 2] + _lines(piece) + "\x1b[0m")
        length += len(piece)
    return "".join(out)

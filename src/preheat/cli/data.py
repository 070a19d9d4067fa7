"""`preheat data`: prepare text for training, and look at what was prepared."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from preheat.cli.options import AsJson, DataPath, RecipeName, Sets, data_folder
from preheat.cli.output import print_json, table
from preheat.recipe import load

app = typer.Typer(help="Prepare text for training, and look at what was prepared.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="DATA", help="A folder of prepared data.")]
SourceName = Annotated[str | None, typer.Option("--source", help="Only this source.")]
Documents = Annotated[int, typer.Option("--documents", min=1, help="Documents to show from the beginning and from the end.")]


@app.command()
def prepare(recipe: RecipeName, data: DataPath = None, sets: Sets = None, as_json: AsJson = False) -> None:
    """Read, clean, deduplicate, split and tokenize the sources of a recipe."""
    from preheat.data import prepare as prepare_data

    loaded = load(recipe, tuple(sets or ()))
    out = data_folder(data, loaded.recipe.name)
    progress = (lambda line: print(line, flush=True)) if not as_json else (lambda line: None)
    manifest = prepare_data(
        loaded.recipe.data, loaded.recipe.tokenizer, loaded.recipe.model.vocab_size, folder=loaded.folder, out=out, progress=progress
    )
    if as_json:
        print_json(asdict(manifest))


@app.command()
def inspect(folder: Folder, source: SourceName = None, documents: Documents = 1, as_json: AsJson = False) -> None:
    """Show the counts of prepared data and the first and last documents of each source as training sees them."""
    from preheat.data import Manifest
    from preheat.data import documents as read_documents

    manifest = Manifest.load(folder)
    names = [source] if source else [entry.name for entry in manifest.sources]
    shown = {name: read_documents(folder, name, first=documents, last=documents) for name in names}
    if as_json:
        print_json({"schema": "preheat.inspect/1", "documents": {name: [asdict(d) for d in found] for name, found in shown.items()}})
        return
    rows = [["source", "documents", "tokens", "held-out tokens", "licence"]]
    rows += [[s.name, f"{s.train.documents:_}", f"{s.train.tokens:_}", f"{s.held_out.tokens:_}", s.licence] for s in manifest.sources]
    print(table(rows))
    for name, found in shown.items():
        for document in found:
            print(f"\n{name}: {document.id}: {len(document.ids):_} tokens {list(document.ids[:8])} … {list(document.ids[-4:])}")
            print(document.text[:400] + (" …" if len(document.text) > 400 else ""))

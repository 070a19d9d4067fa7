"""`preheat import`: another program's command as a recipe, another program's model as weights to start from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from preheat.check.megatron import check_megatron
from preheat.cli.export import write_new
from preheat.cli.options import AsJson
from preheat.cli.output import print_json, problem_json
from preheat.errors import refuse
from preheat.interop import import_megatron

app = typer.Typer(help="Read another program's command or model.", no_args_is_help=True)

Source = Annotated[Path, typer.Argument(metavar="FILE", help="A launch script, a list of flags, or `key: value` lines.")]
Gpus = Annotated[int, typer.Option("--gpus", metavar="N", min=1, help="World size.")]
Version = Annotated[str, typer.Option("--megatron-version", metavar="VERSION", help="Version of megatron-core: 0.17, 0.18 or 0.19.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write the recipe there instead of printing it; never over a file.")
]

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder with config.json and safetensors.")]
OutFolder = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="The folder to make; it must not exist.")]
AllowPickle = Annotated[
    bool, typer.Option("--allow-pickle", help="Read pytorch_model.bin, through PyTorch's restricted reader, if there is nothing better.")
]

MAX_BYTES = 1_000_000
"""A launch script larger than this is none."""


@app.callback()
def programs() -> None:
    """Read another program's command or model."""


@app.command("megatron")
def megatron(source: Source, gpus: Gpus, version: Version = "0.19", out: Out = None, as_json: AsJson = False) -> None:
    """A recipe from a Megatron-LM command, and a report of what Megatron-LM would refuse, ignore or do otherwise. Nothing is run."""
    text = _read(source)
    imported = import_megatron(text, str(source), gpus, version)
    problems = [*check_megatron(text, str(source), gpus, version), *imported.lost]
    if out is not None:
        write_new(out, imported.text)
    if as_json:
        values = imported.recipe.model_dump(mode="json")
        print_json(
            {
                "schema": "preheat.import/1",
                "recipe": values,
                "text": imported.text,
                "stated": list(imported.stated),
                "carried": list(imported.carried),
                "problems": [problem_json(problem) for problem in problems],
            }
        )
        return
    if out is None:
        print(imported.text, end="")
    for line in imported.stated:
        print(f"stated: {line}", file=sys.stderr)
    for problem in problems:
        print(f"{problem.severity}: {problem}", file=sys.stderr)


@app.command("hf")
def hf(folder: Folder, out: OutFolder, allow_pickle: AllowPickle = False, as_json: AsJson = False) -> None:
    """The model of a Hugging Face folder as weights to start from, with its tokenizer and a recipe. No code of the folder is run."""
    from preheat.interop.huggingface import import_huggingface

    brought = import_huggingface(folder, out, allow_pickle=allow_pickle)
    if as_json:
        values = {"folder": str(out), "architecture": brought.architecture, "parameters": brought.parameters, "notes": list(brought.notes)}
        print_json({"schema": "preheat.import-hf/1", **values, "model": brought.model.model_dump(mode="json")})
        return
    for note in brought.notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"{out}: {brought.architecture}, {brought.parameters:_} parameters. Fill in {out / 'recipe.toml'}, then:")
    print(f"  preheat train {out / 'recipe.toml'} --init-from {out}")


def _read(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        refuse("megatron.file", f"{path}: {error.strerror}", "", "Give a launch script")
    if len(raw) > MAX_BYTES:
        refuse("megatron.file", f"more than {MAX_BYTES:_} bytes", "a launch script", "This is none", file=path)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        refuse("megatron.file", f"byte 0x{raw[error.start]:02x} is no UTF-8", "", "Save the file as UTF-8", file=path, line=line)

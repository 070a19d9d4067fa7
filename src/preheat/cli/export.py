"""`preheat export`: a recipe as the command of another trainer, a trained model as a folder of Hugging Face."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from preheat.cli.options import AsJson, DataPath, RecipeName, RunPath, Sets
from preheat.cli.output import print_json
from preheat.errors import refuse
from preheat.interop import export_megatron, export_torchtitan
from preheat.recipe import Recipe, load

if TYPE_CHECKING:
    from preheat.interop.huggingface import Provenance
    from preheat.train import Trained

app = typer.Typer(help="Write a recipe or a trained model for another program.", no_args_is_help=True)

Gpus = Annotated[int | None, typer.Option("--gpus", metavar="N", min=1, help="World size [default: the recipe's parallel.gpus].")]
Version = Annotated[str, typer.Option("--megatron-version", metavar="VERSION", help="Version of megatron-core: 0.17, 0.18 or 0.19.")]
Yaml = Annotated[bool, typer.Option("--yaml", help="Flat key: value lines instead of a script.")]
Part = Annotated[int | None, typer.Option("--part", metavar="N", min=1, help="Only this part of a run that takes several commands.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write there instead of printing; never over a file.")]


Folder = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="The folder to make; it must not exist.")]
Dtype = Annotated[str | None, typer.Option("--dtype", help="fp32, bf16 or fp16 [default: as the weights are].")]


@app.callback()
def programs() -> None:
    """Write a recipe or a trained model for another program."""


@app.command("megatron")
def megatron(
    recipe: RecipeName,
    gpus: Gpus = None,
    version: Version = "0.19",
    yaml: Yaml = False,
    part: Part = None,
    out: Out = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """The complete torchrun command for a recipe, with what Megatron-LM cannot say in comments."""
    loaded = load(recipe, tuple(sets or ())).recipe
    export = export_megatron(loaded, _world(loaded, gpus), version, form="yaml" if yaml else "script", part=part)
    if out is not None:
        write_new(out, export.text)
    if as_json:
        print_json({"schema": "preheat.export/1", **asdict(export)})
    elif out is None:
        print(export.text, end="")
    else:
        print(f"{out}: {len(export.parts)} command{'s' if len(export.parts) > 1 else ''}")
        for note in export.notes:
            print(f"note: {note}")


@app.command("hf")
def hf(run: RunPath, out: Folder, dtype: Dtype = None, data: DataPath = None, as_json: AsJson = False) -> None:
    """The model of a run as a folder that transformers loads: weights, configuration, tokenizer, model card."""
    from preheat.data import Tokenizer
    from preheat.interop.huggingface import DTYPES, Setting, export_huggingface
    from preheat.train import load_trained

    if dtype is not None and dtype not in DTYPES:
        refuse("usage", f"--dtype {dtype}", f"one of {', '.join(DTYPES)}", "Choose one")
    trained = load_trained(run, data)
    segment, model = trained.step.segment, trained.recipe.model
    exported = export_huggingface(
        model,
        trained.model.state_dict(),
        Setting(segment.rope, model.max_positions or segment.seq_len),
        out,
        dtype=dtype,
        tokenizer=Tokenizer.load(trained.data),
        provenance=_provenance(trained),
    )
    if as_json:
        print_json({"schema": "preheat.export-hf/1", **asdict(exported), "folder": str(exported.folder)})
        return
    print(f"{out}: {exported.architecture}, {exported.parameters:_} parameters in {exported.dtype}, read back and equal to the bit")


def _provenance(trained: Trained) -> Provenance:
    from preheat.interop.huggingface import Provenance, Sourced
    from preheat.train import read_json

    evaluation = trained.folder.evaluation_file
    return Provenance(
        recipe=trained.recipe.model_dump(mode="json"),
        tokens=trained.step.end.tokens,
        step=trained.step.end.steps,
        complete=trained.complete,
        sources=[Sourced(source.name, source.licence, source.train.tokens) for source in trained.manifest.sources],
        evaluation=read_json(evaluation) if evaluation.is_file() else None,
    )


@app.command("torchtitan")
def torchtitan(recipe: RecipeName, gpus: Gpus = None, out: Out = None, sets: Sets = None, as_json: AsJson = False) -> None:
    """A configuration of torchtitan 0.3 (a Python module) for a recipe, with what torchtitan leaves out in comments."""
    loaded = load(recipe, tuple(sets or ())).recipe
    export = export_torchtitan(loaded, _world(loaded, gpus))
    if out is not None:
        write_new(out, export.text)
    if as_json:
        print_json({"schema": "preheat.export-torchtitan/1", **asdict(export)})
    elif out is None:
        print(export.text, end="")
    else:
        print(f"{out}: a module for torchtitan")
        for note in export.notes:
            print(f"note: {note}")


def _world(recipe: Recipe, gpus: int | None) -> int:
    count = gpus or recipe.parallel.gpus
    if count is None:
        refuse("usage", "no --gpus, and the recipe names none", "", "Add --gpus N")
    return count


def write_new(path: Path, text: str) -> None:
    """Write a text to a file that does not exist yet."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        refuse("usage", f"{path} exists", "", "Remove it or choose another name")
    except OSError as error:
        refuse("usage", f"{path}: {error.strerror}", "", "Choose another name")

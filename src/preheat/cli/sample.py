"""`preheat sample`: text from the model of a run or of a Hugging Face folder."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from preheat.cli.options import AsJson, DataPath
from preheat.cli.output import print_json
from preheat.errors import refuse

if TYPE_CHECKING:
    from preheat.arithmetic import Rope
    from preheat.data import Tokenizer
    from preheat.model import Transformer

Source = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or one with config.json and safetensors.")]
Prompt = Annotated[str, typer.Option("--prompt", help="The text to go on from; empty starts a new document.")]
Tokens = Annotated[int, typer.Option("--tokens", min=1, help="How many tokens to write at most.")]
Temperature = Annotated[float, typer.Option("--temperature", min=0.0, help="0 always takes the most likely token.")]
TopP = Annotated[float, typer.Option("--top-p", min=0.0, max=1.0, help="Draw from the likeliest tokens that hold this probability.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Another seed writes another text.")]


class _Speaker(NamedTuple):
    model: Transformer
    tokenizer: Tokenizer
    rope: Rope | None
    autocast: AbstractContextManager[object]


def run(
    run: Source,
    prompt: Prompt = "",
    tokens: Tokens = 120,
    temperature: Temperature = 0.8,
    top_p: TopP = 0.95,
    seed: Seed = 0,
    data: DataPath = None,
    as_json: AsJson = False,
) -> None:
    """Write text with the model of a run or of a Hugging Face folder."""
    from preheat.evaluate import sample_texts

    speaker = _from_folder(run, data) if (run / "config.json").is_file() else _from_run(run, data)
    with speaker.autocast:
        [sample] = sample_texts(
            speaker.model,
            [prompt],
            speaker.tokenizer.encode,
            speaker.tokenizer.decode,
            start=speaker.tokenizer.start,
            end_of_document=speaker.tokenizer.eod,
            seed=seed,
            rope=speaker.rope,
            max_new_tokens=tokens,
            temperature=temperature,
            top_p=top_p,
        )
    print_json({"schema": "preheat.sample/1", **sample}) if as_json else print(sample["prompt"] + sample["text"])


def _from_run(run: Path, data: Path | None) -> _Speaker:
    from preheat.data import Tokenizer
    from preheat.train import load_trained

    trained = load_trained(run, data)
    return _Speaker(trained.model, Tokenizer.load(trained.data), trained.step.segment.rope, trained.device.autocast())


def _from_folder(folder: Path, data: Path | None) -> _Speaker:
    from preheat.data import Tokenizer
    from preheat.interop.huggingface import load_folder
    from preheat.recipe import Precision
    from preheat.train import choose

    if data is not None:
        refuse("usage", f"--data {data}", "a folder of Hugging Face brings its own tokenizer", "Leave --data out")
    device = choose(Precision())
    model, _ = load_folder(folder, device.torch_device)
    return _Speaker(model, Tokenizer.load(folder), None, device.autocast())

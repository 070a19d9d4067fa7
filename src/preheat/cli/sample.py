"""`preheat sample`: text from the model of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from preheat.cli.options import AsJson, DataPath, RunPath
from preheat.cli.output import print_json

Prompt = Annotated[str, typer.Option("--prompt", help="The text to go on from; empty starts a new document.")]
Tokens = Annotated[int, typer.Option("--tokens", min=1, help="How many tokens to write at most.")]
Temperature = Annotated[float, typer.Option("--temperature", min=0.0, help="0 always takes the most likely token.")]
TopP = Annotated[float, typer.Option("--top-p", min=0.0, max=1.0, help="Draw from the likeliest tokens that hold this probability.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Another seed writes another text.")]


def run(
    run: RunPath,
    prompt: Prompt = "",
    tokens: Tokens = 120,
    temperature: Temperature = 0.8,
    top_p: TopP = 0.95,
    seed: Seed = 0,
    data: DataPath = None,
    as_json: AsJson = False,
) -> None:
    """Write text with the model of a run."""
    from preheat.data import Tokenizer
    from preheat.evaluate import sample_texts
    from preheat.train import load_trained

    trained = load_trained(run, data)
    tokenizer = Tokenizer.load(trained.data)
    with trained.device.autocast():
        [sample] = sample_texts(
            trained.model,
            [prompt],
            tokenizer.encode,
            tokenizer.decode,
            end_of_document=tokenizer.eod,
            seed=seed,
            rope=trained.step.segment.rope,
            max_new_tokens=tokens,
            temperature=temperature,
            top_p=top_p,
        )
    print_json({"schema": "preheat.sample/1", **sample}) if as_json else print(sample["prompt"] + sample["text"])

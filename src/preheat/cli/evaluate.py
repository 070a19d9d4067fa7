"""`preheat evaluate`: how good the model of a run is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from preheat.cli.options import AsJson, DataPath, RunPath
from preheat.cli.output import print_json, table

if TYPE_CHECKING:
    from preheat.data import Tokenizer
    from preheat.evaluate import Question
    from preheat.train import Trained

Tasks = Annotated[
    list[str] | None,
    typer.Option("--task", metavar="FILE", help="Multiple-choice questions as JSON lines (repeatable) [default: the recipe's tasks]."),
]

BASELINE_TOKENS = 10_000_000
"""The n-gram baselines learn from at most so many of the tokens that the run consumed."""
PROMPTS = ("", "The people of this country", "def read(self, path):\n", "Geography\nLocation:")


def run(run: RunPath, data: DataPath = None, task: Tasks = None, as_json: AsJson = False) -> None:
    """Held-out bits per byte beside n-gram baselines, multiple choice, and sample texts."""
    from preheat.data import Tokenizer, held_out_tokens
    from preheat.evaluate import evaluate, find_tasks, load_tasks, sample_texts
    from preheat.train import load_trained, sample_order, write_json

    trained = load_trained(run, data)
    tokenizer = Tokenizer.load(trained.data)
    files = find_tasks(task or [], trained.recipe.evaluation.tasks, trained.recipe_folder)
    tasks = load_tasks(files, tokenizer.encode, start=tokenizer.start, kept_out=trained.manifest.inputs.tasks)
    segment = trained.step.segment
    order, _ = sample_order(trained.recipe, trained.manifest, trained.data)
    consumed = order.consumed(min(BASELINE_TOKENS, trained.step.end.tokens))
    with trained.device.autocast():
        record = evaluate(
            trained.model,
            held_out_tokens(trained.manifest, trained.data),
            tokenizer.byte_lengths(),
            training=consumed,
            tasks=tasks,
            questions=_questions(trained, tokenizer),
            seq_len=segment.seq_len,
            rope=segment.rope,
            eod=tokenizer.eod if trained.recipe.batch.mask_documents else None,
        )
        samples = sample_texts(
            trained.model,
            PROMPTS,
            tokenizer.encode,
            tokenizer.decode,
            start=tokenizer.start,
            end_of_document=tokenizer.eod,
            seed=trained.recipe.seed,
            rope=segment.rope,
        )
    record = {
        "schema": "preheat.evaluation/1",
        "step": trained.step.number,
        "tokens": trained.step.end.tokens,
        **record,
        "samples": samples,
    }
    write_json(trained.folder.evaluation_file, record)
    print_json(record) if as_json else print(_text(record))


def _questions(trained: Trained, tokenizer: Tokenizer) -> dict[str, list[Question]]:
    from preheat.data import held_out_tokens
    from preheat.evaluate import continuation_questions

    lengths, end = tokenizer.byte_lengths(), tokenizer.eod
    count, seed = trained.recipe.evaluation.questions, trained.recipe.seed
    return {
        f"continuation-{source}": continuation_questions(ids, end_of_document=end, token_bytes=lengths, count=count, seed=seed)
        for source, ids in held_out_tokens(trained.manifest, trained.data).items()
    }


def _text(record: dict[str, Any]) -> str:
    header = ["held-out bits per byte", "model", "unigram", "4-gram", "bytes"]
    rows = [
        [source, f"{score['bits_per_byte']:.3f}", f"{score['unigram']:.3f}", f"{score['kneser_ney_4gram']:.3f}", f"{score['bytes']:_}"]
        for source, score in record["held_out"].items()
    ]
    overall, beside = record["overall"], record["baselines"]
    together = [f"{score['bits_per_byte']:.3f}" for score in (overall, beside["unigram"], beside["kneser_ney_4gram"])]
    rows.append(["all", *together, f"{overall['bytes']:_}"])
    share = 1 - overall["bits_per_byte"] / beside["unigram"]["bits_per_byte"]
    parts = [
        table([header, *rows]),
        f"{share:.0%} below the unigram model; both baselines learned from {record['baseline_training_tokens']:_} tokens of the run",
    ]
    if record["choices"]:
        header = ["multiple choice", "right", "by bytes", "chance", "questions", "kept out of training"]
        kept_out = {name: "yes" if task["kept_out"] else "no" for name, task in record["tasks"].items()}
        rows = [
            [
                task,
                f"{s['accuracy']:.3f} ±{s['stderr']:.3f}",
                f"{s['accuracy_bytes']:.3f}",
                f"{s['chance']:.2f}",
                str(s["n"]),
                kept_out.get(task, "held-out text"),
            ]
            for task, s in record["choices"].items()
        ]
        parts.append("\n" + table([header, *rows]))
        parts += [
            f"{task}: the beginnings of {s['shortened']:_} questions were cut off: they are longer than the model's sequences"
            for task, s in record["choices"].items()
            if s["shortened"]
        ]
    return "\n".join(parts)

"""What can't be trained, refused before anything is written: by this version, over these processes, or on this data."""

from __future__ import annotations

from preheat.arithmetic import Timeline, layout
from preheat.check import untrained
from preheat.data import Manifest, tasks
from preheat.errors import PreheatError, Problem, refuse
from preheat.recipe import Loaded, Recipe
from preheat.train.ranks import world_size


def refuse_untrained(loaded: Loaded) -> None:
    """Refuse, by the names of `preheat check`'s rules, what this version does not train."""
    problems = untrained(loaded, world_size())
    if problems:
        raise PreheatError(*problems)


def refuse_layout(recipe: Recipe, done: int) -> None:
    """The layout divides the processes, and each batch after `done` steps divides among the replicas and micro-batches.

    What is behind was trained over fewer processes: a run may grow past the small batches of its ramp.
    """
    try:
        sizes = layout(recipe.parallel, world_size())
    except ValueError as error:
        refuse("train.layout", str(error), "", "Start as many processes as the layout needs: --nproc, or torchrun")
    for segment in Timeline(recipe).segments:
        if segment.end.steps <= done:
            continue
        own, rest = divmod(segment.batch_size, sizes.dense_dp)
        got = f"stage {segment.stage.name}: a batch of {segment.batch_size} samples"
        if rest:
            refuse("train.batch", got, f"{sizes.dense_dp} replicas", "Change the batch or the number of processes")
        if recipe.parallel.pipeline > 1 and own % segment.micro_size:
            want = f"{sizes.dense_dp} replicas of whole micro-batches of {segment.micro_size}: a pipeline takes no smaller one"
            refuse("train.batch", got, want, "Change the batch, batch.micro_size or the number of processes")


def refuse_foreign_tokens(recipe: Recipe, manifest: Manifest) -> None:
    """No id of the data is beyond the model's vocabulary, and documents end and begin with the tokens that the recipe names."""
    used, asked = manifest.tokenizer, recipe.tokenizer
    if used.vocab_size > recipe.model.vocab_size:
        got, want = f"the data's tokenizer has {used.vocab_size:_} entries", f"model.vocab_size is {recipe.model.vocab_size:_}"
        refuse("data.vocabulary", got, want, "Train on data of the recipe's tokenizer", key="model.vocab_size")
    if asked.eod not in (None, used.eod_name):
        got, want = f"documents of the data end with {used.eod_name} ({used.eod})", f"tokenizer.eod is {asked.eod}"
        refuse("data.end", got, want, "Prepare the data again, into another folder", key="tokenizer.eod")
    if asked.bos != used.bos_name:
        got = f"documents of the data begin with {used.bos_name or 'no token of their own'}"
        want = f"tokenizer.bos is {asked.bos or 'absent'}"
        refuse("data.beginning", got, want, "Prepare the data again, into another folder", key="tokenizer.bos")


def task_problems(loaded: Loaded, manifest: Manifest) -> list[Problem]:
    """What is wrong with the recipe's evaluation tasks: one is not there, or the text was not kept clean of it as it is now.

    Text that was kept clean of more than the recipe names is as good.
    """
    data, globs = loaded.recipe.data, loaded.recipe.evaluation.tasks
    try:
        tasks.find(globs, loaded.folder)
        now = tasks.checksums(tasks.kept_out(data, globs, loaded.folder))
    except PreheatError as error:
        return list(error.problems)
    before = {name: checksum for name, checksum in manifest.inputs.tasks.items() if name in now}
    fix = "Prepare the data again into another folder, or bring back the tasks that it was prepared with"
    return tasks.changes(before, now, fix)


def refuse_small_corpus(recipe: Recipe, timeline: Timeline, manifest: Manifest) -> None:
    """One batch must not read a text twice: the sources of a stage hold at least the tokens of its largest batch."""
    for segment in timeline.segments:
        available = sum(manifest.source(name).train.tokens for name in segment.stage.mix)
        needed = segment.batch_size * segment.seq_len
        if available < needed:
            refuse(
                "data.too-small",
                f"the sources of stage {segment.stage.name} have {available:_} training tokens",
                f"one batch of {segment.batch_size} x {segment.seq_len} takes {needed:_}",
                "Add text, or lower batch.global_size",
            )

"""Rules about stages, mixtures, sources and the tokenizer."""

from __future__ import annotations

import math
from collections.abc import Iterator

from preheat.check.registry import Finding, rule
from preheat.check.subject import Subject
from preheat.recipe import Data

GPT2_IDS = 50_257
CLEANING = ("policy", "thresholds", "language", "min_language_score", "mask_personal_data", "quality", "max_unreadable")
"""What a source says of its text."""


@rule("stage.order")
def stage_ends(subject: Subject) -> Iterator[Finding]:
    """Every stage but the last says where it ends, the last ends with the run, and names differ.

    Example: a stage "main" without `until` before another one; a last stage until "95%".
    Source: preheat; a switch written as `if step > 0.85 * total` inside a loop cannot be resumed (case D13).
    """
    recipe = subject.recipe
    names = [stage.name for stage in recipe.stage]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Finding("stage", f"{names.count(name)} stages are called {name}", "", "Give each its own name")
    for index, stage in enumerate(recipe.stage[:-1]):
        if stage.until is None:
            got = f"stage {stage.name} has no end"
            yield Finding(f"stage.{index}.name", got, "only the last may", f'Set until = "..." in {stage.name}')
    last = recipe.stage[-1].until
    if last is not None and not subject.ends_with_the_run(last):
        where = f"stage.{len(recipe.stage) - 1}.until"
        got, want = f"the last stage ends at {last}", f"the run ends at {recipe.schedule.length}"
        yield Finding(where, got, want, "Remove `until` or change schedule.length")


@rule("stage.mix")
def mixtures(subject: Subject) -> Iterator[Finding]:
    """A mixture names only sources that the recipe defines, and each of them once.

    Example: mix = { web = 0.7, cod = 0.3 } with sources web and code.
    Source: cases D12 (allenai/OLMo-core pull 435) and L03: names come from a closed list.
    """
    recipe = subject.recipe
    names = [source.name for source in recipe.data.source]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Finding("data.source", f"{names.count(name)} sources are called {name}", "", "Give each its own name")
    for index, stage in enumerate(recipe.stage):
        unknown = sorted(set(stage.mix) - set(names))
        if unknown:
            got, want = f"stage {stage.name} mixes {', '.join(unknown)}", f"known: {', '.join(names) or 'none'}"
            yield Finding(f"stage.{index}.mix", got, want, "Define the source")


@rule("data.unmixed", "warning")
def unmixed(subject: Subject) -> Iterator[Finding]:
    """Every source is used by some stage; the others are read and cleaned for nothing.

    A recipe that extends another one and mixes less inherits the sources of both.
    Example: [[data.source]] maths in a recipe whose stages mix web and code only.
    Source: preheat, a recipe says nothing that has no effect.
    """
    recipe = subject.recipe
    mixed = {name for stage in recipe.stage for name in stage.mix}
    for index, source in enumerate(recipe.data.source):
        if source.name not in mixed:
            yield Finding(f"data.source.{index}.name", f"no stage mixes {source.name}", "", "Mix it or remove it")


@rule("stage.share", "warning")
def shares(subject: Subject) -> Iterator[Finding]:
    """Every source of a mixture gives its stage at least one sample.

    Weights are shares of the samples of the stage, whatever the size of the source; one that is too small is never drawn.
    Example: weights 0.99999 and 0.00001 in a stage of 1,000 samples: a hundredth of a sample.
    Source: cases D04 (NVIDIA/Megatron-LM issue 547), D05 (NVIDIA/Megatron-LM pull 1007).
    """
    if subject.timeline is None:
        return
    for index, samples in enumerate(subject.timeline.stage_samples()):
        stage = subject.recipe.stage[index]
        whole = sum(stage.mix.values())
        for name, weight in stage.mix.items():
            drawn = samples * weight / whole
            if samples and drawn < 1:
                got = f"{name} has weight {float(weight / whole):g} of the {samples:_} samples of stage {stage.name}"
                want = f"{float(drawn):g} of a sample: it may never be drawn"
                yield Finding(f"stage.{index}.mix", got, want, "Raise its weight or remove it")


@rule("stage.seq-len")
def sequence_lengths(subject: Subject) -> Iterator[Finding]:
    """Sequence lengths of the stages divide the longest one, so that no sample repeats before its source's epoch ends.

    Example: 4,096 in the main stage and 10,000 in the last.
    Source: preheat's sample order (`data.order`); case D13 (NVIDIA/Megatron-LM issue 1002).
    """
    longest = max(seq_len for *_, seq_len in subject.stages())
    for _, _, key, seq_len in subject.stages():
        if longest % seq_len:
            got = f"sequence length {seq_len} does not divide the longest, {longest}"
            yield Finding(key, got, "", f"Use a divisor, for instance {math.gcd(longest, seq_len)}")


@rule("data.idle")
def idle(subject: Subject) -> Iterator[Finding]:
    """No key of [data] is written where it has no effect, or leaves the others without one.

    Example: text_field of a source in plain text; jaccard with near = false; a held-out share of 0% that is to be evaluated, or of 100%.
    Source: preheat, a recipe says nothing that has no effect.
    """
    data = subject.recipe.data
    for index, source in enumerate(data.source):
        key = f"data.source.{index}.text_field"
        if source.format not in ("jsonl", "parquet") and subject.given(key):
            yield Finding(key, f'text_field has no effect with format = "{source.format}"', "", "Remove it")
        for name in CLEANING if source.format == "tokens" else ():
            if subject.given(f"data.source.{index}.{name}"):
                yield Finding(f"data.source.{index}.{name}", f"{name} has no effect on token ids", "", "Remove it")
    if not data.dedup.near and subject.given("data.dedup.jaccard"):
        yield Finding("data.dedup.jaccard", "jaccard has no effect with near = false", "", "Remove it")
    for name in ("paragraph_places", "paragraph_words", "paragraph_sources") if not data.dedup.paragraphs else ():
        if subject.given(f"data.dedup.{name}"):
            yield Finding(f"data.dedup.{name}", f"{name} has no effect without paragraphs = true", "", "Remove it, or set paragraphs")
    if data.dedup.against and _only_tokens(data):
        yield Finding("data.dedup.against", "against has no effect on token ids", "", "Remove it")
    if data.dedup.paragraphs and _only_tokens(data):
        yield Finding("data.dedup.paragraphs", "paragraphs has no effect on token ids", "", "Remove it")
    yield from _idle_decontamination(subject)
    if data.held_out.amount == 1:
        yield Finding("data.held_out", "everything is held out", "something to train on", "Hold out 1%")
    if data.held_out.amount == 0 and subject.recipe.evaluation.every is not None:
        yield Finding("data.held_out", "nothing is held out", "evaluation.every asks for a held-out loss", "Hold out 1% or do not evaluate")


def _only_tokens(data: Data) -> bool:
    return bool(data.source) and all(source.format == "tokens" for source in data.source)


def _idle_decontamination(subject: Subject) -> Iterator[Finding]:
    data, named = subject.recipe.data, subject.recipe.evaluation.tasks
    keys = [key for name in ("enabled", "ngram", "also") if subject.given(key := f"data.decontaminate.{name}")]
    if _only_tokens(data):
        why = "has no effect on token ids"
    elif not named and not data.decontaminate.also:
        why = "has no effect: neither evaluation.tasks nor data.decontaminate.also names a text"
    elif not data.decontaminate.enabled:
        why, keys = "has no effect with enabled = false", [key for key in keys if not key.endswith(".enabled")]
    else:
        why, keys = "names what evaluation.tasks names", ["data.decontaminate.also"] if set(named) & set(data.decontaminate.also) else []
    for key in keys:
        yield Finding(key, f"{key.rpartition('.')[2]} {why}", "", "Remove it")


@rule("data.contamination", "warning")
def contamination(subject: Subject) -> Iterator[Finding]:
    """The text is kept clean of the tasks that the model is evaluated on; `preheat evaluate` says of each task whether it was.

    Documents that share 13 words in a row with a task are left out unless data.decontaminate.enabled is false. Of token ids nothing can be
    left out.
    Example: evaluation.tasks with data.decontaminate.enabled = false.
    Source: GPT-3, arXiv 2005.14165, appendix C.
    """
    data = subject.recipe.data
    if not subject.recipe.evaluation.tasks:
        return
    want, fix = "the model may be asked what it has read", "Remove data.decontaminate.enabled, or [[ignore]] this with the reason"
    if _only_tokens(data):
        got, fix = "the tasks are not kept out of token ids", "Prepare the text here, or [[ignore]] this with how the ids were kept clean"
        yield Finding("evaluation.tasks", got, want, fix)
    elif not data.decontaminate.enabled:
        yield Finding("data.decontaminate.enabled", "the tasks are not kept out of the text", want, fix)


@rule("data.kept-out", "note")
def kept_out(subject: Subject) -> Iterator[Finding]:
    """Which texts are kept out of the training data, and how long a run of equal words makes a document go.

    Example: evaluation.tasks = ["tasks/*.jsonl"].
    Source: docs/cleaning.md.
    """
    data, named = subject.recipe.data, subject.recipe.evaluation.tasks
    globs = (*named, *data.decontaminate.also)
    if globs and data.decontaminate.enabled and not _only_tokens(data):
        got = f"documents that share {data.decontaminate.ngram} words in a row with {', '.join(globs)} are left out"
        yield Finding("evaluation.tasks" if named else "data.decontaminate.also", got)


@rule("data.held-out", "warning")
def held_out(subject: Subject) -> Iterator[Finding]:
    """What is held out is a small part of the text.

    Example: held_out = "50%" trains on half of what there is.
    Source: preheat; published runs hold out well below a percent.
    """
    share = subject.recipe.data.held_out
    if 20 < share.amount * 100 < 100:
        yield Finding("data.held_out", f"{share} of the documents are never trained on", "", "Hold out a percent or less")


@rule("data.licence", "note")
def licences(subject: Subject) -> Iterator[Finding]:
    """Every source says under what licence its text is used; the manifest of the data repeats it.

    Example: [[data.source]] without `licence`.
    Source: preheat; the data statements of Dolma and FineWeb.
    """
    for index, source in enumerate(subject.recipe.data.source):
        if not source.licence:
            yield Finding(f"data.source.{index}.name", f"source {source.name} names no licence", "", "Write licence = ...")


@rule("tokenizer.path")
def tokenizer_path(subject: Subject) -> Iterator[Finding]:
    """A tokenizer of kind `file` has the path of a tokenizer.json, of tiktoken's ranks or of a SentencePiece model; `train-bpe` has none.

    Only data is read: never a folder or a file that could bring code along.
    Example: kind = "file" alone; kind = "train-bpe" with a path; path = "tokenizer.py".
    Source: case L06 (huggingface/optimum pull 2005).
    """
    kind, path = subject.recipe.tokenizer.kind, subject.recipe.tokenizer.path
    if kind == "file" and path is None:
        yield Finding("tokenizer.path", 'kind = "file" without a path', "", "Give the tokenizer's file")
    elif kind == "file" and path is not None and (not path.endswith((".json", ".tiktoken", ".model")) or "://" in path):
        got = f"path {path!r}"
        yield Finding("tokenizer.path", got, "a .json, .tiktoken or .model file", "Only a file of data of this machine is read, never code")
    if kind == "train-bpe" and path is not None:
        yield Finding("tokenizer.path", f'path has no effect with kind = "{kind}"', "", "Remove it")


@rule("tokenizer.vocabulary")
def gpt2_vocabulary(subject: Subject) -> Iterator[Finding]:
    """All ids of GPT-2's tokenizer have a row in the embedding.

    Example: kind = "gpt2" with model.vocab_size = 32_000.
    Source: GPT-2's encoder.json: 50,257 entries.
    """
    if subject.recipe.tokenizer.kind == "gpt2" and subject.model.vocab_size < GPT2_IDS:
        got = f"vocab_size {subject.model.vocab_size}"
        yield Finding("model.vocab_size", got, f"GPT-2 has {GPT2_IDS} ids", "Set vocab_size = 50_257")

"""From a recipe to the Megatron-LM command that trains it, with what no argument can say in comments, checked by reading it back."""

from __future__ import annotations

import re
from dataclasses import dataclass

from preheat.arithmetic import Timeline, layout, stage_parallel
from preheat.errors import refuse
from preheat.interop.carried import comment_lines, differences
from preheat.interop.megatron_arguments import groups
from preheat.interop.megatron_batches import Group, Request, counted
from preheat.interop.megatron_import import import_megatron
from preheat.interop.megatron_optimizer import optimizer_notes
from preheat.interop.megatron_windows import Window, windows
from preheat.megatron.table import known_version
from preheat.recipe import Recipe
from preheat.units import rounded

_WIDTH = 120
_LARGEST_SEED = 2**32 - 1
_PLAIN = re.compile(r"[A-Za-z0-9_.,:/=+-]+")
_DEFAULTED = re.compile(r"^\$\{(?:DATA|TOKENIZER|CHECKPOINTS):-(\w+)\}(?=/)")
"""A variable of the script at the start of a path."""


@dataclass(frozen=True)
class Export:
    """A command for Megatron-LM."""

    text: str
    """A bash script with a launch for each part of the run, or a flat YAML file of one part."""
    parts: tuple[tuple[str, ...], ...]
    """The arguments of each launch, with the defaults of the script's variables."""
    notes: tuple[str, ...]
    """What Megatron-LM does otherwise, or not by itself."""
    carried: tuple[str, ...]
    """Keys that the arguments cannot say; they are in the comments."""


def export_megatron(recipe: Recipe, gpus: int, version: str, *, form: str = "script", part: int | None = None) -> Export:
    """The command for a recipe on a number of GPUs under one version of megatron-core.

    Args:
        recipe: what to train.
        gpus: the world size; nodes of 8.
        version: "0.17", "0.18" or "0.19".
        form: `script` or `yaml`; a YAML file holds the arguments of one part.
        part: only this part of a run that takes several commands, from 1.

    Raises:
        PreheatError: the recipe does not fit on the GPUs, describes no run, or says something that Megatron-LM would do differently.
    """
    version = known_version(version)
    try:
        timeline = Timeline(recipe)
        pieces = windows(recipe, timeline)
        for piece in pieces:
            layout(stage_parallel(recipe.parallel, recipe.stage[piece.stage_index]), gpus)
    except ValueError as error:
        refuse("export.recipe", str(error), "", "`preheat check` says what to change")
    if part is not None and not 1 <= part <= len(pieces):
        refuse("export.part", f"part {part}", f"the run has {len(pieces)}", f"Choose --part 1 to {len(pieces)}")
    if form == "yaml" and part is None and len(pieces) > 1:
        refuse("export.part", f"the run takes {len(pieces)} commands", "a YAML file holds one", f"Choose --part 1 to {len(pieces)}")
    _refuse_unsayable(recipe)
    request = Request(recipe, timeline, version, gpus)
    chosen = [(number, piece) for number, piece in enumerate(pieces, 1) if part in (None, number)]
    bodies = [(number, piece, groups(request, piece)) for number, piece in chosen]
    arguments = tuple(tuple(_resolved(word) for group in body.values() for argument in group for word in argument) for _, _, body in bodies)
    write = _yaml if form == "yaml" else _script
    plain = write(request, bodies, [], [])
    name = recipe.name + (".yaml" if form == "yaml" else ".sh")
    found = import_megatron(plain, name, gpus, version).recipe.model_dump(mode="json")
    rows = differences(recipe.model_dump(mode="json"), found)
    notes = _notes(request, pieces, [piece for _, piece in chosen])
    return Export(write(request, bodies, notes, comment_lines(rows)), arguments, tuple(notes), tuple(key for key, _ in rows))


def _refuse_unsayable(recipe: Recipe) -> None:
    """Values that Megatron-LM's arguments take and its start does not, and those that no line of a script holds."""
    most = _LARGEST_SEED - 100 * recipe.parallel.pipeline  # each pipeline stage adds 100
    if not 0 < recipe.seed <= most:
        refuse("export.seed", f"seed {recipe.seed}", f"Megatron-LM takes 1 to {most}", "Choose another seed", key="seed")
    path = recipe.tokenizer.path or ""
    if re.search(r"[\x00-\x1f\x7f\"]", path):
        refuse("export.path", f"{path!r}", "a path without quotes and control characters", "Rename it", key="tokenizer.path")


def _notes(request: Request, pieces: tuple[Window, ...], chosen: list[Window]) -> list[str]:
    """What a reader has to know beside the arguments."""
    recipe = request.recipe
    notes = ["Megatron-LM's first update has learning rate 0: it counts from the samples before the step, preheat from those after it"]
    if recipe.tokenizer.kind == "train-bpe":
        notes.append("the tokenizer is the one that `preheat data` trains")
    if not recipe.model.depth_scaled_init:
        notes.append("Megatron-LM starts output projections 1/sqrt(2 x layers) smaller and has no argument against it")
    if recipe.model.init_truncation is not None:
        notes.append("Megatron-LM draws initial values from the whole normal distribution and has no argument against it")
    if recipe.model.mup is not None:
        notes.append(
            "Megatron-LM's muP leaves the weight decay of hidden matrices as it is, so that they decay m times slower, "
            "divides their epsilon by m, and treats an output head of its own like a hidden matrix"
        )
    if recipe.batch.mask_documents:
        notes.append(
            "the documents of a sample see each other in Megatron-LM unless --transformer-impl local --no-masked-softmax-fusion is added: "
            "its other attention is causal whatever the mask; and there the end-of-document token belongs to the document before it"
        )
    notes += optimizer_notes(recipe)
    if recipe.parallel.schedule in ("zero-bubble", "dualpipe"):
        notes.append(f"Megatron-LM has no {recipe.parallel.schedule} schedule; the pipeline runs 1F1B with the same result")
    if len(pieces) > 1:
        notes.append(
            f"the run takes {len(pieces)} commands, one after the other from the same checkpoints; each adds --override-opt-param-scheduler"
        )
    lengths = {segment.seq_len for piece in pieces for segment in piece.segments}
    if len(lengths) > 1:
        notes.append(
            "Megatron-LM counts samples: where the sequence length changes, its counters in the checkpoint have to be set as said there"
        )
    return notes


def _script(request: Request, bodies: list[tuple[int, Window, dict[str, Group]]], notes: list[str], carried: list[str]) -> str:
    """The bash script: variables, then for each part its arrays and the launch."""
    recipe = request.recipe
    per_node = max(size for size in range(1, 9) if request.gpus % size == 0)
    nodes = request.gpus // per_node
    lines = [
        "#!/bin/bash",
        f"# {recipe.name} for Megatron-LM (megatron-core {request.version}) on {request.gpus} GPUs, written by preheat.",
        "# Set DATA, TOKENIZER, CHECKPOINTS, and on several nodes NODE_RANK and MASTER_ADDR.",
        *(f"# Note: {note}." for note in notes),
        *(["# What the arguments cannot say; `preheat import megatron` reads it back:"] if carried else []),
        *carried,
        "set -euo pipefail",
        *([] if recipe.parallel.sharding == "full" else ["export CUDA_DEVICE_MAX_CONNECTIONS=1"]),
        "",
        "LAUNCH=(",
        f"  --nproc_per_node {per_node} --nnodes {nodes}",
        '  --node_rank "${NODE_RANK:-0}" --master_addr "${MASTER_ADDR:-localhost}" --master_port "${MASTER_PORT:-29500}"',
        ")",
    ]
    before: dict[str, Group] = {}
    for number, window, body in bodies:
        lines += ["", *_heading(request, number, window, len(bodies) > 1)]
        for name, group in body.items():
            if before.get(name) != group:
                lines += [f"{name}_ARGS=(", *_filled(group), ")"]
        names = list(body)
        lines += ['torchrun "${LAUNCH[@]}" pretrain_gpt.py \\', "  " + " ".join(f'"${{{name}_ARGS[@]}}"' for name in names)]
        before = body
    return "\n".join(lines) + "\n"


def _heading(request: Request, number: int, window: Window, several: bool) -> list[str]:
    """What a part is, and what has to be done by hand in front of it."""
    stage = request.recipe.stage[window.stage_index].name
    if not several and number == 1:
        return []
    lines = [f"# Part {number}: stage {stage}, {rounded(window.start)} to {rounded(window.end)} tokens"]
    first = counted(request, window)[0]
    if first.start.tokens == window.start and first.start.tokens != first.start.samples * first.seq_len:
        samples = -(-window.start // first.seq_len)
        lines += [
            "# Megatron-LM counts samples, and they are longer from here on. Set in the checkpoint, before this part,",
            f"# consumed_train_samples and the scheduler's num_steps to {samples} ({window.start} tokens / {first.seq_len}),",
            f"# and iteration to {samples // first.batch_size}.",
        ]
    return lines


def _filled(group: Group) -> list[str]:
    """Arguments in lines of readable width."""
    lines, current = [], ""
    for argument in group:
        text = " ".join(_quoted(word) for word in argument)
        if current and len(current) + len(text) > _WIDTH:
            lines.append("  " + current)
            current = ""
        current = f"{current} {text}".strip()
    return [*lines, "  " + current]


def _yaml(request: Request, bodies: list[tuple[int, Window, dict[str, Group]]], notes: list[str], carried: list[str]) -> str:
    """One part as `key: value` lines."""
    ((number, window, body),) = bodies
    lines = [
        f"# {request.recipe.name} for Megatron-LM (megatron-core {request.version}) on {request.gpus} GPUs, written by preheat.",
        *(f"# Note: {note}." for note in notes),
        *carried,
        *_heading(request, number, window, number > 1),
    ]
    for group in body.values():
        for flag, *values in group:
            texts = [text if _PLAIN.fullmatch(text) else f'"{text}"' for text in map(_resolved, values)]
            text = "true" if not values else texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
            lines.append(f"{flag.removeprefix('--')}: {text}")
    return "\n".join(lines) + "\n"


def _quoted(word: str) -> str:
    """A word for bash: only the script's own variables are replaced, everything else of it stands for itself."""
    if word.startswith("--") or _PLAIN.fullmatch(word):
        return word
    variable = _DEFAULTED.match(word)
    head = variable[0] if variable else ""
    rest = re.sub(r'([$`"\\])', r"\\\1", word[len(head) :])
    return f'"{head}{rest}"'


def _resolved(word: str) -> str:
    """A word with the defaults of its variables."""
    return _DEFAULTED.sub(lambda match: match[1], word)

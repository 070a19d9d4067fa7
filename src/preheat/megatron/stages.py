"""How Megatron-LM's arguments split the layers over pipeline stages."""

from __future__ import annotations

import re

from preheat.megatron.settings import Settings

MAX_LAYOUT = 100_000


def stage_layers(settings: Settings) -> tuple[int, ...] | None:
    """Decoder layers of each of the pipeline x virtual pieces, in the order of the model; None for the even split.

    Raises:
        ValueError: the arguments describe no split; the message names the numbers.
    """
    layers, stages = _positive(settings)
    text = settings["pipeline_model_parallel_layout"]
    if text:
        pieces = [piece.count("t") for piece in read_layout(text)]
        if len(pieces) % stages:
            raise ValueError(f"a layout of {len(pieces)} pieces on {stages} pipeline stages")
        if sum(pieces) != layers:
            raise ValueError(f"a layout of {sum(pieces)} layers for a model of {layers}")
        return tuple(pieces)
    virtual = virtual_stages(settings)
    embedding = int(bool(settings["account_for_embedding_in_pipeline_split"]))
    loss = int(bool(settings["account_for_loss_in_pipeline_split"]))
    first, last = settings["decoder_first_pipeline_num_layers"], settings["decoder_last_pipeline_num_layers"]
    if first is None and last is None:
        return _even(layers, stages, virtual, embedding, loss)
    return _ends(layers, stages, virtual, first, last)


def _positive(settings: Settings) -> tuple[int, int]:
    """Layers and pipeline stages."""
    layers, stages = int(settings["num_layers"]), int(settings["pipeline_model_parallel_size"])
    if min(layers, stages) < 1:
        raise ValueError(f"{layers} layers on {stages} pipeline stages")
    return layers, stages


def _even(layers: int, stages: int, virtual: int, embedding: int, loss: int) -> tuple[int, ...] | None:
    slots = layers + embedding + loss
    if slots % stages:
        what = f"{layers} layers" + (f" + {slots - layers} slots for embedding and loss" if slots > layers else "")
        raise ValueError(f"{what} on {stages} pipeline stages")
    if slots // stages % virtual:
        raise ValueError(f"{slots // stages} layers of a stage in {virtual} virtual stages")
    if not embedding and not loss:
        return None
    pieces = [slots // stages // virtual] * (stages * virtual)
    pieces[0] -= embedding
    pieces[-1] -= loss
    return tuple(pieces)


def _ends(layers: int, stages: int, virtual: int, first: int | None, last: int | None) -> tuple[int, ...]:
    named = [size for size in (first, last) if size is not None]
    middle, places = layers - sum(named), stages - len(named)
    if min(named) < 1 or middle < 0 or places < 0 or bool(middle) != bool(places):
        raise ValueError(f"{' and '.join(map(str, named))} layers at the ends leave {middle} layers for {places} stages")
    if places and middle % places:
        raise ValueError(f"{middle} layers in the middle on {places} stages")
    sizes = [middle // places] * places if places else []
    sizes = ([first] if first is not None else []) + sizes + ([last] if last is not None else [])
    uneven = [size for size in sizes if size % virtual]
    if uneven:
        raise ValueError(f"{uneven[0]} layers of a stage in {virtual} virtual stages")
    return tuple(size // virtual for size in sizes) * virtual


def virtual_stages(settings: Settings) -> int:
    """Pieces of the model per pipeline rank; 1 without interleaving.

    Raises:
        ValueError: the layers of a stage do not divide.
    """
    if settings["num_virtual_stages_per_pipeline_rank"]:
        return max(1, int(settings["num_virtual_stages_per_pipeline_rank"]))
    _, stages = _positive(settings)
    if settings["pipeline_model_parallel_layout"]:
        return max(1, len(read_layout(settings["pipeline_model_parallel_layout"])) // stages)
    size = settings["num_layers_per_virtual_pipeline_stage"]
    if size is None:
        return 1
    slots = int(settings["num_layers"])
    slots += bool(settings["account_for_embedding_in_pipeline_split"]) + bool(settings["account_for_loss_in_pipeline_split"])
    if slots % stages:
        raise ValueError(f"{slots} layers on {stages} pipeline stages")
    if size < 1 or slots // stages % size:
        raise ValueError(f"{slots // stages} layers of a stage in pieces of {size}")
    return slots // stages // int(size)


def read_layout(text: str) -> list[str]:
    """The pieces of a layout such as `Et*3|(tt|)*29m|L`: E embedding, t layer, m multi-token prediction, L loss.

    Raises:
        ValueError: another letter, or a text that grows without end.
    """
    for pattern in (r"\(([^)]*)\)\*(\d+)", r"(.)\*(\d+)"):
        size = len(text) + sum(len(match[1]) * min(int(match[2][:9]), MAX_LAYOUT) for match in re.finditer(pattern, text))
        if size > MAX_LAYOUT:
            raise ValueError(f"a pipeline layout of more than {MAX_LAYOUT:_} letters")
        text = re.sub(pattern, lambda match: match[1] * int(match[2]), text)
    pieces = text.replace(",", "").split("|")
    odd = sorted(set("".join(pieces)) - set("EtmL"))
    if odd:
        raise ValueError(f"the letter {odd[0]!r} in a pipeline layout")
    return pieces


def write_layout(pieces: tuple[int, ...], predicted: int = 0) -> str:
    """The layout text of a number of layers per piece; `predicted` multi-token prediction layers lie before the loss."""
    texts = ["t" * size for size in pieces]
    texts[0] = "E" + texts[0]
    texts[-1] += "m" * predicted + "L"
    return "|".join(re.sub(r"t{3,}", lambda run: f"t*{len(run[0])}", text) for text in texts)

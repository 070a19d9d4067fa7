"""Training from given weights: a run that starts where another model stands, with a schedule and an optimizer of its own."""

from __future__ import annotations

from pathlib import Path

import torch

from preheat.errors import refuse
from preheat.model import Transformer
from preheat.model.function import unlike
from preheat.model.weights import Weights, read_manifest, tensor_sha256


@torch.no_grad()
def load_initial(model: Transformer, folder: Path) -> list[str]:
    """Fill a model with the weights that `preheat import hf` wrote.

    Args:
        model: of the recipe that is to be trained; its tensors are overwritten in place, in their own number format.
        folder: what `preheat import hf` made, or the `weights` folder in it.

    Returns:
        In which rotary positions the recipe differs from the weights' model, which is a way to train on longer sequences.

    Raises:
        PreheatError: the weights belong to a model that computes something else, a tensor is missing, left over or of another shape, or
            one has not its checksum.
    """
    folder = folder / "weights" if (folder / "weights").is_dir() else folder
    origin, checksums = read_manifest(folder)
    rotary = ("model.rope_theta", "model.rope_scaling")
    differences = unlike(origin, model.config)
    wrong = [difference for difference in differences if not difference.startswith(rotary)]
    if wrong:
        got = f"the weights belong to another model than the recipe's ({'; '.join(wrong[:5])}{' ...' if len(wrong) > 5 else ''})"
        refuse("initial.model", got, "", "Take [model] from the recipe.toml beside the weights", file=folder)
    weights, tensors = Weights(folder), model.state_dict()
    for name in sorted(tensors.keys() | weights.keys() | checksums.keys()):
        for place, there in (("the model", name in tensors), ("the files", name in weights), ("the manifest", name in checksums)):
            if not there:
                refuse(
                    "initial.tensors", f"{name} is not in {place}", "model, files and manifest have the same", "Import again", file=folder
                )
    for name, tensor in tensors.items():
        if weights.shape(name) != tuple(tensor.shape):
            refuse(
                "initial.tensors", f"{name} is {weights.shape(name)}", f"the model has {tuple(tensor.shape)}", "Import again", file=folder
            )
    for name, tensor in tensors.items():
        given = weights[name]
        if tensor_sha256(given) != checksums[name]:
            refuse("initial.checksum", f"{name} has not its checksum", "the file changed since the import", "Import again", file=folder)
        tensor.copy_(given)
    return [difference for difference in differences if difference.startswith(rotary)]

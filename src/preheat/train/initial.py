"""Training from given weights: a run that starts where another model stands, with a schedule and an optimizer of its own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from preheat.disk import sha256
from preheat.errors import refuse
from preheat.model import Transformer
from preheat.model.function import unlike
from preheat.model.weights import MANIFEST, Weights, read_manifest, tensor_sha256
from preheat.recipe import Model
from preheat.train.checkpoint import Region, own_part


class InitialWeights:
    """The weights that `preheat import hf` wrote, for a model that computes the same function."""

    def __init__(self, model: Model, folder: Path) -> None:
        """Look whether they fit.

        Args:
            model: of the recipe that is to be trained.
            folder: what `preheat import hf` made, or the `weights` folder in it.

        Raises:
            PreheatError: the weights belong to a model that computes something else, or a tensor is missing, left over or of another shape.
        """
        self.folder = folder / "weights" if (folder / "weights").is_dir() else folder
        origin, self._checksums = read_manifest(self.folder)
        self.digest = sha256(self.folder / MANIFEST)
        """Identifies them: the manifest has the digests of all tensors."""
        differences = unlike(origin, model)
        rotary = ("model.rope_theta", "model.rope_scaling")
        self.notes = [difference for difference in differences if difference.startswith(rotary)]
        """In which rotary positions the recipe differs from the weights' model, which is a way to train on longer sequences."""
        wrong = [difference for difference in differences if not difference.startswith(rotary)]
        if wrong:
            got = f"the weights belong to another model than the recipe's ({'; '.join(wrong[:5])}{' ...' if len(wrong) > 5 else ''})"
            refuse("initial.model", got, "", "Take [model] from the recipe.toml beside the weights", file=self.folder)
        self._weights = Weights(self.folder)
        self._refuse_other_tensors(model)

    @torch.no_grad()
    def fill(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Overwrite what this process holds of the model, whole or sharded, by name and in its own number format.

        Raises:
            PreheatError: a tensor has not its checksum.
        """
        for name, tensor in tensors:
            given = self._weights[name]
            if tensor_sha256(given) != self._checksums[name]:
                got = f"{name} has not its checksum"
                refuse("initial.checksum", got, "the file changed since the import", "Import again", file=self.folder)
            own, region = own_part(tensor)
            own.copy_(given[region.within(Region((0,) * given.dim(), tuple(given.shape)))])

    def _refuse_other_tensors(self, model: Model) -> None:
        with torch.device("meta"):
            whole = Transformer(model).state_dict()
        weights, checksums = self._weights, self._checksums
        for name in sorted(whole.keys() | weights.keys() | checksums.keys()):
            for place, there in (("the model", name in whole), ("the files", name in weights), ("the manifest", name in checksums)):
                if not there:
                    got, want = f"{name} is not in {place}", "model, files and manifest have the same"
                    refuse("initial.tensors", got, want, "Import again", file=self.folder)
        for name, tensor in whole.items():
            if weights.shape(name) != tuple(tensor.shape):
                got, want = f"{name} is {weights.shape(name)}", f"the model has {tuple(tensor.shape)}"
                refuse("initial.tensors", got, want, "Import again", file=self.folder)

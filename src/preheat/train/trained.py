"""A model as a run left it, for evaluation, sampling and export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from preheat.arithmetic import Step, Timeline
from preheat.data import Manifest
from preheat.errors import refuse
from preheat.model import Transformer, build
from preheat.recipe import Recipe
from preheat.train import checkpoint
from preheat.train.device import Device, choose
from preheat.train.files import read_json
from preheat.train.run_folder import RunFolder


@dataclass(frozen=True)
class Trained:
    """The newest good checkpoint of a run."""

    folder: RunFolder
    recipe: Recipe
    model: Transformer
    device: Device
    step: Step
    """The step after which it was saved: its segment tells sequence length and rope base."""
    complete: bool
    data: Path
    manifest: Manifest
    recipe_folder: Path
    """Where relative paths of the recipe started when it was trained last."""


def load_trained(run: Path, data: Path | None = None) -> Trained:
    """Load the newest good checkpoint of a run folder; `data` is where the prepared data lies if it moved.

    Raises:
        PreheatError: no run folder, no checkpoint yet, or data that the run was not trained on.
    """
    folder = RunFolder(run)
    identity = folder.identity()
    recipe = folder.recipe()
    found, _ = checkpoint.newest(folder.checkpoints)
    if found is None:
        refuse("run.no-checkpoint", f"{run} has no checkpoint yet", "", "Train further: `preheat train` saves every checkpoint.every")
    environment = read_json(folder.environment_file)
    data = data or Path(environment["data"])
    manifest = Manifest.load(data)
    if manifest.fingerprint != identity["data_fingerprint"]:
        got = f"the data in {data} is {manifest.fingerprint[:12]}"
        refuse("run.other-data", got, f"{run} was trained on {identity['data_fingerprint'][:12]}", "Give its data with --data")
    device = choose(recipe.precision)
    model = build(recipe.model, recipe.seed, device.torch_device)
    checkpoint.Contents(found).fill({f"model/{name}": tensor for name, tensor in model.state_dict().items()})
    timeline = Timeline(recipe)
    step = timeline.step(found.step)
    return Trained(folder, recipe, model, device, step, step.end == timeline.end, data, manifest, Path(environment["recipe_folder"]))

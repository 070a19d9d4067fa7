"""The folder of a run: what it trains, on what, and where its records lie. It belongs to one recipe and one data set."""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from preheat.errors import refuse
from preheat.recipe import Loaded, Recipe, fingerprint
from preheat.train.amend import refuse_unfit
from preheat.train.checkpoint import newest, published
from preheat.train.files import read_record, write_json

SCHEMA = "preheat.run/1"


@dataclass(frozen=True)
class Reopened:
    """What is different in a run that was there."""

    resettings: list[str]
    """In what a run may change at any start: its layout, how often it saves and measures."""
    amended: list[str]
    """In what it trains."""
    amendments: int
    """How often it was amended until now."""


class RunFolder:
    """Paths of a run folder and its identity."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self.recipe_file = path / "recipe.json"
        self.environment_file = path / "environment.json"
        self.plan_file = path / "plan.json"
        self.data_file = path / "data.json"
        self.metrics_file = path / "metrics.jsonl"
        self.evaluation_file = path / "evaluation.json"
        self.checkpoints = path / "checkpoints"
        self.tensorboard = path / "tensorboard"

    def open(self, loaded: Loaded, data_fingerprint: str, initial: str | None = None, amend: str | None = None) -> Reopened | None:
        """Create the folder for this recipe and data, or recognise it as theirs, and lock it.

        Args:
            initial: checksum of the weights that the run is to begin with, where they are not made from the seed.
            amend: why the run is to go on with another recipe or other data, see `preheat.train.amend`.

        Returns:
            None for a new folder; else what is different now. The folder then has the new recipe.

        Raises:
            PreheatError: the folder holds something else, or a run of another recipe or of other data, or another process trains in it;
                nothing is changed.
        """
        if self.recipe_file.is_file():
            return self._reopen(loaded, data_fingerprint, initial, amend)
        if self.path.exists() and any(entry.suffix != ".partial" and entry.name != "lock" for entry in self.path.iterdir()):
            refuse("run.folder", f"{self.path} is not empty and holds no run", "", "Choose another --run folder")
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock()
        if self.recipe_file.is_file():  # another process made it since, and is gone
            return self._reopen(loaded, data_fingerprint, initial, amend)
        identity = {
            "schema": SCHEMA,
            "id": uuid4().hex,
            "name": loaded.recipe.name,
            "fingerprint": trained_fingerprint(loaded.recipe),
            "data_fingerprint": data_fingerprint,
            "initial": initial,
            "amendments": [],
            **_described(loaded),
        }
        write_json(self.recipe_file, identity)
        return None

    def _reopen(self, loaded: Loaded, data_fingerprint: str, initial: str | None, amend: str | None) -> Reopened:
        identity = self.identity()
        recipe, has_checkpoint = loaded.recipe, bool(published(self.checkpoints))
        changes = _trained_changes(identity, recipe, data_fingerprint)
        if changes and amend is None:
            refuse(
                "run.other-recipe" if identity["fingerprint"] != trained_fingerprint(recipe) else "run.other-data",
                f"{self.path} is a run of another recipe or of other data ({some(changes)})",
                f"fingerprints {identity['fingerprint'][:12]} and {trained_fingerprint(recipe)[:12]}, "
                f"data {identity['data_fingerprint'][:12]} and {data_fingerprint[:12]}",
                "Take back the change, choose another --run folder, or go on with it: --amend 'the reason'",
            )
        if identity["initial"] != initial and (initial is not None or not has_checkpoint):
            began = "weights made from the seed" if identity["initial"] is None else f"the weights {identity['initial'][:12]}"
            given = "none are given" if initial is None else f"--init-from gives {initial[:12]}"
            refuse("run.other-weights", f"{self.path} began with {began}", given, "Give the same, or choose another --run folder")
        amendments = list(identity["amendments"])
        if changes:
            before = Recipe.model_validate(identity["recipe"])
            found = newest(self.checkpoints)[0] if has_checkpoint else None
            step = found.step if found is not None else 0
            changes += refuse_unfit(before, recipe, step)
            was = {key: identity[key] for key in ("fingerprint", "data_fingerprint", "recipe")}
            amendments.append({"time": time.time(), "step": step, "reason": amend, "changes": changes, "before": was})
        now = recipe.model_dump(mode="json")
        resettings = [change for change in _told(differences(identity["recipe"], now)) if change not in changes]
        self.lock()
        if changes or resettings:
            fingerprints = {"fingerprint": trained_fingerprint(recipe), "data_fingerprint": data_fingerprint, "amendments": amendments}
            write_json(self.recipe_file, identity | fingerprints | _described(loaded))
        return Reopened(resettings, changes, len(amendments))

    def lock(self) -> int:
        """Keep other processes from training in this folder until this one ends; returns the descriptor that holds the lock.

        Raises:
            PreheatError: another process trains here.
        """
        if self._lock is not None:
            return self._lock
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            refuse("run.busy", f"another process is training in {self.path}", "", "Wait for it, or choose another --run folder")
        self._lock = descriptor
        return descriptor

    def identity(self) -> dict[str, Any]:
        """What `recipe.json` says.

        Raises:
            PreheatError: this is no run folder.
        """
        if not self.recipe_file.is_file():
            refuse("run.folder", f"{self.path} is no run folder: it has no recipe.json", "", "Give the folder that `preheat train` wrote")
        return read_record(self.recipe_file, SCHEMA, "Take the file from a backup or a mirror of the run")

    def recipe(self) -> Recipe:
        """The recipe that this run trains."""
        return Recipe.model_validate(self.identity()["recipe"])


def trained_fingerprint(recipe: Recipe) -> str:
    """Of what decides which weights come out, see `trained_part`."""
    return fingerprint(trained_part(recipe.model_dump(mode="json")))


def trained_part(recipe: dict[str, Any]) -> dict[str, Any]:
    """Of a recipe as JSON what decides which weights come out, but for the last bits: not the layout, and not what is only written down."""
    kept = {key: value for key, value in recipe.items() if key not in ("parallel", "checkpoint", "evaluation", "ignore", "description")}
    kept["batch"] = {key: value for key, value in recipe["batch"].items() if key != "micro_size"}
    kept["stage"] = [{key: value for key, value in stage.items() if key not in ("micro_size", "context")} for stage in recipe["stage"]]
    return kept


def _trained_changes(identity: dict[str, Any], recipe: Recipe, data_fingerprint: str) -> list[str]:
    """In what of the part that is trained a run differs from a recipe and data."""
    before, now = (trained_part(part) for part in (identity["recipe"], recipe.model_dump(mode="json")))
    changes = _told(differences(before, now))
    if identity["data_fingerprint"] != data_fingerprint:
        changes.append(f"data: {identity['data_fingerprint'][:12]} -> {data_fingerprint[:12]}")
    return changes


def _told(changes: list[tuple[str, Any, Any]]) -> list[str]:
    return [f"{key}: {old!r} -> {new!r}" for key, old, new in changes]


def some(changes: list[str]) -> str:
    """The first few of a list, and how many more there are."""
    return ", ".join(changes[:5]) + (f" and {len(changes) - 5} more" if len(changes) > 5 else "")


def _described(loaded: Loaded) -> dict[str, Any]:
    return {
        "recipe": loaded.recipe.model_dump(mode="json"),
        "origins": {key: asdict(origin) for key, origin in loaded.origins.items()},
    }


def differences(old: Any, new: Any, prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Dotted keys at which two JSON values differ, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = list(dict.fromkeys([*old, *new]))
        return [d for key in keys for d in differences(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else key)]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [d for i, (a, b) in enumerate(zip(old, new, strict=True)) for d in differences(a, b, f"{prefix}.{i}")]
    return [] if old == new else [(prefix, old, new)]

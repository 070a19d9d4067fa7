"""A second copy of a run at any address that fsspec knows (`s3://`, `gs://`, `file://`), kept up with the checkpoints here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsspec

from preheat.errors import refuse
from preheat.train.checkpoint import published, verify

_RECORDS = ("environment.json", "plan.json", "data.json", "metrics.jsonl", "events.jsonl", "recipe.json")
"""Files of a run folder that go along; what tells that the copy is there at all comes last."""


class Mirror:
    """Copies what a run folder holds, and brings it back where the folder is gone. It belongs to one run."""

    def __init__(self, url: str) -> None:
        """Find the place.

        Raises:
            PreheatError: fsspec knows no such kind of place, or lacks a package for it.
        """
        self.url = url
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError, OSError) as error:
            refuse("run.mirror", f"--mirror {url}", str(error), "Give an address of a kind that fsspec can write")

    def refuse_other_run(self, identity: dict[str, Any] | None) -> None:
        """Refuse a place that holds another run than the one with this `recipe.json` (None: one that is not there yet)."""
        theirs = self._identity()
        if theirs is not None and identity is not None and theirs.get("id") != identity["id"]:
            got = f"{self.url} is the mirror of another run, {theirs.get('name')} {theirs.get('id')}"
            refuse("run.mirror", got, f"this one is {identity['name']} {identity['id']}", "Give each run a mirror of its own")

    def update(self, run: Path) -> None:
        """Copy the checkpoints that are not there yet and the run's records, then remove there what is no longer here.

        A checkpoint is copied only if it has its checksums, and counts as copied when its manifest is, which comes last.

        Raises:
            OSError: it did not work; what was there before is intact.
        """
        try:
            here = {path.name: path for path in reversed(published(run / "checkpoints"))}
            there = self._checkpoints()
            for name, path in here.items():
                if name not in there:
                    self._copy(path)
            for name in _RECORDS:
                if (run / name).is_file():
                    self._put(run / name, f"{self._root}/{name}")
            for name in there - here.keys():
                self._files.rm(f"{self._root}/checkpoints/{name}", recursive=True)
        except Exception as error:  # each kind of place has errors of its own
            raise OSError(f"{self.url}: {type(error).__name__}: {error}") from error

    def restore(self, run: Path) -> str | None:
        """Bring back the newest good checkpoint and the records, if the run folder has no checkpoint and the mirror has; its name.

        Raises:
            OSError: the place can't be read.
        """
        folder = run / "checkpoints"
        if published(folder) or self._identity() is None:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(self._checkpoints(), key=lambda name: int(name.removeprefix("step-")), reverse=True):
            partial = folder / f".{name}.partial"
            self._files.get(f"{self._root}/checkpoints/{name}/", f"{partial}/", recursive=True)
            if verify(partial) is None:
                for record in _RECORDS:
                    if not (run / record).exists() and self._files.exists(f"{self._root}/{record}"):
                        (run / f"{record}.partial").write_bytes(self._files.cat_file(f"{self._root}/{record}"))
                        (run / f"{record}.partial").replace(run / record)
                partial.rename(folder / name)
                return name
        return None

    def _identity(self) -> dict[str, Any] | None:
        place = f"{self._root}/recipe.json"
        return dict(json.loads(self._files.cat_file(place))) if self._files.exists(place) else None

    def _checkpoints(self) -> set[str]:
        """Names of whole checkpoints."""
        self._files.invalidate_cache()
        found = self._files.glob(f"{self._root}/checkpoints/step-*/manifest.json")
        return {Path(path).parent.name for path in found}

    def _copy(self, path: Path) -> None:
        reason = verify(path)
        if reason is not None:
            raise OSError(f"{path.name} is not copied: {reason}")
        for file in sorted(path.iterdir(), key=lambda file: file.name == "manifest.json"):
            self._put(file, f"{self._root}/checkpoints/{path.name}/{file.name}")

    def _put(self, file: Path, place: str) -> None:
        """Whole or not at all: places that do not write so by themselves get it under another name first."""
        self._files.makedirs(place.rpartition("/")[0], exist_ok=True)
        self._files.put_file(str(file), f"{place}.partial")
        self._files.mv(f"{place}.partial", place)

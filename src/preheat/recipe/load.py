"""From files and `--set` options to one frozen recipe in which every value knows where it came from."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel, ValidationError

from preheat.errors import PreheatError, Where, refuse
from preheat.recipe.complaints import complaints, shown
from preheat.recipe.locate import key_lines
from preheat.recipe.schema import Recipe
from preheat.recipe.settings import MAX_PARTS, plain_copy, settings

CATALOG = Path(__file__).parent / "catalog"
"""The recipes that preheat ships."""
MAX_BYTES = 250_000
"""A recipe file larger than this is no recipe."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Origin:
    """Where a value came from: `file` for a file or a parent, `set` for the command line, `default` for the schema."""

    kind: str
    file: str | None = None
    line: int | None = None
    note: str = ""
    """The source that the file names for it."""

    def __str__(self) -> str:
        if self.kind == "file":
            return f"{self.file}:{self.line}" if self.line else str(self.file)
        return "--set" if self.kind == "set" else "default"


@dataclass(frozen=True)
class Loaded:
    """A recipe with the history of its values."""

    recipe: Recipe
    origins: dict[str, Origin]
    """Dotted key -> origin, for every leaf, defaults included."""
    files: tuple[str, ...]
    """The chain of files, the recipe's own first, then its parents."""
    folder: Path
    """Where relative paths in the recipe start: the folder of its file, or the current one for a recipe of the catalog."""

    def where(self, key: str) -> Where:
        """The file and line of a dotted key, for a report."""
        origin = self._places.get(key)
        if origin is None or origin.kind == "default":
            return Where(self.files[0], None, key)
        return Where(origin.file or "--set", origin.line, key)

    @cached_property
    def _places(self) -> dict[str, Origin]:
        return _with_tables(self.origins)


@dataclass(frozen=True)
class _Layer:
    label: str
    values: dict[str, Any]
    lines: dict[str, int]
    sources: dict[str, str]


def catalog() -> dict[str, str]:
    """Name -> description of the recipes that preheat ships."""
    found = {}
    for file in sorted(CATALOG.glob("*.toml")):
        found[file.stem] = tomllib.loads(file.read_text("utf-8")).get("description", "")
    return found


def load(name: str, sets: tuple[str, ...] = ()) -> Loaded:
    """Load a catalog recipe by name or a recipe file by path, and apply `key.path=value` settings on top.

    Raises:
        PreheatError: every unknown key, wrong type or unit at once, with file, line and the nearest known name.
    """
    path = _find(name)
    layers = _chain(path)
    base: dict[str, Any] = {}
    for layer in reversed(layers):
        _merge(base, layer.values)
    layers.insert(0, _Layer("--set", settings(sets, base), {}, {}))
    merged: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for layer in reversed(layers):
        before = dict(_values(merged))
        _merge(merged, layer.values)
        for key, value in _values(layer.values):
            if layer.label == "--set" and key in before and before[key] == value:
                continue  # an untouched neighbour in a list that was copied whole
            origins[key] = _origin(layer, key)
        alive = {key for key, _ in _values(merged)}
        origins = {key: origin for key, origin in origins.items() if key in alive}
    try:
        recipe = Recipe.model_validate(merged)
    except ValidationError as error:
        places = _with_tables(origins)
        raise PreheatError(*complaints(error, lambda location: _place(location, places, layers))) from None
    for key, _ in _values(recipe.model_dump(mode="json")):
        origins.setdefault(key, Origin("default"))
    folder = Path.cwd() if _is_shipped(path) else path.parent
    return Loaded(recipe, origins, tuple(layer.label for layer in layers[1:]), folder)


def fingerprint(value: BaseModel | dict[str, Any]) -> str:
    """SHA-256 of the resolved values, independent of their order in the file."""
    import hashlib  # loads OpenSSL, which `check` does without

    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _find(name: str) -> Path:
    """The file that is meant on a command line: a path, or a name of the catalog."""
    shipped = _shipped(name)
    if shipped is not None:
        return shipped
    path = Path(name)
    try:
        if path.is_file():
            return path
        folder = path.is_dir()
    except (OSError, ValueError):  # too long, or a NUL byte
        folder = False
    if folder or path.suffix == ".toml" or "/" in name:
        got = f"{name[:200]} is a folder" if folder else f"there is no recipe file {name[:200]}"
        refuse("recipe.file", got, "", "Give the path of a .toml file, or a name that `preheat recipes` lists")
    return _unknown_name(name)


def _shipped(name: str) -> Path | None:
    """The file of a catalog recipe."""
    path = CATALOG / f"{name}.toml"
    return path if _NAME.fullmatch(name) and path.is_file() else None


def _unknown_name(name: str, file: Path | None = None, line: int | None = None) -> NoReturn:
    near = difflib.get_close_matches(name[:64], catalog(), 1, 0.5)
    hint = f"Did you mean {near[0]}?" if near else "`preheat recipes` lists what is shipped"
    refuse("recipe.file", f"no recipe is called {name[:200]!r}", "", hint, file=file, line=line)


def _parent(path: Path, parent: object, line: int | None) -> Path:
    """The file that `extends` names: a recipe of the catalog, or a .toml file by its path from this one."""
    if not isinstance(parent, str) or not parent:
        refuse("recipe.extends", f"extends = {shown(parent)}", "one name or path", 'Write extends = "tiny"', file=path, line=line)
    if not parent.endswith(".toml"):
        return _shipped(parent) or _unknown_name(parent, path, line)
    found = path.parent / parent
    try:
        missing = not found.is_file()
    except (OSError, ValueError):
        missing = True
    if missing:
        refuse("recipe.extends", f"there is no file {shown(parent)}", "", "Write its path from this file", file=path, line=line)
    return found


def _is_shipped(path: Path) -> bool:
    return path.parent == CATALOG


def _chain(path: Path) -> list[_Layer]:
    """The file and its parents, nearest first."""
    layers: list[_Layer] = []
    seen: list[Path] = []
    while True:
        if path.resolve() in seen:
            circle = " -> ".join(p.name for p in [*seen, path])
            refuse("recipe.extends", f"{circle} is a circle", "", "Remove one `extends`", file=path)
        seen.append(path.resolve())
        values, lines = _read(path)
        label = path.stem if _is_shipped(path) else str(path)
        parent, sources = values.pop("extends", None), values.pop("sources", {})
        if not isinstance(sources, dict) or not all(isinstance(note, str) for note in sources.values()):
            refuse(
                "recipe.sources",
                "[sources] holds something that is no text",
                'lines of the form "table.key" = "note"',
                "",
                file=path,
                line=lines.get("sources"),
            )
        layers.append(_Layer(label, values, lines, sources))
        if parent is None:
            return layers
        path = _parent(path, parent, lines.get("extends"))


def _read(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The values of a file, and on which line each key stands."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        refuse("recipe.file", f"{path}: {error.strerror}", "", "Give the path of a recipe file")
    if len(raw) > MAX_BYTES:
        refuse("recipe.file", f"more than {MAX_BYTES:_} bytes", "", "This is no recipe file", file=path)
    try:
        text = raw.decode("utf-8-sig")  # some editors begin a file with a byte-order mark
        if _has_deep_key(text):  # tomllib takes time and memory by the square of the depth
            refuse("recipe.toml", f"a key has more than {MAX_PARTS} parts", "", "This is no recipe file", file=path)
        return tomllib.loads(text), key_lines(text)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        refuse("recipe.encoding", f"byte 0x{raw[error.start]:02x} is no UTF-8", "", "Save the file as UTF-8", file=path, line=line)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d{1,9})", str(error))
        refuse("recipe.toml", str(error), "", "", file=path, line=int(at[1]) if at else None)
    except ValueError:  # Python's limit for the digits of a number
        refuse("recipe.toml", "a number has thousands of digits", "", "This is no recipe file", file=path)
    except RecursionError:
        refuse("recipe.toml", "the nesting is too deep", "", "", file=path)


def _has_deep_key(text: str) -> bool:
    """Whether a key has more than `MAX_PARTS` parts; not one of a thousand files has so many dots in a line, so that the rest is quick."""
    part = r"""(?:[\w-]{1,64}|"[^"\n]{0,64}"|'[^'\n]{0,64}')[ \t]*\.[ \t]*"""
    return any(
        line.count(".") >= MAX_PARTS and re.search(rf"(?:^|[{{,\[])[ \t]*(?:{part}){{{MAX_PARTS}}}", line) for line in text.split("\n")
    )


def _merge(into: dict[str, Any], values: dict[str, Any]) -> None:
    """Tables merge key by key, but a table of another `kind` replaces what was there, and so do lists and all else."""
    for key, value in values.items():
        there = into.get(key)
        if isinstance(value, dict) and isinstance(there, dict) and value.get("kind", there.get("kind")) == there.get("kind"):
            _merge(there, value)
        else:
            into[key] = plain_copy(value)


def _values(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted keys and values of all leaves; entries of lists of tables are addressed by number."""
    if isinstance(value, dict) and value:
        return [leaf for key, entry in value.items() for leaf in _values(entry, f"{prefix}.{key}" if prefix else str(key))]
    if isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
        return [leaf for i, entry in enumerate(value) for leaf in _values(entry, f"{prefix}.{i}")]
    return [(prefix, value)] if prefix else []


def _origin(layer: _Layer, key: str) -> Origin:
    if layer.label == "--set":
        return Origin("set")
    parts = key.split(".")
    bare = [part for part in parts if not part.isdigit()]
    note = ""
    for length in range(len(bare), 0, -1):
        note = layer.sources.get(".".join(bare[:length]), "")
        if note:
            break
    return Origin("file", layer.label, _line(layer, parts), note)


def _line(layer: _Layer, parts: list[str]) -> int | None:
    for length in range(len(parts), 0, -1):
        line = layer.lines.get(".".join(parts[:length]))
        if line is not None:
            return line
    return None


def _with_tables(origins: dict[str, Origin]) -> dict[str, Origin]:
    """The origins of all values, and for each table and list that of its first value."""
    places: dict[str, Origin] = {}
    for key, origin in origins.items():
        parts = key.split(".")
        for length in range(1, len(parts)):
            places.setdefault(".".join(parts[:length]), origin)
    return places | origins


def _place(location: list[str], places: dict[str, Origin], layers: list[_Layer]) -> Where:
    """Where a path of keys stands, or else the nearest table around it."""
    key = ".".join(location)
    for length in range(len(location), 0, -1):
        prefix = ".".join(location[:length])
        origin = places.get(prefix)
        if origin is not None:
            lines = next((layer.lines for layer in layers if layer.label == origin.file), {})
            return Where(origin.file or "--set", lines.get(prefix, origin.line), key)
    return Where(layers[1].label, layers[1].lines.get(location[0]), key)

"""From files and `--set` options to one frozen recipe in which every value knows where it came from."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from preheat.errors import PreheatError, Problem, Where, refuse
from preheat.recipe.locate import key_lines
from preheat.recipe.schema import Recipe

MAX_BYTES = 250_000
"""A recipe file larger than this is no recipe."""
_DEEP_KEY = re.compile(r"""(?:^|[{,\[])[ \t]*(?:(?:[\w-]{1,64}|"[^"\n]{0,64}"|'[^'\n]{0,64}')[ \t]*\.[ \t]*){16}""", re.MULTILINE)


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
        origin = self.origins.get(key) or next((o for k, o in self.origins.items() if k.startswith(key + ".")), None)
        if origin is None or origin.kind == "default":
            return Where(self.files[0], None, key)
        return Where(origin.file or "--set", origin.line, key)


@dataclass(frozen=True)
class _Layer:
    label: str
    values: dict[str, Any]
    lines: dict[str, int]
    sources: dict[str, str]


def catalog() -> dict[str, str]:
    """Name -> description of the recipes that preheat ships."""
    found = {}
    for entry in sorted(resources.files("preheat.recipe").joinpath("catalog").iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".toml"):
            found[entry.name.removesuffix(".toml")] = tomllib.loads(entry.read_text("utf-8")).get("description", "")
    return found


def load(name: str, sets: tuple[str, ...] = ()) -> Loaded:
    """Load a catalog recipe by name or a recipe file by path, and apply `key.path=value` settings on top.

    Raises:
        PreheatError: every unknown key, wrong type or unit at once, with file, line and the nearest known name.
    """
    path = _find(name)
    layers = _chain(path)
    layers.insert(0, _settings(sets, layers))
    merged: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for layer in reversed(layers):
        before = dict(_values(merged))
        _merge(merged, layer.values)
        for key, value in _values(layer.values):
            if layer.label == "--set" and key in before and before[key] == value:
                continue  # an untouched neighbour in a list that was copied whole
            for old in [k for k in origins if k.startswith(key + ".") or key.startswith(k + ".")]:
                del origins[old]
            origins[key] = _origin(layer, key)
        alive = {key for key, _ in _values(merged)}
        origins = {key: origin for key, origin in origins.items() if key in alive}
    try:
        recipe = Recipe.model_validate(merged)
    except ValidationError as error:
        raise PreheatError(*_problems(error, origins, layers)) from None
    for key, _ in _values(recipe.model_dump(mode="json")):
        origins.setdefault(key, Origin("default"))
    folder = Path.cwd() if _is_shipped(path) else path.parent
    return Loaded(recipe, origins, tuple(layer.label for layer in layers[1:]), folder)


def fingerprint(value: BaseModel | dict[str, Any]) -> str:
    """SHA-256 of the resolved values, independent of their order in the file."""
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _find(name: str) -> Path:
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        if not path.is_file():
            refuse(
                "recipe.file",
                f"there is no recipe file {name}",
                "",
                f"Choose one of {', '.join(catalog())} or give the path of a .toml file",
                key=None,
            )
        return path
    shipped = Path(str(resources.files("preheat.recipe").joinpath("catalog", f"{name}.toml")))
    if "/" in name or not shipped.is_file():
        near = difflib.get_close_matches(name, catalog(), 1, 0.5)
        hint = f"Did you mean {near[0]}?" if near else "`preheat recipes` lists what is shipped"
        refuse("recipe.file", f"no recipe is called {name!r}", "", hint)
    return shipped


def _is_shipped(path: Path) -> bool:
    return path.parent == Path(str(resources.files("preheat.recipe"))) / "catalog"


def _chain(path: Path) -> list[_Layer]:
    """The file and its parents, nearest first."""
    layers: list[_Layer] = []
    seen: list[Path] = []
    while True:
        if path.resolve() in seen:
            refuse(
                "recipe.extends", f"{' -> '.join(p.name for p in seen)} -> {path.name} is a circle", "", "Remove one `extends`", file=path
            )
        seen.append(path.resolve())
        values = _read(path)
        label = path.stem if _is_shipped(path) else str(path)
        lines = key_lines(path.read_text("utf-8"))
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
        if not isinstance(parent, str):
            refuse(
                "recipe.extends",
                f"extends = {parent!r}",
                "one name or path",
                'Write extends = "tiny"',
                file=path,
                line=lines.get("extends"),
            )
        beside = path.parent / parent
        path = beside if beside.is_file() else _find(parent)


def _read(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size > MAX_BYTES:
        refuse("recipe.file", f"{path} has {size:_} bytes", f"at most {MAX_BYTES:_}", "This is no recipe file", file=path)
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8")
        if _DEEP_KEY.search(text):  # tomllib takes time and memory by the square of the depth
            refuse("recipe.toml", "a key has more than 16 parts", "", "This is no recipe file", file=path)
        return tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        refuse("recipe.encoding", f"byte 0x{raw[error.start]:02x} is no UTF-8", "", "Save the file as UTF-8", file=path, line=line)
    except tomllib.TOMLDecodeError as error:
        refuse("recipe.toml", str(error), "", "", file=path)
    except RecursionError:
        refuse("recipe.toml", "the nesting is too deep", "", "", file=path)


def _settings(sets: tuple[str, ...], layers: list[_Layer]) -> _Layer:
    """`--set` options as the topmost layer; list entries are addressed by their name or number."""
    base: dict[str, Any] = {}
    for layer in reversed(layers):
        _merge(base, layer.values)
    values: dict[str, Any] = {}
    for option in sets:
        key, equals, text = option.partition("=")
        if not equals or not key.strip():
            refuse("recipe.set", f"--set {option}", "key.path=value", "Write for instance --set schedule.peak_lr=1e-3")
        _put(values, base, key.strip().split("."), _value(text.strip()), option)
    return _Layer("--set", values, {}, {})


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def _put(values: dict[str, Any], base: Any, parts: list[str], value: Any, option: str) -> None:
    """Write `value` at the dotted path; a list on the way is copied whole from `base` first."""
    target: Any = values
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        if isinstance(target, list):
            index = next((i for i, entry in enumerate(target) if isinstance(entry, dict) and entry.get("name") == part), None)
            if index is None and part.isdigit() and int(part) < len(target):
                index = int(part)
            if index is None:
                names = [str(entry.get("name", i)) for i, entry in enumerate(target) if isinstance(entry, dict)]
                refuse("recipe.set", f"--set {option}: {'.'.join(parts[:depth])} has no entry {part!r}", f"one of {', '.join(names)}", "")
            if last:
                target[index] = value
                return
            base, target = (base[index] if isinstance(base, list) and index < len(base) else None), target[index]
            continue
        if not isinstance(target, dict):
            refuse("recipe.set", f"--set {option}: {'.'.join(parts[:depth])} is a value and no table", "", "Shorten the key")
        if last:
            target[part] = value
            return
        base = base.get(part) if isinstance(base, dict) else None
        if part not in target:
            target[part] = json_copy(base) if isinstance(base, list) else {}
        target = target[part]


def json_copy(value: Any) -> Any:
    """A deep copy of plain TOML values."""
    if isinstance(value, dict):
        return {key: json_copy(entry) for key, entry in value.items()}
    return [json_copy(entry) for entry in value] if isinstance(value, list) else value


def _merge(into: dict[str, Any], values: dict[str, Any]) -> None:
    """Tables merge key by key, but a table of another `kind` replaces what was there, and so do lists and all else."""
    for key, value in values.items():
        there = into.get(key)
        if isinstance(value, dict) and isinstance(there, dict) and value.get("kind", there.get("kind")) == there.get("kind"):
            _merge(there, value)
        else:
            into[key] = json_copy(value)


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


def _problems(error: ValidationError, origins: dict[str, Origin], layers: list[_Layer]) -> list[Problem]:
    """Pydantic's findings in preheat's words."""
    problems = []
    for finding in error.errors(include_url=False):
        location = [str(part) for part in finding["loc"]]
        key = ".".join(location)
        origin = origins.get(key) or next((o for k, o in origins.items() if k.startswith(key + ".")), None)
        if origin is None:
            place = next(((layer.label, _line(layer, location)) for layer in layers[1:] if _line(layer, location)), (layers[1].label, None))
        else:
            place = (origin.file or "--set", origin.line)
        where = Where(place[0], place[1], key)
        if finding["type"] == "extra_forbidden":
            problems.append(_unknown_key(location, where))
        elif finding["type"] == "missing":
            problems.append(Problem("recipe.missing-key", f"{key} is not set", "", f"Add {location[-1]} to the recipe", where))
        else:
            shown = finding["input"] if isinstance(finding["input"], str | int | float | bool) else type(finding["input"]).__name__
            message = finding["msg"].removeprefix("Value error, ")
            got = message if repr(shown) in message else f"{shown!r}: {message[0].lower()}{message[1:]}"
            problems.append(Problem("recipe.value", got, "", "", where))
    return problems


def _unknown_key(location: list[str], where: Where) -> Problem:
    known = _fields_at(location[:-1])
    near = difflib.get_close_matches(location[-1], known, 1, 0.5)
    elsewhere = [f"{table}.{location[-1]}" for table in Recipe.model_fields if location[-1] in _fields_at([table])]
    listed = f"Known here: {', '.join(sorted(known))}" if known else ""
    hint = f"Did you mean {(elsewhere + near)[0]}?" if near or elsewhere else listed
    return Problem("recipe.unknown-key", f"unknown key {location[-1]!r}", "", hint, where)


def _fields_at(location: list[str]) -> list[str]:
    """The known keys of the table at a location."""
    table: type[BaseModel] | None = Recipe
    for part in location:
        if part.isdigit():
            continue
        if table is None or part not in table.model_fields:
            return []
        table = _table_in(table.model_fields[part].annotation)
    fields = list(table.model_fields) if table else []
    return [*fields, "extends", "sources"] if table is Recipe else fields


def _table_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and get_origin(annotation) is None:
        return annotation
    return next((found for part in get_args(annotation) if (found := _table_in(part))), None)

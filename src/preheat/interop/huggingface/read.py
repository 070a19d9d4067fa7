"""A folder of Hugging Face: its config.json as a `[model]`, its tensors under preheat's names. No code of the folder is run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from preheat.arithmetic import Rope, dense_layers, head_dim, rotary_frequencies
from preheat.errors import refuse
from preheat.interop.huggingface.family import Config, Family, Setting
from preheat.interop.huggingface.plain import skeleton
from preheat.interop.huggingface.registry import FAMILIES, family_named
from preheat.interop.tensor_rules import Rule, inward, outward, refuse_other_tensors
from preheat.model import Transformer
from preheat.model.weights import Weights
from preheat.recipe import Model

MAX_CONFIG_BYTES = 1_000_000
_PARTS = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin")


@dataclass(frozen=True)
class Opened:
    """A folder whose tensors all have a place in the model."""

    folder: Path
    family: Family
    model: Model
    max_positions: int
    rules: tuple[Rule, ...]
    theirs: Mapping[str, Tensor]
    """Under their names, each read when it is asked for."""
    notes: tuple[str, ...]
    """What of the folder was not taken."""

    def ours(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors under preheat's names, in the number format in which they are stored."""
        return inward(self.rules, self.theirs)


def open_folder(folder: Path, *, allow_pickle: bool = False, families: tuple[Family, ...] = FAMILIES) -> Opened:
    """Read the configuration and hold names and shapes of all tensors against it; no tensor is read yet.

    Args:
        allow_pickle: read `pytorch_model*.bin`, with PyTorch's restricted unpickler, where there are no safetensors.

    Raises:
        PreheatError: there is no config.json, preheat has no such model, or the tensors are others than the configuration says.
    """
    file = folder / "config.json"
    values = _read_config(file)
    family = family_named(values.get("model_type"), file, families)
    config = Config(values, file)
    notes = ["auto_map: the folder's own code is not run"] if config.get("auto_map") else []
    if config.get("quantization_config"):
        config.refuse("quantization_config", "weights that are not quantized")
    fields = family.model(config)
    model = _model(fields, file)
    max_positions = model.max_positions or config.whole("max_position_embeddings", 2048)
    _refuse_obstacles(model, max_positions, family, file)
    _refuse_experts(model, file)
    found = _Named(_weights(folder, allow_pickle), family)
    _refuse_more_than_files(model, found, file)
    model = _without_absent_predictions(model, family, found, config)
    notes += [*config.notes, *(f"{key}: not read from config.json" for key in config.unread())]
    rules, expected = _expected(model, family, file)
    if model.tied_embeddings and family.head in found:
        found.drop_tied(family.head, family.embedding)
    shapes = {name: found.shape(name) for name in found}
    refuse_other_tensors(expected, shapes, "import.tensors", folder, "The weights belong to another config.json")
    return Opened(folder, family, model, max_positions, rules, found, tuple(notes))


@torch.no_grad()
def load_folder(folder: Path, device: torch.device | str = "cpu", *, families: tuple[Family, ...] = FAMILIES) -> tuple[Transformer, Opened]:
    """The model of a folder in fp32, for scoring and for making text."""
    opened = open_folder(folder, families=families)
    with torch.device("meta"):
        transformer = Transformer(opened.model)
    transformer.to_empty(device=device)
    for buffer in transformer.buffers():  # those that only training reads are in no file
        buffer.zero_()
    tensors = transformer.state_dict()
    for name, tensor in opened.ours():
        tensors[name].copy_(tensor)
    return transformer.eval(), opened


class _Named(Mapping[str, Tensor]):
    """The tensors of a folder under the names of its family: without a prefix in front of all, and without computed buffers."""

    def __init__(self, stored: Mapping[str, Tensor], family: Family) -> None:
        self._stored = stored
        outer, inner = _prefix(stored, family.embedding)
        buffers = [re.compile(pattern) for pattern in family.buffers]
        names = {(inner + name.removeprefix(outer)): name for name in stored}
        self._names = {name: real for name, real in names.items() if not any(buffer.fullmatch(name) for buffer in buffers)}

    def __getitem__(self, name: str) -> Tensor:
        return self._stored[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it from a file."""
        real = self._names[name]
        return self._stored.shape(real) if isinstance(self._stored, Weights) else tuple(self._stored[real].shape)

    def drop_tied(self, head: str, embedding: str) -> None:
        """Leave out a head that is a copy of the embedding; refuse one that is not."""
        if self.shape(head) != self.shape(embedding) or not torch.equal(self[head], self[embedding]):
            got, want = f"{head} is not equal to {embedding}", "config.json has tie_word_embeddings = true"
            refuse("import.tied", got, want, "Correct tie_word_embeddings", key="tie_word_embeddings")
        del self._names[head]


def _prefix(names: Mapping[str, Tensor], embedding: str) -> tuple[str, str]:
    """What stands in front of the family's names in the files (a wrapper's), or of the files' names in the family (a bare model's)."""
    longer = [name for name in names if name.endswith("." + embedding)]
    if embedding not in names and len(longer) == 1:
        return longer[0].removesuffix(embedding), ""
    bare = embedding.partition(".")
    return ("", bare[0] + ".") if embedding not in names and bare[2] in names else ("", "")


def _read_config(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            refuse("import.config", f"more than {MAX_CONFIG_BYTES:_} bytes", "a config.json", "", file=file)
        values = json.loads(file.read_text("utf-8"))
    except OSError as error:
        refuse("import.config", f"{error.strerror}", "a folder of Hugging Face with a config.json", "Correct the path", file=file)
    except (ValueError, RecursionError) as error:
        refuse("import.config", f"no JSON ({error})", "", "Fetch it again", file=file)
    if not isinstance(values, dict):
        refuse("import.config", f"a {type(values).__name__}", "a JSON object", "Fetch it again", file=file)
    return values


def _model(fields: dict[str, Any], file: Path) -> Model:
    try:
        return Model.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        refuse(
            "import.config",
            f"{first['msg']} (got {first['input']!r})",
            f"model.{key} of a recipe",
            "preheat cannot express this",
            file=file,
        )


def _refuse_obstacles(model: Model, max_positions: int, family: Family, file: Path) -> None:
    """What the class would compute otherwise, it may not bring in either."""
    rope = Rope(model.rope_theta, model.rope_scaling) if model.rope_theta is not None else None
    obstacles = list(family.obstacles(model, Setting(rope, max_positions)))
    if obstacles:
        got = "; ".join(str(obstacle) for obstacle in obstacles)
        refuse("import.config", got, "", "preheat would compute another model", file=file, key=obstacles[0].key)


def _refuse_experts(model: Model, file: Path) -> None:
    """Numbers of experts between which no token can choose."""
    experts = model.experts
    if experts is None:
        return
    groups, active_groups = experts.groups or 1, experts.active_groups or 1
    if experts.count % groups or active_groups > groups or experts.active > experts.count // groups * active_groups:
        got = f"{experts.active} experts of {active_groups} in {groups} groups of {experts.count} experts"
        refuse("import.config", got, "groups of one size, with enough experts in them", "Correct config.json", file=file)


def _refuse_more_than_files(model: Model, found: _Named, file: Path) -> None:
    """Sizes beyond what the files hold are a mistake, and would take long to enumerate."""
    experts, mla = model.experts, model.mla
    parts = max(model.layers, experts.count if experts else 0, model.mtp.layers if model.mtp else 0)
    if parts > len(found):
        refuse("import.tensors", f"{parts:_} layers or experts in config.json", f"the files hold {len(found):_} tensors", "", file=file)
    widths = [model.hidden, model.vocab_size, model.max_positions or 0, model.heads * head_dim(model)]
    widths += [model.ffn_hidden] if dense_layers(model) else []
    widths += [mla.kv_lora_rank, mla.q_lora_rank or 0, model.heads * mla.v_head_dim] if mla else []
    widest = max(max(found.shape(name), default=0) for name in found)
    if max(widths) > widest:
        got, want = f"a width of {max(widths):_} in config.json", f"the largest dim of a tensor in the files is {widest:_}"
        refuse("import.tensors", got, want, "The weights belong to another config.json", file=file)


def _expected(model: Model, family: Family, file: Path) -> tuple[tuple[Rule, ...], dict[str, tuple[int, ...]]]:
    """The rules of a model and the shapes of their tensors; refuses sizes of which no model can be built."""
    try:
        if model.rope_theta is not None:
            rotary_frequencies(model, model.rope_theta, model.rope_scaling)
        rules = tuple(family.rules(model))
        return rules, {name: tuple(tensor.shape) for name, tensor in outward(rules, skeleton(model))}
    except (AssertionError, ValueError, RuntimeError, OverflowError, ZeroDivisionError) as error:
        got = f"no model can be built with these sizes ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
        refuse("import.config", got, "", "Correct config.json", file=file)


def _weights(folder: Path, allow_pickle: bool) -> Mapping[str, Tensor]:
    pickles = sorted(path for path in folder.glob("*.bin") if _PARTS.fullmatch(path.name))
    if not pickles or any(folder.glob("*.safetensors")):
        return Weights(folder)
    if not allow_pickle:
        got = f"{pickles[0].name} is a pickle, and a pickle can run code"
        refuse("import.pickle", got, "safetensors", "Convert it, or trust PyTorch's restricted reader with --allow-pickle", file=folder)
    stored: dict[str, Tensor] = {}
    for path in pickles:
        try:
            stored |= torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # whatever a broken pickle raises
            refuse("import.pickle", f"PyTorch's restricted reader refuses it ({type(error).__name__})", "tensors only", "", file=path)
    return stored


def _without_absent_predictions(model: Model, family: Family, found: Mapping[str, Tensor], config: Config) -> Model:
    """`transformers` names prediction layers in the configuration and saves none."""
    if model.mtp is None:
        return model
    bare = model.model_copy(update={"mtp": None})
    names = {name for rule in family.rules(model) for name in rule.theirs} - {name for rule in family.rules(bare) for name in rule.theirs}
    if names & set(found):
        return model
    config.notes.append(f"{model.mtp.layers} layers that predict further tokens are in config.json and not in the files")
    return bare

"""What a family of Hugging Face models is: which recipes it can express, its config.json both ways, and its tensor names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from preheat.arithmetic import Rope, head_dim
from preheat.errors import refuse
from preheat.interop.tensor_rules import Rule, same
from preheat.recipe import Model


@dataclass(frozen=True)
class Setting:
    """What a configuration says beside the model."""

    rope: Rope | None
    """Rotary positions of the last stage that was trained."""
    max_positions: int
    """The longest sequences that were trained."""


@dataclass(frozen=True)
class Obstacle:
    """A field of `[model]` that a family cannot express."""

    key: str
    got: object
    want: str

    def __str__(self) -> str:
        return f"{self.key} = {self.got} ({self.want})"


@dataclass(frozen=True)
class Family:
    """One class of `transformers`."""

    model_type: str
    """As config.json names it."""
    architecture: str
    """The class for language modelling."""
    obstacles: Callable[[Model, Setting], Iterable[Obstacle]]
    """What of a model the class cannot express; a model without obstacles gives the same logits there."""
    config: Callable[[Model, Setting], dict[str, Any]]
    """The keys of config.json that belong to the class."""
    model: Callable[[Config], dict[str, Any]]
    """The fields of `[model]` from a config.json."""
    rules: Callable[[Model], Iterator[Rule]]
    """All tensors, under the names that the hub has."""
    embedding: str = "model.embed_tokens.weight"
    """The name by which a prefix in front of all names is recognised."""
    head: str = "lm_head.weight"
    """The name of the output head, which tied models may carry as a copy."""
    buffers: tuple[str, ...] = ()
    """Regular expressions of tensors in released files that are computed and not learned."""


@dataclass
class Config:
    """A config.json that is read key by key, so that what nobody read can be reported.

    Raises:
        PreheatError: a value is of the wrong kind, or says something that the family here does not do.
    """

    values: Mapping[str, Any]
    file: object
    notes: list[str] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    def get(self, key: str, default: Any = None) -> Any:
        """A value of any kind; null counts as absent."""
        self.read.add(key)
        value = self.values.get(key)
        return default if value is None else value

    def whole(self, key: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            self.refuse(key, "a positive whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            self.refuse(key, "a positive number")
        return float(value)

    def nonnegative(self, key: str, default: float) -> float:
        """A number that is not negative."""
        value = self.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
            self.refuse(key, "a number that is not negative")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value

    def table(self, key: str) -> dict[str, Any]:
        """A table; an absent one is empty."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            self.refuse(key, "a table")
        return value

    def only(self, key: str, *allowed: object, default: object) -> Any:
        """A value that has to be one of those that this family does; `default` is what an absent key means."""
        value = self.get(key, default)
        if value not in allowed:
            self.refuse(key, " or ".join(repr(choice) for choice in allowed))
        return value

    def refuse(self, key: str, want: str) -> NoReturn:
        """Refuse the value of a key."""
        refuse("import.config", f"{key} = {self.values.get(key)!r}", want, "preheat cannot express this model", file=self.file, key=key)

    def unread(self) -> list[str]:
        """Keys that were not read and might mean something."""
        return sorted(key for key, value in self.values.items() if key not in self.read | WITHOUT_EFFECT and value not in (None, False))


WITHOUT_EFFECT = {
    *("architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "use_cache", "_name_or_path"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "pretraining_tp", "output_router_logits"),
    *("router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "ep_size", "task_specific_params", "classifier_dropout"),
    *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout", "n_ctx"),
}
"""Keys that change no logit of the model."""


def unequal(model: Model, architecture: str, **expected: object) -> Iterator[Obstacle]:
    """An obstacle for each field that has not the one value that the class has."""
    for name, want in expected.items():
        got = getattr(model, name)
        if got != want:
            yield Obstacle(f"model.{name}", _short(got), f"{architecture} has {'none' if want is None else want}")


def even_heads(model: Model, architecture: str) -> Iterator[Obstacle]:
    """An obstacle if the heads do not share the width evenly, which some classes insist on beside a `head_dim` of its own."""
    if model.hidden % model.heads:
        yield Obstacle("model.heads", model.heads, f"{architecture} wants a divisor of hidden = {model.hidden}")


def own_head_dim(model: Model, architecture: str) -> Iterator[Obstacle]:
    """An obstacle if the heads together are not as wide as the stream, for classes without a `head_dim`."""
    if model.heads * head_dim(model) != model.hidden:
        yield Obstacle("model.head_dim", head_dim(model), f"{architecture} has hidden / heads = {model.hidden / model.heads:g}")


def norm(ours: str, theirs: str, model: Model) -> Iterator[Rule]:
    """A normalisation: its weight, and a bias unless it is RMSNorm."""
    yield same(f"{ours}.weight", f"{theirs}.weight")
    if model.norm != "rmsnorm":
        yield same(f"{ours}.bias", f"{theirs}.bias")


def linear(ours: str, theirs: str, model: Model) -> Iterator[Rule]:
    """A projection: its weight, and a bias where the recipe has biases."""
    yield same(f"{ours}.weight", f"{theirs}.weight")
    if model.bias:
        yield same(f"{ours}.bias", f"{theirs}.bias")


def _short(value: object) -> object:
    return value if isinstance(value, int | float | str | None) else "[...]"

"""A model without what only preheat has: maximal update parametrization folded into the weights, padding rows cut, one number format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from preheat.arithmetic import head_dim
from preheat.errors import refuse
from preheat.model import Transformer
from preheat.model.function import is_training_state
from preheat.recipe import Model

_VOCABULARY = ("embedding.weight", "head.weight")
_ROUTER_BIAS = "router.bias"


class Plain(Mapping[str, Tensor]):
    """The weights of a model as another program takes them, each made when it is asked for.

    Raises:
        PreheatError: a tensor is not finite, in its own number format or in the one asked for.
    """

    def __init__(self, model: Model, weights: Mapping[str, Tensor], dtype: torch.dtype | None) -> None:
        self.model = model.model_copy(update={"mup": None})
        self._weights = weights
        self._dtype, self._factors = dtype, _factors(model, weights)
        self._offset = model.norm == "layernorm1p"

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._weights[name].detach()
        if name in _VOCABULARY:
            tensor = tensor[: self.model.vocab_size]
        if name in self._factors:
            # A norm's weight may be kept as an offset from one.
            one = 1.0 if self._offset and name.endswith("norm.weight") else 0.0
            tensor = ((tensor.double() + one) * self._factors[name] - one).to(tensor.dtype)
        tensor = tensor.to(self._stored_as(name))
        if not tensor.is_meta and not tensor.isfinite().all():
            got = f"{name} has {int((~tensor.isfinite()).sum())} values of {tensor.numel():_} that are not finite in {tensor.dtype}"
            refuse("export.not-finite", got, "", "Take an earlier checkpoint, or another --dtype")
        return tensor

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._weights if not is_training_state(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor, with padding rows of the vocabulary cut."""
        shapes = {name: tuple(self._weights[name].shape) for name in self}
        rows = self.model.vocab_size
        return {name: (min(shape[0], rows), *shape[1:]) if name in _VOCABULARY else shape for name, shape in shapes.items()}

    def on_meta(self) -> dict[str, Tensor]:
        """Each tensor without its values, for planning files."""
        return {name: torch.empty(shape, dtype=self._stored_as(name), device="meta") for name, shape in self.shapes().items()}

    def _stored_as(self, name: str) -> torch.dtype:
        own = self._weights[name].dtype
        return own if self._dtype is None or name.endswith(_ROUTER_BIAS) else self._dtype


def skeleton(model: Model) -> dict[str, Tensor]:
    """Every tensor of a model by name, without values or memory."""
    with torch.device("meta"):
        return {name: tensor for name, tensor in Transformer(model).state_dict().items() if not is_training_state(name)}


def _factors(model: Model, names: Mapping[str, Tensor]) -> dict[str, float]:
    """What is folded into each tensor: logits / m into the last norms, which works for a tied head too, and the scale of the scores
    into the queries.
    """
    if model.mup is None:
        return {}
    if model.mtp is not None:
        got = "model.mup and model.mtp"
        refuse("export.mup", got, "further predictions read what the scale of the logits is folded into", "Train with one of them")
    width = head_dim(model)
    logits, scores = model.mup.base_hidden / model.hidden, ((model.mup.base_head_dim or width) / width) ** 0.5
    query = "query.up." if model.mla else "query_norm." if model.qk_norm else "query."
    last = [name for name in names if name.startswith("norm.")]
    queries = [name for name in names if f".attention.{query}" in name]
    return dict.fromkeys(last, logits) | dict.fromkeys(queries, scores)

"""The keys and values of tokens read before, for making text one token at a time."""

from __future__ import annotations

from torch import Tensor

from preheat.recipe import Model


class Cache:
    """The keys and values of the tokens read so far, for sequences of at most `capacity` tokens."""

    def __init__(self, model: Model, capacity: int) -> None:
        self.capacity = capacity
        self.layers = [LayerCache(capacity) for _ in range(model.layers)]

    @property
    def length(self) -> int:
        """How many tokens were read."""
        return self.layers[0].length


class LayerCache:
    """Keys and values of one layer, in the number format in which they come."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._keys_and_values: tuple[Tensor, Tensor] | None = None

    def extend(self, k_BKTE: Tensor, v_BKTE: Tensor) -> tuple[Tensor, Tensor]:
        """Add those of new tokens and return all, B x K x length x E."""
        if self._keys_and_values is None:
            batch, heads = k_BKTE.shape[:2]
            self._keys_and_values = (
                k_BKTE.new_empty(batch, heads, self.capacity, k_BKTE.shape[-1]),
                v_BKTE.new_empty(batch, heads, self.capacity, v_BKTE.shape[-1]),
            )
        start, self.length = self.length, self.length + k_BKTE.shape[2]
        assert self.length <= self.capacity, f"{self.length} tokens in a cache of {self.capacity}"
        keys, values = self._keys_and_values
        keys[:, :, start : self.length] = k_BKTE
        values[:, :, start : self.length] = v_BKTE
        return keys[:, :, : self.length], values[:, :, : self.length]

"""The order of training samples as a pure function of (seed, clock): no state, no dependence on ranks, workers or restarts.

Each source is a stream of tokens that repeats in epochs. In every epoch its documents are shuffled (groups of neighbours among each other,
and documents inside a group, so that a seek touches one group only), concatenated, cut into blocks as long as the longest sequence of the
run, and the blocks are shuffled again. A sample is a part of a block plus the one token that follows it (its last label). The
cursor of a source is the number of tokens that earlier samples took from it, whatever their sequence length; so no
sample repeats before its epoch ends, also across stages.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from preheat.data.blend import Blend
from preheat.data.indexed import IndexedDataset
from preheat.errors import refuse

GROUP = 256
"""Neighbouring documents that are shuffled as one."""
_CACHED_GROUPS = 64

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StageSamples:
    """What the order needs to know of a stage."""

    mix: Mapping[str, Fraction]
    seq_len: int
    samples: int


@dataclass(frozen=True)
class Usage:
    """What a run takes from a source."""

    tokens: int
    skipped: int
    """Tokens passed over at stage switches, where a longer sequence starts at the next multiple of its length."""
    epochs: float


class SampleOrder:
    """All samples of a run. `sources` must hold every source that a stage mixes.

    Raises:
        PreheatError: sequence lengths that do not divide the longest, or a source shorter than one sequence.
    """

    def __init__(self, sources: Mapping[str, IndexedDataset], stages: Sequence[StageSamples], seed: int) -> None:
        block = max(stage.seq_len for stage in stages)
        for stage in stages:
            if block % stage.seq_len:
                refuse(
                    "stage.seq_len",
                    f"sequence length {stage.seq_len} does not divide the longest, {block}",
                    "",
                    "Choose lengths that divide it",
                )
        names = list(dict.fromkeys(name for stage in stages for name in stage.mix))
        self._streams = {name: _Stream(name, sources[name], seed, block) for name in names}
        self._stages = tuple(stages)
        self._blends = tuple(Blend(stage.mix) for stage in stages)
        self._starts, self.usage = self._plan()

    def locate(self, stage: int, index: int) -> tuple[str, int]:
        """Source and token position in its stream of sample `index` of a stage."""
        blend = self._blends[stage]
        source = blend.source(index)
        name = blend.names[source]
        return name, self._starts[stage][name] + blend.count(index, source) * self._stages[stage].seq_len

    def sample(self, stage: int, index: int) -> Ids:
        """The `seq_len + 1` token ids of a sample: inputs and, shifted by one, labels."""
        name, position = self.locate(stage, index)
        return self._streams[name].read(position, self._stages[stage].seq_len)

    def batch(self, stage: int, first: int, size: int) -> tuple[Ids, Ids]:
        """Inputs and labels of `size` consecutive samples, each of shape (size, seq_len)."""
        rows = np.stack([self.sample(stage, index) for index in range(first, first + size)])
        return rows[:, :-1], rows[:, 1:]

    def consumed(self, most: int) -> Ids:
        """The tokens that the run reads, in order, up to `most` of them."""
        parts, left = [], most
        for stage, plan in enumerate(self._stages):
            for index in range(min(plan.samples, -(-left // plan.seq_len))):
                parts.append(self.sample(stage, index)[:-1])
                left -= plan.seq_len
        return np.concatenate(parts)[:most]

    def _plan(self) -> tuple[list[dict[str, int]], dict[str, Usage]]:
        """Position of each source at the start of each stage, and what the run takes from it altogether."""
        position = dict.fromkeys(self._streams, 0)
        taken, skipped = dict(position), dict(position)
        starts = []
        for stage, blend in zip(self._stages, self._blends, strict=True):
            for name in blend.names:
                aligned = -(-position[name] // stage.seq_len) * stage.seq_len
                skipped[name] += aligned - position[name]
                position[name] = aligned
            starts.append(dict(position))
            for source, name in enumerate(blend.names):
                tokens = blend.count(stage.samples, source) * stage.seq_len
                position[name] += tokens
                taken[name] += tokens
        usage = {name: Usage(taken[name], skipped[name], position[name] / stream.epoch_tokens) for name, stream in self._streams.items()}
        return starts, usage


class _Stream:
    """The endless token stream of one source."""

    def __init__(self, name: str, dataset: IndexedDataset, seed: int, block: int) -> None:
        self._name, self._dataset, self._seed, self._block = name, dataset, seed, block
        self._blocks = (dataset.token_count - 1) // block
        if self._blocks < 1:
            refuse(
                "data.too-small",
                f"source {name} has {dataset.token_count:_} training tokens",
                f"one sequence takes {block + 1:_}",
                "Add text to the source or shorten the sequence",
            )
        self.epoch_tokens = self._blocks * block
        self._epochs: OrderedDict[int, _Epoch] = OrderedDict()

    def read(self, position: int, length: int) -> Ids:
        """`length + 1` tokens; `position` and the block are multiples of `length`."""
        epoch, rest = divmod(position, self.epoch_tokens)
        index, offset = divmod(rest, self._block)
        layout = self._epochs.get(epoch)
        if layout is None:
            layout = self._epochs[epoch] = _Epoch(self._dataset, f"{self._seed}/{self._name}/{epoch}", self._blocks)
            if len(self._epochs) > 2:
                self._epochs.popitem(last=False)
        return layout.read(layout.block(index) * self._block + offset, length + 1)


class _Epoch:
    """One pass over a source: documents in shuffled order, looked up by token position."""

    def __init__(self, dataset: IndexedDataset, label: str, blocks: int) -> None:
        self._dataset, self._label, self._blocks = dataset, label, blocks
        self._block_key = _key(label, "blocks")
        documents = len(dataset)
        edges = np.minimum(np.arange(0, documents + GROUP, GROUP), documents)
        edges = edges[: -(-documents // GROUP) + 1]
        bounds = np.append(dataset.pointers, dataset.token_count)[edges]
        self._groups = permutation(len(edges) - 1, _key(label, "groups"))
        self._group_ends = np.cumsum(np.diff(bounds)[self._groups])
        self._cache: OrderedDict[int, tuple[Ids, Ids]] = OrderedDict()

    def block(self, index: int) -> int:
        """The block that is read as number `index`."""
        return shuffled(index, self._blocks, self._block_key)

    def read(self, start: int, count: int) -> Ids:
        """`count` tokens of the shuffled stream."""
        out = np.empty(count, np.int64)
        filled = 0
        place = int(np.searchsorted(self._group_ends, start, side="right"))
        while filled < count:
            documents, ends = self._group(place)
            base = int(self._group_ends[place - 1]) if place else 0
            entry = int(np.searchsorted(ends, start + filled - base, side="right"))
            while filled < count and entry < len(documents):
                offset = start + filled - base - (int(ends[entry - 1]) if entry else 0)
                document = int(documents[entry])
                piece = self._dataset.document(document)[offset : offset + count - filled]
                out[filled : filled + len(piece)] = piece
                filled += len(piece)
                entry += 1
            place += 1
        return out

    def _group(self, place: int) -> tuple[Ids, Ids]:
        """The documents of the group at a place of the stream in their shuffled order, and where each ends in the group."""
        group = int(self._groups[place])
        cached = self._cache.get(group)
        if cached is None:
            first, last = group * GROUP, min((group + 1) * GROUP, len(self._dataset))
            documents = first + permutation(last - first, _key(self._label, f"group {group}"))
            cached = documents, np.cumsum(self._dataset.lengths[documents], dtype=np.int64)
            self._cache[group] = cached
            if len(self._cache) > _CACHED_GROUPS:
                self._cache.popitem(last=False)
        return cached


def _key(*parts: str) -> int:
    return int.from_bytes(hashlib.sha256("/".join(parts).encode()).digest()[:8], "little")


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words that scatters its input."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def permutation(count: int, key: int) -> Ids:
    """A pseudo-random order of `range(count)`, the same on every machine and with every version of NumPy."""
    with np.errstate(over="ignore"):
        words = _mixed(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key))
    return np.argsort(words, kind="stable").astype(np.int64)


def shuffled(index: int, count: int, key: int) -> int:
    """The image of `index` under a pseudo-random permutation of `range(count)`, in constant time and memory.

    A four-round Feistel network on the smallest even number of bits that holds `count`, walked until the value is in range.
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for round_number in range(4):
            word = (right * 0x9E3779B97F4A7C15 + key + round_number * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
            word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
            word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
            left, right = right, left ^ ((word >> 32) & mask)
        index = left << half | right
        if index < count:
            return index

"""The order of training samples as a pure function of (seed, clock): no state, no dependence on ranks, workers or restarts.

Each source is a stream of tokens that repeats in epochs. In every epoch it is cut into chunks, the chunks are shuffled, the documents
inside a chunk are shuffled, and so are the blocks of a thousand neighbouring chunks of the shuffled stream. A block is as long as the
longest sequence of the run; a sample is a part of a block plus the one token that follows it (its last label). The cursor of a source is
the number of tokens that earlier samples took from it, whatever their sequence length; so no sample repeats before its epoch ends, also
across stages. A sample is found without looking at what came before, in the same time at the first token and at the last.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
import numpy.typing as npt

from preheat.data.blend import Blend
from preheat.errors import refuse

CHUNK = 262_144
"""Tokens that are shuffled as one, when a block is not longer."""
WINDOW = 1024
"""Chunks whose blocks are mixed with each other; as many are kept in memory."""

Ids = npt.NDArray[np.int64]


class Tokens(Protocol):
    """The documents of a source, back to back."""

    @property
    def token_count(self) -> int: ...
    def starts(self, begin: int, end: int) -> Ids: ...
    def read(self, begin: int, out: Ids) -> None: ...


@dataclass(frozen=True)
class StageSamples:
    """What the order needs to know of a stage."""

    mix: Mapping[str, Fraction]
    seq_len: int
    samples: int


@dataclass(frozen=True)
class Usage:
    """What is taken from a source up to some sample."""

    tokens: int
    skipped: int
    """Tokens passed over at stage switches, where a longer sequence starts at the next multiple of its length."""
    epochs: float


class SampleOrder:
    """All samples of a run. `sources` must hold every source that a stage mixes.

    Raises:
        PreheatError: sequence lengths that do not divide the longest, or a source shorter than one sequence.
    """

    def __init__(self, sources: Mapping[str, Tokens], stages: Sequence[StageSamples], seed: int) -> None:
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
        self._starts = self._plan()
        self.usage = self.used(len(self._stages) - 1, self._stages[-1].samples)

    def locate(self, stage: int, index: int) -> tuple[str, int]:
        """Source and token position in its stream of sample `index` of a stage."""
        blend = self._blends[stage]
        source = blend.source(index)
        name = blend.names[source]
        return name, self._starts[stage][name] + blend.count(index, source) * self._stages[stage].seq_len

    def sample(self, stage: int, index: int) -> Ids:
        """The `seq_len + 1` token ids of a sample: inputs and, shifted by one, labels."""
        out = np.empty(self._stages[stage].seq_len + 1, np.int64)
        self._read(stage, index, out)
        return out

    def batch(self, stage: int, first: int, size: int) -> tuple[Ids, Ids]:
        """Inputs and labels of `size` consecutive samples, each of shape (size, seq_len)."""
        rows = np.empty((size, self._stages[stage].seq_len + 1), np.int64)
        for row in range(size):
            self._read(stage, first + row, rows[row])
        return rows[:, :-1], rows[:, 1:]

    def used(self, stage: int, samples: int) -> dict[str, Usage]:
        """What has been taken from each source when `samples` of a stage are read."""
        taken = Counter[str]()
        for number in range(stage):
            taken.update(self._taken(number, self._stages[number].samples))
        own = self._taken(stage, samples)
        taken.update(own)
        at = {name: position + own.get(name, 0) for name, position in self._starts[stage].items()}
        return {name: Usage(taken[name], at[name] - taken[name], at[name] / s.epoch_tokens) for name, s in self._streams.items()}

    def consumed(self, most: int) -> Ids:
        """The tokens that the run reads, in order, up to `most` of them."""
        parts, left = [], most
        for stage, plan in enumerate(self._stages):
            for index in range(min(plan.samples, -(-left // plan.seq_len))):
                parts.append(self.sample(stage, index)[:-1])
                left -= plan.seq_len
        return np.concatenate(parts)[:most]

    def _read(self, stage: int, index: int, out: Ids) -> None:
        name, position = self.locate(stage, index)
        self._streams[name].read(position, out)

    def _plan(self) -> list[dict[str, int]]:
        """Position of each source at the start of each stage."""
        position = dict.fromkeys(self._streams, 0)
        starts = []
        for stage, blend in zip(self._stages, self._blends, strict=True):
            position |= {name: -(-position[name] // stage.seq_len) * stage.seq_len for name in blend.names}
            starts.append(dict(position))
            for name, tokens in self._taken(len(starts) - 1, stage.samples).items():
                position[name] += tokens
        return starts

    def _taken(self, stage: int, samples: int) -> dict[str, int]:
        """The tokens of each source in the first `samples` of a stage."""
        blend, seq_len = self._blends[stage], self._stages[stage].seq_len
        return {name: blend.count(samples, source) * seq_len for source, name in enumerate(blend.names)}


class _Stream:
    """The endless token stream of one source."""

    def __init__(self, name: str, dataset: Tokens, seed: int, block: int) -> None:
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

    def read(self, position: int, out: Ids) -> None:
        """Fill `out` with `length + 1` tokens; `position` and the block are multiples of `length`."""
        number, rest = divmod(position, self.epoch_tokens)
        index, offset = divmod(rest, self._block)
        epoch = self._epochs.get(number)
        if epoch is None:
            epoch = self._epochs[number] = _Epoch(self._dataset, f"{self._seed}/{self._name}/{number}", self._blocks, self._block)
            if len(self._epochs) > 2:
                self._epochs.popitem(last=False)
        epoch.read(index, offset, out)


class _Epoch:
    """One pass over a source: its blocks in shuffled order, each with what it holds after the shuffle of documents in its chunk."""

    def __init__(self, dataset: Tokens, label: str, blocks: int, block: int) -> None:
        self._dataset, self._label, self._blocks, self._block = dataset, label, blocks, block
        self._per_chunk = max(1, CHUNK // block)
        self._per_window = self._per_chunk * WINDOW
        self._whole = blocks // self._per_chunk
        self._chunk_key = _key(label, "chunks")
        spare = dataset.token_count - 1 - blocks * block
        self._shift = _key(label, "shift") % (spare + 1)
        self._chunks: OrderedDict[int, _Chunk] = OrderedDict()
        self._window, self._window_key = -1, 0

    def read(self, index: int, offset: int, out: Ids) -> None:
        """Fill `out` from token `offset` of the block that is read as number `index`; `out` ends in the block, or one token after it."""
        window, place = divmod(index, self._per_window)
        if window != self._window:
            self._window, self._window_key = window, _key(self._label, f"window {window}")
        first = window * self._per_window
        place = first + shuffled(place, min(self._per_window, self._blocks - first), self._window_key)
        slot, block = divmod(place, self._per_chunk)
        self._chunk(slot).read(block * self._block + offset, out)

    def _chunk(self, slot: int) -> _Chunk:
        chunk = self._chunks.get(slot)
        if chunk is None:
            # The last chunk may be shorter than the others, so it keeps its place.
            number = shuffled(slot, self._whole, self._chunk_key) if slot < self._whole else slot
            begin = self._shift + number * self._per_chunk * self._block
            end = begin + min(self._per_chunk, self._blocks - number * self._per_chunk) * self._block
            chunk = self._chunks[slot] = _Chunk(self._dataset, begin, end, _key(self._label, f"chunk {number}"))
            if len(self._chunks) > WINDOW:
                self._chunks.popitem(last=False)
        return chunk


class _Chunk:
    """The tokens `begin..end` of a source with the documents inside in another order.

    A document that began before stays first and one that goes on behind stays last, so every document is in one piece but where a
    block ends.
    """

    def __init__(self, dataset: Tokens, begin: int, end: int, key: int) -> None:
        self._dataset, self._end = dataset, end
        starts = dataset.starts(begin, end + 1)
        first = 0 if begin in starts[:1] else 1
        behind = 0 if end in starts[-1:] else 1
        bounds = np.concatenate(([begin] * first, starts, [end] * behind)).astype(np.int64)
        last = max(first, len(bounds) - 1 - behind)
        order = np.arange(len(bounds) - 1)
        order[first:last] = first + permutation(last - first, key)
        self._pieces: list[int] = bounds[order].tolist()
        self._ends: list[int] = np.cumsum(np.diff(bounds)[order]).tolist()

    def read(self, start: int, out: Ids) -> None:
        """Fill `out` from token `start` of the chunk; it may end one token behind the chunk."""
        piece = bisect_right(self._ends, start)
        filled, count = 0, len(out)
        while filled < count:
            if piece == len(self._ends):
                self._dataset.read(self._end, out[filled:])
                return
            before = self._ends[piece - 1] if piece else 0
            taken = min(self._ends[piece] - start, count - filled)
            self._dataset.read(self._pieces[piece] + start - before, out[filled : filled + taken])
            filled += taken
            start += taken
            piece += 1


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

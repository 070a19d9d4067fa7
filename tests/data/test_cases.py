"""Failures of data that other projects reported in public, each with the numbers of its report, where no other test is about it.

Where the rest is: D01, D02, D04, D05, D06, D16, D19, D20, D23, D24 here; D03, D13 and D17 in test_order.py; D06, D08, D12 and D21 in
tests/train (test_amend.py, test_chaos.py); D14 and D15 in test_tokenizer_files.py; D22 in test_nasty_inputs.py and test_imported.py; D18
with the model's document mask.
"""

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from preheat import recipe
from preheat.data import IndexedDataset, Manifest, SampleOrder, StageSamples, indexed, prepare
from preheat.data.blend import Blend
from preheat.errors import PreheatError

I4, U2 = np.dtype("<i4"), np.dtype("<u2")


def dataset(folder, name, lengths):
    """Documents whose tokens all differ: token i of the source is i."""
    bounds = np.concatenate(([0], np.cumsum(lengths)))
    indexed.write(folder / name, [np.arange(a, b, dtype=np.int32) for a, b in pairwise(bounds)], I4)
    return IndexedDataset(folder / name)


class Endless:
    """A source of as many tokens as wanted, in documents of one length, that takes no room: token i is i modulo a large prime."""

    def __init__(self, tokens, length):
        self.token_count, self.length = tokens, length

    def starts(self, begin, end):
        return np.arange(-(-begin // self.length) * self.length, end, self.length)

    def read(self, begin, out):
        out[:] = (begin + np.arange(len(out))) % 2_147_483_629


@pytest.mark.parametrize(
    ("lengths", "dtype"),
    [([2**29 - 1, 1, 3], I4), ([2**29, 1, 3], I4), ([2**30, 2**30 - 1, 1, 3], U2), ([2**31 - 1, 2**31 - 1, 2**31 - 1, 3], I4)],
    ids=["bytes to 2^31", "bytes past 2^31", "bytes past 2^31 in the second", "tokens past 2^32"],
)
def test_d01_and_d02_counts_beyond_32_bits(tmp_path, lengths, dtype):
    """D01 (EleutherAI/gpt-neox 493), D02 (NVIDIA/Megatron-LM 1672): offsets are exact where 32 bits end; no data is allocated."""
    sizes = np.array(lengths, "<i4")
    indexed._write_index(tmp_path / "x", sizes, dtype)
    starts = [sum(lengths[:number]) for number in range(len(lengths) + 1)]
    with (tmp_path / "x.bin").open("wb") as stream:
        stream.truncate(starts[-1] * dtype.itemsize)
        for number, start in enumerate(starts[:-1]):
            stream.seek(start * dtype.itemsize)
            stream.write(np.array([number + 7], dtype).tobytes())
    found = IndexedDataset(tmp_path / "x")
    found.verify()
    assert found.starts_of_documents().tolist() == starts
    assert found.token_count == starts[-1]
    assert [int(found.document(number)[0]) for number in range(len(lengths))] == [number + 7 for number in range(len(lengths))]
    assert [len(found.document(number)) for number in range(len(lengths))] == lengths
    assert found.starts(starts[-2], starts[-1]).tolist() == [starts[-2]]


def test_d02_merged_documents_are_their_sources(tmp_path):
    parts = [[np.arange(n + 1) for n in range(5)], [], [np.array([9]), np.arange(300)]]
    for number, documents in enumerate(parts):
        indexed.write(tmp_path / str(number), documents, U2)
    indexed.merge([tmp_path / str(number) for number in range(3)], tmp_path / "whole", U2)
    found = IndexedDataset(tmp_path / "whole")
    found.verify()
    assert [found.document(n).tolist() for n in range(len(found))] == [ids.tolist() for own in parts for ids in own]


def test_d01_three_epochs_of_a_billion_documents(tmp_path):
    """Positions of samples are exact integers to the end of a long run: the first and the last samples of each epoch."""
    tokens, block = 3_000_000_001, 1000
    blocks = (tokens - 1) // block
    samples = SampleOrder({"x": Endless(tokens, 3)}, [StageSamples({"x": Fraction(1)}, block, 3 * blocks)], 1)
    assert samples.usage["x"].tokens == 3 * blocks * block > 2**32
    assert samples.usage["x"].epochs == pytest.approx(3)
    for index in (0, blocks - 1, blocks, 2 * blocks, 3 * blocks - 1):
        assert samples.locate(0, index) == ("x", index * block)
        assert samples.sample(0, index).min() >= 0


@pytest.mark.parametrize(("weights", "drawn", "epochs"), [((1, 1), (15, 15), (1.5, 0.75)), ((10, 20), (10, 20), (1.0, 1.0))])
def test_d04_weights_are_shares_of_the_samples(tmp_path, weights, drawn, epochs):
    """D04 (NVIDIA/Megatron-LM 547): whatever the sizes of the sources are. A has 10 samples, B 20; 30 are wanted."""
    sources = {"A": dataset(tmp_path, "A", [10] * 10 + [1]), "B": dataset(tmp_path, "B", [10] * 20 + [1])}
    mix = {name: Fraction(weight) for name, weight in zip("AB", weights, strict=True)}
    samples = SampleOrder(sources, [StageSamples(mix, 10, 30)], 0)
    counted = Counter(samples.locate(0, index)[0] for index in range(30))
    assert (counted["A"], counted["B"]) == drawn
    assert [samples.usage[name].epochs for name in "AB"] == pytest.approx(epochs)


def test_d05_a_weight_too_small_to_be_drawn(tmp_path):
    """D05 (NVIDIA/Megatron-LM pull 1007): weights 0.99999 and 0.00001 with 1,000 samples."""
    sources = {"A": dataset(tmp_path, "A", [100]), "B": dataset(tmp_path, "B", [100])}
    samples = SampleOrder(sources, [StageSamples({"A": Fraction("0.99999"), "B": Fraction("0.00001")}, 10, 1000)], 0)
    counted = Counter(samples.locate(0, index)[0] for index in range(1000))
    assert counted.total() == 1000
    assert counted["B"] <= 1
    assert samples.usage["A"].tokens + samples.usage["B"].tokens == 10_000
    blend = Blend({"A": Fraction("0.99999"), "B": Fraction("0.00001")})
    assert [blend.count(10**5 * n, 1) for n in range(4)] == [0, 1, 2, 3]


def test_d06_a_source_that_joins_later_begins_at_its_beginning(tmp_path):
    """D06 (NVIDIA/Megatron-LM 457): 1:1:0, then 0.5:0.3:0.2. No sample of a source repeats before its epoch ends."""
    sources = {name: dataset(tmp_path, name, [11] * 400) for name in "ABC"}
    first, second = {"A": Fraction(1), "B": Fraction(1)}, {"A": Fraction("0.5"), "B": Fraction("0.3"), "C": Fraction("0.2")}
    samples = SampleOrder(sources, [StageSamples(first, 10, 300), StageSamples(second, 10, 400)], 7)
    places = [samples.locate(stage, index) for stage, count in ((0, 300), (1, 400)) for index in range(count)]
    assert max(Counter(places).values()) == 1
    assert next(position for name, position in places if name == "C") == 0
    for name, count in (("A", 350), ("B", 270), ("C", 80)):
        assert [position for own, position in places if own == name] == [10 * number for number in range(count)]


def test_d19_boundaries_come_from_lengths(tmp_path):
    """D19 (pytorch/torchtitan 3130): not from a search for a token, which a document may hold or lack."""
    indexed.write(tmp_path / "x", [np.array([5, 0, 5]), np.array([0]), np.array([7, 7])], U2)
    found = IndexedDataset(tmp_path / "x")
    assert found.starts(0, 6).tolist() == [0, 3, 4]
    assert len(found) == 3


def test_d20_weights_are_shares_of_tokens(tmp_path):
    """D20 (pytorch/torchtitan pull 2385): documents of 10 and of 1,000 tokens, half and half, 1,000 sequences of 1,024."""
    sources = {"A": dataset(tmp_path, "A", [10] * 2_000), "B": dataset(tmp_path, "B", [1_000] * 20)}
    samples = SampleOrder(sources, [StageSamples({"A": Fraction("0.5"), "B": Fraction("0.5")}, 1024, 1000)], 0)
    taken = Counter({"A": 0, "B": 0})
    for index in range(1000):
        taken[samples.locate(0, index)[0]] += len(samples.sample(0, index)) - 1
    assert taken["A"] / taken.total() == 0.5


@pytest.mark.parametrize("micro", [1, 2, 4])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_d24_the_global_batch_is_the_same_in_every_layout(tmp_path, micro, ranks):
    """D24 (NVIDIA/Megatron-Energon pull 11): 16 samples as micro-batches of any size on any number of ranks."""
    source = dataset(tmp_path, "x", [7] * 400)

    def order():
        return SampleOrder({"x": source}, [StageSamples({"x": Fraction(1)}, 8, 160)], 5)

    whole = [order().batch(0, 16 * step, 16)[0].tolist() for step in range(3)]
    share = 16 // ranks
    for step in range(3):
        rows = []
        for rank in range(ranks):
            own = order()
            for first in range(16 * step + rank * share, 16 * step + (rank + 1) * share, micro):
                rows += own.batch(0, first, micro)[0].tolist()
        assert rows == whole[step]


def prepared(folder, out, **fields):
    asked = recipe.Data.model_validate({"source": [{"name": "s", "paths": ["*.txt"], "policy": "reference"}], "held_out": "0%"} | fields)
    chosen = recipe.Tokenizer(kind="train-bpe")
    return prepare(asked, chosen, 257, folder=folder, out=out, progress=lambda line: None, workers=1)


def test_d16_lengths_count_the_end_of_the_document(tmp_path):
    """D16 (NVIDIA/Megatron-LM 431): of two documents, with bytes as tokens, each is one longer than its text."""
    texts = {name: "".join(f"{name} {number}\n" for number in range(60)) for name in ("first", "second")}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)
    side = prepared(tmp_path, tmp_path / "out", source=[{"name": "s", "paths": ["*.txt"], "policy": "code"}]).source("s").train
    found = IndexedDataset(tmp_path / "out/s_train")
    assert [len(found.document(number)) for number in range(2)] == [len(text) + 1 for text in texts.values()]
    assert (side.documents, side.tokens) == (2, sum(map(len, texts.values())) + 2)
    eod = Manifest.load(tmp_path / "out").tokenizer.eod
    assert [found.document(number)[-1] for number in range(2)] == [eod, eod]
    assert found.token_count == (tmp_path / "out/s_train.bin").stat().st_size // 2


def test_d23_nothing_is_used_again_that_was_made_otherwise(tmp_path):
    """D23 (marin-community/marin 5149): the same folder, another treatment of the text."""
    (tmp_path / "a.txt").write_text(" ".join(f"mail me at a{number}@b.org" for number in range(60)) + ".\n")
    prepared(tmp_path, tmp_path / "out")
    masked = [{"name": "s", "paths": ["*.txt"], "policy": "reference", "mask_personal_data": True}]
    with pytest.raises(PreheatError, match="another configuration"):
        prepared(tmp_path, tmp_path / "out", source=masked)

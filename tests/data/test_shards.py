"""Datasets in several files: the same documents, the same samples, the same bytes as in one."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preheat import recipe
from preheat.data import (
    IndexedDataset,
    Manifest,
    SampleOrder,
    Shards,
    StageSamples,
    documents,
    indexed,
    opened,
    prepare,
    statistics,
    verify,
)

DTYPE = np.dtype("<u2")
some_documents = st.lists(st.lists(st.integers(0, 65_535), max_size=9), min_size=1, max_size=12)


def written(folder, name, found, limit=None):
    with indexed.Writer(folder / name, DTYPE, limit) as writer:
        for ids in found:
            writer.add(np.array(ids, np.int64))
    return sorted(path.with_suffix("") for path in folder.glob(f"{name}*.idx"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(some_documents, st.integers(1, 40))
def test_shards_are_one_dataset(tmp_path_factory, found, limit):
    folder = tmp_path_factory.mktemp("x")
    (one,) = written(folder, "one", found)
    whole, several = IndexedDataset(one), Shards(written(folder, "many", found, limit))
    assert (len(several), several.token_count) == (len(found), whole.token_count)
    assert [several.document(n).tolist() for n in range(len(found))] == found
    assert several.starts_of_documents().tolist() == whole.starts_of_documents().tolist()
    for begin in range(whole.token_count):
        for end in range(begin, whole.token_count + 1):
            assert several.starts(begin, end).tolist() == whole.starts(begin, end).tolist()
            assert several.tokens(begin, end).tolist() == whole.tokens[begin:end].tolist()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(some_documents, st.integers(1, 40), st.integers(0, 12))
def test_where_a_shard_ends_depends_on_the_documents_alone(tmp_path_factory, found, limit, cut):
    folder = tmp_path_factory.mktemp("x")
    direct = written(folder, "direct", found, limit)
    parts = [written(folder, f"part{n}", part)[0] for n, part in enumerate((found[:cut], found[cut:]))]
    indexed.merge(parts, folder / "merged", DTYPE, limit)
    merged = sorted(path.with_suffix("") for path in folder.glob("merged-*.idx"))
    for a, b in zip(direct, merged, strict=True):
        for suffix in (".bin", ".idx"):
            assert a.with_suffix(suffix).read_bytes() == b.with_suffix(suffix).read_bytes()
        size = a.with_suffix(".bin").stat().st_size
        assert size <= limit or len(IndexedDataset(a)) <= 1 + sum(not len(ids) for ids in found)


def test_a_run_reads_the_same_samples(tmp_path):
    generator = np.random.default_rng(1)
    found = [generator.integers(0, 60_000, generator.integers(1, 400)).tolist() for _ in range(300)]
    (one,) = written(tmp_path, "one", found)
    many = written(tmp_path, "many", found, 10_000)
    assert len(many) > 10
    stages = [StageSamples({"x": Fraction(1)}, 32, 2000)]
    orders = [SampleOrder({"x": dataset}, stages, 1) for dataset in (IndexedDataset(one), Shards(many))]
    for index in range(0, 2000, 7):
        assert orders[0].sample(0, index).tolist() == orders[1].sample(0, index).tolist()


@pytest.mark.parametrize("workers", [1, 2])
def test_prepared_in_shards(tmp_path, workers):
    (tmp_path / "texts").mkdir()
    for n in range(60):
        (tmp_path / f"texts/{n:02}.txt").write_text(
            " ".join(f"{word}{n * 31 + i * 7}" for i, word in enumerate(["stone", "river", "hill"] * 30))
        )
    out = {}
    for size in (None, 3e-6):
        spec = {"source": [{"name": "web", "paths": ["texts/*.txt"], "policy": "reference"}], "held_out": "10%"}
        data = recipe.Data.model_validate(spec | ({"shard_size": size} if size else {}))
        asked = (data, recipe.Tokenizer(kind="train-bpe"), 300)
        out[size] = tmp_path / f"out{size}"
        prepare(*asked, folder=tmp_path, out=out[size], progress=lambda line: None, workers=workers)
        assert verify(out[size]) == []
    one, many = (Manifest.load(folder).source("web").train for folder in out.values())
    assert one.shards == ()
    assert len(many.shards) > 5
    assert (many.documents, many.tokens, many.bytes) == (one.documents, one.tokens, one.bytes)
    assert (out[None] / "web_train.bin").read_bytes() == b"".join((out[3e-6] / f"{name}.bin").read_bytes() for name in many.shards)
    assert all((out[3e-6] / f"{name}.bin").stat().st_size <= 3000 for name in many.shards)
    assert documents(out[None], "web", first=60) == documents(out[3e-6], "web", first=60)
    assert statistics(out[None])["web"].lengths == statistics(out[3e-6])["web"].lengths
    assert opened(out[3e-6], many).token_count == many.tokens
    damaged = out[3e-6] / f"{many.shards[3]}.bin"
    damaged.write_bytes(bytes(damaged.stat().st_size))
    assert {problem.where.file for problem in verify(out[3e-6])} >= {str(damaged)}

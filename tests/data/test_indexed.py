"""The files on disk against bytes written by hand after Megatron's format, and against damage."""

import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preheat.data import indexed
from preheat.data.indexed import IndexedDataset
from preheat.errors import PreheatError

# Two documents of 3 and 1 tokens as uint16: magic, version 1, type 8, 2 sequences, 3 document entries,
# lengths 3 1, byte offsets 0 6, documents 0 1 2.
INDEX = bytes.fromhex(
    "4d4d494449445800 00 0100000000000000 08 0200000000000000 0300000000000000"
    "03000000 01000000"
    "0000000000000000 0600000000000000"
    "0000000000000000 0100000000000000 0200000000000000"
)
DATA = bytes.fromhex("0500 ffff 0000 0100")


def test_writes_the_bytes_of_megatron(tmp_path):
    indexed.write(tmp_path / "x", [np.array([5, 65535, 0]), np.array([1])], indexed.dtype_for(50_257))
    assert (tmp_path / "x.idx").read_bytes() == INDEX
    assert (tmp_path / "x.bin").read_bytes() == DATA


def test_reads_the_bytes_of_megatron(tmp_path):
    (tmp_path / "x.idx").write_bytes(INDEX)
    (tmp_path / "x.bin").write_bytes(DATA)
    dataset = IndexedDataset(tmp_path / "x")
    assert len(dataset) == 2
    assert dataset.token_count == 4
    assert dataset.starts(0, 4).tolist() == [0, 3]
    assert dataset.starts(1, 3).tolist() == []
    assert dataset.document(0).tolist() == [5, 65535, 0]
    assert dataset.document(1).tolist() == [1]


def test_a_document_may_have_several_sequences(tmp_path):
    # int32, as preprocess_data.py --split-sentences writes it: documents of 2 + 1 and of 1 tokens.
    index = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 4, 3, 3) + struct.pack("<3i3q3q", 2, 1, 1, 0, 8, 12, 0, 2, 3)
    (tmp_path / "x.idx").write_bytes(index)
    (tmp_path / "x.bin").write_bytes(struct.pack("<4i", 100_000, 7, 8, 9))
    dataset = IndexedDataset(tmp_path / "x")
    assert [dataset.document(i).tolist() for i in range(len(dataset))] == [[100_000, 7, 8], [9]]


@pytest.mark.parametrize(("vocab_size", "code", "width"), [(256, 8, 2), (65_499, 8, 2), (65_500, 4, 4), (129_280, 4, 4)])
def test_type_by_vocabulary_size(tmp_path, vocab_size, code, width):
    indexed.write(tmp_path / "x", [np.array([1, 2])], indexed.dtype_for(vocab_size))
    assert (tmp_path / "x.idx").read_bytes()[17] == code
    assert (tmp_path / "x.bin").stat().st_size == 2 * width


def test_no_documents(tmp_path):
    indexed.write(tmp_path / "x", [], np.dtype("<u2"))
    assert (tmp_path / "x.idx").stat().st_size == 34 + 8
    dataset = IndexedDataset(tmp_path / "x")
    assert (len(dataset), dataset.token_count, dataset.tokens.tolist()) == (0, 0, [])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(st.lists(st.lists(st.integers(0, 65_535), max_size=20), max_size=10), st.sampled_from(["<u2", "<i4"]))
def test_round_trip(tmp_path, documents, dtype):
    indexed.write(tmp_path / "x", [np.array(ids, np.int64) for ids in documents], np.dtype(dtype))
    dataset = IndexedDataset(tmp_path / "x")
    assert [dataset.document(i).tolist() for i in range(len(dataset))] == documents


@pytest.mark.parametrize("bad", [70_000, -1])
def test_an_id_that_does_not_fit_is_refused(tmp_path, bad):
    with pytest.raises(PreheatError, match="65535"):
        indexed.write(tmp_path / "x", [np.array([1, bad])], np.dtype("<u2"))


@pytest.mark.parametrize("size", range(0, len(INDEX), 5))
def test_a_truncated_index_is_refused(tmp_path, size):
    (tmp_path / "x.idx").write_bytes(INDEX[:size])
    (tmp_path / "x.bin").write_bytes(DATA)
    with pytest.raises(PreheatError, match=r"x\.idx"):
        IndexedDataset(tmp_path / "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i, d: (i, d[:-1]), "7 bytes.*8"),
        (lambda i, d: (i, d + b"\0\0"), "10 bytes.*8"),
        (lambda i, d: (b"TORCH" + i[5:], d), "starts with"),
        (lambda i, d: (i[:9] + b"\2" + i[10:], d), "version 2"),
        (lambda i, d: (i[:17] + b"\7" + i[18:], d), "type 7"),
        (lambda i, d: (i + b"\0\0", d), "bytes"),
        (lambda i, d: (i[:26] + b"\xff" * 8 + i[34:], d), "document entries"),
        (lambda i, d: (i[:50] + b"\7" + i[51:], d), "8 bytes.*9"),
        (lambda i, d: (i[:58] + b"\1" + i[59:], d), "document entries"),
        (lambda i, d: (i[:37] + b"\x80" + i[38:], d), "byte offsets"),
    ],
)
def test_foreign_or_damaged_files_are_refused(tmp_path, change, message):
    index, data = change(INDEX, DATA)
    (tmp_path / "x.idx").write_bytes(index)
    (tmp_path / "x.bin").write_bytes(data)
    with pytest.raises(PreheatError, match=message):
        IndexedDataset(tmp_path / "x").verify()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(PreheatError, match=r"nothing\.idx: there is no such file"):
        IndexedDataset(tmp_path / "nothing")

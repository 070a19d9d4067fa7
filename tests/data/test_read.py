"""Formats, packings and archives; damage of every kind costs what it hits and nothing else. Cases with a public report name it."""

import bz2
import gzip
import io
import json
import lzma
import random
import subprocess
import sys
import tarfile
import time
import tracemalloc
import zipfile
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.data.document import File, Reading
from preheat.data.formats import pages, read_file, records, split_file, streams
from preheat.data.sources import open_file, read, refuse_unreadable, resolve
from preheat.errors import PreheatError
from preheat.recipe import Quality, Source
from preheat.units import Quantity

PACKERS = {
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    ".xz": partial(lzma.compress, preset=0),
    ".bz2": bz2.compress,
}


def source(*paths, **fields):
    return Source(name="s", paths=paths, **fields)


def texts(spec, folder):
    reading = Reading()
    documents = list(read(spec, folder, reading))
    assert reading.documents == len(documents) + sum(e.step == "read" for e in reading.excluded)
    return {d.id: d.text for d in documents}, {e.id: e.reason for e in reading.excluded}, reading


def lines(count, start=0):
    return b"".join(json.dumps({"text": f"record {i}"}).encode() + b"\n" for i in range(start, count))


@pytest.mark.parametrize("suffix", PACKERS)
def test_packed_files_of_one_and_of_several_members(tmp_path, suffix):
    pack = PACKERS[suffix]
    (tmp_path / f"one.jsonl{suffix}").write_bytes(pack(lines(3)))
    (tmp_path / f"two.jsonl{suffix}").write_bytes(pack(lines(2)) + pack(b"") + pack(lines(4, 2)))
    (tmp_path / f"empty.jsonl{suffix}").write_bytes(b"")
    found, excluded, reading = texts(source(f"*{suffix}", format="jsonl"), tmp_path)
    assert list(found.values()) == ["record 0", "record 1", "record 2", "record 0", "record 1", "record 2", "record 3"]
    assert excluded == {}
    assert reading.bytes == len(lines(3)) + len(lines(4))


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_cut_or_broken_archive_gives_what_comes_before(tmp_path, suffix):
    """huggingface/datatrove PR #78."""
    chance = random.Random(1)
    rows = [json.dumps({"text": chance.randbytes(40).hex()}).encode() + b"\n" for _ in range(20_000)]
    whole = b"".join(PACKERS[suffix](b"".join(rows[i : i + 2_000])) for i in range(0, 20_000, 2_000))
    (tmp_path / f"cut.jsonl{suffix}").write_bytes(whole[: len(whole) // 2])
    (tmp_path / f"flip.jsonl{suffix}").write_bytes(whole[:200_000] + b"\xff\x00\xff\x00" * 50 + whole[200_200:])
    (tmp_path / f"no.jsonl{suffix}").write_bytes(b"plain text")
    found, excluded, _ = texts(source(f"*{suffix}", format="jsonl"), tmp_path)
    cut = [text for label, text in found.items() if label.startswith("cut")]
    assert 7_000 < len(cut) <= 10_000
    assert cut == [json.loads(row)["text"] for row in rows[: len(cut)]]
    assert sum(label.startswith("flip") for label in found) > 1_500
    assert {label: excluded[label] for label in (f"cut.jsonl{suffix}", f"no.jsonl{suffix}")} == dict.fromkeys(
        (f"cut.jsonl{suffix}", f"no.jsonl{suffix}"), "damaged file"
    )
    assert f"flip.jsonl{suffix}" in excluded


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_bomb_is_defused(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(streams, "RATIO_FROM", 1 << 20)
    (tmp_path / f"bomb.jsonl{suffix}").write_bytes(PACKERS[suffix](b"a" * (40 << 20)))
    tracemalloc.start()
    found, excluded, reading = texts(source("*", format="jsonl"), tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == {}
    assert excluded == {f"bomb.jsonl{suffix}": "damaged file"}
    assert "200 times" in reading.excluded[0].detail
    assert peak < 150 << 20


def test_padding_behind_an_archive_is_no_damage_and_rubbish_is(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines(1)) + b"\0" * 512)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines(1)) + b"rubbish")
    found, excluded, _ = texts(source("*.gz", format="jsonl"), tmp_path)
    assert list(found) == ["a.jsonl.gz:1", "b.jsonl.gz:1"]
    assert excluded == {"b.jsonl.gz": "damaged file"}


def test_zip_and_tar_members_are_files(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../etc/one.jsonl", lines(2))
        archive.writestr("two.jsonl.gz", gzip.compress(lines(1)))
        archive.writestr("deep.zip", b"PK")
        archive.writestr("folder/", b"")
        for hidden in ("__MACOSX/._two.jsonl", ".git/x.jsonl", ".hidden.jsonl"):
            archive.writestr(hidden, lines(1))
    for suffix, mode in ((".tar", "w"), (".tar.gz", "w:gz"), (".tar.xz", "w:xz"), (".tgz", "w:gz"), (".tar.bz2", "w:bz2")):
        with tarfile.open(tmp_path / f"b{suffix}", mode) as archive:
            for name, data in (("/abs/x.jsonl", lines(1)), ("..\\y.jsonl", lines(2)), ("./._y.jsonl", lines(2)), ("empty.jsonl", b"")):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
            link = tarfile.TarInfo("link.jsonl")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(link)
    (tmp_path / "b.tar.zst").write_bytes(zstandard.ZstdCompressor().compress((tmp_path / "b.tar").read_bytes()))
    found, excluded, _ = texts(source("*", format="jsonl"), tmp_path)
    tars = [f"b{suffix}" for suffix in (".tar", ".tar.bz2", ".tar.gz", ".tar.xz", ".tar.zst", ".tgz")]
    ids = [f"{tar}/{name}" for tar in tars for name in ("abs/x.jsonl:1", "y.jsonl:1", "y.jsonl:2")]
    assert list(found) == ["a.zip/etc/one.jsonl:1", "a.zip/etc/one.jsonl:2", "a.zip/two.jsonl.gz:1", *ids]
    assert excluded == {"a.zip/deep.zip": "cannot be read"}


def test_damaged_archives_give_their_good_members(tmp_path):
    with zipfile.ZipFile(tmp_path / "flip.zip", "w") as archive:
        for name in ("a.txt", "b.txt", "c.txt"):
            archive.writestr(name, f"text of {name}")
    data = (tmp_path / "flip.zip").read_bytes()
    (tmp_path / "flip.zip").write_bytes(data.replace(b"text of b.txt", b"fake of b.txt"))
    (tmp_path / "cut.zip").write_bytes(data[: len(data) // 2])
    with tarfile.open(tmp_path / "cut.tar", "w") as archive:
        for name in ("a.txt", "b.txt"):
            entry = tarfile.TarInfo(name)
            entry.size = 3_000
            archive.addfile(entry, io.BytesIO(name.encode() * 600))
    data = (tmp_path / "cut.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(data[: 512 + 3_072 + 512 + 1_000])
    found, excluded, _ = texts(source("*"), tmp_path)
    assert [label for label in found if label != "cut.tar/b.txt"] == ["cut.tar/a.txt", "flip.zip/a.txt", "flip.zip/c.txt"]
    assert set(excluded.values()) == {"damaged file"}
    assert set(excluded) == {"cut.tar/b.txt", "cut.tar", "cut.zip", "flip.zip/b.txt"}


def tar(names, text=b"text of a member"):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    return out.getvalue()


def broken_header(number):
    data = bytearray(tar("abcd"))
    data[number * 1024] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "members", "fault"),
    [
        (broken_header(0), "bcd", "the header of a member is broken (bad checksum)"),
        (broken_header(1), "acd", "the header of a member is broken (bad checksum)"),
        (broken_header(3), "abc", "the header of a member is broken (bad checksum)"),
        (tar("ab") + tar("cd"), "abcd", ""),
        (tar("abcd")[: 2 * 1024], "ab", "it ends early"),
        (tar("abcd")[: 2 * 1024 + 100], "ab", "it ends early"),
        (tar("ab") + bytes(100), "ab", ""),
        (b"no tar at all " * 100, "", "the header of a member is broken (invalid header)"),
        (b"", "", "it ends early"),
    ],
)
def test_a_tar_is_read_to_its_end(tmp_path, data, members, fault):
    """Python's `tarfile` takes a broken header, the place where a tar was cut, and the seam of two for the end, without a word."""
    (tmp_path / "a.tar").write_bytes(data)
    reading = Reading()
    assert [d.id for d in read(source("a.tar"), tmp_path, reading)] == [f"a.tar/{name}" for name in members]
    assert [e.detail for e in reading.excluded] == [fault] * bool(fault)


def test_a_header_of_any_length_is_not_held(tmp_path):
    """Names and attributes of a tar are read into memory at once, and their length is whatever their header says."""
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz", format=tarfile.PAX_FORMAT, compresslevel=1) as archive:
        entry = tarfile.TarInfo("a")
        entry.pax_headers = {"comment": "x" * (100 << 20)}
        archive.addfile(entry)
    tracemalloc.start()
    found, excluded, _ = texts(source("*"), tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found, excluded) == ({}, {"a.tar.gz": "damaged file"})
    assert peak < 20 << 20


def test_a_member_that_grows_out_of_proportion(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "RATIO_FROM", 1 << 20)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.jsonl", b"a" * (30 << 20))
        archive.writestr("good.jsonl", lines(1))
    found, excluded, _ = texts(source("*", format="jsonl"), tmp_path)
    assert list(found) == ["a.zip/good.jsonl:1"]
    assert excluded == {"a.zip/bomb.jsonl": "damaged file"}


def test_encrypted_members_are_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("secret.txt", "text")
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    assert texts(source("*.zip"), tmp_path)[1] == {"a.zip/secret.txt": "cannot be read"}


def table(path, rows, **options):
    pq.write_table(pa.table(rows), path, **options)


def test_parquet_rows(tmp_path):
    """Null and empty text; ids that are missing, repeated or numbers are labels at most: NVIDIA-NeMo/Curator #1229."""
    table(tmp_path / "a.parquet", {"text": ["one", None, "", "two\r\n\x00", "x\ufffd"], "id": [7, 7, None, 1, 2]}, row_group_size=2)
    found, excluded, _ = texts(source("*.parquet", format="parquet"), tmp_path)
    assert found == {"a.parquet:1": "one", "a.parquet:4": "two\n", "a.parquet:5": "x\ufffd"}
    assert excluded == {"a.parquet:2": "no field 'text'", "a.parquet:3": "empty"}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet_types_of_text(tmp_path, kind):
    pq.write_table(pa.table({"body": pa.array(["a", "b", "a"], pa.string()).cast(kind)}), tmp_path / "a.parquet")
    found, _, _ = texts(source("*.parquet", format="parquet", text_field="body"), tmp_path)
    assert list(found.values()) == ["a", "b", "a"]


def test_parquet_without_the_field_or_with_another_type(tmp_path):
    table(tmp_path / "a.parquet", {"body": ["x"] * 9})
    table(tmp_path / "b.parquet", {"text": [1, 2]})
    (tmp_path / "c.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "d.parquet").write_bytes(b"")
    table(tmp_path / "e.parquet", {"text": ["good"]})
    found, _, reading = texts_with_counts(source("*.parquet", format="parquet"), tmp_path)
    assert found == {"e.parquet:1": "good"}
    assert reading.unreadable == {"no field 'text'": 9, "field 'text' is no text": 2, "damaged file": 2}
    assert reading.documents == 14
    assert "fields: body" in reading.excluded[0].detail


def test_a_field_that_a_table_has_twice_is_unclear(tmp_path):
    pq.write_table(pa.Table.from_arrays([pa.array(["a", "b"])] * 2, names=["text", "text"]), tmp_path / "a.parquet")
    table(tmp_path / "b.parquet", {"text": ["good"]})
    found, excluded, reading = texts_with_counts(source("*.parquet", format="parquet"), tmp_path)
    assert (found, excluded, reading.documents) == ({"b.parquet:1": "good"}, {"a.parquet": "2 fields 'text'"}, 3)


def texts_with_counts(spec, folder):
    reading = Reading()
    documents = list(read(spec, folder, reading))
    return {d.id: d.text for d in documents}, {e.id: e.reason for e in reading.excluded}, reading


def test_a_damaged_row_group_costs_its_rows(tmp_path):
    rows = [f"row {i} " + random.Random(i).randbytes(50).hex() for i in range(3_000)]
    table(tmp_path / "a.parquet", {"text": rows}, row_group_size=1_000, compression="none", use_dictionary=False)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    place = data.index(b"row 1000 ")
    data[place - 60 : place + 100] = bytes(160)
    (tmp_path / "a.parquet").write_bytes(data)
    found, excluded, reading = texts_with_counts(source("*.parquet", format="parquet"), tmp_path)
    good = {f"a.parquet:{i + 1}": rows[i] for i in (*range(1_000), *range(2_000, 3_000))}
    assert found == good
    assert excluded == {"a.parquet:1001": "damaged row group"}
    assert reading.unreadable == {"damaged row group": 1_000}


def test_text_in_parquet_that_is_no_utf8_is_mended(tmp_path):
    column = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\3\0\0\0\6\0\0\0"), pa.py_buffer(b"a\xffbxyz")])
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    found, _, reading = texts(source("*.parquet", format="parquet"), tmp_path)
    assert list(found.values()) == ["a\ufffdb", "xyz"]
    assert reading.repaired["invalid UTF-8 replaced"] == 1


def test_a_large_row_group_is_read_in_little_memory(tmp_path):
    """apache/arrow-rs #7973: row groups of more than 2 GB. Memory must not grow with the row group."""
    rows = [f"{i:03}" * 40_000 for i in range(400)]
    table(tmp_path / "a.parquet", {"text": rows}, row_group_size=400, use_dictionary=False, write_batch_size=8)
    before = pa.total_allocated_bytes()
    highest = 0
    (file,) = resolve(source("*.parquet"), tmp_path)
    for number, document in enumerate(read_file(source("x", format="parquet"), file, Reading())):
        assert document.text[:3] == f"{number:03}"
        highest = max(highest, pa.total_allocated_bytes() - before)
    assert sum(map(len, rows)) > 40_000_000
    assert highest < 25_000_000


@given(st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"")), max_size=30), st.integers(1, 40), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_lines_come_whole_from_any_chunks(rows, chunk, longest):
    data = b"\n".join(rows)
    chunks = [data[i : i + chunk] for i in range(0, len(data), chunk)]
    got = list(records.lines(chunks, longest))
    want = data.split(b"\n")
    assert got == [(row[:longest], len(row) > longest) for row in want]


@given(st.lists(st.integers(0, 60), min_size=1, max_size=60), st.integers(1, 300), st.booleans())
@settings(max_examples=60, deadline=None)
def test_parts_of_a_file_give_its_documents(tmp_path_factory, sizes, size, ended):
    path = tmp_path_factory.mktemp("parts") / "a.jsonl"
    rows = [json.dumps({"text": "x" * n}) if n % 5 else ("{" if n % 2 else "") for n in sizes]
    path.write_text("\n".join(rows) + "\n" * ended)
    spec = source("*", format="jsonl")
    file = File("a.jsonl", str(path), path.stat().st_size)
    parts = split_file(spec, file, size)
    whole, apart = Reading(), Reading()
    assert [d for part in parts for d in read_file(spec, part, apart)] == list(read_file(spec, file, whole))
    assert apart == whole
    assert all(part.size <= size + 80 for part in parts)
    if file.size > 2 * (size + 80):
        assert len(parts) > 1


def test_parts_of_a_parquet_file_are_row_groups(tmp_path):
    table(tmp_path / "a.parquet", {"text": [f"row {i}" for i in range(100)]}, row_group_size=10)
    spec = source("*.parquet", format="parquet")
    (file,) = resolve(spec, tmp_path)
    parts = split_file(spec, file, 500)
    assert 1 < len(parts) <= 10
    found = [d for part in parts for d in read_file(spec, part, Reading())]
    assert [(d.id, d.text) for d in found] == [(f"a.parquet:{i + 1}", f"row {i}") for i in range(100)]
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines(1000)))
    (packed,) = resolve(source("*.gz"), tmp_path)
    assert split_file(source("*.gz", format="jsonl"), packed, 10) == [packed]


def test_a_huge_record_is_skipped_without_being_held(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MAX_RECORD", 1 << 20)
    with (tmp_path / "a.jsonl").open("wb") as stream:
        stream.write(lines(1) + b'{"text": "' + b"y" * (60 << 20) + b'"}\n' + lines(2, 1))
    tracemalloc.start()
    found, excluded, _ = texts(source("*.jsonl", format="jsonl"), tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == {"a.jsonl:1": "record 0", "a.jsonl:3": "record 1"}
    assert excluded == {"a.jsonl:2": "record too long"}
    assert peak < 20 << 20


def test_a_line_of_a_megabyte_is_one_document(tmp_path):
    """openai/tiktoken #15, #195, #245: runs without a space."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "^" * 1_000_000}) + "\n" + json.dumps({"text": "good"}))
    found, _, _ = texts(source("*.jsonl", format="jsonl"), tmp_path)
    assert list(map(len, found.values())) == [1_000_000, 4]


@pytest.mark.parametrize("body", [b"a line of words\n" * 300, b"word " * 1000, "é".encode() * 3000, b"one\n\ntwo\n\n" * 500])
def test_a_long_text_is_cut_and_nothing_lost(tmp_path, monkeypatch, body):
    monkeypatch.setattr("preheat.data.formats.LONGEST", 1000)
    monkeypatch.setattr(streams, "CHUNK", 300)
    (tmp_path / "a.txt").write_bytes(body)
    found, excluded, reading = texts(source("*.txt"), tmp_path)
    assert "".join(found.values()).encode() == body
    assert list(found) == [f"a.txt#{i + 1}" for i in range(len(found))]
    assert len(found) > 2
    assert excluded == {}
    assert reading.repaired == {"long texts cut into parts": 1}


def test_what_cannot_be_cut_is_refused_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("preheat.data.formats.LONGEST", 1000)
    (tmp_path / "a.json").write_text(json.dumps({"a": "b" * 2000}))
    assert texts(source("*.json", format="json-tree"), tmp_path)[1] == {"a.json": "file too long"}


PAGE = """<html><head><title>T</title><script>var x = "<p>no</p>";</script></head><body>
<nav><ul><li><a href="/">Home</a></li><li><a href="/about">About us</a></li></ul></nav>
<main><h1>The heading</h1><p>A first paragraph of the page, long enough to be content, with an &amp; sign and {what}.</p>
<ul><li>an item</li></ul><p>A second paragraph ends the text, and it is long enough as well to count.</p></main>
<footer>Copyright 2020 Nobody</footer></body></html>"""


def test_html_gives_its_main_text(tmp_path):
    (tmp_path / "a.html").write_text(PAGE.format(what="1 &lt; 2"))
    (tmp_path / "empty.html").write_text("<html><body><script>1</script></body></html>")
    found, excluded, _ = texts(source("*.html", format="html"), tmp_path)
    assert "A first paragraph of the page, long enough to be content, with an & sign and 1 < 2." in found["a.html"]
    assert not any(gone in found["a.html"] for gone in ("About us", "Nobody", "var x", "<p>"))
    assert excluded == {"empty.html": "empty"}


@pytest.mark.parametrize(
    ("charset", "encoded", "shown"),
    [
        ("iso-8859-1", b"caf\xe9 \x80", "caf\xe9 \u20ac"),
        ("shift_jis", "日本語".encode("shift_jis"), "日本語"),
        ("utf-8", "日本".encode(), "日本"),
    ],
)
def test_html_in_the_encoding_that_it_names(tmp_path, charset, encoded, shown):
    page = PAGE.replace("<head>", f'<head><meta charset="{charset}">').format(what="WHAT").encode().replace(b"WHAT", encoded)
    (tmp_path / "a.html").write_bytes(page)
    assert shown in texts(source("*.html", format="html"), tmp_path)[0]["a.html"]


@pytest.mark.parametrize("charset", ["hex", "rot13", "no-such", "idna", "unicode_escape", "undefined", "utf-7", "punycode"])
def test_a_codec_that_is_no_encoding_is_not_used(charset):
    page = b'<meta charset="%s">\xff\\d' % charset.encode()
    assert pages.to_utf8(page) == page


def test_a_page_that_never_ends_costs_itself(tmp_path, monkeypatch):
    """adbar/trafilatura #704, huggingface/datatrove #75 and #326: the parser takes minutes for a deep page."""
    pages.stop()
    monkeypatch.setattr(pages, "SECONDS", 0.5)
    (tmp_path / "a.html").write_text("<body>" + "<div>" * 40_000 + "deep")
    (tmp_path / "b.html").write_text(PAGE.format(what="more"))
    start = time.monotonic()
    found, excluded, _ = texts(source("*.html", format="html"), tmp_path)
    assert list(found) == ["b.html"]
    assert excluded == {"a.html": "page cannot be parsed"}
    assert time.monotonic() - start < 60
    pages.stop()


def test_the_parser_ends_with_its_caller(tmp_path):
    script = "from preheat.data.formats import pages; print(pages.main_text('<p>x</p>'), pages._worker.pid)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True)
    pid = int(done.stdout.split()[-1])
    assert done.stderr == ""
    with pytest.raises(ProcessLookupError):
        __import__("os").kill(pid, 0)


def test_addresses_of_other_file_systems(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe({"/corpus/a/1.jsonl": lines(2), "/corpus/b/2.jsonl.gz": gzip.compress(lines(1)), "/corpus/b/skip.txt": b"x"})
    try:
        spec = source("memory://corpus/*/*.jsonl*", format="jsonl", exclude=["memory://corpus/b/no*"])
        files = resolve(spec, tmp_path)
        assert [(f.id, f.path, f.size) for f in files] == [
            ("a/1.jsonl", "memory:///corpus/a/1.jsonl", len(lines(2))),
            ("b/2.jsonl.gz", "memory:///corpus/b/2.jsonl.gz", files[1].size),
        ]
        assert list(texts(spec, tmp_path)[0]) == ["a/1.jsonl:1", "a/1.jsonl:2", "b/2.jsonl.gz:1"]
        with open_file(files[0]) as stream:
            assert stream.read() == lines(2)
        parts = split_file(spec, files[0], 20)
        assert [d.id for part in parts for d in read_file(spec, part, Reading())] == ["a/1.jsonl:1", "a/1.jsonl:2"]
    finally:
        memory.rm("/corpus", recursive=True)


@pytest.mark.parametrize("path", ["nosuch://bucket/*.jsonl", "memory://nothing/*.jsonl"])
def test_addresses_that_lead_nowhere_are_refused(tmp_path, path):
    with pytest.raises(PreheatError, match=r"nosuch|no file matches"):
        resolve(source(path), tmp_path)


def test_an_address_inside_of_an_archive_names_the_archive(tmp_path):
    """fsspec lists the members under names that it cannot open again."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x.jsonl", lines(2))
    with pytest.raises(PreheatError, match=rf"leads into an archive. Name the archive, its files are read: file://{tmp_path}/a\.zip"):
        resolve(source(f"zip://*.jsonl::file://{tmp_path}/a.zip"), tmp_path)
    for address in (f"file://{tmp_path}/a.zip", f"simplecache::file://{tmp_path}/a.zip"):
        assert list(texts(source(address, format="jsonl"), tmp_path)[0]) == ["a.zip/x.jsonl:1", "a.zip/x.jsonl:2"]


def test_a_share_of_unreadable_documents_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines(8) + b"{\n[]\n\n" + b'{"text": ""}\n')
    spec = source("*.jsonl", format="jsonl")
    *_, reading = texts(spec, tmp_path)
    assert (reading.documents, reading.unreadable.total()) == (11, 2)
    refuse_unreadable(spec, reading, "")
    strict = spec.model_copy(update={"max_unreadable": Quantity.parse("10%")})
    with pytest.raises(PreheatError, match=r"source s: 2 of 11 documents cannot be read.*at most 10%"):
        refuse_unreadable(strict, reading, "mixed.jsonl:2: broken JSON")


def test_scores_come_with_their_documents(tmp_path):
    rows = [{"text": "a", "score": 2.5}, {"text": "b", "score": 3}, {"text": "c"}, {"text": "d", "score": True}]
    rows += [{"text": "e", "score": value} for value in (float("nan"), float("inf"), 10**400, -(10**4000), "3", [3])]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    table(tmp_path / "a.parquet", {"text": ["a", "b", "c"], "score": [2.5, 3.0, None]})
    for form in ("jsonl", "parquet"):
        spec = source(f"*.{form}", format=form, quality=Quality(field="score", at_least=0))
        reading = Reading()
        assert [(d.text, d.score) for d in read(spec, tmp_path, reading)] == [("a", 2.5), ("b", 3.0)]
        assert set(reading.unreadable) == {"field 'score' is no number"}
        assert reading.documents == (10 if form == "jsonl" else 3)


def _archives():
    rows, zipped, tarred = lines(200), io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.jsonl", rows)
        archive.writestr("b.jsonl", rows)
    with tarfile.open(fileobj=tarred, mode="w") as archive:
        entry = tarfile.TarInfo("é" * 80 + ".jsonl")
        entry.size = len(rows)
        archive.addfile(entry, io.BytesIO(rows))
    whole = {".jsonl": rows, ".zip": zipped.getvalue(), ".tar": tarred.getvalue(), ".tgz": gzip.compress(tarred.getvalue())}
    return whole | {f".jsonl{suffix}": pack(rows) + pack(rows) for suffix, pack in PACKERS.items()}


@pytest.mark.parametrize("suffix", _archives())
def test_no_damage_to_bytes_stops_reading(tmp_path, suffix):
    """Cut, overwritten, inserted and doubled pieces: fewer documents and a record of it, never an exception."""
    chance = random.Random(1)
    whole = _archives()[suffix]
    for number in range(60):
        data, place = bytearray(whole), chance.randrange(len(whole))
        if number % 4 == 0:
            del data[place:]
        elif number % 4 == 1:
            data[place : place + 50] = chance.randbytes(50)
        elif number % 4 == 2:
            data[place:place] = whole[chance.randrange(len(whole)) :][:500]
        else:
            for _ in range(10):
                data[chance.randrange(len(data))] = chance.randrange(256)
        path = tmp_path / f"{number}{suffix}"
        path.write_bytes(data)
        reading = Reading()
        found = list(read_file(source("x", format="jsonl"), File(path.name, str(path), len(data)), reading))
        assert reading.documents == len(found) + len(reading.excluded)

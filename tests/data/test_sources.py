"""Paths and formats of sources, and the nasty inputs that cost other tools documents, files or runs."""

import glob
import gzip
import json
import os
import sysconfig
from pathlib import Path

import pytest

from preheat.data import Reading, globs, read
from preheat.data.sources import resolve
from preheat.errors import PreheatError
from preheat.recipe import Source


def source(*paths, **fields):
    return Source(name="s", paths=list(paths), **fields)


def texts(spec, folder):
    reading = Reading()
    documents = list(read(spec, folder, reading))
    assert reading.documents == len(documents) + len(reading.excluded)
    return {d.id: d.text for d in documents}, reading


def reasons(reading):
    return {e.id: e.reason for e in reading.excluded}


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


def test_globs_ids_and_order(tmp_path):
    for name in ("b/2.txt", "a.txt", "b/c/1.txt", "b/skip/3.txt", "b/x.md"):
        put(tmp_path / name, name)
    found, _ = texts(source("**/*.txt", "a.*", exclude=["b/skip/*"]), tmp_path)
    assert list(found.items()) == [("a.txt", "a.txt"), ("b/2.txt", "b/2.txt"), ("b/c/1.txt", "b/c/1.txt")]
    absolute, _ = texts(source(f"{tmp_path}/b/*/*.txt", exclude=[f"{tmp_path}/**/skip/**"]), Path("/"))
    assert list(absolute) == ["c/1.txt"]


def test_links_are_followed_once_and_never_in_a_circle(tmp_path):
    """Two links from a folder to itself are 2^40 paths for `glob`."""
    put(tmp_path / "data/real/a.txt", "a")
    put(tmp_path / "elsewhere/b.txt", "b")
    for name, target in (("one", "."), ("real/two", ".."), ("another", "real"), ("far", "../elsewhere"), ("real/copy.txt", "a.txt")):
        (tmp_path / "data" / name).symlink_to(target)
    for pattern in ("data/**/*.txt", "**/*.txt", f"{tmp_path}/data/**"):
        found, _ = texts(source(pattern), tmp_path)
        assert sorted(found.values()) == ["a", "b"]
    found, _ = texts(source("data/**/*.txt"), tmp_path)
    assert list(found) == ["data/far/b.txt", "data/real/a.txt"]
    assert list(texts(source("data/*/*.txt", "data/real/../real/*"), tmp_path)[0]) == ["data/another/a.txt", "data/far/b.txt"]


def test_what_matches_and_is_no_file_is_on_record(tmp_path):
    """A link to nowhere, and a pipe, which nobody ever writes into."""
    put(tmp_path / "a.txt", "a")
    (tmp_path / "b.txt").symlink_to("nowhere")
    os.mkfifo(tmp_path / "c.txt")
    found, reading = texts(source("*.txt"), tmp_path)
    assert found == {"a.txt": "a"}
    assert {e.id: (e.reason, e.detail) for e in reading.excluded} == {
        "b.txt": ("cannot be read", "No such file or directory"),
        "c.txt": ("cannot be read", "it is no regular file"),
    }


def test_links_that_lead_to_each_other_cost_themselves(tmp_path):
    put(tmp_path / "data/a.txt", "a")
    (tmp_path / "data/one.txt").symlink_to("two.txt")
    (tmp_path / "data/two.txt").symlink_to("one.txt")
    for pattern in ("data/*.txt", "data/**", "**/*.txt"):
        found, reading = texts(source(pattern), tmp_path)
        assert list(found.values()) == ["a"]
        assert sorted((e.id.rpartition("/")[2], e.reason, e.detail) for e in reading.excluded) == [
            (name, "cannot be read", "Too many levels of symbolic links") for name in ("one.txt", "two.txt")
        ]


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path, monkeypatch):
    put(tmp_path / "data/a.txt", "a")

    def denied(place):
        raise PermissionError(13, "Permission denied", str(place))

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(PreheatError, match=r"data: the folder cannot be listed: Permission denied"):
        resolve(source("data/**/*.txt"), tmp_path)


@pytest.mark.parametrize("pattern", ["*.txt", "**/*.txt", "b/**", "b/**/c/*.txt", "**/c/**/*.txt", "[ab]/**/?.txt", "b/c/1.txt", "**/.x/*"])
def test_globs_are_those_of_glob(tmp_path, pattern):
    for name in ("a.txt", "a/1.txt", "b/2.txt", "b/c/1.txt", "b/c/d/c/3.txt", "b/.hidden/4.txt", ".x/5.txt", "b/.6.txt"):
        put(tmp_path / name, name)
    expected = {name for name in glob.glob(pattern, root_dir=tmp_path, recursive=True) if (tmp_path / name).is_file()}  # noqa: PTH207
    assert {name for name in globs.names(str(tmp_path), pattern) if (tmp_path / name).is_file()} == expected
    wanted = globs.expression(pattern)
    assert {name for name in expected if wanted.fullmatch(name)} == expected


def test_ids_do_not_name_the_machine(tmp_path):
    spec = source("stdlib:json/*.py", "stdlib:json/__init__.py", "package:rich/_null_file.py")
    names = ["__init__", "decoder", "encoder", "scanner", "tool"]
    assert [f.id for f in resolve(spec, tmp_path)] == [*(f"json/{name}.py" for name in names), "rich/_null_file.py"]


def test_exclude_takes_the_same_forms(tmp_path):
    spec = source("stdlib:json/*.py", "package:pydantic/v1/*.py", exclude=["stdlib:**/tool.py", "package:*/**/[!_]*.py", "*.txt"])
    assert {f.id for f in resolve(spec, tmp_path)} == {
        "json/__init__.py",
        "json/decoder.py",
        "json/encoder.py",
        "json/scanner.py",
        "pydantic/v1/__init__.py",
        "pydantic/v1/_hypothesis_plugin.py",
    }


def test_a_package_is_not_imported(tmp_path, monkeypatch):
    put(tmp_path / "boom_package/__init__.py", "raise RuntimeError('imported')")
    put(tmp_path / "boom_package/data/x.txt", "text")
    monkeypatch.syspath_prepend(str(tmp_path))
    found, _ = texts(source("package:boom_package/data/*.txt"), tmp_path)
    assert found == {"boom_package/data/x.txt": "text"}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nothing/*.txt", r"'nothing/\*.txt'.*relative paths start at"),
        ("package:no_such_package/*.txt", "pip install --no-deps no-such-package"),
        ("package:../etc/passwd", "no name of a Python package"),
        ("package:json.decoder/*", "no name of a Python package"),
        ("stdlib:no_such_module/*.py", "no file matches"),
        ("/no/such/folder/*.txt", "no file matches"),
    ],
)
def test_a_glob_without_a_file_is_refused(tmp_path, path, message):
    with pytest.raises(PreheatError, match=message):
        resolve(source(path), tmp_path)


@pytest.mark.parametrize("path", ["x" * 5000, "x/" * 3000, "[", "\0", ""])
def test_a_path_that_no_file_can_have_is_refused(tmp_path, path):
    with pytest.raises(PreheatError, match="no file matches"):
        resolve(source(path), tmp_path)


@pytest.mark.parametrize("path", ["data", "data/", "./data"])
def test_a_folder_in_place_of_its_files_is_named(tmp_path, path):
    put(tmp_path / "data/a.txt", "a")
    with pytest.raises(PreheatError, match=r"no file matches .*; it is a folder. Name its files: .*data/\*\*"):
        resolve(source(path), tmp_path)
    with pytest.raises(PreheatError, match=rf"the folder of the recipe, {tmp_path}\. Correct"):
        resolve(source("nothing*"), tmp_path)


def test_excluding_everything_is_refused(tmp_path):
    put(tmp_path / "a.txt", "a")
    with pytest.raises(PreheatError, match="leaves no file"):
        resolve(source("*.txt", exclude=["**"]), tmp_path)


def test_a_folder_that_matches_is_no_file(tmp_path):
    put(tmp_path / "a.txt/inner.txt", "inner")
    with pytest.raises(PreheatError, match="no file matches"):
        resolve(source("*.txt"), tmp_path)


def test_text_repairs_are_made_and_counted(tmp_path):
    put(tmp_path / "bom.txt", b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    put(tmp_path / "bad.txt", b"good " * 20 + b"caf\xe9 \x00\x07\x1b end\ttab\n")
    put(tmp_path / "empty.txt", b"")
    put(tmp_path / "blank.txt", b" \n\t\r\n")
    put(tmp_path / "picture.txt", bytes(range(256)) * 20)
    put(tmp_path / "utf16.txt", "Ein Text".encode("utf-16"))
    found, reading = texts(source("*.txt"), tmp_path)
    assert found == {"bom.txt": "one\ntwo\nthree\n", "bad.txt": "good " * 20 + "caf\ufffd  end\ttab\n"}
    assert reasons(reading) == {"empty.txt": "empty", "blank.txt": "empty", "picture.txt": "no UTF-8 text", "utf16.txt": "no UTF-8 text"}
    assert reading.repaired["byte-order mark removed"] == 1
    assert reading.repaired["invalid UTF-8 replaced"] == 1
    assert reading.repaired["control characters removed"] == 3
    assert reading.repaired["carriage returns made line feeds"] == 2
    assert reading.bytes == sum(p.stat().st_size for p in tmp_path.iterdir())


def test_one_bad_byte_costs_one_character(tmp_path):
    put(tmp_path / "a.jsonl", b'{"text": "first"}\n{"text": "caf\xe9"}\n{"text": "last"}\n')
    found, reading = texts(source("*.jsonl", format="jsonl"), tmp_path)
    assert found == {"a.jsonl:1": "first", "a.jsonl:2": "caf\ufffd", "a.jsonl:3": "last"}
    assert reading.repaired == {"invalid UTF-8 replaced": 1}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("text", ["plain ASCII words " * 9, "我们认为下面这些真理是不言而喻的" * 9, "Мы исходим из той истины " * 9])
def test_records_in_another_encoding_are_no_text(tmp_path, encoding, text):
    """Without its zeros UTF-16 is UTF-8 where it is ASCII, and rubbish elsewhere."""
    put(tmp_path / "a.jsonl", "\n".join(json.dumps({"text": text}, ensure_ascii=False) for _ in range(4)).encode(encoding))
    put(tmp_path / "b.jsonl", '{"text": "good"}\n{"text": "raw\x00zero"}\n')
    found, reading = texts(source("*.jsonl", format="jsonl"), tmp_path)
    assert found == {"b.jsonl:1": "good", "b.jsonl:2": "rawzero"}
    assert {e.reason for e in reading.excluded} <= {"no UTF-8 text", "broken JSON"}
    assert "no UTF-8 text" in reasons(reading).values()


def test_jsonl_keeps_every_good_record(tmp_path):
    lines = [
        b'\xef\xbb\xbf{"text": "first"}\r',
        b"",
        b'{"text": "broken"',
        b'"context"',
        b"[1]",
        b"42",
        b"null",
        b'{"other": 1}',
        b'{"text": null}',
        b'{"text": 7}',
        b'{"text": "  "}',
        b'{"text": "\\ud83d lone"}',
        b'{"text": "nul \\u0000 and \x00 raw", "id": 3, "score": NaN, "big": ' + b"9" * 5000 + b"}",
        b'{"text": "nul \\u0000 and \x00 raw\\r\\nnext", "id": 3, "score": NaN}',
        b"[" * 100_000,
        b'{"text": "a", "text": "last key wins"}',
        b'{"text": "cut off',
    ]
    put(tmp_path / "a.jsonl", b"\n".join(lines))
    found, reading = texts(source("*.jsonl", format="jsonl"), tmp_path)
    assert found == {
        "a.jsonl:1": "first",
        "a.jsonl:12": "\ufffd lone",
        "a.jsonl:13": "nul  and  raw",
        "a.jsonl:14": "nul  and  raw\nnext",
        "a.jsonl:16": "last key wins",
    }
    broken, foreign = "broken JSON", "no JSON object"
    assert reasons(reading) == {
        "a.jsonl:3": broken,
        "a.jsonl:4": foreign,
        "a.jsonl:5": foreign,
        "a.jsonl:6": foreign,
        "a.jsonl:7": foreign,
        "a.jsonl:8": "no field 'text'",
        "a.jsonl:9": "no field 'text'",
        "a.jsonl:10": "field 'text' is no text",
        "a.jsonl:11": "empty",
        "a.jsonl:15": broken,
        "a.jsonl:17": broken,
    }
    assert reading.repaired["lone surrogates replaced"] == 1
    assert next(e for e in reading.excluded if e.id == "a.jsonl:15").head == "[" * 200


def test_jsonl_gz_is_read_up_to_the_damage(tmp_path):
    rows = [{"body": f"record {i} {i * 7919**3 % 104729}"} for i in range(20_000)]
    data = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    put(tmp_path / "whole.jsonl.gz", data)
    put(tmp_path / "cut.jsonl.gz", data[: len(data) // 2])
    put(tmp_path / "empty.jsonl.gz", gzip.compress(b""))
    put(tmp_path / "zero.jsonl.gz", b"")
    put(tmp_path / "fake.jsonl.gz", b"no gzip at all")
    found, reading = texts(source("*.jsonl.gz", format="jsonl", text_field="body"), tmp_path)
    cut = [text for id, text in found.items() if id.startswith("cut")]
    assert 5_000 < len(cut) < 15_000
    assert cut == [row["body"] for row in rows[: len(cut)]]
    assert sum(id.startswith("whole") for id in found) == 20_000
    assert reasons(reading) == {"cut.jsonl.gz": "damaged file", "fake.jsonl.gz": "damaged file"}


def test_files_without_documents_are_fine(tmp_path):
    put(tmp_path / "a.jsonl", b"")
    put(tmp_path / "b.jsonl", b"\n\n\n")
    put(tmp_path / "c.jsonl", b'{"text": "x"}')
    assert texts(source("*.jsonl", format="jsonl"), tmp_path)[0] == {"c.jsonl:1": "x"}


def test_docstrings_are_named_dedented_and_keep_examples(tmp_path):
    code = '''
"""The module."""
import os

class Ring(object):
    """
    A ring.

        >>> Ring(2) + 1
        3
    """
    def add(self):
        r"""Adds \\alpha."""
        def inner():
            "Deep."
    async def later(self): "Later."

def plain(): return "no docstring"
''' + "\n".join(f'def f{i}():\n    """Function number {i} of many."""\n' for i in range(20))
    put(tmp_path / "pkg/mod.py", code)
    put(tmp_path / "pkg/short.py", '"""Short."""')
    put(tmp_path / "pkg/python2.py", 'print "x"\n')
    put(tmp_path / "pkg/deep.py", "(" * 5000 + ")" * 5000)
    put(tmp_path / "pkg/escape.py", '"""Bad \\d escape. """\n' + 'def f():\n    """\\x00\\ud800 ' + "long " * 100 + '"""\n')
    found, reading = texts(source("**/*.py", format="python-docstrings"), tmp_path)
    assert found["pkg/mod.py"].startswith(
        "pkg.mod\n\nThe module.\n\npkg.mod.Ring\n\nA ring.\n\n    >>> Ring(2) + 1\n    3\n\npkg.mod.Ring.add\n\nAdds \\alpha.\n\n"
        "pkg.mod.Ring.add.inner\n\nDeep.\n\npkg.mod.Ring.later\n\nLater.\n\npkg.mod.f0\n\nFunction number 0 of many.\n\n"
    )
    assert "\nBad \\d escape." in found["pkg/escape.py"]
    assert "\x00" not in found["pkg/escape.py"]
    assert reasons(reading) == {"pkg/short.py": "few docstrings", "pkg/python2.py": "no valid Python", "pkg/deep.py": "no valid Python"}


def test_json_tree_reads_like_a_page(tmp_path):
    tree = {
        "Geography": {
            "Location": {"text": "Western&nbsp;Europe"},
            "Area": {"total ": {"text": "2,586 sq km"}, "land": {"text": "2,586 sq km"}},
            "Land use: forest": {"text": "forest: 34% (2023)"},
            "Ethnic groups": {"text": "mixed", "note": "<strong>note:</strong> by <em>census</em>"},
            "Parties": {"text": "<p>Greens</p><p>Reds &amp; Blues</p>"},
            "Nothing": {"text": ""},
        },
        "Energy": {"Coal": {"text": "x < 3 &lt; 5<br>more"}, "Count": 3, "Exact": True, "Gone": None, "Kinds": ["oil", "gas"]},
    }
    put(tmp_path / "a.json", json.dumps(tree))
    put(tmp_path / "broken.json", '{"a": ')
    put(tmp_path / "deep.json", "[" * 100_000)
    found, reading = texts(source("*.json", format="json-tree"), tmp_path)
    assert found == {
        "a.json": """\
# Geography

Location: Western Europe
Area:
  total: 2,586 sq km
  land: 2,586 sq km
Land use: forest: 34% (2023)
Ethnic groups: mixed
  note: by census
Parties: Greens
  Reds & Blues

# Energy

Coal: x < 3 < 5
  more
Count: 3
Exact: true
Kinds:
- oil
- gas"""
    }
    assert reasons(reading) == {"broken.json": "broken JSON", "deep.json": "broken JSON"}


def test_a_number_in_a_json_tree_has_any_length(tmp_path):
    digits = "9" * 5000
    put(tmp_path / "a.json", f'{{"Area": 17, "Digits": {digits}, "Depth": -3.5, "Island": true}}')
    found, _ = texts(source("a.json", format="json-tree"), tmp_path)
    assert found == {"a.json": f"Area: 17\nDigits: {digits}\nDepth: -3.5\nIsland: true"}


def test_stdlib_root_is_that_of_this_python(tmp_path):
    file = next(f for f in resolve(source("stdlib:abc.py"), tmp_path))
    assert Path(file.path) == Path(sysconfig.get_path("stdlib")) / "abc.py"

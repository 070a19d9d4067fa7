"""Inputs that broke other programs, each through the whole preparation: the good documents around a bad one come out, and every document
that was read is either in the training data, held out, or in the exclusions. The public reports are named beside each case.
"""

import codecs
import gzip
import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preheat import recipe
from preheat.data import IndexedDataset, Tokenizer, prepare

SYLLABLES = [a + b for a in "bcdfglmnprst" for b in ("a", "e", "i", "o", "u", "an", "er")]


def speech(seed, words=60):
    """Text that cleaning leaves as it is."""
    chance = random.Random(seed)
    said = [
        " ".join("".join(chance.choices(SYLLABLES, k=chance.randint(1, 3))) for _ in range(10)).capitalize() for _ in range(words // 10)
    ]
    return ". ".join(said) + ".\n"


GOOD = [speech(seed) for seed in range(12)]


def records(*values):
    return [json.dumps({"text": value}).encode() for value in values]


def prepared(folder, source, **fields):
    """What one source gives: label -> text as training sees it, the exclusions, the manifest's entry. A second source keeps it company."""
    (folder / "company.jsonl").write_bytes(b"\n".join(records(*(speech(1000 + seed) for seed in range(30)))))
    company = {"name": "company", "paths": ["company.jsonl"], "format": "jsonl"}
    own = {"name": "own", "policy": "reference", "max_unreadable": "100%"} | source
    spec = recipe.Data.model_validate({"source": [own, company], "held_out": "0%"} | fields)
    out = folder / "out"
    manifest = prepare(spec, recipe.Tokenizer(kind="train-bpe"), 300, folder=folder, out=out, progress=lambda line: None, workers=1)
    assert_everything_is_accounted_for(out, manifest)
    tokenizer, dataset = Tokenizer.load(out), IndexedDataset(out / "own_train")
    rows = [row for row in lines(out / "documents.jsonl") if row["source"] == "own"]
    texts = [tokenizer.decode(dataset.document(number)[:-1]) for number in range(len(dataset))]
    found = [(row["id"], text) for row, text in zip(rows, texts, strict=True)]
    return found, [row for row in lines(out / "exclusions.jsonl") if row["source"] == "own"], manifest.source("own")


def lines(path):
    with path.open(encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def assert_everything_is_accounted_for(out, manifest):
    """Documents read = documents kept + documents excluded, in each source, and each of them is on record."""
    kept, gone = lines(out / "documents.jsonl"), lines(out / "exclusions.jsonl")
    for source in manifest.sources:
        own = [row for row in gone if row["source"] == source.name and row["step"] != "edit"]
        sides = (source.train, source.held_out)
        assert source.funnel.documents == source.funnel.kept + sum(row["count"] for row in own)
        assert source.funnel.kept == sum(side.documents for side in sides) == sum(row["source"] == source.name for row in kept)
        counted = {}
        for row in own:
            reasons = counted.setdefault(row["step"], {})
            reasons[row["reason"]] = reasons.get(row["reason"], 0) + row["count"]
        assert counted == source.funnel.dropped
        for name, side in zip(("train", "held_out"), sides, strict=True):
            of_side = [row for row in kept if (row["source"], row["split"]) == (source.name, name)]
            dataset = IndexedDataset(out / side.prefix)
            assert [row["tokens"] for row in of_side] == [len(dataset.document(number)) for number in range(len(dataset))]
            assert sum(row["bytes"] for row in of_side) == side.bytes


def texts(found):
    return [text for _, text in found]


def reasons(gone):
    return [(row["id"], row["reason"]) for row in gone if row["step"] != "edit"]


JSONL = {"paths": ["own.jsonl*"], "format": "jsonl"}
LEFT, RIGHT = records(GOOD[0], GOOD[1])


@pytest.mark.parametrize(
    ("content", "wanted", "excluded"),
    [
        pytest.param(
            [*records("", "   \n\t "), LEFT],
            [GOOD[0]],
            [("own.jsonl:1", "empty"), ("own.jsonl:2", "empty")],
            id="1: NVIDIA/Megatron-LM #62, an empty first document",
        ),
        pytest.param(
            [LEFT, b'{"text": "brok', RIGHT, b'{"text": "cut off'],
            GOOD[:2],
            [("own.jsonl:2", "broken JSON"), ("own.jsonl:4", "broken JSON")],
            id="2: huggingface/datatrove PR #78, a broken and a cut line",
        ),
        pytest.param(
            [LEFT, b'"context"', b"[1]", b"42", b"null", RIGHT],
            GOOD[:2],
            [(f"own.jsonl:{n}", "no JSON object") for n in range(2, 6)],
            id="4: unslothai/unsloth PR #7195, JSON that is no object",
        ),
        pytest.param(
            [codecs.BOM_UTF8 + LEFT + b"\r", RIGHT + b"\r", *records(GOOD[2].replace(" ", "\r\n", 1))],
            [*GOOD[:2], GOOD[2].replace(" ", "\n", 1)],
            [],
            id="9: huggingface/datasets #8241, a byte-order mark and CRLF",
        ),
        pytest.param(
            [b'{"text": "\\ud83d ' + GOOD[0].strip().encode() + b'"}', RIGHT],
            ["\ufffd " + GOOD[0], GOOD[1]],
            [],
            id="10: openai/tiktoken #82, a lone surrogate",
        ),
        pytest.param(
            [b'{"text": "\\u0000\\u0007' + GOOD[0].strip().encode() + b'"}', RIGHT.replace(b'"text": "', b'"text": "\x00\x1b')],
            GOOD[:2],
            [],
            id="11: google/sentencepiece #156, control characters",
        ),
        pytest.param(
            [LEFT, RIGHT.replace(b'"text": "', b'"text": "\xff')],
            [GOOD[0], "\ufffd" + GOOD[1]],
            [],
            id="12: jingyaogong/minimind #551, one invalid byte",
        ),
        pytest.param(
            [LEFT, *records("^" * 1_000_000, "a" * 200_000, " " * 1_000_000), RIGHT],
            GOOD[:2],
            [("own.jsonl:2", "few letters"), ("own.jsonl:3", "long run without a break"), ("own.jsonl:4", "empty")],
            id="13: openai/tiktoken #195, a megabyte without a break",
        ),
        pytest.param(
            records(*(text.replace(". ", f". {end} ") for text, end in zip(GOOD, ("<|endoftext|>", "</s>", "<|im_end|>"), strict=False))),
            [text.replace(". ", f". {end} ") for text, end in zip(GOOD, ("<|endoftext|>", "</s>", "<|im_end|>"), strict=False)],
            [],
            id="14: hiyouga/LlamaFactory #370, the text of special tokens",
        ),
        pytest.param(
            [
                json.dumps({"id": "x", "text": GOOD[0]}).encode(),
                json.dumps({"id": "x", "text": GOOD[1]}).encode(),
                json.dumps({"id": 7, "text": GOOD[2]}).encode(),
                b'{"id": "x", "text": null}',
                b'{"id": "x"}',
            ],
            GOOD[:3],
            [("own.jsonl:4", "no field 'text'"), ("own.jsonl:5", "no field 'text'")],
            id="15: NVIDIA-NeMo/Curator #1229, ids of any kind",
        ),
        pytest.param(
            [LEFT, *records(*["Cat sat here today."] * 2, "Dog ran there at once.", "Cow ate hay.")],
            [GOOD[0], "Cat sat here today.\n", "Dog ran there at once.\n", "Cow ate hay.\n"],
            [("own.jsonl:3", "same text")],
            id="OpenDCAI/DataFlow PR #526, documents shorter than the n-gram",
        ),
        pytest.param(
            [
                b'{"score": NaN, "text": ' + json.dumps(GOOD[0]).encode() + b"}",
                b'{"text": "no", "text": ' + json.dumps(GOOD[1]).encode() + b"}",
                b'{"n": ' + b"9" * 5000 + b', "text": ' + json.dumps(GOOD[2]).encode() + b"}",
                b"[" * 100_000,
            ],
            GOOD[:3],
            [("own.jsonl:4", "broken JSON")],
            id="NaN, a repeated key, a long integer, a deep nest",
        ),
    ],
)
def test_lines(tmp_path, content, wanted, excluded):
    (tmp_path / "own.jsonl").write_bytes(b"\n".join(content))
    found, gone, _ = prepared(tmp_path, JSONL | {"thresholds": {"length.min_characters": 5}})
    assert texts(found) == wanted
    assert sorted(reasons(gone)) == excluded


def test_files_without_documents(tmp_path):
    """Case 5, allenai/dolma #225: an empty file cannot be mapped; of the shard that it gives nothing is expected."""
    for name, content in (("0", b""), ("1", b"\n\n \n"), ("2.gz", gzip.compress(b"")), ("3", b"\n".join([LEFT, RIGHT]))):
        (tmp_path / f"own.jsonl{name}").write_bytes(content)
    found, gone, _ = prepared(tmp_path, {"paths": ["own.jsonl*"], "format": "jsonl"})
    assert texts(found) == GOOD[:2]
    assert gone == []


def test_a_truncated_archive(tmp_path):
    """Case 6, huggingface/datatrove PR #78: what can be read is kept."""
    whole = gzip.compress(b"\n".join(records(*GOOD)), compresslevel=0)
    (tmp_path / "own.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    found, gone, _ = prepared(tmp_path, JSONL)
    assert texts(found) == GOOD[: len(found)]
    assert len(found) in (5, 6)
    assert [reason for _, reason in reasons(gone)] == ["broken JSON", "damaged file"][-len(gone) :]


def test_no_id_is_cut_to_fit(tmp_path):
    """huggingface/datatrove #118, case D22: ids of a vocabulary of more than 65,535 entries take 32 bits, and come back as they were."""
    (tmp_path / "own.jsonl").write_bytes(b"\n".join(records(*GOOD)))
    prepared(tmp_path, JSONL)
    tree = json.loads((tmp_path / "out/tokenizer.json").read_text())
    renumbered = {name: number + 70_000 if number > 250 else number for name, number in tree["model"]["vocab"].items()}
    tree["model"]["vocab"] = renumbered
    (tmp_path / "large.json").write_text(json.dumps(tree))
    spec = recipe.Data.model_validate({"source": [{"name": "own", "policy": "reference"} | JSONL], "held_out": "0%"})
    chosen = recipe.Tokenizer(kind="file", path="large.json")
    prepare(spec, chosen, 128_256, folder=tmp_path, out=tmp_path / "wide", progress=lambda line: None)
    dataset, tokenizer = IndexedDataset(tmp_path / "wide/own_train"), Tokenizer.load(tmp_path / "wide")
    assert dataset.tokens.dtype == "<i4"
    assert dataset.tokens.max() > 70_000
    assert dataset.tokens.min() >= 0
    assert sorted(tokenizer.decode(dataset.document(number)[:-1]) for number in range(12)) == sorted(GOOD)


ROWS = st.one_of(
    st.integers(0, 15).map(lambda seed: records(speech(seed))[0]),
    st.integers(0, 15).map(lambda seed: records(speech(seed).upper())[0]),
    st.integers(0, 15).map(lambda seed: records(speech(seed) + " Indeed.")[0]),
    st.sampled_from(
        [b"", b"{", b"[]", b"null", b'{"text": 1}', b'{"text": " "}', b'{"text": "Short."}', b"\xff\xfe", b'{"text": "\\ud800"}']
    ),
    st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")),
)


@given(st.lists(ROWS, max_size=25), st.integers(1, 4), st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_document_is_kept_or_excluded(tmp_path_factory, rows, files, near):
    """Whatever the records are and however they are spread over files."""
    folder = tmp_path_factory.mktemp("rows")
    for number in range(files):
        (folder / f"own{number}.jsonl").write_bytes(b"\n".join(rows[number::files]))
    # One that always stays: a source of which nothing is left is refused.
    (folder / "own9.jsonl").write_bytes(records(speech(99))[0])
    found, _, _ = prepared(folder, {"paths": ["own*.jsonl"], "format": "jsonl"}, dedup={"near": near})
    assert len(texts(found)) == len({" ".join(text.lower().split()) for text in texts(found)})

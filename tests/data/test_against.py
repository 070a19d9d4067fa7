"""Documents that an earlier preparation kept stay out of a later one."""

import json
import random
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preheat import recipe
from preheat.data import Manifest, indexed, prepare
from preheat.data.pipeline import plan
from preheat.data.verify import verify
from preheat.errors import PreheatError

BPE = recipe.Tokenizer(kind="train-bpe")


def words(seed, count):
    """Words that no other seed has."""
    generator = random.Random(seed)
    return ["".join(generator.choices("abcdefghiklmnoprstuvwy", k=7)) for _ in range(count)]


def write(folder, documents):
    """A file of JSON lines a source; each document a list of words."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, texts in documents.items():
        rows = [json.dumps({"text": " ".join(text)}) for text in texts]
        (folder / f"{name}.jsonl").write_text("\n".join(rows))


def run(folder, out, sources, tokenizer=BPE, vocab_size=280, workers=1, **dedup):
    rows = [{"name": name, "paths": [f"{name}.jsonl"], "format": "jsonl", "policy": "reference"} for name in sources]
    data = recipe.Data.model_validate({"source": rows, "held_out": "20%", "dedup": dedup})
    said = []
    manifest = prepare(data, tokenizer, vocab_size, folder=folder, out=folder / out, progress=said.append, workers=workers)
    return manifest, "\n".join(said)


def kept(out, source):
    """Which lines of a source stayed."""
    rows = [json.loads(line) for line in (out / "documents.jsonl").read_text().splitlines()]
    return {int(row["id"].rpartition(":")[2]) for row in rows if row["source"] == source}


def gone(out):
    return {
        row["id"]: (row["step"], row["reason"], row["detail"])
        for row in map(json.loads, (out / "exclusions.jsonl").read_text().splitlines())
    }


OLD = [words(seed, 120) for seed in range(6)]


def edited(text, length, changes, seed):
    """The first words of a text, some of them replaced."""
    generator, out = random.Random(seed), list(text[:length])
    for place in generator.sample(range(length), changes):
        out[place] = f"changed{place}"
    return out


MEMBERS = st.tuples(st.integers(0, 8), st.integers(60, 110), st.integers(0, 12), st.integers(0, 9))
"""Of which text (the last three are none of the old ones), how long, how many words changed, and how."""


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(MEMBERS, min_size=1, max_size=10), st.integers(0, 5))
def test_as_preparing_both_together_where_each_new_document_is_shorter_than_the_old_ones(tmp_path_factory, members, again):
    folder = tmp_path_factory.mktemp("run")
    new = [edited((OLD + [words(s, 120) for s in (91, 92, 93)])[which], *rest) for which, *rest in members]
    # Two that stay whatever was drawn, and one that is word for word an old one.
    new += [words("stays", 50), words("too", 50), OLD[again]]
    write(folder, {"old": OLD, "new": new})
    run(folder, "before", ["old"])
    run(folder, "after", ["new"], against=["before"])
    run(folder, "together", ["old", "new"])
    assert kept(folder / "together", "old") == set(range(1, len(OLD) + 1))
    assert kept(folder / "after", "new") == kept(folder / "together", "new")


@pytest.fixture
def folder(tmp_path):
    """An old source, two of whose documents are held out, and a new one: the same text, a longer copy, a shorter copy, two of its own."""
    own = words("own", 80)
    new = [[word.upper() for word in OLD[0]], [*OLD[1], *words("more", 20)], OLD[2][:90], own, [*own, "more"], words("other", 80)]
    write(tmp_path, {"old": OLD, "new": new})
    run(tmp_path, "before", ["old"])
    return tmp_path


def test_what_goes_and_for_what(folder):
    manifest, _ = run(folder, "after", ["new"], against=["before"])
    # The longer copy goes, too: prepared together it would have stayed, and the old one would have gone.
    assert gone(folder / "after") == {
        "new.jsonl:1": ("duplicate", "same text of before", "as old: old.jsonl:1 of before"),
        # 116 5-grams of the old one, 20 more in the longer one; 86 in the shorter one.
        "new.jsonl:2": ("near-duplicate", "similar text of before", f"to old: old.jsonl:2 of before, Jaccard {116 / 136:.2f}"),
        "new.jsonl:3": ("near-duplicate", "similar text of before", f"to old: old.jsonl:3 of before, Jaccard {86 / 116:.2f}"),
        "new.jsonl:4": ("near-duplicate", "similar text", f"to new: new.jsonl:5, Jaccard {76 / 77:.2f}"),
    }
    (source,) = manifest.sources
    assert source.funnel.dropped == {
        "duplicate": {"same text of before": 1},
        "near-duplicate": {"similar text": 1, "similar text of before": 2},
    }
    assert source.funnel.kept == 2
    assert manifest.inputs.against == {"before": Manifest.load(folder / "before").fingerprint}
    assert verify(folder / "after") == []


def test_every_kept_document_is_known_on_either_side_and_with_any_tokenizer(folder, pytestconfig):
    model = pytestconfig.rootpath / "tests/fixtures/tokenizers/prefixed.model"
    tokenizer = recipe.Tokenizer(kind="file", path=str(model), bos="<s>")
    manifest, _ = run(folder, "ends", ["old"], tokenizer, 420)
    assert manifest.sources[0].held_out.documents > 0
    write(folder, {"copies": [*(text[:-2] for text in OLD), words("new", 60), words("newer", 60)]})
    run(folder, "after", ["copies"], against=["ends"])
    assert kept(folder / "after", "copies") == {len(OLD) + 1, len(OLD) + 2}


def test_a_chain_names_all_of_its_links(folder):
    run(folder, "after", ["new"], against=["before"])
    write(folder, {"third": [OLD[3][:100], words("other", 79), words("third", 60), words("fourth", 60)]})
    run(folder, "last", ["third"], against=["before", "after"])
    assert {key: detail.partition(",")[0] for key, (_, _, detail) in gone(folder / "last").items()} == {
        "third.jsonl:1": "to old: old.jsonl:4 of before",
        "third.jsonl:2": "to new: new.jsonl:6 of after",
    }
    run(folder, "short", ["third"], against=["before"])
    assert kept(folder / "short", "third") == {2, 3, 4}


def test_only_equal_texts_without_near(folder):
    run(folder, "after", ["new"], against=["before"], near=False)
    assert kept(folder / "after", "new") == {2, 3, 4, 5, 6}


def test_shards_and_workers_change_nothing(folder, monkeypatch):
    one, _ = run(folder, "one", ["new"], against=["before"])
    monkeypatch.setattr(plan, "MIN_SHARD", 300)
    several, said = run(folder, "several", ["new"], against=["before"], workers=2)
    assert "2 processes" in said
    assert several.files == one.files


def test_the_index_is_in_the_order_of_the_lines(folder, monkeypatch):
    monkeypatch.setattr(plan, "MIN_SHARD", 300)
    run(folder, "both", ["new", "old"])
    rows = [json.loads(line) for line in (folder / "both/documents.jsonl").read_text().splitlines()]
    index = np.load(folder / "both/index.npy")
    assert index["bytes"].tolist() == [row["bytes"] for row in rows]
    assert np.load(folder / "both/index_bands.npy").shape == (64, len(rows))


def change(out, **fields):
    path = out / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def refused(folder, match, **dedup):
    with pytest.raises(PreheatError, match=match):
        run(folder, "after", ["new"], **({"against": ["before"]} | dedup))
    assert not (folder / "after").exists()
    assert not (folder / ".after.partial").exists()


def test_a_folder_that_cannot_be_compared_is_refused(folder):
    refused(folder, "elsewhere", against=["elsewhere"])
    index = Manifest.load(folder / "before").index
    change(folder / "before", index=None)
    refused(folder, "before holds no index of its documents")
    change(folder / "before", index={"rules": 2, "signature": index.signature})
    refused(folder, "before was prepared by rules 2")
    change(folder / "before", index={"rules": index.rules, "signature": [128, 32, 4, 1, 5]})
    refused(folder, r"MinHash bands of the kind \(128, 32, 4, 1, 5\)")


def test_a_folder_without_bands_is_good_for_equal_texts(folder):
    run(folder, "exact", ["old"], near=False)
    assert not (folder / "exact/index_bands.npy").exists()
    refused(folder, r"exact holds no MinHash bands \(near = false\)", against=["exact"])
    run(folder, "after", ["new"], against=["exact"], near=False)
    assert kept(folder / "after", "new") == {2, 3, 4, 5, 6}


def test_a_damaged_folder_is_refused(folder):
    path = folder / "before/index_bands.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused(folder, "another checksum")
    path.write_bytes(whole)
    # Ids that are not those of the text: each document is moved by a word.
    side = Manifest.load(folder / "before").sources[0].train
    ids = np.fromfile(folder / f"before/{side.prefix}.bin", indexed.dtype_for(280))
    ids[:-1] = np.where(ids[1:] == ids[-1], ids[:-1], ids[1:])
    ids.tofile(folder / f"before/{side.prefix}.bin")
    with pytest.raises(PreheatError, match="are not those of its text"):
        run(folder, "after", ["new"], against=["before"])
    assert not (folder / "after").exists()


def test_another_content_of_the_old_folder_is_noticed(folder):
    run(folder, "after", ["new"], against=["before"])
    _, said = run(folder, "after", ["new"], against=["before"])
    assert "using the prepared data" in said
    shutil.move(folder / "before", folder / "moved")
    _, said = run(folder, "after", ["new"], against=["before"])
    assert "no longer there" in said
    write(folder, {"old": OLD[1:]})
    run(folder, "before", ["old"])
    with pytest.raises(PreheatError, match="before holds other data now"):
        run(folder, "after", ["new"], against=["before"])
    shutil.rmtree(folder / "after")
    run(folder, "after", ["new"], against=["before"])
    assert 1 in kept(folder / "after", "new")


def test_interrupted_work_does_not_go_on_with_another_old_folder(folder, monkeypatch):
    finish = prepare.__globals__["_finish"]
    monkeypatch.setitem(prepare.__globals__, "_finish", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(folder, "after", ["new"], against=["before"])
    monkeypatch.setitem(prepare.__globals__, "_finish", finish)
    shutil.rmtree(folder / "before")
    write(folder, {"old": OLD[1:]})
    run(folder, "before", ["old"])
    run(folder, "after", ["new"], against=["before"])
    assert kept(folder / "after", "new") == {1, 5, 6}


def test_a_source_of_which_nothing_is_new_is_refused(folder):
    write(folder, {"copies": OLD})
    with pytest.raises(PreheatError, match=r"source copies: nothing is left.*went for old: old.jsonl:1 of before"):
        run(folder, "after", ["copies"], against=["before"])

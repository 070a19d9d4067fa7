import json
import random
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.errors import PreheatError
from preheat.recipe import catalog, fingerprint, json_schema, load
from preheat.units import Quantity


def problems(name: str, *sets: str) -> list[str]:
    with pytest.raises(PreheatError) as caught:
        load(name, sets)
    assert caught.value.exit_code == 2
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("name", catalog())
def test_every_catalog_recipe_loads_and_is_called_what_its_file_is(name: str) -> None:
    loaded = load(name)
    assert loaded.recipe.name == name
    assert loaded.recipe.description


@pytest.mark.parametrize("name", catalog())
def test_every_value_of_the_catalog_has_an_origin(name: str) -> None:
    loaded = load(name)
    assert loaded.origins["model.layers"].kind == "file"
    assert loaded.origins["model.layers"].note
    assert loaded.origins["schedule.peak_lr"].note


def test_a_child_file_changes_what_it_names_and_keeps_the_rest(tmp_path: Path) -> None:
    child = tmp_path / "child.toml"
    child.write_text('extends = "tiny"\nname = "child"\n\n[sources]\n"schedule.peak_lr" = "my sweep"\n\n[schedule]\npeak_lr = 1e-3\n')
    loaded = load(str(child))
    assert loaded.recipe.schedule.peak_lr == 1e-3
    assert loaded.recipe.model == load("tiny").recipe.model
    assert loaded.files == (str(child), "tiny")
    peak, width = loaded.origins["schedule.peak_lr"], loaded.origins["model.hidden"]
    assert (peak.file, peak.line, peak.note) == (str(child), 8, "my sweep")
    assert width.file == "tiny"
    assert "LLaMA" in width.note


def test_extends_may_name_a_file_next_to_it(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('extends = "tiny"\nname = "base"\n[schedule]\nfinal_lr = 5e-5\n')
    (tmp_path / "child.toml").write_text('extends = "base.toml"\nname = "child"\n')
    assert load(str(tmp_path / "child.toml")).recipe.schedule.final_lr == 5e-5


def test_a_circle_of_parents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('extends = "b.toml"\n')
    (tmp_path / "b.toml").write_text('extends = "a.toml"\n')
    assert "circle" in problems(str(tmp_path / "a.toml"))[0]


def test_a_list_of_a_child_replaces_its_parents_list(tmp_path: Path) -> None:
    child = tmp_path / "child.toml"
    child.write_text('extends = "tiny"\nname = "child"\n[[stage]]\nname = "only"\nmix = { prose = 1 }\n')
    loaded = load(str(child))
    assert [stage.name for stage in loaded.recipe.stage] == ["only"]
    assert not [key for key in loaded.origins if key.startswith("stage.1")]
    assert loaded.origins["stage.0.mix.prose"].line == 5


def test_set_reaches_tables_and_list_entries_by_name_and_by_number() -> None:
    sets = ("schedule.length=2M tokens", "stage.main.until=70%", "stage.1.mix={ prose = 1.0 }", "model.bias=true", "seed=7")
    loaded = load("tiny", sets)
    recipe = loaded.recipe
    assert recipe.schedule.length == Quantity.parse("2M tokens")
    assert recipe.stage[0].until == Quantity.parse("70%")
    assert dict(recipe.stage[1].mix) == {"prose": 1}
    assert recipe.model.bias is True
    assert recipe.seed == 7
    assert loaded.origins["stage.0.until"].kind == "set"
    assert loaded.origins["stage.0.name"].kind == "file", "what --set did not change keeps its origin"
    assert recipe.stage[2] == load("tiny").recipe.stage[2]


def test_an_unknown_key_names_file_line_and_the_nearest_known_one(tmp_path: Path) -> None:
    child = tmp_path / "child.toml"
    child.write_text('extends = "tiny"\nname = "x"\n\n[model]\nhiden = 3\n\n[optimizer]\nbeta = [0.9, 0.95]\n')
    found = problems(str(child))
    assert len(found) == 2, "all problems at once"
    assert f"{child}:5" in found[0]
    assert "Did you mean hidden?" in found[0]
    assert f"{child}:8" in found[1]
    assert "Did you mean betas?" in found[1]


def test_a_key_in_the_wrong_table_is_pointed_to_the_right_one() -> None:
    assert "Did you mean batch.seq_len?" in problems("tiny", "schedule.seq_len=128")[0]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("schedule.warmup=2000", "no unit"),
        ("schedule.warmup='2000 iterations'", "no quantity"),
        ("schedule.length=1.5 steps", "not a whole number"),
        ("data.held_out=5 tokens", "no share"),
        ("model.layers='4'", "valid integer"),
        ("model.layers=4.0", "valid integer"),
        ("model.layers=0", "greater than or equal to 1"),
        ("schedule.peak_lr=nan", "finite"),
        ("schedule.peak_lr=-1e-3", "greater than 0"),
        ("optimizer.betas=[0.9]", "missing"),
        ("stage.main.mix={ prose = 0 }", "greater than 0"),
        ("stage.main.mix={}", "at least 1"),
        ("stage.nowhere.until=5%", "no entry 'nowhere'"),
        ("name=../../etc", "pattern"),
        ("name", "key.path=value"),
        ("model.layers.x=1", "valid integer"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(setting: str, words: str) -> None:
    text = " ".join(problems("tiny", setting))
    assert words in text
    assert setting.split("=")[0].split(".")[0] in text


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text('name = "r"\n')
    found = " ".join(problems(str(path)))
    for key in ("model", "schedule", "batch", "stage", "tokenizer", "checkpoint"):
        assert f"{key} is not set" in found


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b'name = "x\n', b"[" * 5000, b"a = " + b"[" * 100_000, b'name = "\x00"\n', b"!!python/object:os.system", b"x" * 2_000_000],
)
def test_a_hostile_file_is_refused_cleanly(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    assert problems(str(path))


def test_missing_files_and_names_are_refused() -> None:
    assert "Did you mean tiny?" in problems("tinny")[0]
    assert "no recipe file" in problems("nowhere/recipe.toml")[0]
    assert problems("../recipe/catalog/tiny")


@settings(max_examples=60)
@given(st.text(string.printable, max_size=200))
def test_any_text_loads_or_is_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "r.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PreheatError):
        load(str(path))


def test_the_fingerprint_depends_on_values_and_not_on_their_order(tmp_path: Path) -> None:
    lines = ['extends = "tiny"', 'name = "x"', "seed = 3"]
    prints = set()
    for seed in range(3):
        random.Random(seed).shuffle(lines)
        path = tmp_path / f"{seed}.toml"
        path.write_text("\n".join(lines) + "\n")
        prints.add(fingerprint(load(str(path)).recipe))
    assert len(prints) == 1
    assert fingerprint(load("tiny").recipe) not in prints


def test_the_json_schema_is_json_and_closed() -> None:
    schema = json.loads(json.dumps(json_schema()))
    assert schema["additionalProperties"] is False
    assert schema["properties"]["extends"]["type"] == "string"
    assert schema["$defs"]["Model"]["properties"]["hidden"]["minimum"] == 1
    assert "pattern" in json.dumps(schema["$defs"]["Schedule"])

import contextlib
import json
import random
import string
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.errors import PreheatError
from preheat.recipe import Recipe, catalog, fingerprint, load
from preheat.recipe.json_schema import json_schema
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


@pytest.mark.parametrize("name", catalog())
def test_every_number_of_the_catalog_names_its_source(name: str) -> None:
    own = ("name", "description", "seed", "ignore")
    silent = [
        key
        for key, origin in load(name).origins.items()
        if origin.kind == "file" and not origin.note and not key.startswith(own) and not key.endswith(".name")
    ]
    assert silent == []


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


def test_a_table_of_another_kind_replaces_its_parents(tmp_path: Path) -> None:
    """A tokenizer of GPT-2 has nothing to do with the path of the file that the parent read."""
    child = tmp_path / "child.toml"
    child.write_text('extends = "llama3-8b"\nname = "child"\n[tokenizer]\nkind = "gpt2"\n[parallel]\ntensor = 2\n')
    loaded = load(str(child))
    assert load("llama3-8b").recipe.tokenizer.path is not None
    assert loaded.recipe.tokenizer.path is None
    assert loaded.origins["tokenizer.path"].kind == "default"
    assert loaded.recipe.parallel.context == 2, "other tables merge key by key"
    same = load("llama3-8b", ('tokenizer.path="mine.json"',)).recipe.tokenizer
    assert (same.kind, same.path) == ("file", "mine.json")


def test_a_setting_over_time_is_a_number_or_a_list() -> None:
    steps = '[{ at = "0 tokens", weight = 0.3 }, { at = "1M tokens", weight = 0.1 }]'
    listed = load("tiny", (f"model.mtp={{ layers = 1, loss_weight = {steps} }}",)).recipe
    plain = load("tiny", ("model.mtp={ layers = 1, loss_weight = 0.3 }",)).recipe
    assert listed.model.mtp is not None
    assert plain.model.mtp is not None
    assert [(str(change.at), change.weight) for change in listed.model.mtp.loss_weight] == [("0 tokens", 0.3), ("1M tokens", 0.1)]
    assert [(str(change.at), change.weight) for change in plain.model.mtp.loss_weight] == [("0 tokens", 0.3)]
    assert plain.model_dump(mode="json")["model"]["mtp"]["loss_weight"] == 0.3
    for recipe in (listed, plain):
        assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


@pytest.mark.parametrize("name", catalog())
def test_a_resolved_recipe_is_a_recipe(name: str) -> None:
    recipe = load(name).recipe
    assert Recipe.model_validate(json.loads(json.dumps(recipe.model_dump(mode="json")))) == recipe


def test_an_ignored_rule_needs_a_reason() -> None:
    assert "ignore.0.reason" in problems("tiny", 'ignore=[{ rule = "model.tokens" }]')[0]
    assert "ignore.0.reason" in problems("tiny", 'ignore=[{ rule = "model.tokens", reason = "" }]')[0]


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
    assert "Did you mean evaluation.tasks?" in problems("tiny", "data.decontaminate.tasks=['t.jsonl']")[0]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("schedule.warmup=2000", "no unit"),
        ("schedule.warmup='2000 iterations'", "no quantity"),
        ("schedule.length=1.5 steps", "not a whole number"),
        ("data.held_out=5 tokens", "no share"),
        ("model.layers='4'", "'4'; a whole number"),
        ("model.layers=4.0", "4.0; a whole number"),
        ("model.layers=0", "0; at least 1"),
        ("schedule.peak_lr=nan", "finite"),
        ("schedule.peak_lr=-1e-3", "above 0"),
        ("optimizer.betas=[0.9]", "missing"),
        ("stage.main.mix={ prose = 0 }", "above 0"),
        ("stage.main.mix={}", "at least 1"),
        ("stage.nowhere.until=5%", "no entry 'nowhere'"),
        ("name=../../etc", "a name of letters"),
        ("name", "key.path=value"),
        ("model.layers.x=1", "a table; a whole number"),
        ("model.experts={ count = 1, active = 1, ffn_hidden = 8 }", "at least 2"),
        ("model.mtp={ layers = 1, loss_weight = -1 }", "at least 0"),
        ("model.mtp={ layers = 1, loss_weight = [] }", "at least 1"),
        ("model.mtp={ layers = 1, loss_weight = true }", "true; an array"),
        ("model.dropout=1.0", "below 1"),
        ("model.rotary_fraction=1.5", "at most 1"),
        ("model.rope_scaling={ kind = 'linear', factor = 2.0, original_max_positions = 8 }", "'llama3' or 'yarn'"),
        ("parallel.pipeline_layers=[1, -1]", "at least 0"),
        ("parallel.sharding='zero3'", "'none', 'optimizer' or 'full'"),
        ("parallel.sharding='optimiser'", "Did you mean optimizer?"),
        ("stage={ name = 'a' }", "a table; an array"),
        ("parallel.pipeline_layers.0=4", "a table; an array. Set the whole array"),
        ("model.layers=2020-01-01", "2020-01-01; a whole number"),
        ("model.layers=true", "true; a whole number"),
        ("seed=9223372036854775808", "9223372036854775808; below 9223372036854775808"),
        ("stage.main.mix={ prose = nan }", "a weight is at most 1_000_000_000_000"),
        ("stage.main.mix={ prose = '1' }", "a weight is a number"),
        ("stage.main.mix={ prose = 1" + "0" * 400 + " }", "a weight is at most"),
        ("model.layers=0x" + "f" * 60_000, "a number of some 72247 digits"),
        ("schedule.length='" + "9" * 100_000 + " tokens'", "'99999999999999999999...' is no quantity"),
        ("name=" + "a" * 4001, "(4003 characters)"),
        ("optimizer.betas=[0.9, 0.95, 0.99]", "an array of 3; at most 2 entries"),
        ("model..layers=3", "key.path=value"),
        ("model.layers=1\nfoo=2", "'1\\nfoo=2'; a whole number"),
        ("a" + ".a" * 3000 + "=1", "key.path=value"),
        ("extends=tiny", "belongs to a recipe file"),
        ("sources.x=note", "belongs to a recipe file"),
        ("stage.0=3", "--set stage.0"),
        ("model.experts.count=8", "--set model.experts.active"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(setting: str, words: str) -> None:
    text = " ".join(problems("tiny", setting))
    assert words in text
    assert setting.split("=")[0].split(".")[0] in text


def test_a_table_in_place_of_a_list_of_tables_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text('extends = "tiny"\n\n[stage]\nname = "only"\n')
    assert f"{path}:3 stage: a table; an array. Write [[stage]]" in problems(str(path))[0]


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text('name = "r"\n')
    found = " ".join(problems(str(path)))
    for key in ("model", "schedule", "batch", "stage", "tokenizer", "checkpoint"):
        assert f"{key} is not set" in found


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b'name = "x\n',
        b"[" * 5000,
        b"a = " + b"[" * 100_000,
        b'name = "\x00"\n',
        b"!!python/object:os.system",
        b"x" * 2_000_000,
        b"layers = " + b"9" * 5000,
    ],
)
def test_a_hostile_file_is_refused_cleanly(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    assert problems(str(path))


def test_missing_files_and_names_are_refused(tmp_path: Path) -> None:
    assert "Did you mean tiny?" in problems("tinny")[0]
    assert "no recipe file" in problems("nowhere/recipe.toml")[0]
    assert "is a folder" in problems(str(tmp_path))[0]
    assert problems("../recipe/catalog/tiny")
    for name in ("", "a\0b", "a" * 5000, "a" * 5000 + ".toml", "\udcff.toml"):
        assert "[recipe.file]" in problems(name)[0]


def test_a_folder_that_is_called_like_a_catalog_recipe_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    assert load("tiny").files == ("tiny",)


@pytest.mark.parametrize("parent", ["/etc/passwd", "../../../etc/passwd", "", "nowhere.toml", "tinny", "a\\u0000b", "a" * 5000 + ".toml"])
def test_extends_reads_recipes_only_and_says_where_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: str) -> None:
    child = tmp_path / "sub" / "child.toml"
    child.parent.mkdir()
    child.write_text(f'name = "x"\nextends = "{parent}"\n')
    (tmp_path / "nowhere.toml").write_text('extends = "tiny"\n')
    monkeypatch.chdir(tmp_path)  # a file of the current folder is not beside the recipe
    assert problems(str(child))[0].startswith(f"{child}:2: ")


def test_a_byte_order_mark_is_no_part_of_a_recipe(tmp_path: Path) -> None:
    child = tmp_path / "child.toml"
    child.write_bytes(b'\xef\xbb\xbfextends = "tiny"\r\nname = "child"\r\nseed = 9\r\n')
    loaded = load(str(child))
    assert loaded.recipe.seed == 9
    assert loaded.origins["seed"].line == 3


def test_an_empty_table_of_a_child_keeps_its_parents_values(tmp_path: Path) -> None:
    child = tmp_path / "child.toml"
    child.write_text('extends = "mixtral-8x7b"\nname = "child"\n[model.experts]\n')
    loaded = load(str(child))
    assert loaded.recipe.model == load("mixtral-8x7b").recipe.model
    assert loaded.origins["model.experts.count"].file == "mixtral-8x7b"


@pytest.mark.parametrize(
    "content",
    [
        "".join(f"a{i} = 1\n" for i in range(20_000)),
        '[[stage]]\nname = "a"\n[stage.mix]\n' + "".join(f"a{i} = 1\n" for i in range(20_000)),
        "data.source = [" + ", ".join(f'{{ name = "s{i}", paths = ["x"] }}' for i in range(6000)) + "]\n",
    ],
)
def test_the_time_to_load_grows_with_the_file_and_not_with_its_square(tmp_path: Path, content: str) -> None:
    child = tmp_path / "child.toml"
    child.write_text('extends = "tiny"\nname = "x"\n' + content)
    started = time.process_time()
    with contextlib.suppress(PreheatError):
        load(str(child))
    assert time.process_time() - started < 2


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


def test_relative_paths_start_at_the_file_and_for_the_catalog_at_the_current_folder(tmp_path: Path) -> None:
    child = tmp_path / "child.toml"
    child.write_text('extends = "tiny"\nname = "child"\n')
    assert load(str(child)).folder == tmp_path
    assert load("tiny").folder == Path.cwd()

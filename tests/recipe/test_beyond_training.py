"""What the training loop of this version does not do is named, key by key."""

import pytest

from preheat.recipe import beyond_training, catalog, load


@pytest.mark.parametrize("name", ["tiny", "toy-124m"])
def test_what_trains_is_not_named(name: str) -> None:
    assert beyond_training(load(name).recipe) == []


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("model.dropout=0.1", "model.dropout"),
        ("stage.long-context.context=2", "stage.2.context"),
        ("precision.compute=fp16", "precision.compute"),
        ("precision={ compute = 'fp8', fp8_recipe = 'delayed' }", "precision.fp8_recipe"),
    ],
)
def test_each_key_is_named(setting: str, key: str) -> None:
    assert beyond_training(load("tiny", (setting,)).recipe) == [key]


def test_settings_that_only_say_less_of_the_same_train() -> None:
    sets = ("precision.compute=bf16", "parallel.gpus=1", "schedule.decay=constant", "model.bias=true", "model.norm=layernorm")
    assert beyond_training(load("tiny", sets).recipe) == []


def test_dualpipe_is_run_as_its_v_shaped_form_or_not_at_all() -> None:
    sets = ("parallel.pipeline=2", "parallel.schedule=dualpipe")
    assert beyond_training(load("tiny", sets).recipe) == ["parallel.schedule"]
    sets = ("parallel.pipeline=2", "parallel.virtual_pipeline=2", "parallel.schedule=dualpipe-v")
    assert beyond_training(load("tiny", sets).recipe) == []


def test_what_the_catalog_asks_beyond_training() -> None:
    """fp16, fp8 by past maxima or blocks, another context-parallel size for a stage, and DualPipe: all else of the catalog trains."""
    named = {name: beyond_training(load(name).recipe) for name in catalog()}
    assert {key.split(".")[-1] for keys in named.values() for key in keys} <= {"compute", "fp8_recipe", "context", "schedule"}
    assert not named["llama3-70b"]
    assert not named["mixtral-8x7b"]

"""What the training loop of this version does not do is named, key by key."""

import pytest

from preheat.recipe import beyond_training, catalog, load

SCALING = '{ kind = "yarn", factor = 2.0, original_max_positions = 256, beta_fast = 32.0, beta_slow = 1.0 }'


@pytest.mark.parametrize("name", ["tiny", "toy-124m"])
def test_what_trains_is_not_named(name: str) -> None:
    assert beyond_training(load(name).recipe) == []


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("model.activation=squared_relu", "model.activation"),
        ("model.norm=layernorm1p", "model.norm"),
        ("model.qk_norm=true", "model.qk_norm"),
        ("model.rotary_fraction=0.5", "model.rotary_fraction"),
        (f"model.rope_scaling={SCALING}", "model.rope_scaling"),
        ("model.sliding_window=64", "model.sliding_window"),
        ("model.dropout=0.1", "model.dropout"),
        ("model.mla={ kv_lora_rank = 32, qk_nope_head_dim = 32, qk_rope_head_dim = 16, v_head_dim = 32 }", "model.mla"),
        ("model.experts={ count = 4, active = 2, ffn_hidden = 64 }", "model.experts"),
        ("model.mtp={ layers = 1, loss_weight = 0.3 }", "model.mtp"),
        (f"stage.long-context.rope_scaling={SCALING}", "stage.2.rope_scaling"),
        ("stage.long-context.context=2", "stage.2.context"),
        ("precision.compute=fp16", "precision.compute"),
        ("precision.compute=fp8", "precision.compute"),
        ("parallel.tensor=2", "parallel.tensor"),
        ("parallel.pipeline=2", "parallel.pipeline"),
        ("parallel.virtual_pipeline=2", "parallel.virtual_pipeline"),
        ("parallel.context=2", "parallel.context"),
        ("parallel.expert=2", "parallel.expert"),
        ("parallel.expert_tensor=2", "parallel.expert_tensor"),
        ("parallel.sequence=true", "parallel.sequence"),
        ("parallel.sharding=optimizer", "parallel.sharding"),
        ("parallel.schedule=dualpipe", "parallel.schedule"),
        ("parallel.recompute.kind=full", "parallel.recompute"),
    ],
)
def test_each_key_is_named(setting: str, key: str) -> None:
    assert beyond_training(load("tiny", (setting,)).recipe) == [key]


def test_settings_that_only_say_less_of_the_same_train() -> None:
    sets = ("precision.compute=bf16", "parallel.gpus=1", "schedule.decay=constant", "model.bias=true", "model.norm=layernorm")
    assert beyond_training(load("tiny", sets).recipe) == []


def test_the_big_recipes_are_planned_and_not_trained() -> None:
    assert {name for name in catalog() if not beyond_training(load(name).recipe)} == {"tiny", "toy-124m"}

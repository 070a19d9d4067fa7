"""`show`, `timeline` and `recipes` of the catalog: figures from papers and cards, in the promised shape."""

import json
from typing import Any

import pytest

from preheat.cli import recipes, show, timeline
from preheat.errors import PreheatError
from preheat.recipe import catalog


def shown(capsys: pytest.CaptureFixture[str], name: str, *sets: str, gpus: str | None = None) -> dict[str, Any]:
    show.run(name, list(sets), gpus, True)
    return json.loads(capsys.readouterr().out)


def moment(capsys: pytest.CaptureFixture[str], name: str, at: str) -> dict[str, Any]:
    timeline.run(name, at, None, True)
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("name", "gpus", "dense_dp", "expert_dp"),
    [
        ("gpt3-15b", 768, 96, 768),
        ("gpt3-175b-megatron", 512, 16, 64),
        ("llama3-70b", 64, 2, 16),
        ("llama3.1-405b", 8192, 64, 512),  # arXiv 2407.21783, table 4
        ("mixtral-8x7b", 64, 16, 2),
        ("mixtral-8x22b", 256, 16, 8),
        ("deepseek-v3", 2048, 128, 2),  # arXiv 2412.19437: 2,048 GPUs, pipeline 16, expert 64
    ],
)
def test_each_recipe_is_laid_out_on_its_own_gpus(
    capsys: pytest.CaptureFixture[str], name: str, gpus: int, dense_dp: int, expert_dp: int
) -> None:
    assert shown(capsys, name)["derived"]["layout"] == {"ranks": gpus, "dense_dp": dense_dp, "expert_dp": expert_dp}


def test_deepseek_on_1024_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    layout = shown(capsys, "deepseek-v3", "parallel.tensor=2", gpus="1024")["derived"]["layout"]
    assert (layout["dense_dp"], layout["expert_dp"]) == (32, 1)
    with pytest.raises(PreheatError, match=r"1024 .* = 2048"):
        show.run("deepseek-v3", ["parallel.tensor=2", "parallel.expert_tensor=2"], "1024", True)


def test_gpus_are_written_as_for_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "deepseek-v3", gpus="2048xH800")["derived"]["layout"]["ranks"] == 2048


def test_a_recipe_that_is_wrong_is_shown_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    """Three heads do not divide a width of 4,096: the parameters of such a model are no figures of anything."""
    assert shown(capsys, "llama3-8b")["errors"] == 0
    assert shown(capsys, "llama3-8b", "model.heads=3", "model.kv_heads=3")["errors"] > 0
    show.run("llama3-8b", ["model.heads=3", "model.kv_heads=3"], None, False)
    assert "do not rely" in capsys.readouterr().out


@pytest.mark.parametrize(
    "setting",
    ["model.layers=1_000_000_007", "parallel.pipeline=1_000_000_007", "model.experts.count=1_000_000_007", "model.head_dim=1_000_000_007"],
)
def test_sizes_beyond_all_measure_are_not_listed(setting: str) -> None:
    with pytest.raises(PreheatError, match=r"run\.bounds"):
        show.run("mixtral-8x7b", [setting], None, True)
    with pytest.raises(PreheatError, match=r"run\.bounds"):
        timeline.run("mixtral-8x7b", None, [setting], True)


def test_total_and_active_parameters_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    derived = shown(capsys, "mixtral-8x7b")["derived"]
    assert derived["parameters"]["total"] == 46_702_792_704
    assert derived["parameters"]["active"] == 12_879_925_248
    show.run("mixtral-8x7b", None, None, False)
    assert "parameters 46_702_792_704 12_879_925_248 active" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", catalog())
def test_every_layer_is_shown_on_a_stage(capsys: pytest.CaptureFixture[str], name: str) -> None:
    answer = shown(capsys, name)
    layers = sorted(layer for rank in answer["derived"]["per_rank"] for layer in rank["layers"])
    copies = 2 if answer["recipe"]["parallel"]["schedule"] == "dualpipe" else 1
    assert layers == sorted([*range(answer["recipe"]["model"]["layers"])] * copies)


def test_states_of_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    """Mixtral 8x7B, second of 4 stages with expert 8: 8 layers with one expert of 176,160,768 each, 2 expert and 16 dense replicas."""
    rank = shown(capsys, "mixtral-8x7b")["derived"]["per_rank"][1]
    experts = 8 * 176_160_768
    dense = 1_745_158_144 - experts
    assert rank["parameters"] == dense + experts
    assert rank["state_bytes"]["total"] == 6 * (dense + experts) + 12 * dense // 16 + 12 * experts // 2


def test_a_moment_of_deepseeks_extension(capsys: pytest.CaptureFixture[str]) -> None:
    """arXiv 2412.19437, section 4.3; the slowest of 32 pairs turns once in 2 pi 10,000^(62/64) positions, 40 times as many with YaRN."""
    before, after = moment(capsys, "deepseek-v3", "12T tokens"), moment(capsys, "deepseek-v3", "14.9T tokens")
    assert (before["stage"], before["seq_len"], before["rope_scaling"], before["context"]) == ("main", 4096, None, 1)
    assert (before["mtp_loss_weight"], before["bias_update_rate"]) == (0.1, 0.001)
    assert before["longest_wavelength"] == pytest.approx(47_117, abs=1)
    assert before["attention_factor"] == 1
    assert (after["stage"], after["seq_len"], after["batch_size"], after["lr"]) == ("context-128k", 131_072, 480, 7.3e-6)
    assert after["rope_scaling"]["factor"] == 40
    assert after["longest_wavelength"] == pytest.approx(40 * 47_117, abs=40)
    assert after["attention_factor"] == pytest.approx(1.3689, abs=5e-5)
    assert (after["mtp_loss_weight"], after["bias_update_rate"]) == (0.1, 0)


def test_a_moment_of_a_dense_model_has_no_expert_settings(capsys: pytest.CaptureFixture[str]) -> None:
    found = moment(capsys, "toy-124m", "50%")
    assert found["mtp_loss_weight"] is found["bias_update_rate"] is found["rope_theta"] is found["longest_wavelength"] is None


def test_the_list_names_every_recipe_with_its_size(capsys: pytest.CaptureFixture[str]) -> None:
    recipes.run(True)
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["recipes"]}
    assert set(rows) == set(catalog())
    assert (rows["llama3-8b"]["parameters"], rows["llama3-8b"]["active"]) == (8_030_261_248, 8_030_261_248)
    assert rows["mixtral-8x22b"]["active"] == 39_152_031_744
    recipes.run(False)
    assert "140.6B parameters, 39.2B active" in capsys.readouterr().out

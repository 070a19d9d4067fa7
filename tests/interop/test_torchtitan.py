"""torchtitan configurations: what they say, what is refused, and torchtitan 0.3 itself where it can be imported."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from preheat.arithmetic import Timeline, parameters
from preheat.errors import PreheatError
from preheat.interop import export_torchtitan
from preheat.recipe import Recipe, catalog, load


def _constants(text: str) -> dict[str, Any]:
    """The module's own constants, read without running it."""
    nodes = [node for node in ast.parse(text).body if isinstance(node, ast.Assign)]
    return {node.targets[0].id: ast.literal_eval(node.value) for node in nodes if isinstance(node.targets[0], ast.Name)}


def _call(text: str, name: str) -> dict[str, Any]:
    """The literal keyword arguments of the call of a class."""
    (call,) = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and ast.unparse(node.func) == name)
    return {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}


def test_llama3_8b_is_said_in_torchtitans_words() -> None:
    """torchtitan's own llama3_configs["8B"], and the batch of the recipe over 64 replicas."""
    text = export_torchtitan(load("llama3-8b").recipe, 64).text
    constants = _constants(text)
    assert (constants["HIDDEN"], constants["LAYERS"], constants["HEADS"], constants["KV_HEADS"]) == (4096, 32, 32, 8)
    assert (constants["FFN_HIDDEN"], constants["VOCAB_SIZE"], constants["ROPE"]["theta"]) == (14_336, 128_256, 500_000)
    training, parallel = _call(text, "TrainingConfig"), _call(text, "ParallelismConfig")
    recipe = load("llama3-8b").recipe
    steps = Timeline(recipe).end.steps
    assert (training["global_batch_size"], training["seq_len"], training["steps"]) == (recipe.batch.global_size, 8192, steps)
    product = parallel["data_parallel_replicate_degree"] * parallel["data_parallel_shard_degree"]
    assert product * parallel["tensor_parallel_degree"] * parallel["context_parallel_degree"] * parallel["pipeline_parallel_degree"] == 64


def test_what_is_left_out_is_said() -> None:
    notes = "\n".join(export_torchtitan(load("tiny").recipe, 1).notes)
    for words in ("batch.ramp", "2 from 0 tokens", "long-context has its own seq_len 512, rope_theta 40000", "anneal: maths 0.4"):
        assert words in notes


def test_what_it_cannot_express_is_refused_by_key() -> None:
    refused = {}
    for name in catalog():
        recipe = load(name).recipe
        try:
            export_torchtitan(recipe, recipe.parallel.gpus or 64)
        except PreheatError as error:
            refused[name] = {problem.where.key for problem in error.problems}
    assert {name for name in catalog() if name not in refused} == {"llama3-70b", "llama3-8b", "llama3-8b-fp8", "llama3-8b-guide", "tiny"}
    assert refused["mixtral-8x7b"] == {"model.experts"}
    assert refused["llama3.1-405b"] == {"schedule.decay"}
    assert {"model.mla", "model.experts", "model.mtp"} <= refused["deepseek-v3"]
    assert {"model.activation", "model.norm", "model.bias", "model.position"} <= refused["toy-124m"]


def test_the_command_writes_a_module(tmp_path: Path) -> None:
    asked = [sys.executable, "-m", "preheat", "export", "torchtitan", "tiny", "--gpus", "2"]
    done = subprocess.run([*asked, "--out", "mine.py"], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, "note: batch.ramp" in done.stdout) == (0, True), done.stderr
    compile((tmp_path / "mine.py").read_text(), "mine.py", "exec")
    value = json.loads(subprocess.run([*asked, "--json"], capture_output=True, text=True, timeout=60).stdout)
    assert (value["schema"], value["text"]) == ("preheat.export-torchtitan/1", (tmp_path / "mine.py").read_text())
    assert subprocess.run([*asked, "--set", "model.bias=true"], capture_output=True, timeout=60).returncode == 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "gpus"), [("llama3-8b", 64), ("llama3-70b", 64), ("tiny", 2)])
def test_torchtitan_builds_the_model_and_follows_the_rates(name: str, gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchtitan.trainer", exc_type=ImportError)
    import torch

    recipe = load(name).recipe
    export = export_torchtitan(recipe, gpus)
    (tmp_path / f"of_{name.replace('-', '_')}.py").write_text(export.text)
    monkeypatch.syspath_prepend(tmp_path)
    config = importlib.import_module(f"of_{name.replace('-', '_')}").recipe()
    with torch.device("meta"):
        model = config.model_spec.model.build()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters(recipe.model).total
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=recipe.schedule.peak_lr)
    scheduler = config.lr_scheduler.build(optimizers=[optimizer], training_steps=config.training.steps).schedulers[0]
    timeline = Timeline(_one_batch(recipe))
    assert timeline.end.steps == config.training.steps
    warmup = config.lr_scheduler.warmup_steps
    for step in (1, warmup // 2, warmup, warmup + 1, config.training.steps // 2, config.training.steps * 9 // 10, config.training.steps):
        # a decay that lags a step, and a warm-up whose length is rounded to a step
        slack = recipe.schedule.peak_lr * max(
            4 / config.training.steps, 1.5 / warmup if step <= warmup else 0, 0.04 if name == "tiny" else 0
        )
        assert recipe.schedule.peak_lr * scheduler.lr_lambdas[0](step - 1) == pytest.approx(timeline.step(step).lr, abs=slack), step


def _one_batch(recipe: Recipe) -> Recipe:
    """Without a ramp and later stages, which torchtitan does not have."""
    stage = recipe.stage[0].model_copy(update={"until": None})
    return recipe.model_copy(update={"batch": recipe.batch.model_copy(update={"ramp": ()}), "stage": (stage,)})

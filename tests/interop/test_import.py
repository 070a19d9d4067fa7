"""Megatron-LM commands as recipes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from preheat.arithmetic import parameters
from preheat.errors import PreheatError
from preheat.interop import import_megatron
from preheat.recipe import Recipe, load

GUIDE = Path(__file__).parents[1] / "fixtures" / "megatron" / "guide"
GPUS = {"gpt3-15b": 32, "gpt3-175b": 512, "llama3-8b": 8, "llama3-8b-fp8": 8, "llama3-70b": 64, "llama3.1-405b": 1024}
GPUS |= {"mixtral-8x7b": 64, "mixtral-8x22b": 256, "deepseek-v3": 1024}


@pytest.mark.parametrize("path", sorted(GUIDE.iterdir()), ids=lambda path: path.name)
def test_every_recipe_of_the_guide_becomes_a_file_that_loads(path: Path, tmp_path: Path) -> None:
    imported = import_megatron(path.read_text(), path.name, GPUS[path.stem], "0.19")
    file = tmp_path / "recipe.toml"
    file.write_text(imported.text)
    assert load(str(file)).recipe == imported.recipe


def _import(name: str) -> Recipe:
    return import_megatron((GUIDE / name).read_text(), name, GPUS[name.rpartition(".")[0]], "0.19").recipe


def test_what_is_written_is_taken_as_meant() -> None:
    recipe = _import("llama3-8b.yaml")
    assert (recipe.model.kv_heads, recipe.model.rope_theta, recipe.parallel.context) == (8, 500_000, 2)
    recipe = _import("llama3-8b-fp8.sh")
    assert (recipe.precision.compute, recipe.precision.fp8_recipe) == ("fp8", "delayed")
    recipe = _import("gpt3-175b.yaml")
    assert (str(recipe.schedule.warmup), str(recipe.schedule.length)) == ("2_000 steps", "150_000 steps")


def test_the_ramp_of_the_15b_becomes_thresholds_in_tokens() -> None:
    # 48,828,125 and 97,656,250 samples of 4,096 tokens: 200B and 400B.
    recipe = _import("gpt3-15b.yaml")
    assert [(str(entry.at), entry.size) for entry in recipe.batch.ramp] == [("0 tokens", 384), ("200B tokens", 768), ("400B tokens", 1152)]
    assert str(recipe.schedule.warmup) == "16_000_008_192 tokens"


def test_parameters_are_those_of_the_arguments_that_are_written() -> None:
    # With LLaMA-3's vocabulary, its own head and no biases the guide's flags make the published 8,030,261,248.
    text = (GUIDE / "llama3-8b.yaml").read_text() + "vocab-size: 128256\ndisable-bias-linear: true\n"
    assert parameters(import_megatron(text, "x.yaml", 8, "0.19").recipe.model).total == 8_030_261_248
    # Mixtral 8x7B as published: 46,702,792,704.
    text = (GUIDE / "mixtral-8x7b.yaml").read_text()
    text += "vocab-size: 32000\ndisable-bias-linear: true\nuntie-embeddings-and-output-weights: true\n"
    assert parameters(import_megatron(text, "x.yaml", 64, "0.19").recipe.model).total == 46_702_792_704


def test_placeholders_are_stated() -> None:
    imported = import_megatron((GUIDE / "deepseek-v3.yaml").read_text(), "x.yaml", 1024, "0.19")
    stated = "\n".join(imported.stated)
    for key in ("model.vocab_size", "batch.seq_len", "tokenizer.path", "schedule.length", "checkpoint.every", "data.source"):
        assert key in stated
    assert imported.recipe.batch.seq_len == 4096


@pytest.mark.parametrize(
    ("extra", "flag"),
    [
        ("--optimizer lion", "--optimizer"),
        ("--optimizer muon", "--optimizer"),
        ("--optimizer muon --muon-nesterov", "--muon-scale-mode"),
        ("--optimizer muon --muon-nesterov --muon-extra-scale-factor 0.2", "--muon-coefficient-type"),
        ("--clip-grad 0", "--clip-grad"),
        ("--use-precision-aware-optimizer --exp-avg-dtype fp8 --exp-avg-sq-dtype bf16", "--exp-avg-dtype"),
        ("--reset-position-ids", "--reset-position-ids"),
        ("--eod-mask-loss", "--eod-mask-loss"),
        ("--use-mup --mup-embedding-mult 10", "--mup-embedding-mult"),
        ("--decoupled-lr 1e-3", "--decoupled-lr"),
        ("--num-experts 8 --moe-latent-size 64", "--moe-latent-size"),
        ("--softmax-type learnable", "--softmax-type"),
        ("--calculate-per-token-loss", "--calculate-per-token-loss"),
        ("--pretrained-checkpoint x", "--pretrained-checkpoint"),
        ("--quick-geglu", "--quick-geglu"),
        ("--lr-decay-style inverse-square-root", "--lr-decay-style"),
        ("--position-embedding-type none", "--position-embedding-type"),
        ("--lr-warmup-init 1e-6", "--lr-warmup-init"),
        ("--init-method-xavier-uniform", "--init-method-xavier-uniform"),
        ("--num-experts 8 --moe-router-load-balancing-type sinkhorn", "--moe-router-load-balancing-type"),
        ("--num-experts 8 --moe-layer-freq 2", "--moe-layer-freq"),
        ("--hidden-dropout 0", "--attention-dropout"),
        ("--fp4-format e2m1", "--fp4-format"),
        ("--split 90,5,5", "--split"),
    ],
)
def test_what_a_recipe_cannot_say_is_reported(extra: str, flag: str) -> None:
    base = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --lr 1e-3 --train-iters 9 "
    imported = import_megatron(base + extra, "x", 1, "0.19")
    assert flag in {problem.where.key for problem in imported.lost}


def test_what_leaves_the_training_as_it_is_is_left_aside() -> None:
    base = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --lr 1e-3 --train-iters 9 "
    aside = "--log-interval 1 --tensorboard-dir x --num-workers 2 --overlap-grad-reduce --attention-backend flash --decoupled-lr 1e-3 "
    base += "--split 99,1,0 --hidden-dropout 0 --attention-dropout 0 "
    assert [problem.where.key for problem in import_megatron(base + aside, "x", 1, "0.19").lost] == ["--decoupled-lr"]
    assert import_megatron(base + "--adam-beta1 0.9 --weight-decay 0.01 --rotary-percent 1.0", "x", 1, "0.19").lost == ()


def test_width_transfer_optimizers_and_documents() -> None:
    base = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --lr 1e-3 --train-iters 9 "
    # Megatron-LM without --mup-base-head-dim divides attention scores by the head width: sqrt(1) / width
    model = import_megatron(f"{base} --use-mup --mup-base-hidden-size 16", "x", 1, "0.19").recipe.model
    assert model.mup is not None
    assert (model.mup.base_hidden, model.mup.base_head_dim) == (16, 1)
    recipe = import_megatron(f"{base} --reset-position-ids --reset-attention-mask --optimizer dist_muon", "x", 1, "0.17").recipe
    assert (recipe.batch.mask_documents, recipe.optimizer.name, recipe.optimizer.momentum) == (True, "muon", 0.9)
    assert recipe.parallel.sharding == "optimizer"
    kept = "--use-precision-aware-optimizer --use-distributed-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"
    assert import_megatron(f"{base} {kept}", "x", 1, "0.19").recipe.optimizer.state_precision == "bf16"


def test_absurd_numbers_are_refused() -> None:
    for extra in ("--num-layers 99999999999999", "--global-batch-size 1000000000000", "--pipeline-model-parallel-size 0 --num-layers 0"):
        base = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --lr 1e-3 --train-iters 9 "
        with pytest.raises(PreheatError):
            import_megatron(base + extra, "x", 1, "0.19")
    imported = import_megatron(base + "--rampup-batch-size 1 1 9 --global-batch-size 1000000000", "x", 1, "0.17")
    assert any("batch.ramp is left out" in line for line in imported.stated)


def test_schedules() -> None:
    base = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --lr 1e-3 --min-lr 1e-4 "
    wsd = "--train-samples 1000 --lr-decay-style WSD --lr-wsd-decay-samples 200 --lr-wsd-decay-style minus_sqrt"
    schedule = import_megatron(base + wsd, "x", 1, "0.19").recipe.schedule
    assert (schedule.decay, str(schedule.decay_length), schedule.decay_shape) == ("wsd", "12_800 tokens", "1-sqrt")
    early = "--train-iters 1000 --lr-decay-iters 900 --lr-decay-style cosine --lr-warmup-fraction 0.1"
    schedule = import_megatron(base + early, "x", 1, "0.19").recipe.schedule
    assert [(str(piece.until), piece.lr, piece.shape) for piece in schedule.segment] == [
        ("900 steps", 1e-4, "cosine"),
        ("None", 1e-4, "constant"),
    ]
    assert str(schedule.warmup) == "9%"


def test_no_shape_no_recipe() -> None:
    with pytest.raises(PreheatError, match="--num-layers is missing"):
        import_megatron("--hidden-size 64", "x", 1, "0.19")


def test_a_broken_comment_is_refused_with_its_line() -> None:
    with pytest.raises(PreheatError, match=r"x:1.*megatron.carried"):
        import_megatron("#: a = = 1\n--num-layers 2 --hidden-size 64 --num-attention-heads 4", "x", 1, "0.19")


def test_the_text_is_plain_toml() -> None:
    import tomllib

    imported = import_megatron((GUIDE / "mixtral-8x7b.sh").read_text(), "mixtral-8x7b.sh", 64, "0.19")
    values = tomllib.loads(imported.text)
    assert json.dumps(values["model"]["experts"]) == json.dumps(
        {"count": 8, "active": 2, "ffn_hidden": 14336, "score": "softmax", "aux_loss": 0.01}
    )

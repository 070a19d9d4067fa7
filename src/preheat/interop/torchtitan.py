"""A recipe as a configuration of torchtitan 0.3: a Python module, for that is what its `--module` and `--config` take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from preheat.arithmetic import Timeline, head_dim, kv_heads, layout
from preheat.errors import PreheatError, Problem, Where, refuse
from preheat.recipe import Model, Recipe, Stage
from preheat.units import Quantity

_DECAYS = {"linear": "linear", "cosine": "cosine", "1-sqrt": "sqrt", None: "linear"}
_SCHEDULES = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zero-bubble": "InterleavedZeroBubble", "dualpipe": "DualPipeV"}


@dataclass(frozen=True)
class TitanExport:
    """A configuration for torchtitan."""

    text: str
    """A Python module with a function `recipe`."""
    notes: tuple[str, ...]
    """What torchtitan does otherwise, or not at all."""


def export_torchtitan(recipe: Recipe, gpus: int) -> TitanExport:
    """The configuration that trains a recipe on a number of GPUs.

    Raises:
        PreheatError: torchtitan's Llama 3 computes another model, it has no such optimizer or schedule, or the recipe does not fit.
    """
    obstacles = [*_model_obstacles(recipe.model), *_training_obstacles(recipe)]
    if obstacles:
        raise PreheatError(*obstacles)
    plain = _plain(recipe)
    try:
        timeline = Timeline(plain)
        replicas = layout(recipe.parallel, gpus).dense_dp
    except ValueError as error:
        refuse("export.recipe", str(error), "", "`preheat check` says what to change")
    notes = tuple(_notes(recipe))
    blocks = {
        "notes": "".join(f"# Note: {note}.\n" for note in notes),
        "name": recipe.name,
        "gpus": gpus,
        "model": _assignments(_model(recipe)),
        "groups": _groups(recipe),
        "schedule": _arguments(_schedule(plain, timeline)),
        "training": _arguments(_training(recipe, timeline)),
        "parallel": _arguments(_parallelism(recipe, replicas)),
        "checkpoint": _arguments(
            {"enable": True, "interval": timeline.at(recipe.checkpoint.every)[0].steps, "keep_latest_k": max(2, recipe.checkpoint.keep)}
        ),
        "recompute": {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}[recipe.parallel.recompute.kind],
        "seed": recipe.seed,
    }
    return TitanExport(_TEMPLATE.format(**blocks), notes)


def _model_obstacles(model: Model) -> Iterator[Problem]:
    only = {"activation": "swiglu", "norm": "rmsnorm", "bias": False, "qk_norm": False, "position": "rotary", "rotary_fraction": 1.0}
    only |= {"sliding_window": None, "dropout": 0.0, "mup": None, "mla": None, "experts": None, "mtp": None}
    for name, want in only.items():
        if getattr(model, name) != want:
            got = getattr(model, name)
            yield _obstacle(f"model.{name}", got if isinstance(got, str | bool | int | float) else "[...]", want)
    if model.rope_scaling is not None and model.rope_scaling.kind != "llama3":
        yield _obstacle("model.rope_scaling.kind", model.rope_scaling.kind, "llama3")
    if model.init_truncation is not None:
        yield _obstacle("model.init_truncation", model.init_truncation, None)


def _training_obstacles(recipe: Recipe) -> Iterator[Problem]:
    if recipe.optimizer.name != "adamw":
        yield _obstacle("optimizer.name", recipe.optimizer.name, "adamw")
    if recipe.optimizer.z_loss:
        yield _obstacle("optimizer.z_loss", recipe.optimizer.z_loss, 0)
    if recipe.schedule.decay == "segments":
        yield _obstacle("schedule.decay", "segments", "one piece after the warm-up")
    if recipe.schedule.decay_shape == "exponential":
        yield _obstacle("schedule.decay_shape", "exponential", "linear, cosine or 1-sqrt")


def _obstacle(key: str, got: object, want: object) -> Problem:
    has = f"torchtitan's Llama 3 has {'none' if want is None else want}" if key.startswith("model.") else f"torchtitan has {want}"
    return Problem("export.torchtitan", f"{key} = {got}", has, "Export to Megatron-LM, or change it", Where(key=key))


def _plain(recipe: Recipe) -> Recipe:
    """The recipe as torchtitan can have it: one batch size, one length of sequences, one set of data."""
    batch = recipe.batch.model_copy(update={"ramp": ()})
    first = recipe.stage[0]
    return recipe.model_copy(update={"batch": batch, "stage": (Stage(name=first.name, mix=first.mix),)})


def _notes(recipe: Recipe) -> Iterator[str]:
    yield "torchtitan's decay lags a step behind: its last update does not quite reach final_lr"
    yield "torchtitan reads one set of data of its own; set DATASET. What is left out: " + "; ".join(
        f"stage {stage.name}: {', '.join(f'{name} {float(share):g}' for name, share in stage.mix.items())}" for stage in recipe.stage
    )
    if recipe.batch.ramp:
        yield f"batch.ramp is left out: {', '.join(f'{entry.size} from {entry.at}' for entry in recipe.batch.ramp)}"
    for stage in recipe.stage:
        given = {key: getattr(stage, key) for key in ("seq_len", "rope_theta", "global_size", "micro_size", "context")}
        changed = [f"{key} {value}" for key, value in given.items() if value is not None]
        changed += ["rope_scaling"] if stage.rope_scaling else []
        if changed:
            yield f"stage {stage.name} has its own {', '.join(changed)}, which is left out"
    if not recipe.batch.mask_documents:
        yield "torchtitan always keeps documents apart; batch.mask_documents is false"
    if recipe.parallel.sharding == "optimizer":
        yield "torchtitan has no sharding of the optimizer alone; weights and gradients are sharded too"
    if recipe.parallel.pipeline_layers is not None:
        yield f"parallel.pipeline_layers is left out: {list(recipe.parallel.pipeline_layers)}"
    if recipe.precision.compute in ("fp16", "fp8"):
        yield f"precision.compute {recipe.precision.compute} is left out: bf16"
    if recipe.optimizer.state_precision == "bf16":
        yield "optimizer.state_precision bf16 is left out: fp32"
    if recipe.evaluation.every is not None:
        yield "held-out evaluation is left out: set `validator`"


def _model(recipe: Recipe) -> dict[str, Any]:
    model = recipe.model
    scaling = model.rope_scaling
    rope: dict[str, Any] = {"theta": model.rope_theta, "scaling": "llama" if scaling else "none"}
    if scaling is not None:
        rope |= {"scaling_factor": scaling.factor, "original_max_position_embeddings": scaling.original_max_positions}
        rope |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    return {
        "LAYERS": model.layers,
        "HIDDEN": model.hidden,
        "HEADS": model.heads,
        "KV_HEADS": kv_heads(model),
        "HEAD_DIM": head_dim(model),
        "FFN_HIDDEN": model.ffn_hidden,
        "VOCAB_SIZE": model.vocab_size,
        "NORM_EPS": model.norm_eps,
        "TIED": model.tied_embeddings,
        "INIT_STD": model.init_std,
        "OUT_STD": model.init_std * ((2 * model.layers) ** -0.5 if model.depth_scaled_init else 1.0),
        "SEQ_LEN": recipe.batch.seq_len,
        "ROPE": rope,
    }


def _groups(recipe: Recipe) -> str:
    """Parameter groups in the order in which torchtitan matches them."""
    optimizer = recipe.optimizer
    common = {"lr": recipe.schedule.peak_lr, "betas": optimizer.betas, "eps": optimizer.eps}
    kept = [r".*norm.*"] + ([] if optimizer.decay_embeddings else [r".*(tok_embeddings|lm_head).*"])
    rows = [(pattern, 0.0) for pattern in kept] + [(".*", optimizer.weight_decay)]
    lines = []
    for pattern, decay in rows:
        arguments = common | {"weight_decay": decay}
        lines.append(f'                ParamGroupConfig(pattern=r"{pattern}", optimizer_name="AdamW", optimizer_kwargs={arguments!r}),')
    return "\n".join(lines)


def _schedule(recipe: Recipe, timeline: Timeline) -> dict[str, Any]:
    schedule, steps = recipe.schedule, timeline.end.steps
    values: dict[str, Any] = {"warmup_steps": timeline.at(schedule.warmup)[0].steps if schedule.warmup.amount else 0}
    values["min_lr_factor"] = schedule.final_lr / schedule.peak_lr
    if schedule.decay == "constant":
        return values | {"decay_ratio": 0.0}
    if schedule.decay == "wsd":
        ratio = _steps(timeline, schedule.decay_length) / steps
        return values | {"decay_ratio": ratio, "decay_type": _DECAYS[schedule.decay_shape]}
    return values | {"decay_type": schedule.decay}


def _steps(timeline: Timeline, length: Quantity | None) -> int:
    return timeline.at(length)[0].steps if length is not None and length.amount else 0


def _training(recipe: Recipe, timeline: Timeline) -> dict[str, Any]:
    pipeline = recipe.parallel.pipeline
    # With a pipeline the local batch is what fills it once, in micro-batches.
    return {
        "local_batch_size": recipe.batch.micro_size * (pipeline if pipeline > 1 else 1),
        "global_batch_size": recipe.batch.global_size,
        "seq_len": recipe.batch.seq_len,
        "max_norm": recipe.optimizer.clip_grad_norm,
        "steps": timeline.end.steps,
        "disable_cuda_graphs": True,
        "mixed_precision_param": "float32" if recipe.precision.compute == "fp32" else "bfloat16",
    }


def _parallelism(recipe: Recipe, replicas: int) -> dict[str, Any]:
    parallel = recipe.parallel
    sharded = parallel.sharding != "none"
    values: dict[str, Any] = {
        "data_parallel_replicate_degree": 1 if sharded else replicas,
        "data_parallel_shard_degree": replicas if sharded else 1,
        "tensor_parallel_degree": parallel.tensor,
        "enable_sequence_parallel": parallel.sequence,
        "context_parallel_degree": parallel.context,
        "pipeline_parallel_degree": parallel.pipeline,
    }
    if parallel.pipeline > 1:
        values |= {
            "pipeline_parallel_schedule": _SCHEDULES[parallel.schedule],
            "pipeline_parallel_microbatch_size": recipe.batch.micro_size,
            "pipeline_parallel_layers_per_stage": -(-recipe.model.layers // (parallel.pipeline * parallel.virtual_pipeline)),
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
        }
    return values


def _assignments(values: dict[str, Any]) -> str:
    return "\n".join(f"{name} = {value!r}" for name, value in values.items())


def _arguments(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


_TEMPLATE = '''"""{name} for torchtitan 0.3 on {gpus} GPUs, written by preheat. Put this file on PYTHONPATH:

    torchrun --nproc_per_node 8 ... -m torchtitan.train --module NAME_OF_THIS_FILE --config recipe
"""

{notes}
from functools import partial

from torch import nn
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig
from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common import ComplexRoPE, Embedding, FeedForward, Linear, RMSNorm
from torchtitan.models.common.config_utils import get_attention_config, make_gqa_config
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock
from torchtitan.models.llama3.parallelize import parallelize_llama
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

DATASET = "c4"
TOKENIZER = "./assets/tokenizer"
{model}


def _normal(std: float) -> dict:
    return {{"weight": partial(nn.init.normal_, std=std)}}


def _norm() -> RMSNorm.Config:
    return RMSNorm.Config(normalized_shape=HIDDEN, eps=NORM_EPS, param_init={{"weight": nn.init.ones_}})


def _linear(inputs: int, outputs: int, std: float) -> Linear.Config:
    return Linear.Config(in_features=inputs, out_features=outputs, param_init=_normal(std))


def _layer() -> Llama3TransformerBlock.Config:
    return Llama3TransformerBlock.Config(
        attention_norm=_norm(),
        ffn_norm=_norm(),
        attention=make_gqa_config(
            dim=HIDDEN,
            n_heads=HEADS,
            n_kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            wqkv_param_init=_normal(INIT_STD),
            wo_param_init=_normal(OUT_STD),
            inner_attention=get_attention_config("flex"),
            rope=ComplexRoPE.Config(dim=HEAD_DIM, max_seq_len=SEQ_LEN, **ROPE),
        ),
        feed_forward=FeedForward.Config(
            w1=_linear(HIDDEN, FFN_HIDDEN, INIT_STD),
            w2=_linear(FFN_HIDDEN, HIDDEN, OUT_STD),
            w3=_linear(HIDDEN, FFN_HIDDEN, INIT_STD),
        ),
    )


def _model() -> Llama3Model.Config:
    return Llama3Model.Config(
        dim=HIDDEN,
        vocab_size=VOCAB_SIZE,
        enable_weight_tying=TIED,
        tok_embeddings=Embedding.Config(num_embeddings=VOCAB_SIZE, embedding_dim=HIDDEN, param_init=_normal(INIT_STD)),
        norm=_norm(),
        lm_head=_linear(HIDDEN, VOCAB_SIZE, INIT_STD),
        layers=[_layer() for _ in range(LAYERS)],
    )


def recipe() -> Trainer.Config:
    return Trainer.Config(
        hf_assets_path=TOKENIZER,
        model_spec=ModelSpec(
            name="llama3",
            flavor="{name}",
            model=_model(),
            parallelize_fn=parallelize_llama,
            pipelining_fn=pipeline_llm,
            post_optimizer_build_fn=None,
            state_dict_adapter=Llama3StateDictAdapter,
        ),
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=VOCAB_SIZE)),
        dataloader=HuggingFaceTextDataLoader.Config(dataset=DATASET),
        optimizer=OptimizersContainer.Config(
            param_groups=[
{groups}
            ]
        ),
        lr_scheduler=LRSchedulersContainer.Config({schedule}),
        training=TrainingConfig({training}),
        parallelism=ParallelismConfig({parallel}),
        activation_checkpoint={recompute},
        checkpoint=CheckpointManager.Config({checkpoint}),
        debug=DebugConfig(seed={seed}),
    )
'''

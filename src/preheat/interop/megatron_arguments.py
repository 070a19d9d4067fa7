"""A recipe's values as Megatron-LM arguments, in groups; what no argument can say is left to the exporter's comparison."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction

from preheat.arithmetic import stage_parallel
from preheat.errors import refuse
from preheat.interop.megatron_batches import Group, Request, batch_arguments
from preheat.interop.megatron_optimizer import optimizer_arguments, shards_layer_wise
from preheat.interop.megatron_windows import Window
from preheat.megatron.architecture import LLAMA3_SCALING, YARN
from preheat.megatron.stages import write_layout
from preheat.recipe import Model, Parallel, Recipe
from preheat.recipe.architecture import Experts, RopeScaling, WidthTransfer
from preheat.units import Quantity


def groups(request: Request, window: Window) -> dict[str, Group]:
    """The arguments of one window, by topic."""
    recipe = request.recipe
    parallel = stage_parallel(recipe.parallel, recipe.stage[window.stage_index])
    found: dict[str, Group] = {
        "MODEL": _model(recipe.model, recipe, window),
        "POSITIONS": _positions(request, window),
        "EXPERTS": _experts(request, window),
        "DATA": _data(recipe, window),
        "BATCH": batch_arguments(request, window),
        "OPTIMIZER": optimizer_arguments(request, parallel),
        "SCHEDULE": _schedule(request, window),
        "PRECISION": _precision(recipe),
        "PARALLEL": _parallel(request, parallel),
        "OUTPUT": _output(request, window),
        "CONTINUE": [("--override-opt-param-scheduler",)] if window.start else [],
    }
    return {name: group for name, group in found.items() if group}


def _model(model: Model, recipe: Recipe, window: Window) -> Group:
    group: Group = [
        ("--num-layers", str(model.layers)),
        ("--hidden-size", str(model.hidden)),
        ("--num-attention-heads", str(model.heads)),
        ("--ffn-hidden-size", str(model.ffn_hidden)),
    ]
    if model.mla is not None:
        group.append(("--multi-latent-attention",))
        if model.mla.q_lora_rank is not None:
            group.append(("--q-lora-rank", str(model.mla.q_lora_rank)))
        group += [
            ("--kv-lora-rank", str(model.mla.kv_lora_rank)),
            ("--qk-head-dim", str(model.mla.qk_nope_head_dim)),
            ("--qk-pos-emb-head-dim", str(model.mla.qk_rope_head_dim)),
            ("--v-head-dim", str(model.mla.v_head_dim)),
        ]
    else:
        if model.kv_heads is not None:
            group += [("--group-query-attention",), ("--num-query-groups", str(model.kv_heads))]
        if model.head_dim is not None:
            group.append(("--kv-channels", str(model.head_dim)))
    if model.qk_norm or model.mla is not None:
        group.append(("--qk-layernorm",))
    if model.sliding_window is not None:
        group.append(("--window-size", f"{model.sliding_window - 1},0"))
    group += {"swiglu": [("--swiglu",)], "squared_relu": [("--squared-relu",)], "gelu": []}[model.activation]
    group.append(("--normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"))
    if model.norm == "layernorm1p":
        group.append(("--apply-layernorm-1p",))
    group.append(("--norm-epsilon", _number(model.norm_eps)))
    if not model.bias:
        group.append(("--disable-bias-linear",))
    elif model.activation == "squared_relu":
        group.append(("--no-bias-gelu-fusion",))
    if not model.tied_embeddings:
        group.append(("--untie-embeddings-and-output-weights",))
    group += [(flag, _number(model.dropout)) for flag in ("--hidden-dropout", "--attention-dropout")]
    group += [("--init-method-std", _number(model.init_std)), ("--seed", str(recipe.seed))]
    if model.mup is not None:
        group += _width_transfer(model, model.mup)
    if model.mtp is not None:
        group.append(("--mtp-num-layers", str(model.mtp.layers)))
    return group


def _width_transfer(model: Model, mup: WidthTransfer) -> Group:
    """muP; without a base width of heads Megatron-LM would take 1, where a recipe means the model's own."""
    if model.mla is not None:
        if mup.base_head_dim is not None:
            want = "Megatron-LM's latent attention has its own scale"
            refuse("export.mup", "mup.base_head_dim with mla", want, "Remove base_head_dim", key="model.mup.base_head_dim")
        return [("--use-mup",), ("--mup-base-hidden-size", str(mup.base_hidden))]
    width = mup.base_head_dim or model.head_dim or model.hidden // model.heads
    return [("--use-mup",), ("--mup-base-hidden-size", str(mup.base_hidden)), ("--mup-base-head-dim", str(width))]


def _positions(request: Request, window: Window) -> Group:
    model, seq_len = request.recipe.model, window.segments[0].seq_len
    longest = max(segment.seq_len for segment in request.timeline.segments)
    if model.position == "learned":
        most = model.max_positions or longest
        return [("--position-embedding-type", "learned_absolute"), ("--seq-length", str(seq_len)), ("--max-position-embeddings", str(most))]
    theta = window.segments[0].rope_theta
    if theta is None or theta != int(theta):
        refuse("export.rope-theta", f"rope_theta {theta}", "--rotary-base is an integer", "Round it", key="model.rope_theta")
    scaling = window.segments[0].rope_scaling
    yarn = scaling is not None and scaling.kind == "yarn"
    kind = "yarn" if yarn and model.mla is None else "rope"
    group: Group = [("--position-embedding-type", kind), ("--rotary-base", str(int(theta)))]
    if model.rotary_fraction != 1.0:
        group.append(("--rotary-percent", _number(model.rotary_fraction)))
    if scaling is not None:
        group += _scaling(request, scaling)
    return [*group, ("--seq-length", str(seq_len)), ("--max-position-embeddings", str(longest))]


def _scaling(request: Request, scaling: RopeScaling) -> Group:
    key = "model.rope_scaling"
    if scaling.kind == "llama3":
        fixed = {name: getattr(scaling, name) for name in LLAMA3_SCALING}
        if fixed != LLAMA3_SCALING:
            refuse("export.rope-scaling", f"{fixed}", f"Megatron-LM has {LLAMA3_SCALING} built in", "Use these", key=key)
        return [("--use-rope-scaling",), ("--rope-scaling-factor", _number(scaling.factor))]
    scale = _number(1.0 if scaling.mscale is None else scaling.mscale)
    group: Group = [("--rotary-scaling-factor", _number(scaling.factor)), ("--mscale", scale), ("--mscale-all-dim", scale)]
    found = {name: getattr(scaling, name) for name in YARN}
    if request.recipe.model.mla is None:
        if request.before("0.19"):
            refuse("export.rope-scaling", "YaRN without latent attention", "core 0.19 brought its arguments", "Export for 0.19", key=key)
        group += [
            ("--yarn-original-max-position-embeddings", str(scaling.original_max_positions)),
            ("--yarn-beta-fast", _number(scaling.beta_fast or YARN["beta_fast"])),
            ("--yarn-beta-slow", _number(scaling.beta_slow or YARN["beta_slow"])),
        ]
    elif found != YARN:
        refuse("export.rope-scaling", f"{found}", f"Megatron-LM's latent attention has {YARN} built in", "Use these", key=key)
    return group


def _experts(request: Request, window: Window) -> Group:
    model = request.recipe.model
    group: Group = []
    if model.mtp is not None:
        weight = request.timeline.in_force(model.mtp.loss_weight, window.start)
        group.append(("--mtp-loss-scaling-factor", _number(weight.weight if weight else 0.0)))
    experts = model.experts
    if experts is None:
        return group
    group += [
        ("--num-experts", str(experts.count)),
        ("--moe-router-topk", str(experts.active)),
        ("--moe-ffn-hidden-size", str(experts.ffn_hidden)),
        ("--moe-router-score-function", experts.score),
    ]
    if experts.shared:
        group.append(("--moe-shared-expert-intermediate-size", str(experts.shared * experts.ffn_hidden)))
    if experts.first_dense:
        group.append(("--moe-layer-freq", f"([0]*{experts.first_dense}+[1]*{model.layers - experts.first_dense})"))
    if experts.groups is not None and experts.active_groups is not None:
        group += [("--moe-router-num-groups", str(experts.groups)), ("--moe-router-group-topk", str(experts.active_groups))]
    if experts.scaling != 1.0:
        group.append(("--moe-router-topk-scaling-factor", _number(experts.scaling)))
    if experts.active == 1 and experts.score == "softmax":
        group.append(("--moe-router-pre-softmax",))
    if experts.capacity_factor is not None:
        group.append(("--moe-expert-capacity-factor", _number(experts.capacity_factor)))
    group += _balance(request, experts, window)
    return [*group, ("--moe-grouped-gemm",), ("--moe-token-dispatcher-type", "alltoall"), ("--moe-router-dtype", "fp32")]


def _balance(request: Request, experts: Experts, window: Window) -> Group:
    losses = {"aux_loss": experts.aux_loss, "seq_aux_loss": experts.sequence_aux_loss}
    losses = {name: coefficient for name, coefficient in losses.items() if coefficient} or {"none": 0.0}
    group: Group = [
        ("--moe-router-load-balancing-type", *losses),
        ("--moe-aux-loss-coeff", *(_number(coefficient) for coefficient in losses.values())),
    ]
    if any(change.rate for change in experts.bias_update_rate):
        rate = request.timeline.in_force(experts.bias_update_rate, window.start)
        group += [("--moe-router-enable-expert-bias",), ("--moe-router-bias-update-rate", _number(rate.rate if rate else 0.0))]
    if experts.z_loss:
        group.append(("--moe-z-loss-coeff", _number(experts.z_loss)))
    return group


def _data(recipe: Recipe, window: Window) -> Group:
    tokenizer, model = recipe.tokenizer, recipe.model
    group: Group = []
    if tokenizer.kind == "gpt2":
        files = [
            (flag, "${TOKENIZER:-tokenizer}/" + name) for flag, name in (("--vocab-file", "vocab.json"), ("--merge-file", "merges.txt"))
        ]
        group += [("--tokenizer-type", "GPT2BPETokenizer"), *files]
    else:
        given = tokenizer.path or ""
        # Whatever file a tokenizer was read from, the prepared folder holds it as a tokenizer.json.
        path = given if given.endswith(".json") else f"prepared/{recipe.name}/tokenizer.json"
        group += [("--tokenizer-type", "HuggingFaceTokenizer"), ("--tokenizer-model", path.removesuffix("/tokenizer.json"))]
    group.append(("--vocab-size", str(model.vocab_size)))
    blend = [part for name, weight in recipe.stage[window.stage_index].mix.items() for part in (_number(float(weight)), _prefix(name))]
    group.append(("--data-path", *blend))
    if recipe.batch.mask_documents:
        group += [("--reset-position-ids",), ("--reset-attention-mask",)]
    held_out = recipe.data.held_out.amount
    return [*group, ("--split", f"{_exact(100 - 100 * held_out)},{_exact(100 * held_out)},0")]


def _prefix(source: str) -> str:
    return "${DATA:-data}/" + source + "_text_document"


def _schedule(request: Request, window: Window) -> Group:
    rate = window.rate
    group: Group = [
        ("--lr", _number(rate.peak)),
        ("--min-lr", _number(rate.final)),
        ("--lr-decay-style", rate.style),
    ]
    count = _counter(request, window)
    group.append((f"--train-{count.unit}", str(count.of(window.end))))
    if rate.warmup:
        group.append((f"--lr-warmup-{count.unit}", str(count.of(rate.warmup))))
    if rate.style != "constant" and count.of(rate.end) != count.of(window.end):
        group.append((f"--lr-decay-{count.unit}", str(count.of(rate.end))))
    if rate.tail:
        group += [
            (f"--lr-wsd-decay-{count.unit}", str(count.of(rate.end) - count.of(rate.end - rate.tail))),
            ("--lr-wsd-decay-style", rate.tail_style),
        ]
    return group


@dataclass(frozen=True)
class _Counter:
    """Tokens in the unit in which a command counts."""

    unit: str
    tokens: int

    def of(self, tokens: int) -> int:
        return -(-tokens // self.tokens)


def _counter(request: Request, window: Window) -> _Counter:
    """Iterations where the recipe counts in steps of one size, else samples of this stage's length."""
    seq_len = window.segments[0].seq_len
    if request.recipe.schedule.length.unit == "steps" and len(request.timeline.segments) == 1:
        return _Counter("iters", seq_len * window.segments[0].batch_size)
    return _Counter("samples", seq_len)


def _precision(recipe: Recipe) -> Group:
    compute = recipe.precision.compute
    if compute == "fp8":
        # Megatron has no scales by rows: the nearest stands in the command, and the recipe's in its comments.
        scaling = {None: "delayed", "rowwise": "tensorwise"}.get(recipe.precision.fp8_recipe, recipe.precision.fp8_recipe)
        return [("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", str(scaling))]
    flag = {"auto": "--bf16", "bf16": "--bf16", "fp16": "--fp16"}.get(compute)
    return [(flag,)] if flag else []


def _parallel(request: Request, parallel: Parallel) -> Group:
    model = request.recipe.model
    group: Group = [
        ("--tensor-model-parallel-size", str(parallel.tensor)),
        ("--pipeline-model-parallel-size", str(parallel.pipeline)),
        ("--context-parallel-size", str(parallel.context)),
    ]
    if model.experts is not None:
        group += [
            ("--expert-model-parallel-size", str(parallel.expert)),
            ("--expert-tensor-parallel-size", str(parallel.expert_tensor)),
        ]
    group += _split(model, parallel)
    if parallel.sequence:
        group.append(("--sequence-parallel",))
    if parallel.sharding == "optimizer":
        sharded: Group = [] if shards_layer_wise(request, parallel) else [("--use-distributed-optimizer",)]
        group += [*sharded, ("--overlap-grad-reduce",), ("--overlap-param-gather",)]
    elif parallel.sharding == "full":
        group += [
            ("--use-megatron-fsdp",),
            ("--data-parallel-sharding-strategy", "optim_grads_params"),
            ("--use-distributed-optimizer",),
            ("--no-gradient-accumulation-fusion",),
            ("--ckpt-format", "fsdp_dtensor"),
        ]
    recompute = parallel.recompute
    if recompute.kind != "none":
        group.append(("--recompute-granularity", recompute.kind))
    if recompute.kind == "full":
        method, layers = ("uniform", 1) if recompute.layers is None else ("block", recompute.layers)
        group += [("--recompute-method", method), ("--recompute-num-layers", str(layers))]
    return group


def _split(model: Model, parallel: Parallel) -> Group:
    """How the layers lie on pipeline stages."""
    pieces = parallel.pipeline_layers
    if pieces is None:
        return [("--num-virtual-stages-per-pipeline-rank", str(parallel.virtual_pipeline))] if parallel.virtual_pipeline > 1 else []
    middle = set(pieces[1:-1])
    if parallel.virtual_pipeline == 1 and len(middle) == 1 and min(pieces[0], pieces[-1]) > 0:
        (size,) = middle
        ends = (("--decoder-first-pipeline-num-layers", pieces[0]), ("--decoder-last-pipeline-num-layers", pieces[-1]))
        return [(flag, str(layers)) for flag, layers in ends if layers != size]
    return [("--pipeline-model-parallel-layout", write_layout(pieces, model.mtp.layers if model.mtp else 0))]


def _output(request: Request, window: Window) -> Group:
    recipe = request.recipe
    folder = "${CHECKPOINTS:-checkpoints}/" + recipe.name
    step = window.segments[-1].batch_size * window.segments[-1].seq_len
    group: Group = [("--save", folder), ("--load", folder), ("--save-interval", str(_steps(request, recipe.checkpoint.every, step)))]
    if recipe.evaluation.every is None:
        return [*group, ("--eval-iters", "0")]
    return [*group, ("--eval-interval", str(_steps(request, recipe.evaluation.every, step))), ("--eval-iters", "10")]


def _steps(request: Request, every: Quantity, step: int) -> int:
    """An interval in steps of the window's own size."""
    if every.unit == "steps":
        return int(every.amount)
    tokens = request.timeline.end.tokens * every.amount if every.unit == "%" else every.amount
    factor = Fraction(1, step) if every.unit != "samples" else Fraction(request.recipe.batch.seq_len, step)
    return max(1, round(tokens * factor))


def _number(value: float) -> str:
    return json.dumps(value)


def _exact(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else json.dumps(float(value))

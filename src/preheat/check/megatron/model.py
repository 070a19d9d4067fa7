"""Rules about the model: attention, positions, activations, and the defaults that make another model than the one that is named."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import ValidationError

from preheat.arithmetic import Parameters, parameters
from preheat.check.megatron.registry import hazard
from preheat.check.registry import Finding
from preheat.megatron import Settings
from preheat.megatron.architecture import model_table, vocabulary
from preheat.recipe import Model
from preheat.units import rounded

ASSUMED_VOCABULARY = 32_000
"""For counting parameters where a command names no vocabulary."""


@hazard("gqa-missing", absence=True)
def gqa_missing(settings: Settings) -> Iterator[Finding]:
    """--num-query-groups only counts with --group-query-attention; without it every head has its own keys and values.

    Stricter than Megatron-LM, which builds that model without a word. Example: most published LLaMA commands.
    """
    if settings.has("num_query_groups") and not settings["group_query_attention"] and not settings["multi_latent_attention"]:
        groups, heads = settings["num_query_groups"], settings["num_attention_heads"]
        if groups != heads:
            got = f"--num-query-groups {groups} without --group-query-attention has no effect"
            yield Finding("--num-query-groups", got, f"{heads} key/value heads are trained", "Add --group-query-attention")


@hazard("mla-gqa")
def mla_gqa(settings: Settings) -> Iterator[Finding]:
    """Latent attention has no query groups.

    Example: --multi-latent-attention --group-query-attention --num-query-groups 16.
    """
    if settings["multi_latent_attention"] and (settings["group_query_attention"] or settings.has("num_query_groups")):
        yield Finding("--multi-latent-attention", "query groups with --multi-latent-attention", "one of them", "Remove --num-query-groups")


@hazard("head-width")
def head_width(settings: Settings) -> Iterator[Finding]:
    """Heads share the hidden width, unless --kv-channels says how wide a head is.

    Example: --hidden-size 4096 --num-attention-heads 48.
    """
    hidden, heads = settings["hidden_size"], settings["num_attention_heads"]
    if hidden and heads and settings["kv_channels"] is None and hidden % heads:
        yield Finding("--num-attention-heads", f"hidden {hidden} / heads {heads}", "a whole head width", "Change one or give --kv-channels")


@hazard("positions")
def positions(settings: Settings) -> Iterator[Finding]:
    """--max-position-embeddings is at least the sequence length, also with rotary positions.

    Example: --seq-length 8192 --max-position-embeddings 4096.
    """
    most, seq_len = settings["max_position_embeddings"], settings["seq_length"]
    if most is not None and seq_len is not None and most < seq_len:
        got = f"--max-position-embeddings {most}"
        yield Finding("--max-position-embeddings", got, f"--seq-length is {seq_len}", f"Write --max-position-embeddings {seq_len}")


@hazard("activation")
def activation(settings: Settings) -> Iterator[Finding]:
    """One activation, and one that the fused bias kernel knows: GELU or SwiGLU.

    Example: --squared-relu needs --disable-bias-linear (or --no-bias-gelu-fusion).
    """
    chosen = [name for name in ("swiglu", "squared_relu", "quick_geglu") if settings[name]]
    if len(chosen) > 1:
        flags = [f"--{name.replace('_', '-')}" for name in chosen]
        yield Finding(flags[1], " and ".join(flags), "one of them", "Remove one")
    elif settings["squared_relu"] and settings["add_bias_linear"] and settings["bias_gelu_fusion"]:
        got = "--squared-relu with the fused bias kernel"
        yield Finding("--squared-relu", got, "the kernel knows GELU and SwiGLU", "Add --disable-bias-linear or --no-bias-gelu-fusion")


@hazard("document-mask", "warning")
def document_mask(settings: Settings) -> Iterator[Finding]:
    """Attention in Megatron-LM is causal whatever the mask, but for its own unfused kernel: the documents of a sample see each other.

    Megatron-LM says nothing. Example: --reset-attention-mask with the default --transformer-impl; --reset-position-ids moves learned
    positions only. Source: layer specifications of megatron-core; NVIDIA/Megatron-LM issue 415.
    """
    heeded = settings["transformer_impl"] == "local" and not settings["masked_softmax_fusion"]
    if settings["reset_attention_mask"] and not heeded:
        fix = "Add --transformer-impl local --no-masked-softmax-fusion (slow), or remove it"
        yield Finding("--reset-attention-mask", "--reset-attention-mask has no effect here", "attention is causal whatever the mask", fix)


@hazard("prediction-positions")
def prediction_positions(settings: Settings) -> Iterator[Finding]:
    """Multi-token prediction knows rotary positions and none.

    Example: --mtp-num-layers 1 with the default, learned positions.
    """
    kind = "rope" if settings["use_rotary_position_embeddings"] else settings["position_embedding_type"]
    if settings["mtp_num_layers"] and kind not in ("rope", "none"):
        yield Finding("--mtp-num-layers", f"--mtp-num-layers with {kind} positions", "rope or none", "Add --position-embedding-type rope")


@hazard("latent-rotary")
def latent_rotary(settings: Settings) -> Iterator[Finding]:
    """In latent attention the fused rotary kernel only knows YaRN, which is also the default of --rope-type there.

    Example: --multi-latent-attention --rope-type rope without --no-rope-fusion.
    """
    if not settings["multi_latent_attention"] and settings["rope_type"] == "yarn":
        yield Finding("--rope-type", "--rope-type yarn without --multi-latent-attention", "rope", "Remove it")
    fused = settings["apply_rope_fusion"] and settings["position_embedding_type"] == "rope"
    if settings["multi_latent_attention"] and settings["rope_type"] == "rope" and fused:
        yield Finding("--rope-type", "--rope-type rope with the fused rotary kernel", "yarn", "Add --no-rope-fusion")


@hazard("latent-width", "warning", absence=True)
def latent_width(settings: Settings) -> Iterator[Finding]:
    """The latent of keys and values is 32 wide by default, which is for tests.

    Example: --multi-latent-attention without --kv-lora-rank; DeepSeek-V3 has 512.
    """
    if settings["multi_latent_attention"] and not settings.has("kv_lora_rank"):
        yield Finding("--kv-lora-rank", "no --kv-lora-rank: 32 is taken", "DeepSeek-V3 has 512", "Give --kv-lora-rank")


@hazard("qk-scaling")
def qk_scaling(settings: Settings) -> Iterator[Finding]:
    """Scaling queries and keys by the layer number is a trick for fp16, and Transformer Engine wants an environment variable for it.

    Megatron-LM's validation lets it through; building attention fails. It has nothing to do with FP8. Example:
    --apply-query-key-layer-scaling in an FP8 command.
    """
    flag = "--apply-query-key-layer-scaling"
    if not settings["apply_query_key_layer_scaling"]:
        return
    environment = settings.command.environment.get("NVTE_APPLY_QK_LAYER_SCALING")
    if settings["transformer_impl"] == "transformer_engine" and environment != "1":
        yield Finding(flag, f"{flag} without NVTE_APPLY_QK_LAYER_SCALING=1", "it is for fp16", "Remove it")


@hazard("default", "warning", absence=True)
def defaults(settings: Settings) -> Iterator[Finding]:
    """Defaults of Megatron-LM that are those of GPT-2 and not of the models trained today: said aloud when they are in force.

    Example: rotary positions without --rotary-base turn with 10,000, and LLaMA-3 has 500,000; a command without dropout flags
    trains with 0.1; embeddings are tied unless --untie-embeddings-and-output-weights is given.
    """
    llama = settings["swiglu"] or settings["normalization"] == "RMSNorm" or bool(settings["num_experts"])
    rotary = settings["position_embedding_type"] in ("rope", "yarn") or settings["use_rotary_position_embeddings"]
    if not settings.has("position_embedding_type") and not rotary:
        yield Finding(
            "--position-embedding-type", "no --position-embedding-type: learned positions", "", "Add --position-embedding-type rope"
        )
    if rotary and not settings.has("rotary_base"):
        yield Finding("--rotary-base", "no --rotary-base: 10000 is taken", "LLaMA-3 has 500000, Mixtral 1000000", "Give --rotary-base")
    for name in ("hidden_dropout", "attention_dropout"):
        if not settings.has(name):
            flag = "--" + name.replace("_", "-")
            yield Finding(flag, f"no {flag}: 0.1 is taken", "pretraining today has 0", f"Add {flag} 0.0")
    if not settings["untie_embeddings_and_output_weights"] and llama:
        flag = "--untie-embeddings-and-output-weights"
        yield Finding(flag, f"no {flag}: the head is the embedding", "LLaMA-3, Mixtral and DeepSeek have their own", f"Add {flag}")
    if settings["add_bias_linear"] and llama:
        flag = "--disable-bias-linear"
        yield Finding(flag, f"no {flag}: all linear layers have biases", "LLaMA, Mixtral and DeepSeek have none", f"Add {flag}")
    if not settings.has("normalization") and (settings["swiglu"] or rotary):
        yield Finding("--normalization", "no --normalization: LayerNorm is taken", "", "Say --normalization RMSNorm or LayerNorm")
    if settings["normalization"] == "RMSNorm" and not (settings["swiglu"] or settings["squared_relu"] or settings["quick_geglu"]):
        yield Finding("--swiglu", "no activation is named: GELU is taken", "", "Add --swiglu or --squared-relu")
    if not settings.has("adam_beta2") and settings["optimizer"] == "adam":
        yield Finding("--adam-beta2", "no --adam-beta2: 0.999 is taken", "pretraining has 0.95", "Add --adam-beta2 0.95")
    if not settings.has("weight_decay"):
        yield Finding("--weight-decay", "no --weight-decay: 0.01 is taken", "pretraining has 0.1", "Add --weight-decay 0.1")


@hazard("size", "note", absence=True)
def model_size(settings: Settings) -> Iterator[Finding]:
    """What model the arguments make, so that it can be compared with the one that is named.

    Example: the published "GPT-3 15B" has 12.8B parameters with GPT-2's vocabulary; its command has as many key/value heads as heads.
    """
    count = _count(settings)
    if count is not None:
        active = f", {rounded(count.active)} of them active for a token" if count.active != count.total else ""
        known = "" if vocabulary(settings) else f", if its vocabulary (none is given) has {ASSUMED_VOCABULARY:_} entries"
        yield Finding("--num-layers", f"the model has {rounded(count.total)} parameters{active}{known}: {_shape(settings)}")


def _shape(settings: Settings) -> str:
    """Attention, activation, norm, positions and the like in one line."""
    table, _ = model_table(settings)
    heads = settings["num_attention_heads"]
    keys = "latent keys and values" if "mla" in table else f"{table.get('kv_heads', heads)} key/value heads"
    positions = "learned positions" if table.get("position") == "learned" else f"rotary base {table.get('rope_theta', 0):g}"
    embeddings = "tied embeddings" if table["tied_embeddings"] else "its own head"
    biases = "biases" if table["bias"] else "no biases"
    parts = (f"{heads} heads, {keys}", table["activation"], table["norm"], positions, embeddings, biases, f"dropout {table['dropout']:g}")
    return ", ".join(parts)


@hazard("size-name", "warning")
def size_name(settings: Settings) -> Iterator[Finding]:
    """A name that says a size is within a tenth of it.

    Example: a file or checkpoint folder called gpt3-15b with arguments that make 12.8B parameters.
    """
    count = _count(settings)
    if count is None:
        return
    for flag, name in (("--save", settings["save"] or ""), ("--num-layers", settings.command.file)):
        said = re.search(r"(?<![\dx.])(\d+(?:\.\d+)?)b(?![a-z0-9])", name.rsplit("/", 1)[-1].lower())
        if said and abs(count.total / (float(said[1]) * 1e9) - 1) > 0.1:
            yield Finding(flag, f"the name says {said[1]}B", f"the arguments make {rounded(count.total)} parameters", "Check the shape")
            return


def _count(settings: Settings) -> Parameters | None:
    """The parameters of the model, or None when the command does not say enough."""
    table, _ = model_table(settings)
    table.setdefault("vocab_size", ASSUMED_VOCABULARY)
    try:
        return parameters(Model.model_validate(table))
    except (ValidationError, ValueError, ZeroDivisionError):
        return None

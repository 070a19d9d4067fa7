"""The model that Megatron-LM would build, as the `[model]` table of a recipe, and what of it a recipe cannot say."""

from __future__ import annotations

from typing import Any

from preheat.megatron.settings import Settings

LLAMA3_SCALING = {"original_max_positions": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
"""What Megatron-LM's --use-rope-scaling takes beside the factor."""
YARN = {"original_max_positions": 4096, "beta_fast": 32.0, "beta_slow": 1.0}
"""What its latent attention takes for YaRN beside factor and mscale."""
GPT2_VOCABULARY = 50_257

Lost = list[tuple[str, str]]
"""Flag and what it means that a recipe cannot say."""


def model_table(settings: Settings, meant: bool = False) -> tuple[dict[str, Any], Lost]:
    """The `[model]` table; keys that the command leaves unknown are missing.

    With `meant` it is the model that the author meant: --num-query-groups counts even where Megatron-LM does not heed it.
    """
    lost: Lost = []
    heads, hidden = settings["num_attention_heads"], settings["hidden_size"]
    table: dict[str, Any] = {"layers": settings["num_layers"], "hidden": hidden, "heads": heads}
    table["ffn_hidden"] = ffn_hidden(settings)
    table["vocab_size"] = vocabulary(settings)
    table |= _feed_forward(settings, lost) | _norms(settings, lost) | _positions(settings, lost)
    if settings["multi_latent_attention"]:
        names = {"qk_nope_head_dim": "qk_head_dim", "qk_rope_head_dim": "qk_pos_emb_head_dim"}
        keys = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        table["mla"] = {key: settings[names.get(key, key)] for key in keys if settings[names.get(key, key)] is not None}
    else:
        if settings["group_query_attention"] or (meant and settings.has("num_query_groups")):
            table["kv_heads"] = settings["num_query_groups"]
        if settings["kv_channels"] and settings["kv_channels"] * (heads or 0) != hidden:
            table["head_dim"] = settings["kv_channels"]
    if settings["num_experts"]:
        table["experts"] = _experts(settings, lost)
    if settings["mtp_num_layers"]:
        table["mtp"] = {"layers": settings["mtp_num_layers"], "loss_weight": settings["mtp_loss_scaling_factor"]}
    if settings["use_mup"]:
        table["mup"] = _width_transfer(settings, lost)
    table["tied_embeddings"] = not settings["untie_embeddings_and_output_weights"]
    table["init_std"] = settings["init_method_std"]
    if settings["init_method_xavier_uniform"]:
        lost.append(("--init-method-xavier-uniform", "another initialisation than a normal one"))
    if settings["hidden_dropout"] != settings["attention_dropout"]:
        lost.append(("--attention-dropout", f"dropout of {settings['attention_dropout']:g} only in attention"))
    table["dropout"] = settings["hidden_dropout"]
    return {key: value for key, value in table.items() if value is not None}, lost


def ffn_hidden(settings: Settings) -> int | None:
    """The inner width of the dense feed-forward layer: 4 x hidden by default, or with SwiGLU about 8/3, in multiples of 64."""
    given, hidden = settings["ffn_hidden_size"], settings["hidden_size"]
    if given is not None or hidden is None:
        return int(given) if given is not None else None
    return int((4 * hidden * 2 / 3) / 64) * 64 if settings["swiglu"] else 4 * hidden


def vocabulary(settings: Settings) -> int | None:
    """Entries of the vocabulary, where the command lets one know."""
    if settings["vocab_size"]:
        return int(settings["vocab_size"])
    gpt2 = settings["tokenizer_type"] == "GPT2BPETokenizer" or (settings["tokenizer_type"] is None and settings["merge_file"])
    return GPT2_VOCABULARY if gpt2 else None


def expert_width(settings: Settings) -> int | None:
    """The inner width of one expert."""
    return settings["moe_ffn_hidden_size"] or ffn_hidden(settings)


def dense_pattern(settings: Settings) -> list[int] | None:
    """1 for each layer with experts and 0 for each dense one."""
    layers, frequency = settings["num_layers"], settings["moe_layer_freq"]
    if layers is None or frequency is None:
        return None
    return frequency if isinstance(frequency, list) else [int(index % max(frequency, 1) == 0) for index in range(layers)]


def _width_transfer(settings: Settings, lost: Lost) -> dict[str, Any]:
    """muP. Without a base width of heads Megatron-LM takes 1: attention scores by head width, not its root."""
    hidden, heads = settings["hidden_size"], settings["num_attention_heads"]
    table: dict[str, Any] = {"base_hidden": settings["mup_base_hidden_size"] or hidden}
    base, own = settings["mup_base_head_dim"] or 1.0, settings["kv_channels"] or (hidden // heads if hidden and heads else None)
    if not settings["multi_latent_attention"] and base != own:
        table["base_head_dim"] = int(base)
        if base != int(base):
            lost.append(("--mup-base-head-dim", f"a base head width of {base:g}"))
    for name in ("mup_embedding_mult", "mup_output_mult", "mup_attn_scale_power"):
        if settings[name] != 1.0:
            lost.append(("--" + name.replace("_", "-"), f"{settings[name]:g} instead of 1"))
    return table


def _feed_forward(settings: Settings, lost: Lost) -> dict[str, Any]:
    activation = "swiglu" if settings["swiglu"] else "squared_relu" if settings["squared_relu"] else "gelu"
    for name, flag in (("quick_geglu", "--quick-geglu"), ("openai_gelu", "--openai-gelu"), ("onnx_safe", "--onnx-safe")):
        if settings[name]:
            lost.append((flag, "another activation than GELU, SwiGLU or squared ReLU"))
    if not settings["add_bias_linear"] and settings["add_qkv_bias"] and settings.has("add_qkv_bias"):
        lost.append(("--add-qkv-bias", "biases of query, key and value only"))
    return {"activation": activation, "bias": bool(settings["add_bias_linear"])}


def _norms(settings: Settings, lost: Lost) -> dict[str, Any]:
    centred = settings["layernorm_zero_centered_gamma"]
    norm = "rmsnorm" if settings["normalization"] == "RMSNorm" else "layernorm1p" if centred else "layernorm"
    if norm == "rmsnorm" and centred:
        lost.append(("--apply-layernorm-1p", "an RMSNorm with zero-centred weight"))
    table: dict[str, Any] = {"norm": norm, "norm_eps": settings["layernorm_epsilon"]}
    latent = settings["multi_latent_attention"]
    if settings["qk_layernorm"] and not latent:
        table["qk_norm"] = True
    if latent and not settings["qk_layernorm"]:
        lost.append(("--multi-latent-attention", "latents without a norm (--qk-layernorm is missing)"))
    return table


def _positions(settings: Settings, lost: Lost) -> dict[str, Any]:
    kind = "rope" if settings["use_rotary_position_embeddings"] else settings["position_embedding_type"]
    window = settings["window_size"]
    table: dict[str, Any] = {}
    if window:
        table["sliding_window"] = window[0] + 1
        if len(window) != 2 or window[1] not in (0, -1) or settings["window_attn_skip_freq"]:
            lost.append(("--window-size", "a window that differs by layer or looks ahead"))
    if kind == "learned_absolute":
        return table | {"position": "learned", "max_positions": settings["max_position_embeddings"]}
    if kind not in ("rope", "yarn"):
        lost.append(("--position-embedding-type", f"positions of kind {kind}"))
    table |= {"position": "rotary", "rope_theta": float(settings["rotary_base"])}
    if settings["rotary_percent"] != 1.0:
        table["rotary_fraction"] = settings["rotary_percent"]
    if settings["rotary_seq_len_interpolation_factor"]:
        lost.append(("--rotary-seq-len-interpolation-factor", "linear position interpolation"))
    if settings["use_rope_scaling"]:
        table["rope_scaling"] = {"kind": "llama3", "factor": settings["rope_scaling_factor"], **LLAMA3_SCALING}
    factor = settings["rotary_scaling_factor"]
    latent_yarn = settings["multi_latent_attention"] and settings["rope_type"] != "rope"
    if (latent_yarn or kind == "yarn") and factor != 1.0:
        known = {
            "original_max_positions": settings["yarn_original_max_position_embeddings"],
            "beta_fast": settings["yarn_beta_fast"],
            "beta_slow": settings["yarn_beta_slow"],
        }
        own = {key: value for key, value in known.items() if value is not None} if kind == "yarn" else {}
        table["rope_scaling"] = {"kind": "yarn", "factor": factor, **YARN, **own}
        if settings["mscale"] == settings["mscale_all_dim"]:
            table["rope_scaling"]["mscale"] = settings["mscale"]
        else:
            lost.append(("--mscale-all-dim", "attention scaled otherwise than by one factor on queries and keys"))
    return table


def _experts(settings: Settings, lost: Lost) -> dict[str, Any]:
    width, pattern = expert_width(settings), dense_pattern(settings)
    table: dict[str, Any] = {"count": settings["num_experts"], "active": settings["moe_router_topk"], "ffn_hidden": width}
    shared = settings["moe_shared_expert_intermediate_size"]
    if shared and width:
        table["shared"] = max(1, shared // width)
        if shared % width:
            lost.append(("--moe-shared-expert-intermediate-size", f"a shared expert of {shared}, which is no multiple of {width}"))
    if pattern:
        first = pattern.index(1) if 1 in pattern else len(pattern)
        if first:
            table["first_dense"] = first
        if 0 in pattern[first:]:
            lost.append(("--moe-layer-freq", "dense layers between expert layers"))
    if settings["moe_router_score_function"] in ("softmax", "sigmoid"):
        table["score"] = settings["moe_router_score_function"]
    else:
        lost.append(("--moe-router-score-function", f"scores by {settings['moe_router_score_function']}"))
    if settings["moe_router_group_topk"] and settings["moe_router_num_groups"]:
        table |= {"groups": settings["moe_router_num_groups"], "active_groups": settings["moe_router_group_topk"]}
    if settings["moe_router_topk_scaling_factor"]:
        table["scaling"] = settings["moe_router_topk_scaling_factor"]
    table |= _balance(settings, lost)
    if settings["moe_router_pre_softmax"] and settings["moe_router_topk"] > 1:
        lost.append(("--moe-router-pre-softmax", "scores normalised before the choice"))
    if settings["moe_expert_capacity_factor"] is not None:
        table["capacity_factor"] = settings["moe_expert_capacity_factor"]
    return table


def _balance(settings: Settings, lost: Lost) -> dict[str, Any]:
    """What keeps the experts evenly used."""
    kinds, coefficients = settings["moe_router_load_balancing_type"], settings["moe_aux_loss_coeff"]
    kinds = kinds if isinstance(kinds, list) else [kinds]
    coefficients = coefficients if isinstance(coefficients, list) else [coefficients] * len(kinds)
    table: dict[str, Any] = {}
    for kind, coefficient in zip(kinds, coefficients, strict=False):
        key = {"aux_loss": "aux_loss", "seq_aux_loss": "sequence_aux_loss"}.get(kind)
        if key and coefficient:
            table[key] = coefficient
        elif key is None and kind != "none":
            lost.append(("--moe-router-load-balancing-type", f"balancing by {kind}"))
    if settings["moe_router_enable_expert_bias"] and settings["moe_router_bias_update_rate"]:
        table["bias_update_rate"] = settings["moe_router_bias_update_rate"]
    if settings["moe_z_loss_coeff"]:
        table["z_loss"] = settings["moe_z_loss_coeff"]
    return table

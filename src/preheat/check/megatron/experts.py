"""Rules about mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterator

from preheat.check.megatron.registry import hazard
from preheat.check.registry import Finding
from preheat.megatron import Settings
from preheat.megatron.architecture import dense_pattern, expert_width
from preheat.megatron.batch import expert_tensor


@hazard("expert-choice")
def choice(settings: Settings) -> Iterator[Finding]:
    """A token chooses no more experts than there are.

    Megatron-LM's validation lets it through; the router fails. Example: 2 experts with --moe-router-topk 4.
    """
    count, active = settings["num_experts"], settings["moe_router_topk"]
    if count and active > count:
        yield Finding("--moe-router-topk", f"{active} of {count} experts", "no more than there are", "Correct --moe-router-topk")


@hazard("expert-one")
def single(settings: Settings) -> Iterator[Finding]:
    """With one expert per token the scores must be normalised before the choice: after it, a softmax over one is always 1.

    Example: --moe-router-topk 1 without --moe-router-pre-softmax.
    """
    soft = settings["moe_router_score_function"] == "softmax"
    if settings["num_experts"] and settings["moe_router_topk"] == 1 and soft and not settings["moe_router_pre_softmax"]:
        balancing = settings["moe_router_load_balancing_type"]
        if "sinkhorn" not in (balancing if isinstance(balancing, list) else [balancing]):
            yield Finding("--moe-router-topk", "--moe-router-topk 1 without --moe-router-pre-softmax", "", "Add --moe-router-pre-softmax")


@hazard("expert-bias")
def bias(settings: Settings) -> Iterator[Finding]:
    """Balancing by a bias on the scores goes with sigmoid scores.

    Example: --moe-router-enable-expert-bias with the default, softmax. Source: arXiv 2408.15664.
    """
    flag, score = "--moe-router-enable-expert-bias", settings["moe_router_score_function"]
    if settings["moe_router_enable_expert_bias"] and score not in ("sigmoid", "sqrtsoftplus"):
        yield Finding(flag, f"{flag} with {score} scores", "sigmoid", "Add --moe-router-score-function sigmoid")


@hazard("expert-groups", absence=True)
def groups(settings: Settings) -> Iterator[Finding]:
    """Group-limited routing splits the experts evenly and chooses no more groups than there are.

    Example: 4 groups with --moe-router-group-topk 8.
    """
    count, groups, active = settings["num_experts"], settings["moe_router_num_groups"], settings["moe_router_group_topk"]
    if not count or not active:
        return
    if not groups:
        yield Finding(
            "--moe-router-group-topk", "--moe-router-group-topk without --moe-router-num-groups", "", "Give --moe-router-num-groups"
        )
        return
    if count % groups:
        yield Finding("--moe-router-num-groups", f"{count} experts in {groups} groups", "a whole number each", "Change one")
    if active > groups:
        yield Finding(
            "--moe-router-group-topk", f"{active} of {groups} groups", "no more than there are", "Correct --moe-router-group-topk"
        )


@hazard("expert-layers")
def layers(settings: Settings) -> Iterator[Finding]:
    """The list of layers with experts has an entry for each layer.

    Megatron-LM's validation lets it through; building the model fails. Example: ([0]*3+[1]*58) for 32 layers.
    """
    pattern, count = settings["moe_layer_freq"], settings["num_layers"]
    if isinstance(pattern, list) and count and settings["num_experts"] and len(pattern) != count:
        yield Finding("--moe-layer-freq", f"a list of {len(pattern)} layers", f"--num-layers is {count}", "Correct the list")
    if isinstance(pattern, list) and set(pattern) - {0, 1}:
        yield Finding("--moe-layer-freq", "a list with other numbers than 0 and 1", "", "1 is a layer with experts")


@hazard("expert-biases", absence=True)
def biases(settings: Settings) -> Iterator[Finding]:
    """Biases in experts do not go with expert-tensor parallelism, which is as large as tensor parallelism when it is not given.

    Example: Mixtral 8x22B with tensor 4 and without --disable-bias-linear.
    """
    if settings["num_experts"] and settings["add_bias_linear"] and expert_tensor(settings) > 1:
        got = f"biases in experts on {expert_tensor(settings)} expert-tensor ranks"
        yield Finding("--num-experts", got, "", "Add --disable-bias-linear (and think of --expert-tensor-parallel-size 1)")


@hazard("expert-flags")
def dense_flags(settings: Settings) -> Iterator[Finding]:
    """An expert width without experts.

    Example: --moe-ffn-hidden-size 2048 without --num-experts.
    """
    pattern = dense_pattern(settings)
    if settings["moe_ffn_hidden_size"] and not settings["num_experts"] and pattern is not None and 0 not in pattern:
        yield Finding("--moe-ffn-hidden-size", "--moe-ffn-hidden-size without --num-experts", "", "Give --num-experts or remove it")


@hazard("expert-shared", "warning")
def shared(settings: Settings) -> Iterator[Finding]:
    """The shared experts' width is their number times the width of one.

    Megatron-LM takes any width. Example: 18432 beside experts of 2048 is nine shared experts; DeepSeek-V3 has one.
    """
    width, one = settings["moe_shared_expert_intermediate_size"], expert_width(settings)
    if settings["num_experts"] and width and one and width % one:
        got = f"a shared expert of {width}"
        yield Finding("--moe-shared-expert-intermediate-size", got, f"a multiple of the expert width {one}", "Write number x width")


@hazard("expert-balance", "warning", absence=True)
def balance(settings: Settings) -> Iterator[Finding]:
    """Something keeps the experts evenly used: a loss with a coefficient, or a bias. The coefficient is 0 by default.

    Example: --num-experts 8 --moe-router-topk 2 without --moe-aux-loss-coeff.
    """
    coefficients = settings["moe_aux_loss_coeff"]
    used = any(coefficients) if isinstance(coefficients, list) else bool(coefficients)
    kinds = settings["moe_router_load_balancing_type"]
    other = {"sinkhorn", "quantile_balancing"} & set(kinds if isinstance(kinds, list) else [kinds])
    if settings["num_experts"] and not used and not other and not settings["moe_router_enable_expert_bias"]:
        yield Finding("--moe-aux-loss-coeff", "no --moe-aux-loss-coeff: nothing balances the experts", "", "Add --moe-aux-loss-coeff 1e-2")


@hazard("expert-width", "warning", absence=True)
def width(settings: Settings) -> Iterator[Finding]:
    """Without --moe-ffn-hidden-size every expert is as wide as a dense layer. Fine-grained experts are much narrower.

    Example: 256 experts of 18,432 make a model of 6 trillion parameters; DeepSeek-V3's experts have 2,048.
    """
    count = settings["num_experts"]
    if count and count >= 32 and not settings.has("moe_ffn_hidden_size"):
        got = f"no --moe-ffn-hidden-size: {count} experts of {expert_width(settings)}"
        yield Finding("--moe-ffn-hidden-size", got, "DeepSeek-V3's have 2048", "Give --moe-ffn-hidden-size")


@hazard("expert-dispatch", "note", absence=True)
def dispatch(settings: Settings) -> Iterator[Finding]:
    """The default dispatcher gathers all tokens on all expert ranks; alltoall sends each where it goes.

    Example: --expert-model-parallel-size 8 without --moe-token-dispatcher-type alltoall.
    """
    if settings["num_experts"] and (settings["expert_model_parallel_size"] or 1) > 1 and not settings.has("moe_token_dispatcher_type"):
        yield Finding("--moe-token-dispatcher-type", "no --moe-token-dispatcher-type: allgather is taken", "", "Think of alltoall")

"""Rules about the shape of the model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from preheat.arithmetic import head_dim, kv_heads
from preheat.check.registry import Finding, rule
from preheat.check.subject import Subject, divisors
from preheat.recipe import RopeScaling
from preheat.units import rounded


@rule("model.head-dim")
def head_width(subject: Subject) -> Iterator[Finding]:
    """Heads share the hidden width evenly, unless `head_dim` is given; rotary positions turn pairs of dims, so their number is even.

    Example: hidden = 100 with heads = 3 leaves a remainder of 1; head_dim = 80 with rotary_fraction = 0.3 turns 24 dims, with 0.31 none.
    Source: arXiv 1706.03762; arXiv 2104.09864.
    """
    model = subject.model
    if model.mla is not None:
        if model.mla.qk_rope_head_dim % 2:
            got = f"qk_rope_head_dim {model.mla.qk_rope_head_dim} is odd"
            yield Finding("model.mla.qk_rope_head_dim", got, "rotary positions turn pairs of dims", "Choose an even one")
    elif model.head_dim is None and model.hidden % model.heads:
        legal = [n for n in range(1, min(model.hidden, 256) + 1) if model.hidden % n == 0]
        nearest = min(legal, key=lambda n: abs(n - model.heads))
        got = f"hidden {model.hidden} / heads {model.heads}"
        yield Finding("model.heads", got, "a whole head width", f"Use {nearest} heads or set head_dim")
    elif model.position == "rotary" and ((turned := round(head_dim(model) * model.rotary_fraction, 6)) % 2 or turned == 0):
        got = f"{turned:g} of {head_dim(model)} dims of a head are turned"
        key = "model.rotary_fraction" if model.rotary_fraction < 1 else "model.head_dim" if model.head_dim else "model.heads"
        yield Finding(key, got, "rotary positions turn pairs of dims", "Choose an even number of dims")


@rule("model.kv-heads")
def key_value_heads(subject: Subject) -> Iterator[Finding]:
    """Each key/value head serves the same number of query heads.

    Example: heads = 12 with kv_heads = 5.
    Source: grouped-query attention, arXiv 2305.13245.
    """
    model = subject.model
    if model.mla is None and model.heads % kv_heads(model):
        got = f"{model.heads} heads over {kv_heads(model)} kv_heads"
        yield Finding("model.kv_heads", got, "a whole number each", f"Use one of {divisors(model.heads)}")


@rule("model.latent-attention")
def latent_attention(subject: Subject) -> Iterator[Finding]:
    """Multi-head latent attention has no key/value heads of its own, and sets the head widths itself.

    Example: [model.mla] with kv_heads = 16, as a public DeepSeek-V3 recipe has it; with rotary_fraction = 0.5.
    Source: arXiv 2405.04434; Megatron-LM 0.19.2, validate_args (grouped-query and multi-latent attention exclude each other).
    """
    if subject.model.mla is None:
        return
    for field in ("kv_heads", "head_dim"):
        if getattr(subject.model, field) is not None:
            got = f"{field} {getattr(subject.model, field)} beside [model.mla]"
            yield Finding(f"model.{field}", got, "keys and values come from one latent per token", "Remove it")
    if subject.model.rotary_fraction != 1:
        got = f"rotary_fraction {subject.model.rotary_fraction:g} beside [model.mla]"
        yield Finding("model.rotary_fraction", got, "qk_rope_head_dim says how many dims are turned", "Remove it")


@rule("model.position")
def positions(subject: Subject) -> Iterator[Finding]:
    """Rotary positions take a `rope_theta` above 1, learned positions take `max_positions`; the other one would have no effect.

    Latent attention has dims of their own for rotary positions, so it goes with no others.
    Example: position = "learned" with rope_theta = 500_000, or a stage of 2,048 tokens with a table of 1,024 rows; rope_theta = 1.0.
    Source: arXiv 2104.09864; Megatron-LM 0.19.2, validate_args (max-position-embeddings below seq-length).
    """
    model = subject.model
    learned = model.position == "learned"
    needed, useless = ("max_positions", "rope_theta") if learned else ("rope_theta", "max_positions")
    if getattr(model, needed) is None:
        yield Finding(f"model.{needed}", f'position = "{model.position}" without {needed}', "", f"Set model.{needed}")
    idle = {f"model.{useless}": getattr(model, useless) is not None}
    if learned:
        idle |= {"model.rotary_fraction": model.rotary_fraction != 1, "model.rope_scaling": model.rope_scaling is not None}
        for index, stage in enumerate(subject.recipe.stage):
            idle |= {f"stage.{index}.{name}": getattr(stage, name) is not None for name in ("rope_theta", "rope_scaling")}
    for key in (key for key, given in idle.items() if given):
        yield Finding(key, f'{key.rpartition(".")[2]} has no effect with position = "{model.position}"', "", "Remove it")
    if learned and model.mla is not None:
        yield Finding(
            "model.position", 'position = "learned" beside [model.mla]', "latent attention turns qk_rope_head_dim dims", 'Set "rotary"'
        )
    bases = {"model.rope_theta": model.rope_theta, **{f"stage.{i}.rope_theta": s.rope_theta for i, s in enumerate(subject.recipe.stage)}}
    for key, base in bases.items():
        if base is not None and base <= 1 and not learned:
            yield Finding(key, f"rope_theta {base:g}", "above 1: slow dims turn slower than fast ones", "Use 10_000 or more")
    if learned and model.max_positions is not None:
        for _, _, key, seq_len in subject.stages():
            if seq_len > model.max_positions:
                want = f"the position table has {model.max_positions} rows"
                yield Finding(key, f"sequences of {seq_len} tokens", want, "Raise max_positions")


@rule("model.rope-scaling")
def rope_scaling(subject: Subject) -> Iterator[Finding]:
    """Each kind of stretched rotary frequencies has its own numbers, and reaches as far as the sequences.

    Example: kind = "yarn" with low_freq_factor; YaRN with factor 8 of 4,096 positions under sequences of 131,072; beta_fast = 1.0 with
    beta_slow = 32.0, two numbers swapped.
    Source: arXiv 2309.00071 (YaRN); the released configurations of Llama 3.1 and DeepSeek-V3.
    """
    own = {"llama3": ("low_freq_factor", "high_freq_factor"), "yarn": ("beta_fast", "beta_slow")}
    longest = max(seq_len for *_, seq_len in subject.stages())
    found: list[tuple[str, RopeScaling | None, int]] = [("model.rope_scaling", subject.model.rope_scaling, longest)]
    found += [(f"stage.{i}.rope_scaling", stage.rope_scaling, seq_len) for i, stage, _, seq_len in subject.stages()]
    for key, scaling, seq_len in found:
        if scaling is None:
            continue
        for field in own[scaling.kind]:
            if getattr(scaling, field) is None:
                yield Finding(key, f'kind = "{scaling.kind}" without {field}', "", f"Set {key}.{field}")
        for field in (name for kind, names in own.items() if kind != scaling.kind for name in names):
            if getattr(scaling, field) is not None:
                yield Finding(f"{key}.{field}", f'{field} has no effect with kind = "{scaling.kind}"', "", "Remove it")
        if scaling.kind == "llama3" and scaling.mscale is not None:
            yield Finding(f"{key}.mscale", 'mscale has no effect with kind = "llama3"', "", "Remove it")
        small, large = ("low_freq_factor", "high_freq_factor") if scaling.kind == "llama3" else ("beta_slow", "beta_fast")
        below, above = getattr(scaling, small), getattr(scaling, large)
        if below is not None and above is not None and below >= above:
            yield Finding(f"{key}.{large}", f"{large} {above:g}", f"{small} is {below:g}: it is the smaller one", "Swap them?")
        reach = scaling.factor * scaling.original_max_positions
        if scaling.kind == "yarn" and seq_len > reach:
            want = f"factor {scaling.factor:g} x {scaling.original_max_positions} positions reach {reach:g}"
            yield Finding(f"{key}.factor", f"sequences of {seq_len} tokens", want, "Raise the factor")


@rule("model.rope-base", "warning")
def rope_base(subject: Subject) -> Iterator[Finding]:
    """The base of the rotary frequencies is large enough for the sequences.

    Below some 0.0424 * length^1.628 a model loses sight of far tokens although its loss looks fine. This warns at less than an eighth of
    it, where no published model lies; stretched frequencies (rope_scaling) are another way and are not judged.
    Example: rope_theta = 10_000 (Megatron-LM's default) with sequences of 8,192; Llama 3 has 500,000.
    Source: arXiv 2405.14591, figure 1.
    """
    for index, stage, key, seq_len in subject.stages():
        base = stage.rope_theta or subject.model.rope_theta
        if base is None or subject.model.position != "rotary" or stage.rope_scaling or subject.model.rope_scaling:
            continue
        bound = 0.0424 * seq_len**1.628
        if base < bound / 8:
            key = f"stage.{index}.rope_theta" if stage.rope_theta else key if stage.seq_len else "model.rope_theta"
            yield Finding(
                key, f"rope base {base:_g} for {seq_len:_} tokens", f"from about {rounded(bound)} on they are told apart", "Raise it"
            )


@rule("model.sliding-window", "warning")
def sliding_window(subject: Subject) -> Iterator[Finding]:
    """A sliding window is shorter than some sequence.

    Example: sliding_window = 32_768 with sequences of 32,768: every token sees all before it. (Mixtral's release has no window.)
    Source: arXiv 2310.06825, section 2.
    """
    window = subject.model.sliding_window
    longest = max(seq_len for *_, seq_len in subject.stages())
    if window is not None and window >= longest:
        got = f"sliding_window {window}"
        yield Finding("model.sliding_window", got, f"the longest sequences have {longest} tokens: no effect", "Remove it")


@rule("model.dropout", "warning")
def dropout(subject: Subject) -> Iterator[Finding]:
    """Pretraining that sees its text about once needs no dropout; no published recipe since PaLM has any.

    Megatron-LM's command line defaults to 0.1 in attention and hidden layers, and whoever forgets two flags trains with it.
    Example: dropout = 0.1.
    Source: arXiv 2204.02311, section 5; Megatron-LM 0.19.2, arguments.
    """
    if subject.model.dropout > 0:
        got = f"dropout {subject.model.dropout:g}"
        yield Finding("model.dropout", got, "single-epoch pretraining uses none", "Set it to 0, or say why in [[ignore]]")


@rule("model.range", "warning")
def ranges(subject: Subject) -> Iterator[Finding]:
    """The spread of the first weights and the norms' epsilon are within reach of what has been used; a slipped exponent is not.

    Published models start with a standard deviation of 0.006 (DeepSeek-V3) to 0.02 (GPT-2) and have an epsilon of 1e-8 to 1e-5.
    Example: init_std = 2.0 for 0.02; norm_eps = 1e5.
    Source: arXiv 2412.19437, section 4.2; Llama 3's and GPT-2's released configurations.
    """
    for name, low, high in (("init_std", 1e-4, 0.3), ("norm_eps", 1e-12, 1e-2)):
        value = getattr(subject.model, name)
        if not low <= value <= high:
            yield Finding(f"model.{name}", f"{name} {value:g}", f"{low:g} to {high:g} leave room enough", "Check the exponent")


@rule("model.prediction-weights")
def prediction_weights(subject: Subject) -> Iterator[Finding]:
    """A setting that changes over the run starts at zero, and changes later and later.

    This holds for the weight of multi-token prediction and for the speed of the experts' bias.
    Example: loss_weight = [{ at = "10T tokens", weight = 0.1 }] says nothing about the beginning.
    Source: DeepSeek-V3, arXiv 2412.19437, section 4.2 (0.3 for 10T tokens, then 0.1; bias speed 0.001 until 14.3T, then 0).
    """
    model = subject.model
    lists = {"model.mtp.loss_weight": model.mtp.loss_weight if model.mtp else ()}
    lists["model.experts.bias_update_rate"] = model.experts.bias_update_rate if model.experts else ()  # type: ignore[assignment]
    for key, entries in lists.items():
        if entries and entries[0].at.amount != 0:
            yield Finding(key, f"the first value holds from {entries[0].at} on", "0 tokens", "Say what the run starts with")
        units = {entry.at.unit for entry in entries if entry.at.amount}
        ordered = all(a.at.amount < b.at.amount for a, b in pairwise(entries))
        if len(units) > 1 or not ordered:
            yield Finding(
                key, f"moments {', '.join(str(entry.at) for entry in entries)}", "one unit, each later than the one before", "Sort"
            )


@rule("model.size-in-name", "note")
def size_in_name(subject: Subject) -> Iterator[Finding]:
    """A size in the recipe's name is the size of its model, give or take a tenth.

    Example: a public "GPT-3 15B" recipe with GPT-2's vocabulary has 12.79B parameters; its 130M toy has 124M.
    Source: arithmetic; the published counts of Nemotron-4 15B (256k vocabulary) and GPT-2.
    """
    match = re.search(r"(?:^|[-_.])(\d+(?:\.\d+)?)([bm])(?=$|[-_.])", subject.recipe.name.lower())
    if match is None:
        return
    named, total = float(match[1]) * {"b": 1e9, "m": 1e6}[match[2]], subject.parameters.total
    if not 0.9 <= total / named <= 1.1:
        yield Finding(
            "name", f"the name says {match[1]}{match[2].upper()}", f"the model has {rounded(total)} parameters", "Which one is meant?"
        )


@rule("model.tokens", "note")
def tokens_per_parameter(subject: Subject) -> Iterator[Finding]:
    """How many tokens each active parameter sees; about 20 is compute-optimal for a dense model.

    More is no mistake: it buys a smaller model for the same quality. Fewer than 5 say that a smaller model would have been better, or that
    the run is a benchmark.
    Example: 10B tokens on 124M parameters are 80 each; 20 would be 2.5B.
    Source: Hoffmann et al. 2022, arXiv 2203.15556.
    """
    total = subject.end("tokens")
    if total is None:
        return
    ratio = total / subject.parameters.active
    if not 5 <= ratio <= 40:
        optimum = rounded(20 * subject.parameters.active)
        shown = f"{ratio:_.0f}" if ratio >= 100 else f"{ratio:.3g}"
        yield Finding("schedule.length", f"{shown} tokens per active parameter", f"20 would be {optimum} tokens")

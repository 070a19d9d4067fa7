"""Rules about mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterator

from preheat.check.registry import Finding, rule
from preheat.check.subject import Subject, divisors


@rule("experts.active")
def active(subject: Subject) -> Iterator[Finding]:
    """A token passes through no more experts than there are, and some layer has experts.

    Megatron-LM's parser accepts more, and the run dies at its first step.
    Example: count = 2 with active = 4; first_dense = 32 in a model of 32 layers.
    Source: arXiv 1701.06538; Megatron-LM 0.19.2 (verdict "moe_topk_gt": let through).
    """
    experts, layers = subject.model.experts, subject.model.layers
    if experts is None:
        return
    if experts.active > experts.count:
        got = f"{experts.active} active experts"
        yield Finding("model.experts.active", got, f"there are {experts.count}", "Lower active or raise count")
    if experts.first_dense >= layers:
        got = f"the first {experts.first_dense} layers are dense"
        yield Finding("model.experts.first_dense", got, f"the model has {layers}: none has experts", "Lower it")


@rule("experts.groups")
def groups(subject: Subject) -> Iterator[Finding]:
    """Group-limited routing splits the experts evenly, and the chosen groups hold the chosen experts.

    Example: 256 experts in 7 groups; 4 groups of 8 with active_groups = 8; 8 active experts in 1 group of 4.
    Source: arXiv 2412.19437, section 2.1.2 (256 experts, 8 groups, 4 chosen, 8 active); Megatron-LM 0.19.2 ("moe_group_topk_gt").
    """
    experts = subject.model.experts
    if experts is None:
        return
    if (experts.groups is None) != (experts.active_groups is None):
        given, missing = ("groups", "active_groups") if experts.groups else ("active_groups", "groups")
        yield Finding(f"model.experts.{given}", f"{given} without {missing}", "", f"Set {missing} too")
    if experts.groups is None or experts.active_groups is None:
        return
    if experts.count % experts.groups:
        got = f"{experts.count} experts in {experts.groups} groups"
        yield Finding("model.experts.groups", got, "a whole number each", f"Use one of {', '.join(map(str, divisors(experts.count)))}")
        return
    if experts.active_groups > experts.groups:
        got = f"{experts.active_groups} active groups"
        yield Finding("model.experts.active_groups", got, f"there are {experts.groups}", "Lower it")
    reach = experts.active_groups * (experts.count // experts.groups)
    if experts.active > reach:
        got = f"{experts.active} active experts from {experts.active_groups} groups"
        yield Finding("model.experts.active_groups", got, f"they hold {reach}", "Raise active_groups or lower active")


@rule("experts.parallel")
def parallel(subject: Subject) -> Iterator[Finding]:
    """Expert parallelism has experts, and gives every rank the same number of whole ones.

    Example: 10 experts with expert = 4; expert = 8 in a dense model.
    Source: arXiv 2006.16668; Megatron-LM 0.19.2, validate_args; case A05 (pytorch/torchtitan pull 4258).
    """
    experts, layout = subject.model.experts, subject.parallel
    if experts is None:
        for axis in ("expert", "expert_tensor"):
            if getattr(layout, axis) > 1:
                got = f"{axis} {getattr(layout, axis)} without [model.experts]"
                yield Finding(f"parallel.{axis}", got, "a dense model has no experts to split", "Remove it")
        return
    if experts.count % layout.expert:
        got = f"{experts.count} experts over expert {layout.expert}"
        yield Finding("parallel.expert", got, "a whole number each", f"Use one of {', '.join(map(str, divisors(experts.count)))}")
    if experts.ffn_hidden % layout.expert_tensor:
        got = f"experts of width {experts.ffn_hidden} over expert_tensor {layout.expert_tensor}"
        yield Finding("parallel.expert_tensor", got, "it splits the inner width evenly", "Choose a divisor, best 1")
    if subject.model.bias and layout.expert_tensor > 1:
        got = f"biases in experts over expert_tensor {layout.expert_tensor}"
        yield Finding("model.bias", got, "each rank would add the bias once more", "Set bias = false or expert_tensor = 1")


@rule("experts.small-slices", "note")
def slices(subject: Subject) -> Iterator[Finding]:
    """Whole experts on each rank multiply better than slices of all of them: expert parallelism comes before expert tensor parallelism.

    Example: experts of width 2,048 over expert_tensor = 4 leave matrices of 512.
    Source: Megatron-LM's MoE guide; arXiv 2412.19437, section 3.2 (no tensor parallelism at all).
    """
    experts, size = subject.model.experts, subject.parallel.expert_tensor
    if experts and size > 1 and experts.count % (subject.parallel.expert * size) == 0:
        got = f"expert_tensor {size} leaves slices of {experts.ffn_hidden // size}"
        yield Finding("parallel.expert_tensor", got, "", f"expert = {subject.parallel.expert * size} keeps them whole")


@rule("experts.balance", "warning")
def balance(subject: Subject) -> Iterator[Finding]:
    """Something keeps the experts in balance: a loss over the batch or the sequence, or a bias on the scores.

    Without it a few experts take all tokens. Megatron-LM's coefficient is 0 unless it is given.
    Example: [model.experts] with neither aux_loss nor sequence_aux_loss nor bias_update_rate, as in a public Mixtral 8x22B recipe.
    Source: arXiv 2101.03961, section 2.2; arXiv 2408.15664.
    """
    experts = subject.model.experts
    if experts is None or experts.aux_loss or experts.sequence_aux_loss or any(change.rate for change in experts.bias_update_rate):
        return
    yield Finding("model.experts", "nothing balances the load of the experts", "aux_loss, sequence_aux_loss or a bias", "Set one of them")


@rule("experts.bias-score")
def bias(subject: Subject) -> Iterator[Finding]:
    """The balancing bias is added to sigmoid scores; softmax scores compete already, and a bias on them changes them all.

    Example: bias_update_rate = 0.001 with score = "softmax".
    Source: arXiv 2408.15664; Megatron-LM 0.19.2, TransformerConfig (verdict "moe_bias_softmax").
    """
    experts = subject.model.experts
    if experts and experts.score != "sigmoid" and any(change.rate for change in experts.bias_update_rate):
        got = f'a balancing bias with score = "{experts.score}"'
        yield Finding("model.experts.bias_update_rate", got, "it goes with sigmoid scores", 'Set score = "sigmoid" or remove it')


@rule("experts.capacity", "warning")
def capacity(subject: Subject) -> Iterator[Finding]:
    """A capacity below the even share drops tokens even when the experts are in perfect balance.

    Example: capacity_factor = 0.8.
    Source: arXiv 2101.03961, section 2.2 (1.0 to 2.0).
    """
    experts = subject.model.experts
    if experts and experts.capacity_factor is not None and experts.capacity_factor < 1:
        got = f"capacity_factor {experts.capacity_factor:g}"
        want = f"at least {1 - experts.capacity_factor:.0%} of the tokens are dropped"
        yield Finding("model.experts.capacity_factor", got, want, "Use 1 or more, or none to drop nothing")

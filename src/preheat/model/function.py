"""Which fields of `[model]` and which tensors decide what a model computes, and which only how it is trained."""

from __future__ import annotations

from preheat.arithmetic import head_dim, kv_heads
from preheat.recipe import Model

_TRAINING = {name: Model.model_fields[name].default for name in ("dropout", "init_std", "depth_scaled_init", "init_truncation")}


def is_training_state(name: str) -> bool:
    """Whether a tensor of a model's state is read in training only: the load that a router saw last."""
    return name.endswith(".router.load")


def computed_function(model: Model) -> Model:
    """The same model with all fields at one value that change no logit, and defaults spelled out: equal if they compute the same."""
    changes: dict[str, object] = dict(_TRAINING)
    if model.mla is None:
        changes |= {"kv_heads": kv_heads(model), "head_dim": head_dim(model)}
    if model.experts is not None:
        experts: dict[str, object] = {"aux_loss": 0.0, "sequence_aux_loss": 0.0, "bias_update_rate": (), "z_loss": 0.0}
        if model.experts.groups in (None, 1):
            experts |= {"groups": None, "active_groups": None}
        changes["experts"] = model.experts.model_copy(update=experts)
    if model.mtp is not None:
        changes["mtp"] = model.mtp.model_copy(update={"loss_weight": ()})
    if model.rope_scaling is not None and model.rope_scaling.kind == "yarn":
        mscale = 1.0 if model.rope_scaling.mscale is None else round(model.rope_scaling.mscale, 9)
        changes["rope_scaling"] = model.rope_scaling.model_copy(update={"mscale": mscale})
    return model.model_copy(update=changes)


def unlike(one: Model, other: Model) -> list[str]:
    """The fields in which two models compute different things, each with both values; empty if they are the same function."""
    left, right = computed_function(one).model_dump(), computed_function(other).model_dump()
    return [f"model.{name}: {left[name]!r} and {right[name]!r}" for name in left if left[name] != right[name]]

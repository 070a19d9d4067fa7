"""The `[optimizer]` table of a recipe as Megatron-LM arguments, and back."""

from __future__ import annotations

import json
from typing import Any

from preheat.errors import refuse
from preheat.interop.megatron_batches import Group, Request
from preheat.megatron import Settings
from preheat.megatron.architecture import Lost
from preheat.recipe import Parallel, Recipe

MOMENTUM = 0.95
"""What a recipe means by no momentum."""
UPDATE_SCALE = 0.2
"""Muon's updates in the size of AdamW's are 0.2 * sqrt(larger side) times an orthogonal matrix (arXiv 2502.16982, section 2.2)."""


def optimizer_arguments(request: Request, parallel: Parallel) -> Group:
    """The arguments of the optimizer, without learning rates.

    Raises:
        PreheatError: this optimizer is not to be had with the sharding or the version.
    """
    optimizer = request.recipe.optimizer
    group: Group = [("--optimizer", "adam")]
    if optimizer.name == "muon":
        group = _muon(request, parallel)
    group += [
        ("--adam-beta1", json.dumps(optimizer.betas[0])),
        ("--adam-beta2", json.dumps(optimizer.betas[1])),
        ("--adam-eps", json.dumps(optimizer.eps)),
        ("--weight-decay", json.dumps(optimizer.weight_decay)),
        ("--clip-grad", json.dumps(optimizer.clip_grad_norm)),
    ]
    if optimizer.state_precision == "fp32":
        return group
    if optimizer.name != "adamw" or parallel.sharding != "optimizer":
        refuse(
            "export.state-precision",
            f"state_precision {optimizer.state_precision} with {optimizer.name} and sharding {parallel.sharding}",
            "Megatron-LM has it for adam with the distributed optimizer",
            "Use name = 'adamw' and sharding = 'optimizer', or state_precision = 'fp32'",
            key="optimizer.state_precision",
        )
    kept = optimizer.state_precision
    return [*group, ("--use-precision-aware-optimizer",), ("--exp-avg-dtype", kept), ("--exp-avg-sq-dtype", kept)]


def shards_layer_wise(request: Request, parallel: Parallel) -> bool:
    """Whether --optimizer dist_muon stands for --use-distributed-optimizer, as in core 0.17."""
    return request.recipe.optimizer.name == "muon" and parallel.sharding == "optimizer" and request.before("0.18")


def optimizer_notes(recipe: Recipe) -> list[str]:
    """What Megatron-LM has no argument for."""
    optimizer = recipe.optimizer
    notes = []
    if not optimizer.decay_embeddings:
        notes.append("Megatron-LM decays embedding and head like other matrices and has no argument against it")
    if optimizer.z_loss:
        notes.append("Megatron-LM has no z-loss on the logits (--moe-z-loss-coeff is the router's)")
    return notes


def optimizer_table(settings: Settings, lost: Lost) -> dict[str, Any]:
    """The `[optimizer]` table of a command."""
    name = settings["optimizer"]
    muon = name in ("muon", "dist_muon")
    if name != "adam" and not muon:
        lost.append(("--optimizer", f"the optimizer {name}"))
    if settings["weight_decay_incr_style"] != "constant":
        lost.append(("--weight-decay-incr-style", "a weight decay that grows"))
    if not settings["clip_grad"]:
        lost.append(("--clip-grad", "gradients that are not clipped"))
    table: dict[str, Any] = {
        "betas": [settings["adam_beta1"], settings["adam_beta2"]],
        "eps": settings["adam_eps"],
        "weight_decay": settings["weight_decay"],
        "clip_grad_norm": settings["clip_grad"] or 1.0,
    }
    if muon:
        table["name"] = "muon"
        if settings["muon_momentum"] != MOMENTUM:
            table["momentum"] = settings["muon_momentum"]
        _muon_lost(settings, lost)
    if settings["use_precision_aware_optimizer"]:
        kept = {settings["exp_avg_dtype"], settings["exp_avg_sq_dtype"]}
        if kept == {"bf16"}:
            table["state_precision"] = "bf16"
        elif kept != {"fp32"}:
            lost.append(("--exp-avg-dtype", f"moments kept in {' and '.join(sorted(kept))}"))
        for key, flag in (("main_params_dtype", "--main-params-dtype"), ("main_grads_dtype", "--main-grads-dtype")):
            if settings[key] != "fp32":
                lost.append((flag, f"{settings[key]} in the optimizer"))
    return table


def _muon(request: Request, parallel: Parallel) -> Group:
    if parallel.sharding == "full":
        refuse(
            "export.muon",
            "muon with sharding full",
            "Megatron-LM's goes without FSDP",
            "Use sharding = 'optimizer'",
            key="parallel.sharding",
        )
    momentum = request.recipe.optimizer.momentum
    group: Group = [
        ("--optimizer", "dist_muon" if shards_layer_wise(request, parallel) else "muon"),
        ("--muon-momentum", json.dumps(MOMENTUM if momentum is None else momentum)),
        ("--muon-use-nesterov",) if request.before("0.18") else ("--muon-nesterov",),
        ("--muon-coefficient-type", "simple"),
        ("--muon-num-ns-steps", "5"),
        ("--muon-scale-mode", "spectral"),
        ("--muon-extra-scale-factor", json.dumps(UPDATE_SCALE)),
    ]
    return [*group, ("--muon-tp-mode", "duplicated")] if parallel.tensor > 1 else group


def _muon_lost(settings: Settings, lost: Lost) -> None:
    nesterov = settings["muon_nesterov"] if settings.since("0.18") else settings["muon_use_nesterov"]
    if not nesterov:
        lost.append(("--optimizer", "Muon without Nesterov momentum"))
    scale = (settings["muon_scale_mode"], settings["muon_extra_scale_factor"])
    if scale != ("spectral", UPDATE_SCALE):
        lost.append(("--muon-scale-mode", f"updates scaled {scale[0]} x {scale[1]:g}; a recipe's are spectral x {UPDATE_SCALE:g}"))
    iteration = (settings["muon_coefficient_type"], settings["muon_num_ns_steps"])
    if iteration != ("simple", 5):
        lost.append(("--muon-coefficient-type", f"{iteration[1]} Newton-Schulz steps of kind {iteration[0]}; a recipe has 5 simple ones"))
    if settings["tensor_model_parallel_size"] > 1 and settings["muon_tp_mode"] == "blockwise":
        lost.append(("--muon-tp-mode", "an orthogonalisation of each tensor rank's part by itself"))
    if settings["muon_scalar_optimizer"] != "adam":
        lost.append(("--muon-scalar-optimizer", f"{settings['muon_scalar_optimizer']} for the rest"))

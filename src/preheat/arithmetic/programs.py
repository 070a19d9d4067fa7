"""In what training programs differ when it comes to memory. The model of memory is one; these are its few switches."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Program:
    """What a training program keeps of a training step, in mixed precision where nothing else is said."""

    name: str
    stream: int
    """Bytes of an element of the residual stream."""
    joint_projections: bool
    """Queries, keys and values come from one product, gate and up-projection from another: each keeps its input once."""
    fused_gate: bool
    """A gated activation keeps its two inputs, and not also the function of the gate."""
    keeps_shards: bool
    """With sequence parallelism a product keeps its rank's part of the input and gathers it again; else it keeps the gathered whole."""
    keeps_expert_output: bool
    """The sum over experts keeps their outputs: weights are applied after the experts and not inside of them."""
    logit_bytes: int | None
    """Bytes per logit at the loss; None where the loss runs in chunks and never holds all."""
    gradient: int
    """Bytes per parameter in which gradients are added up over micro-batches."""
    sharded_gradient: int
    """Bytes per parameter of a further copy of the gradients that is sharded like the optimizer state."""
    weights_are_masters: bool
    """Weights lie in fp32 and are rounded when they are used: what `sharding = "full"` shards is 4 bytes and no 2 more."""
    offloads_masters: bool
    """Offloading the optimizer takes master weights off the GPU too, not the moments alone."""
    keeps_fp8: bool
    """In fp8 it keeps the rounded inputs of products, and rounded weights from one micro-batch to the next; else it rounds anew."""
    keeps_cheap: bool = True
    """Outputs of norms and activation functions are kept, as are projections up from a latent; else they are computed again."""
    fused_attention: bool = True
    """Attention never holds the scores (flash attention)."""
    workspace: int = 0
    """Bytes of the libraries' workspaces that the allocator holds from the first step on."""


PREHEAT = Program(
    "preheat",
    stream=4,
    joint_projections=False,
    fused_gate=False,
    keeps_shards=False,
    keeps_expert_output=True,
    logit_bytes=None,
    gradient=4,
    sharded_gradient=0,
    weights_are_masters=True,
    offloads_masters=False,
    keeps_fp8=False,
    workspace=96 * 2**20,
)
"""This engine, eager. A compiled block keeps at most as much."""

MEGATRON = Program(
    "Megatron-LM",
    stream=2,
    joint_projections=True,
    fused_gate=True,
    keeps_shards=True,
    keeps_expert_output=False,
    logit_bytes=6,
    gradient=4,
    sharded_gradient=0,
    weights_are_masters=False,
    offloads_masters=True,
    keeps_fp8=True,
    workspace=96 * 2**20,
)
"""Megatron-Core with Transformer Engine. At the loss there are bf16 logits and their fp32 softmax, later the gradient in its place."""

MEGATRON_DEEPSPEED = replace(MEGATRON, name="Megatron-DeepSpeed", keeps_shards=False, fused_attention=False, gradient=4, sharded_gradient=4)
"""BLOOM's program: its optimizer also keeps each rank's share of the gradients in fp32."""

EAGER = replace(MEGATRON, name="PyTorch, eager", fused_gate=False, keeps_shards=False, logit_bytes=10)
"""Layers in plain PyTorch: nothing fused but attention. At the loss there are logits in bf16 and fp32 and their softmax."""

LEAST = replace(
    PREHEAT,
    name="the leanest program",
    stream=1,
    joint_projections=True,
    fused_gate=True,
    keeps_shards=True,
    keeps_expert_output=False,
    logit_bytes=0,
    offloads_masters=True,
    keeps_cheap=False,
    workspace=0,
)
"""What no program of today goes below: of the 34 bytes per token and hidden unit of a GPT layer (arXiv 2205.05198) it keeps 20."""

"""Tensor and sequence parallelism (Megatron-LM, arXiv 1909.08053 and 2205.05198): matrices split over their outputs or inputs, the
vocabulary over its rows, and between them the residual stream over its tokens.

Weights become DTensors; what a module computes between two exchanges are plain tensors. With `sequence` the stream between blocks holds a
rank's share of the tokens, else all of them.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, PrepareModuleInput, RowwiseParallel, parallelize_module

from preheat.model import Transformer
from preheat.model.attention import Attention
from preheat.model.experts import Experts
from preheat.model.prediction import Prediction
from preheat.model.transformer import Block
from preheat.parallel.bare import compute_bare, distribute
from preheat.parallel.vocabulary import VocabularyCrossEntropy, gather_tokens

TOKENS = 1
"""The dim of tokens in B x T x D."""


def apply_tensor(transformer: Transformer, mesh: DeviceMesh, sequence: bool) -> None:
    """Split a transformer, or the piece of one, over the ranks of a one-dimensional mesh, in place."""
    stream = Shard(TOKENS) if sequence else Replicate()
    plan: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "positions": OwnTokens(sequence),
        "norm": WholeWeights(sequence),
    }
    for name, module in transformer.named_modules():
        if isinstance(module, Block):
            plan |= _block(module, name, stream, sequence)
        if isinstance(module, Prediction):
            plan |= {f"{name}.{part}": WholeWeights(sequence) for part in ("hidden_norm", "embedding_norm", "norm", "project")}
    parallelize_module(transformer, mesh, {name: style for name, style in plan.items() if _has(transformer, name)})
    if transformer.head is not None:
        transformer.head.weight = nn.Parameter(distribute_tensor(transformer.head.weight, mesh, [Shard(0)], src_data_rank=None))
    transformer.cross_entropy = VocabularyCrossEntropy(mesh, stream)


def _block(block: Block, name: str, stream: Placement, sequence: bool) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {f"{name}.{part}": WholeWeights(sequence) for part in ("attention_norm", "feed_forward_norm")}
    attention = f"{name}.attention"
    plan[f"{attention}.out"] = RowwiseParallel(output_layouts=stream)
    if isinstance(block.attention, Attention):
        plan[attention] = PrepareModuleInput(input_layouts=(stream, None, None), desired_input_layouts=(Replicate(), None, None))
        plan |= {f"{attention}.{part}": ColwiseParallel() for part in ("query", "key", "value")}
        # Each rank normalises its own heads with the same weights.
        plan |= {f"{attention}.{part}": WholeWeights(parts_differ=True) for part in ("query_norm", "key_norm")}
    else:
        plan |= {f"{attention}.{part}": WholeWeights(sequence) for part in ("query.down", "query.norm", "latent_down", "latent_norm")}
        plan |= {f"{attention}.{part}": ColwiseParallel(input_layouts=stream) for part in ("query.up", "latent_up")}
        plan[f"{attention}.shared_key"] = GatherTokens(stream)
    feed_forward = f"{name}.feed_forward"
    if isinstance(block.feed_forward, Experts):
        plan[f"{feed_forward}.router"] = WholeWeights(sequence)
        feed_forward = f"{feed_forward}.shared"
    plan[feed_forward] = PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(Replicate(),))
    plan |= {f"{feed_forward}.{part}": ColwiseParallel() for part in ("gate", "up")}
    plan[f"{feed_forward}.out"] = RowwiseParallel(output_layouts=stream)
    return plan


def _has(transformer: nn.Module, name: str) -> bool:
    """Whether a submodule exists: not every model has every part."""
    module: nn.Module | None = transformer
    for part in name.split("."):
        module = getattr(module, part, None)
    return module is not None


class WholeWeights(ParallelStyle):
    """The same weights on every rank. Where ranks apply them to different tokens or heads their gradients are parts of a sum."""

    def __init__(self, parts_differ: bool) -> None:
        self.gradient: Placement = Partial() if parts_differ else Replicate()

    def _apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        distribute(module, mesh, lambda _: [Replicate()])
        compute_bare(module, [self.gradient])
        return module


class OwnTokens(WholeWeights):
    """A table of positions, read whole, of which each rank keeps its own tokens."""

    def _apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        super()._apply(module, mesh)
        if self.gradient.is_partial():
            module.register_forward_hook(lambda _, __, output: output.chunk(mesh.size(), dim=-2)[mesh.get_local_rank()])
        return module


class GatherTokens(ParallelStyle):
    """A module without weights passes on the tokens of all ranks."""

    def __init__(self, stream: Placement) -> None:
        self.stream = stream

    def _apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        module.register_forward_hook(lambda _, __, output: gather_tokens(output, mesh, self.stream))
        return module

"""What the model of memory says of published runs: which program ran, what its table leaves unsaid, and which figure was read."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from preheat.arithmetic.memory import Memory, MemoryModel, Step
from preheat.arithmetic.programs import EAGER, MEGATRON, Program
from preheat.plan.assumed import precision_of, program_of, split_evenly
from preheat.plan.rows import Run
from preheat.recipe import Model, Optimizer, Parallel, Precision

_DROPOUT = 0.1
"""Megatron-LM's default."""
_UNKNOWN = ("grpo", "distill", "frozen")
"""What else was in memory the table does not say: models that generate, teach, or are not trained."""


@dataclass(frozen=True)
class Case:
    """A published run as the model of memory takes it."""

    model: Model
    parallel: Parallel
    precision: Precision
    optimizer: Optimizer
    program: Program
    step: Step
    ranks: int

    def per_rank(self) -> tuple[Memory, ...]:
        """The breakdown of each pipeline rank.

        Raises:
            ValueError: the layout does not divide the ranks.
        """
        return MemoryModel(self.model, self.precision, self.optimizer, self.program).per_rank(self.parallel, self.ranks, self.step)


def predicted_memory(run: Run) -> float | None:
    """Bytes that the row's figure should be; None where the row does not say enough."""
    case = case_of(run)
    if case is None:
        return None
    try:
        found = case.per_rank()
    except ValueError:
        return None
    per_rank = found[-1:] if "last rank" in run.memory_kind.lower() else found
    return float(max(memory.allocated if _allocated(run) else memory.total for memory in per_rank))


def case_of(run: Run) -> Case | None:
    """What ran, with what the table leaves unsaid; None where it tells of more than the row's model."""
    said = dict(pair.split("=", 1) for pair in run.notes.split("; ") if "=" in pair)
    functional = "golden values" in run.source.lower()
    model = _model(run, said) if functional else run.model
    if model is None:
        return None
    if run.software == "megatron-2021":
        model = model.model_copy(update={"dropout": _DROPOUT})
    parallel = split_evenly(model, run.parallel)
    if functional and model.experts is not None and "expert-tensor-parallel-size" not in said and run.parallel.expert_tensor == 1:
        parallel = parallel.model_copy(update={"expert_tensor": parallel.tensor})  # Megatron-LM's default
    replicas = max(1, run.ranks // (parallel.tensor * parallel.pipeline * parallel.context))
    step = Step(run.micro_batch, run.seq_len, max(1, run.global_batch // (run.micro_batch * replicas)))
    optimizer = Optimizer(name="muon" if said.get("optimizer") == "muon" else "adamw")
    return Case(model, parallel, precision_of(run.precision), optimizer, _program(run, said), step, run.ranks)


def _allocated(run: Run) -> bool:
    """Whether the figure is what torch allocated, and not all that the driver shows."""
    kind = run.memory_kind.lower()
    return "alloc" in kind or "peak" in kind


def _program(run: Run, said: dict[str, str]) -> Program:
    program = program_of(run.software)
    if program.name != MEGATRON.name:
        return program
    if "bridge" in run.source.lower():
        program = replace(program, gradient=2)  # its recipes for speed add gradients up in bf16
    if "cross_entropy_loss_fusion" in run.name:
        program = replace(program, logit_bytes=EAGER.logit_bytes)
    unfused = said.get("attention-backend") == "unfused" or said.get("transformer-impl") == "local"
    return replace(program, fused_attention=not unfused)


def _model(run: Run, said: dict[str, str]) -> Model | None:
    """The model of one of Megatron-LM's functional tests, whose notes list arguments; None where they tell of another one."""
    model = run.model
    if any(word in run.name for word in _UNKNOWN) or "use-megatron-fsdp" in said:
        return None
    if ("multi-latent-attention" in said) != (model.mla is not None) or ("mtp-num-layers" in said) != (model.mtp is not None):
        return None
    # Dropout of attention and context parallelism exclude each other in Transformer Engine.
    values: dict[str, object] = {"dropout": 0.0 if run.parallel.context > 1 else _DROPOUT}
    values["tied_embeddings"] = "untie-embeddings-and-output-weights" not in said
    if said.get("swiglu") == "True":
        values["activation"] = "swiglu"
    if model.experts is not None and (width := re.fullmatch(r"\d+", said.get("moe-ffn-hidden-size", ""))):
        values["experts"] = model.experts.model_copy(update={"ffn_hidden": int(width[0])})
    return model.model_copy(update=values)

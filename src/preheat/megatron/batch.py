"""Sizes that follow from the arguments: replicas, batches, the length of the run."""

from __future__ import annotations

from preheat.megatron.settings import Settings


def size(settings: Settings, name: str) -> int:
    """A size that is used as a divisor: at least 1 (`megatron.positive` reports what is less)."""
    return max(1, int(settings[name] or 1))


def data_parallel(settings: Settings) -> int:
    """Replicas of the dense layers, rounded down; at least 1."""
    return max(1, settings.gpus // model_ranks(settings))


def model_ranks(settings: Settings) -> int:
    """GPUs that hold one replica: tensor x pipeline x context."""
    sizes = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    return size(settings, sizes[0]) * size(settings, sizes[1]) * size(settings, sizes[2])


def expert_tensor(settings: Settings) -> int:
    """Expert-tensor-parallel size: that of the dense layers when it is not given."""
    return size(settings, "expert_tensor_parallel_size" if settings["expert_tensor_parallel_size"] else "tensor_model_parallel_size")


def full_batch(settings: Settings) -> int:
    """Samples per step at the end of a ramp."""
    sizes = [batch for _, batch in step_schedule(settings)]
    return sizes[-1] if sizes else int(settings["global_batch_size"] or size(settings, "micro_batch_size") * data_parallel(settings))


def step_schedule(settings: Settings) -> list[tuple[int, int]]:
    """Tokens and batch size of each entry of --step-batch-size-schedule; empty when there is none or it can't be read."""
    found = []
    for entry in (settings["step_batch_size_schedule"] or "").replace(",", " ").split():
        threshold, colon, batch = entry.partition(":")
        at, samples = amount(threshold), amount(batch)
        if not colon or at is None or samples is None:
            return []
        found.append((at, samples))
    return sorted(found)


def amount(text: str) -> int | None:
    """A number with K, M, B or T, as the schedule has it."""
    upper = text.strip().upper()
    factor = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}.get(upper[-1:], 1)
    try:
        value = float(upper[:-1] if factor > 1 else upper) * factor
    except ValueError:
        return None
    return int(value) if 0 <= value < 1e18 else None


def run_samples(settings: Settings) -> int | None:
    """Samples of the whole run."""
    if settings["train_samples"]:
        return int(settings["train_samples"])
    return int(settings["train_iters"]) * full_batch(settings) if settings["train_iters"] else None

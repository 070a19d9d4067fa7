"""TensorBoard mirrors `metrics.jsonl`. Its horizontal axis is the run's clock: tokens consumed, not optimizer steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

_GROUPS = {
    "loss": "train",
    "grad_norm": "train",
    "lr": "schedule",
    "batch_size": "schedule",
    "seq_len": "schedule",
    "rope_theta": "schedule",
    "step": "schedule",
    "tokens_per_s": "speed",
    "step_time_s": "speed",
    "mfu": "speed",
}


class TensorBoard:
    """The sink that writes TensorBoard scalars: `train/loss`, `schedule/lr`, `speed/mfu`, `held_out_bits_per_byte/<source>` and so on."""

    def __init__(self, folder: Path, resume_tokens: int | None = None) -> None:
        """`folder` is made if needed. After a resume at `resume_tokens` TensorBoard hides what an earlier process wrote beyond them."""
        purge = None if resume_tokens is None else resume_tokens + 1
        self._writer = SummaryWriter(str(folder), purge_step=purge)

    def step(self, record: dict[str, Any]) -> None:
        """Write every number of a step; one that is not finite shows as a gap. A number this file does not know goes under `other`."""
        tokens = record["tokens"]
        for key, value in record.items():
            if isinstance(value, int | float) and key != "tokens":
                self._scalar(f"{_GROUPS.get(key, 'other')}/{key}", value, tokens)
        for source, measured in record.get("held_out", {}).items():
            self._scalar(f"held_out_loss/{source}", measured["loss"], tokens)
            self._scalar(f"held_out_bits_per_byte/{source}", measured["bits_per_byte"], tokens)

    def event(self, record: dict[str, Any]) -> None:
        """Write an event as text."""
        text = " · ".join(str(record[key]) for key in ("kind", "cause", "evidence", "action") if record.get(key))
        self._writer.add_text("events", text, record["tokens"])
        self._writer.flush()

    def close(self) -> None:
        """Write what is pending."""
        self._writer.close()

    def _scalar(self, tag: str, value: float, tokens: int) -> None:
        if math.isfinite(value):
            self._writer.add_scalar(tag, value, tokens)

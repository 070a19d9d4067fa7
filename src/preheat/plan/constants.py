"""What was measured once and fitted: how near kernels and links come to the data sheet, and what a training program adds.

`constants.toml` is written by `bench/fit_planner.py`; nobody edits its fitted numbers by hand.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from preheat.errors import refuse

_FILE = Path(__file__).with_name("constants.toml")


@dataclass(frozen=True)
class Kernels:
    """How near the kernels of one generation of GPUs come to its data sheet."""

    multiprocessors: int
    """Parts of the GPU that each work on a tile of a matrix product at a time."""
    matrix: float
    """Share of the peak that a large matrix product in bf16 or fp16 reaches."""
    attention: float
    """Share of the bf16 peak that the forward pass of flash attention reaches."""
    memory: float
    """Share of the memory bandwidth that elementwise kernels reach."""
    matrix_fp8: float | None = None
    """As `matrix`, of the peak in fp8 with one scale a tensor or row; None where the generation lacks the format or nobody measured it."""
    matrix_mxfp8: float | None = None
    """The same with scales by blocks of 32."""
    matrix_fp4: float | None = None
    """The same in fp4 with scales by blocks of 16."""


@dataclass(frozen=True)
class Software:
    """What a kind of training program makes of the same hardware. A planner's user chooses one by name."""

    name: str
    describes: str
    attention: Literal["flash", "unfused"]
    """`unfused` writes scores to memory, as all programs did before 2023."""
    matrix: float
    """Rate of matrix products, as a share of what the generation's best libraries reach."""
    attention_rate: float
    """Rate of flash attention, as a share of what the generation's best kernels reach."""
    elementwise: float
    """Bytes that norms, activations and residual branches move, as a multiple of the fewest that fused kernels do."""
    tensor_overlap: float
    """Share of tensor-parallel exchange that matrix products hide."""
    data_overlap: float
    """Share of a step's gradient and weight exchange that may run beside computation."""
    gradient_bytes: int
    """Bytes of a gradient in the exchange."""
    offloaded_bytes: int
    """Bytes of a parameter's optimizer state that lie with the host when the optimizer is offloaded, and come and go once a step."""
    expert: float
    """Time of routing, permuting and grouping tokens for experts, as a multiple of moving them through memory the fewest times."""
    experts_at_once: int
    """Experts whose matrix products run beside each other: as many as a library opens streams, or all in one grouped kernel."""
    exchange_overlap: float
    """Share of the all-to-all between expert-parallel ranks that runs beside computation."""
    launch: float
    """Seconds of the host for one layer's kernels in one pass; what the GPU does not cover is waited for."""
    launch_expert: float
    """The same for a layer with experts, beside the experts themselves."""
    launch_each: float
    """The same for each of the rank's experts."""
    step: float
    """Seconds of a step outside the model: clipping, logging, the loader."""
    step_tensor: float
    """Seconds of the host in a step for each weight on a rank, an expert's counting as its own: hooks, norms, casts."""


@dataclass(frozen=True)
class Common:
    """What holds everywhere."""

    wave: float
    """Waves of tiles lost at the end of a matrix product."""
    depth: float
    """Inner dim at which a matrix product reaches half of its rate."""
    misaligned: float
    """How much slower matrix products are when a dim is no multiple of 64."""
    odd_heads: float
    """How much slower unfused attention is when the head width is no multiple of 8, which tensor cores want."""
    link: float
    """Share of its bandwidth that NVLink reaches in collectives."""
    network: float
    """The same for the network."""
    latency: float
    """Seconds that a collective takes at each rank inside a domain, however few the bytes."""
    network_latency: float
    """The same for a server in the network."""
    jitter: float
    """Share of a step lost to waiting for the slowest at each doubling of the servers."""


@dataclass(frozen=True)
class Constants:
    """All fitted numbers."""

    common: Common
    kernels: dict[str, Kernels]
    """By generation, as in `hardware.Gpu.generation`."""
    software: dict[str, Software]

    def of(self, generation: str) -> Kernels:
        """The kernels of a generation.

        Raises:
            PreheatError: nothing was fitted for it.
        """
        if generation not in self.kernels:
            known = ", ".join(self.kernels)
            refuse(
                "plan.generation", f"no throughput is known for the generation {generation}", f"known: {known}", "Name another kind of GPU"
            )
        return self.kernels[generation]

    def program(self, name: str) -> Software:
        """A kind of training program.

        Raises:
            PreheatError: no such kind.
        """
        if name not in self.software:
            refuse("plan.software", f"no software is called {name}", f"known: {', '.join(self.software)}", "Name one of them")
        return self.software[name]


def read(table: dict[str, Any]) -> Constants:
    """Constants from the tables of the TOML file."""
    return Constants(
        Common(**table["common"]),
        {name: Kernels(**values) for name, values in table["kernels"].items()},
        {name: Software(name=name, **_inherited(table["software"], name)) for name in table["software"]},
    )


def _inherited(programs: dict[str, Any], name: str) -> dict[str, Any]:
    """A program's values over those of the program that it is `like`."""
    own = dict(programs[name])
    like = own.pop("like", None)
    return own if like is None else _inherited(programs, like) | own


@lru_cache(maxsize=1)
def shipped() -> Constants:
    """The constants that come with preheat."""
    return read(tables())


def tables() -> dict[str, Any]:
    """The tables of the shipped file, for a fit to start from."""
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))

"""Which training program a plan is for: what it keeps in memory and how fast it is."""

from __future__ import annotations

from dataclasses import dataclass

from preheat.arithmetic.programs import MEGATRON, PREHEAT, Program
from preheat.errors import refuse


@dataclass(frozen=True)
class PlannedProgram:
    """A training program that a recipe can be planned for."""

    name: str
    memory: Program
    software: str
    """What is known of its speed, by its name in `constants.toml`."""


PROGRAMS = {
    "megatron": PlannedProgram("megatron", MEGATRON, "megatron"),
    "preheat": PlannedProgram("preheat", PREHEAT, "pytorch"),
}
"""`preheat` is this engine, whose speed is taken to be that of other plain PyTorch programs: it has not been measured on many GPUs."""


def program(name: str) -> PlannedProgram:
    """The program of that name.

    Raises:
        PreheatError: there is none.
    """
    if name not in PROGRAMS:
        refuse("plan.program", f"no program is called {name}", f"known: {', '.join(PROGRAMS)}", "Name one of them")
    return PROGRAMS[name]

"""All families, in the order in which they are tried. A family is a file and a line here."""

from __future__ import annotations

from typing import NoReturn

from preheat.errors import refuse
from preheat.interop.huggingface.deepseek_v3 import DEEPSEEK_V3
from preheat.interop.huggingface.family import Family, Obstacle, Setting
from preheat.interop.huggingface.gpt2 import GPT2
from preheat.interop.huggingface.gpt_neox import GPT_NEOX
from preheat.interop.huggingface.llama import LLAMA
from preheat.interop.huggingface.mixtral import MIXTRAL
from preheat.interop.huggingface.nemotron import NEMOTRON
from preheat.recipe import Model

FAMILIES: tuple[Family, ...] = (
    LLAMA,
    MIXTRAL,
    DEEPSEEK_V3,
    GPT2,
    NEMOTRON,
    GPT_NEOX,
)


def family_for(model: Model, setting: Setting, families: tuple[Family, ...] = FAMILIES) -> Family:
    """The first family that gives the same logits as this model.

    Raises:
        PreheatError: there is none; the message says what stands against the nearest.
    """
    obstacles = {family: list(family.obstacles(model, setting)) for family in families}
    for family, found in obstacles.items():
        if not found:
            return family
    return _refuse_all(obstacles)


def _refuse_all(obstacles: dict[Family, list[Obstacle]]) -> NoReturn:
    nearest = min(obstacles, key=lambda family: len(obstacles[family]))
    got = "; ".join(str(obstacle) for obstacle in obstacles[nearest])
    others = ", ".join(family.architecture for family in obstacles if family is not nearest)
    refuse(
        "export.architecture",
        f"no class of transformers computes this model. Nearest is {nearest.architecture}, against which stands: {got}",
        f"{others} are further away",
        "Export the weights to another program, or train one of these architectures",
        key=obstacles[nearest][0].key,
    )


def family_named(model_type: object, file: object, families: tuple[Family, ...] = FAMILIES) -> Family:
    """The family of a config.json's `model_type`.

    Raises:
        PreheatError: there is none.
    """
    found = next((family for family in families if family.model_type == model_type), None)
    if found is None:
        known = ", ".join(family.model_type for family in families)
        fix = "docs/architectures.md shows how to add one"
        refuse("import.architecture", f"model_type {model_type!r}", f"preheat reads {known}", fix, file=file, key="model_type")
    return found

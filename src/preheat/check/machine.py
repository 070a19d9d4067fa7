"""What the process knows about where it runs; handed in, so that the rules stay functions of their input."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """Variables and versions that rules about launching look at."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """Slurm's and torchrun's environment variables."""
    torch: str | None = None
    """Version of the installed torch; None when there is none."""

    @classmethod
    def here(cls) -> Machine:
        """This process. torch is not imported, and neither is importlib.metadata, which takes longer than all rules together."""
        variables = {key: value for key, value in os.environ.items() if key.startswith(("SLURM_", "MASTER_", "TORCHELASTIC_", "LOCAL_"))}
        return cls(variables, _installed("torch"))


def _installed(package: str) -> str | None:
    """The version of an installed package, from the name of its folder of metadata."""
    for folder in map(Path, sys.path):
        for metadata in folder.glob(f"{package}-*.dist-info"):
            version = re.fullmatch(rf"{package}-([0-9][^-]*)\.dist-info", metadata.name)
            if version:
                return version[1]
    return None

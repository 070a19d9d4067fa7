"""What the process knows about where it runs; handed in, so that the rules stay functions of their input."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Machine:
    """Variables and versions that rules about launching look at."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """Slurm's and torchrun's environment variables."""
    torch: str | None = None
    """Version of the installed torch; None when there is none."""

    @classmethod
    def here(cls) -> Machine:
        """This process. The version is read from the package's metadata, torch is not imported."""
        variables = {key: value for key, value in os.environ.items() if key.startswith(("SLURM_", "MASTER_", "TORCHELASTIC_", "LOCAL_"))}
        try:
            torch: str | None = importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            torch = None
        return cls(variables, torch)

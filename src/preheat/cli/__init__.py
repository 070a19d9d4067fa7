"""The command line: one file a verb, no logic of its own."""

from __future__ import annotations

import gc
import os


def main() -> None:
    """Run the program. Exit code 0: done; 1: a finding or a failed run; 2: wrong usage or input."""
    # What is imported stays, so looking through it for garbage only delays the start; the verb switches the collector on again.
    gc.disable()
    # No plugin of pydantic has to do with recipes, and looking for some reads the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from preheat.cli.app import run

    run()


__all__ = ["main"]

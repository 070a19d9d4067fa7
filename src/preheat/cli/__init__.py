"""The command line: one file a verb, no logic of its own."""

from preheat.cli.app import main

__all__ = ["main"]

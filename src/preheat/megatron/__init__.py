"""Megatron-LM's command lines: the arguments that each version knows, a reader that runs nothing, and the values that result.

This room knows Megatron-LM and no recipe: `check` judges what it reads, `interop` turns it into a recipe and back.
"""

from preheat.megatron.command import Argument, Command, read_commands
from preheat.megatron.settings import Fault, Settings, settle
from preheat.megatron.table import NEWEST, VERSIONS, Option, Remark, options, remarks

__all__ = [
    "NEWEST",
    "VERSIONS",
    "Argument",
    "Command",
    "Fault",
    "Option",
    "Remark",
    "Settings",
    "options",
    "read_commands",
    "remarks",
    "settle",
]

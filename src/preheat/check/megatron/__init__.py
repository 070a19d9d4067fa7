"""Megatron-LM commands, judged as its own parser, validation and model configuration judge them, and beyond.

An error is what Megatron-LM refuses, what it takes and then fails on, or what makes it train something else than is written; the
docstring of a rule says where it is stricter.
"""

from __future__ import annotations

from preheat.check.megatron import arguments as _arguments
from preheat.check.megatron import batch as _batch
from preheat.check.megatron import experts as _experts
from preheat.check.megatron import launch as _launch
from preheat.check.megatron import layout as _layout
from preheat.check.megatron import model as _model
from preheat.check.megatron import precision as _precision
from preheat.check.megatron import schedule as _schedule
from preheat.check.megatron.registry import MEGATRON_RULES, judge
from preheat.errors import Problem, by_severity
from preheat.megatron import NEWEST, read_commands, settle

__all__ = ["MEGATRON_RULES", "check_megatron", "judge"]

del _arguments, _batch, _experts, _launch, _layout, _model, _precision, _schedule


def check_megatron(text: str, file: str, gpus: int, version: str = NEWEST) -> list[Problem]:
    """Everything that is wrong with a launch script, a list of flags or a flat YAML file, in one pass; nothing in it is run.

    Args:
        text: the content of the file.
        file: its name, for the report.
        gpus: the world size.
        version: of megatron-core, "0.17", "0.18" or "0.19" (a patch number is ignored).

    Raises:
        PreheatError: there is no Megatron-LM command in the text, or the version is not known.
    """
    found = [problem for command in read_commands(text, file) for problem in judge(settle(command, gpus, version))]
    return sorted(dict.fromkeys(found), key=by_severity)

"""Asks Megatron-LM itself: parse_args, validate_args and TransformerConfig on a CPU, for command lines read from standard input.

A case may carry "samples", clocks at which the learning rate is asked for; "rates" and "iterations" then come from Megatron-LM's own
scheduler.

Run in a process of its own, with a folder that holds `megatron/core` and `megatron/training` on PYTHONPATH (an unpacked megatron-core
wheel of 0.17 or later). Input: one JSON list of {"name", "gpus", "args": [..]}. Output: one JSON list of {"name", "stage", "error", ..}.
`stage` is the first that refuses: "parse", "validate_args", "transformer_config", or "ok". `--arguments` prints the argument table.

What a GPU node would answer is stood in for: an H100's compute capability (9.0), Transformer Engine 2.9 with its fused rotary kernel,
and one process per rank as rank 0 sees it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import typing
from typing import Any

os.environ.update(RANK="0", WORLD_SIZE="1", CUDA_DEVICE_MAX_CONNECTIONS="1")
if not hasattr(typing, "override"):  # core 0.18 and later use it; Python 3.11 lacks it
    typing.override = lambda function: function  # type: ignore[attr-defined]

import torch


class _Properties:
    major = 9
    minor = 0


torch.cuda.get_device_properties = lambda *_: _Properties()  # type: ignore[assignment]
torch.cuda.get_device_capability = lambda *_: (9, 0)  # type: ignore[assignment]


def main() -> None:
    """Read command lines from standard input (or print the table of arguments) and answer in JSON."""
    noise = io.StringIO()
    with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
        from megatron.core import utils
        from megatron.core.models.common.embeddings import rope_utils
        from megatron.training import arguments
        from packaging.version import Version
    utils._te_version = Version("2.9.0")
    rope_utils.fused_apply_rotary_pos_emb = rope_utils.fused_apply_rotary_pos_emb_thd = main
    if "--arguments" in sys.argv:
        parser = argparse.ArgumentParser(allow_abbrev=False)
        with contextlib.redirect_stdout(noise):
            arguments.add_megatron_arguments(parser)
        json.dump([_describe(action) for action in parser._actions], sys.stdout)
        return
    json.dump([_verdict(arguments, case) for case in json.load(sys.stdin)], sys.stdout)


def _describe(action: argparse.Action) -> dict[str, Any]:
    kind = getattr(action.type, "__name__", None) if action.type else None
    return {
        "flags": action.option_strings,
        "dest": action.dest,
        "action": type(action).__name__,
        "type": kind,
        "nargs": action.nargs,
        "default": str(action.default),
        "choices": [str(choice) for choice in action.choices] if action.choices else None,
        "help": action.help,
    }


def _verdict(arguments: Any, case: dict[str, Any]) -> dict[str, Any]:
    os.environ["WORLD_SIZE"] = str(case["gpus"])
    sys.argv = ["pretrain_gpt.py", *case["args"]]
    noise, stage = io.StringIO(), "parse"
    try:
        with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
            args = arguments.parse_args()
            stage = "validate_args"
            args = arguments.validate_args(args, {})
            stage = "transformer_config"
            config = arguments.core_transformer_config_from_args(args)
    except (Exception, SystemExit) as error:
        message = f"{type(error).__name__}: {error}"
        if stage == "parse":
            message = noise.getvalue().strip().splitlines()[-1] if noise.getvalue().strip() else message
        return {"name": case["name"], "stage": stage, "error": message}
    run = _schedule(args, case["samples"]) if case.get("samples") else {}
    return {
        **run,
        "name": case["name"],
        "stage": "ok",
        "error": None,
        "data_parallel": args.data_parallel_size,
        "virtual_pipeline": args.virtual_pipeline_model_parallel_size,
        "sequence_parallel": args.sequence_parallel,
        "query_groups": config.num_query_groups,
        "ffn_hidden": config.ffn_hidden_size,
        "global_batch": args.global_batch_size,
        "expert_tensor_parallel": args.expert_tensor_parallel_size,
    }


class _Optimizer:
    def __init__(self) -> None:
        self.param_groups: list[dict[str, Any]] = []


def _schedule(args: Any, samples: list[int]) -> dict[str, Any]:
    """Learning rates at numbers of consumed samples, and how many iterations the run has."""
    noise = io.StringIO()
    with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
        from megatron.core import num_microbatches_calculator as calculator
        from megatron.training import global_vars, training

        global_vars._GLOBAL_ARGS = args
        calculator.unset_num_microbatches_calculator()
        known = {
            "rank": 0,
            "rampup_batch_size": args.rampup_batch_size,
            "global_batch_size": args.global_batch_size,
            "micro_batch_size": args.micro_batch_size,
            "data_parallel_size": args.data_parallel_size,
            "decrease_batch_size_if_needed": args.decrease_batch_size_if_needed,
        }
        if getattr(args, "step_batch_size_schedule", None):
            known |= {"step_batch_size_schedule": args.step_batch_size_schedule, "seq_length": args.seq_length}
        calculator.init_num_microbatches_calculator(**known)
        scheduler = training.get_optimizer_param_scheduler(_Optimizer())
    rates = []
    for count in samples:
        scheduler.num_steps = count
        rates.append(scheduler.get_lr({}))
    return {"rates": rates, "iterations": args.train_iters}


if __name__ == "__main__":
    main()

"""Builds megatron-core's GPTModel on a CPU, fills it with tensors under checkpoint names, and writes its logits.

Run in a process of its own with an unpacked megatron-core wheel on PYTHONPATH: run_megatron_model.py FOLDER. The folder holds
`settings.json` ({"config": arguments of TransformerConfig, "model": arguments of GPTModel, "tokens": [[..]]}) and `tensors.safetensors`;
`logits.safetensors` is written there. Standard output: JSON with the names that the model has and the file has not, and the other way.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

os.environ.update(RANK="0", WORLD_SIZE="1", CUDA_DEVICE_MAX_CONNECTIONS="1")

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, distributed

torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment]


def main(folder: Path) -> None:
    """Fill, compute, report."""
    settings, tensors = json.loads((folder / "settings.json").read_text()), load_file(folder / "tensors.safetensors")
    distributed.init_process_group("gloo", init_method=f"file://{folder.resolve()}/store", rank=0, world_size=1)
    model = _build(settings)
    targets = model.state_dict()
    used = set()
    wrong = []
    for name, shard in model.sharded_state_dict().items():
        if name.endswith("_extra_state"):
            continue
        used.add(shard.key)
        part = _part(name, tensors[shard.key]) if shard.key in tensors else None
        if part is None or part.shape != targets[name].shape:
            wrong.append(f"{shard.key} for {name}: {None if part is None else tuple(part.shape)}, not {tuple(targets[name].shape)}")
        else:
            targets[name].copy_(part)
    tokens_BT = torch.tensor(settings["tokens"])
    mask = torch.triu(torch.ones(1, 1, tokens_BT.shape[1], tokens_BT.shape[1]), diagonal=1).bool()
    logits_BTV = model.eval()(tokens_BT, torch.arange(tokens_BT.shape[1]).expand_as(tokens_BT), mask)
    save_file({"logits": logits_BTV.contiguous()}, folder / "logits.safetensors")
    json.dump({"wrong": wrong, "unused": sorted(set(tensors) - used)}, sys.__stdout__)


def _build(settings: dict[str, Any]) -> Any:
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
    from megatron.core.transformer import TransformerConfig

    parallel_state.initialize_model_parallel()
    # Dropout is zero, so that nobody draws from the generator of a GPU that is not there.
    CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
    values = settings["config"]
    values["activation_func"] = {"silu": torch.nn.functional.silu, "gelu": partial(torch.nn.functional.gelu, approximate="tanh")}[
        values["activation_func"]
    ]
    config = TransformerConfig(
        **values, use_cpu_initialization=True, bias_activation_fusion=False, hidden_dropout=0.0, attention_dropout=0.0
    )
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts, moe_grouped_gemm=False, normalization=config.normalization, qk_layernorm=config.qk_layernorm
    )
    return GPTModel(config, spec, **settings["model"])


def _part(name: str, tensor: Tensor) -> Tensor:
    """The module's own part of a tensor that holds all layers, and all experts of a layer."""
    for pattern in (r"decoder\.layers\.(\d+)\.", r"local_experts\.(\d+)\."):
        match = re.search(pattern, name)
        if match:
            tensor = tensor[int(match[1])]
    return tensor


if __name__ == "__main__":
    with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        main(Path(sys.argv[1]))

"""Time and memory of a train step against Llama in `transformers`, at equal shapes and weights: `python bench/block.py [ROUNDS]`.

For each model: one block (forward and backward) and a whole step (forward, loss, backward, clipping, fused AdamW), the median seconds of
both and the median of the ratios of paired rounds; the peak memory of each in a process of its own; and where the time of our step goes.
Ends with code 1 when the whole step with Llama 3's vocabulary is less than 1.2 times as fast, or another one slower. The others spend nine
tenths of their time in matrix products and attention, which both take from the same library. One core, fp32; two minutes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM

from preheat.model import Transformer, build
from preheat.recipe import Model, Optimizer, load
from preheat.train.optimizer import build_optimizer, set_rate

MODELS = {
    "tiny": load("tiny").recipe.model.model_copy(update={"tied_embeddings": False}),
    "45m": Model(layers=4, hidden=512, heads=8, kv_heads=4, ffn_hidden=1408, vocab_size=32_000, rope_theta=1e4, tied_embeddings=False),
    "128k": Model(layers=4, hidden=256, heads=4, kv_heads=2, ffn_hidden=768, vocab_size=128_256, rope_theta=1e4, tied_embeddings=False),
}
BATCH, LENGTH = 4, 256
BARS = {"tiny": 1.0, "45m": 1.0, "128k": 1.2}
Step = Callable[[], float]

NAMES = {
    "model.embed_tokens": "embedding",
    "model.norm": "norm",
    "lm_head": "head",
    "model.layers": "blocks",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "feed_forward_norm",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.out",
    "mlp.gate_proj": "feed_forward.gate",
    "mlp.up_proj": "feed_forward.up",
    "mlp.down_proj": "feed_forward.out",
}
"""Their names and ours."""


def llama(ours: Transformer) -> LlamaForCausalLM:
    """Their model with our weights."""
    model = ours.config
    config = LlamaConfig(
        hidden_size=model.hidden,
        intermediate_size=model.ffn_hidden,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        vocab_size=model.vocab_size,
        max_position_embeddings=LENGTH,
        rms_norm_eps=model.norm_eps,
        tie_word_embeddings=False,
        use_cache=False,
    )
    theirs = LlamaForCausalLM(config)
    weights = ours.state_dict()
    for name, parameter in theirs.named_parameters():
        for their_part, our_part in NAMES.items():
            name = name.replace(their_part, our_part)
        parameter.data.copy_(weights[name])
    return theirs.train()


def tokens(model: Model) -> tuple[Tensor, Tensor]:
    """Inputs and labels, B x T each."""
    drawn = torch.randint(0, model.vocab_size, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def our_step(ours: Transformer) -> Step:
    """A whole train step as `preheat train` takes it; returns the loss."""
    inputs, labels = tokens(ours.config)
    optimizer = build_optimizer(ours, Optimizer())
    set_rate(optimizer, 1e-4)

    def step() -> float:
        loss = ours(inputs, labels).total / labels.numel()
        return finish(loss, ours, optimizer)

    return step


def their_step(theirs: LlamaForCausalLM, model: Model) -> Step:
    """The same with their forward and loss."""
    inputs, labels = tokens(model)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step() -> float:
        loss = theirs(input_ids=inputs, labels=inputs, shift_labels=labels).loss
        return finish(loss, theirs, optimizer)

    return step


def finish(loss: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Backward, clip and step; the loss before it."""
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def block_steps(ours: Transformer, theirs: LlamaForCausalLM) -> tuple[Step, Step]:
    """Forward and backward of one block on a given stream."""
    inputs, _ = tokens(ours.config)
    x_BTD = torch.randn(BATCH, LENGTH, ours.config.hidden, generator=torch.Generator().manual_seed(1))
    calls: list[tuple[Any, ...]] = []
    block, layer = ours.blocks["0"], theirs.model.layers[0]
    with block.register_forward_pre_hook(lambda _, arguments: calls.append(arguments)):
        ours(inputs)
    sight = calls[0][1]
    angles = theirs.model.rotary_emb(x_BTD, torch.arange(LENGTH)[None])

    def back(output: Tensor, module: nn.Module) -> float:
        output.square().mean().backward()
        module.zero_grad()
        return output.detach().square().sum().item()

    def our() -> float:
        return back(block(x_BTD.clone().requires_grad_(), sight).x_BTD, block)

    def their() -> float:
        return back(layer(x_BTD.clone().requires_grad_(), position_embeddings=angles), layer)

    return our, their


def compare(what: str, our: Step, their: Step, rounds: int) -> float:
    """Time both in turn, print and return the median of how many times as long theirs takes."""
    first = our(), their()
    assert abs(first[0] - first[1]) <= 1e-4 * abs(first[1]), f"{what}: {first[0]} and {first[1]} are not the same computation"
    pairs = [(seconds(our), seconds(their)) for _ in range(rounds)]
    ratio = median(theirs / ours for ours, theirs in pairs)
    print(f"{what:12} {median(ours for ours, _ in pairs):8.4f} s {median(theirs for _, theirs in pairs):8.4f} s {ratio:8.2f}")
    return ratio


def seconds(step: Step) -> float:
    """Processor time of one call: on one thread it is the wall time that an idle machine would take."""
    start = time.process_time()
    step()
    return time.process_time() - start


def peak(model: Model, side: str) -> None:
    """Print how many MiB three steps need at their peak beside the weights, gradients and moments included."""
    ours = build(model, seed=0)
    step = our_step(ours) if side == "ours" else their_step(llama(ours), model)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is in use
    before = resident("VmRSS")
    for _ in range(3):
        step()
    print((resident("VmHWM") - before) // 1024)


def resident(which: str) -> int:
    """KiB of this process, now or at its peak (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which))


def profiled(step: Step) -> str:
    """Operators of a step by their own time."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    return profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=14, max_name_column_width=44)


def measure(name: str, rounds: int) -> float:
    """Print all of one model; the ratio of whole steps."""
    ours = build(MODELS[name], seed=0)
    theirs = llama(ours)
    print(f"{name:12} {'preheat':>10} {'transformers':>12} {'ratio':>6}")
    compare("block", *block_steps(ours, theirs), rounds)
    ratio = compare("train step", our_step(ours), their_step(theirs, ours.config), rounds)
    commands = ([sys.executable, __file__, name, side] for side in ("ours", "theirs"))
    peaks = [int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for command in commands]
    print(f"{'peak memory':12} {peaks[0]:6} MiB {peaks[1]:8} MiB {peaks[1] / peaks[0]:8.2f}\n{profiled(our_step(ours))}", flush=True)
    return ratio


def main() -> None:
    """Measure, print, judge."""
    torch.set_num_threads(1)
    if len(sys.argv) == 3:
        peak(MODELS[sys.argv[1]], sys.argv[2])
        return
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    ratios = {name: measure(name, rounds) for name in MODELS}
    slow = [f"{name} {ratio:.2f}" for name, ratio in ratios.items() if ratio < BARS[name]]
    if slow:
        sys.exit(f"whole steps by how many times as fast: {', '.join(slow)}")


if __name__ == "__main__":
    main()

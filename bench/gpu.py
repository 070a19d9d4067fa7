"""What one GPU does with this code, in five minutes: is it right, how fast is it, how much memory does it take.

    python bench/gpu.py            # on a GPU
    python bench/gpu.py --tiny     # on any machine in a minute: that the script works

First the loss and the gradient norm of a small model against float64 on the CPU. Then training speed of slices of two catalog recipes, in
bf16 and fp8, with and without compilation. MFU counts causal attention against the bf16 matrix product that the device was measured at;
"states" is what `preheat check` counts for weights, gradients and optimizer, without activations.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Iterator

import torch

from preheat.arithmetic import parameters, rank_states
from preheat.model import build
from preheat.recipe import Parallel, Recipe, load
from preheat.train.tune import run_try

SLICES = {
    "llama3-8b, 4 of 32 layers": ("llama3-8b", ("model.layers=4", "model.vocab_size=32_000")),
    "mixtral-8x7b, 2 of 32 layers": ("mixtral-8x7b", ("model.layers=2",)),
}
"""What is timed -> a catalog recipe, and what is changed in it."""
ALONE = ("batch.ramp=[]", "batch.global_size=8", "batch.micro_size=1")
TINY = (
    "model.layers=1",
    "model.hidden=64",
    "model.ffn_hidden=128",
    "model.heads=2",
    "model.kv_heads=1",
    "model.vocab_size=512",
    "batch.seq_len=64",
)
FP8 = "precision={ compute = 'fp8', fp8_recipe = 'tensorwise' }"
BUDGET_S = 270
GIB = 2**30


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tiny", action="store_true", help="a small model and few settings, for a CPU")
    tiny = options.parse_args().tiny
    until = time.monotonic() + BUDGET_S
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{torch.cuda.get_device_name() if device.type == 'cuda' else 'CPU'}, torch {torch.__version__}")
    print("\nrelative distance from float64 on the CPU   loss      gradient norm")
    for name, loss, norm in distances(device):
        print(f"{name:42} {loss:9.1e} {norm:9.1e}")
    print(
        f"\n{'model':30} {'parameters':>10}  {'format':6} {'compiled':8} {'tokens/s':>10} {'MFU':>6} {'peak GiB':>9} {'states GiB':>10}",
        flush=True,
    )
    peak_flops = None
    for name, recipe in settings(tiny):
        head = f"{name:30} {parameters(recipe.model).total / 1e9:9.3g}B  {recipe.precision.compute:6} {recipe.parallel.compile!s:8}"
        if time.monotonic() > until:
            print(f"{head} left out: the time is over")
            continue
        result = run_try(recipe, 1 if tiny else 3, None, peak_flops)
        if result is None:
            print(f"{head} out of memory")
            continue
        peak_flops = result.peak_flops
        (states,) = rank_states(recipe.model, recipe.parallel, recipe.precision.model_copy(update={"compute": "fp32"}), 1, recipe.optimizer)
        speed = f"{result.tokens_per_s:10,.0f} {result.mfu:6.1%}"
        print(f"{head} {speed} {result.peak_bytes / GIB:9.3g} {states.total / GIB:10.3g}", flush=True)
    if peak_flops is not None:
        print(f"\nMFU is of {peak_flops / 1e12:.3g} TFLOP/s")


def distances(device: torch.device) -> Iterator[tuple[str, float, float]]:
    """Number format -> how far loss and gradient norm of a small model on the device are from float64 on the CPU, relatively."""
    model = load("tiny").recipe.model.model_copy(update={"layers": 2})
    tokens_BT = torch.randint(model.vocab_size, (4, 65), generator=torch.Generator().manual_seed(0))

    def measure(place: torch.device, dtype: torch.dtype) -> tuple[float, float]:
        transformer = build(model, seed=0).to(place, torch.float64 if dtype == torch.float64 else torch.float32)
        inputs_BT, labels_BT = tokens_BT[:, :-1].to(place), tokens_BT[:, 1:].to(place)
        with torch.autocast(place.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = transformer(inputs_BT, labels_BT).total / labels_BT.numel()
        loss.backward()
        gradients = [parameter.grad.double() for parameter in transformer.parameters()]
        return loss.item(), torch.nn.utils.get_total_norm(gradients).item()

    exact_loss, exact_norm = measure(torch.device("cpu"), torch.float64)
    for dtype in (torch.float32, torch.bfloat16):
        loss, norm = measure(device, dtype)
        yield str(dtype).removeprefix("torch."), abs(loss / exact_loss - 1), abs(norm / exact_norm - 1)


def settings(tiny: bool) -> Iterator[tuple[str, Recipe]]:
    """Name and recipe of what is timed, the most telling first."""
    fp8 = importlib.util.find_spec("torchao") is not None
    if not fp8:
        print("\nno fp8: it needs `pip install 'preheat[fp8]'`")
    for compiled in (False, True):
        for precision in ("precision.compute=bf16", *([FP8] if fp8 else [])):
            for name, (base, changes) in SLICES.items():
                if tiny and (base != "llama3-8b" or (compiled and precision == FP8)):
                    continue
                sets = (*ALONE, *(TINY if tiny else changes), precision)
                recipe = load(base, sets).recipe
                yield ("tiny" if tiny else name), recipe.model_copy(update={"parallel": Parallel(compile=compiled)})


if __name__ == "__main__":
    main()

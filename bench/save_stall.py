"""How long training waits for a save, against the whole save if training waited for all of it.

    python bench/save_stall.py [FOLDER]        some 5 GB of memory and 3 GB of disk

The model is `toy-124m` with AdamW's moments: 1.5 GB. While a save runs, the forward and backward pass of a step of 512 tokens does; the
optimizer's step has to wait until the state is copied. What it waits for, with the start of the save, is the stall. The first copy takes
longer: it gets the memory that the later ones go to.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch

from preheat.parallel import Engine, Objective
from preheat.recipe import Parallel, load
from preheat.train.checkpoint import retain
from preheat.train.optimizer import build_optimizer
from preheat.train.saver import Saver
from preheat.train.state import run_state, settled

SAVES = 5


def main(folder: Path) -> None:
    recipe = load("toy-124m").recipe
    engine = Engine(recipe.model, Parallel(), recipe.seed, torch.device("cpu"), torch.float32)
    optimizer = build_optimizer(engine, recipe.optimizer)
    for _, parameter in engine.named_parameters():
        moments = {key: torch.rand_like(parameter, requires_grad=False) for key in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.tensor(1.0)} | moments
    state = run_state(engine, optimizer, once=True)
    still = settled(engine, state)
    changing = {name: state[name] for name in state.keys() - still.keys()}
    tokens_BT = torch.randint(recipe.model.vocab_size, (1, 513))
    gigabytes = sum(tensor.nbytes for tensor in state.values()) / 1e9
    saver = Saver(folder, lambda place: retain(place, 1), "", writes_plain=True)
    for number in range(1, SAVES + 1):
        begin = time.perf_counter()
        saver.begin(number, number, changing, still, {})
        begun = time.perf_counter()
        engine.accumulate(tokens_BT[:, :-1], tokens_BT[:, 1:], 1, Objective(512))
        computed = time.perf_counter()
        saver.copied()
        waited = begun - begin + time.perf_counter() - computed
        saver.finish()
        optimizer.zero_grad()
        begin = time.perf_counter()
        saver.begin(number + 1000, number, changing, still, {})
        saver.finish()
        whole = time.perf_counter() - begin
        share = f"{100 * waited / whole:.1f} %"
        print(f"{gigabytes:.2f} GB: training waits {waited:.3f} s of {whole:.2f} s, {share}; the pass took {computed - begun:.2f} s")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(Path(scratch))

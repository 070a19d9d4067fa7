"""A run folder as training, evaluation and data preparation write it, with numbers that look like a real run's."""

import json
import math
import random
from dataclasses import asdict
from pathlib import Path

import pytest

from preheat.recipe import load

STAGES = (("main", 0.75, 1, 256, 16), ("anneal", 0.17, 1, 256, 16), ("long-context", 0.08, 2, 512, 8))
SOURCES = {"prose": 1.0, "reference": 0.85, "code": 0.8, "maths": 1.1}


class RunBuilder:
    """Writes the files of a run folder; each method one file."""

    def __init__(self, path: Path, steps: int = 300) -> None:
        self.path = path
        self.steps = steps
        self.total = steps * 4096
        path.mkdir(parents=True, exist_ok=True)

    def json(self, name, value):
        (self.path / name).write_text(json.dumps(value), "utf-8")

    def lines(self, name, records):
        (self.path / name).write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")

    def recipe(self, **changes):
        loaded = load("tiny")
        identity = {
            "schema": "preheat.run/1",
            "name": loaded.recipe.name,
            "fingerprint": "3f9c" * 16,
            "recipe": loaded.recipe.model_dump(mode="json"),
            "origins": {key: asdict(origin) for key, origin in loaded.origins.items()},
        }
        self.json("recipe.json", identity | changes)
        return self

    def environment(self):
        machine = {"preheat": "0.1.0", "python": "3.11.9", "torch": "2.13.0", "cores": 2, "precision": "bf16", "matmul_peak_flops": 4.1e11}
        machine |= {"parameters": {"total": 3_902_720, "active": 3_902_720}, "mfu_convention": "causal"}
        self.json("environment.json", machine)
        return self

    def plan(self):
        segments, start, start_step = [], 0, 0
        for name, share, _, seq_len, batch_size in STAGES:
            steps = round(self.steps * share)
            mix = {"prose": 2, "reference": 1, "code": 1} if name == "main" else {"maths": 4, "prose": 3, "reference": 2, "code": 1}
            segments.append({"name": name, "start_step": start_step, "start_tokens": start, "steps": steps, "tokens": steps * 4096})
            segments[-1] |= {"batch_size": batch_size, "seq_len": seq_len, "rope_theta": 1e4, "mix": mix}
            start, start_step = start + steps * 4096, start_step + steps
        usage = {name: {"tokens": self.total // 4, "skipped": 0, "epochs": 0.31} for name in SOURCES}
        plan = {"schema": "preheat.plan/1", "total_tokens": self.total, "total_steps": self.steps, "segments": segments, "sources": usage}
        self.json("plan.json", plan)
        return self

    def records(self, steps=None, seed=0):
        rng = random.Random(seed)
        for step in range(1, (steps or self.steps) + 1):
            share = step / self.steps
            stage, _, _, seq_len, batch_size = STAGES[0 if share <= 0.75 else 1 if share <= 0.92 else 2]
            trend = 2.9 + 5.4 * math.exp(-share * 9) + (0.35 if stage == "main" else 0.1)
            lr = 3e-3 * min(1.0, share / 0.05) * (1 if share < 0.75 else 1 - 0.95 * math.sqrt((share - 0.75) / 0.25))
            record = {"tokens": step * 4096, "step": step, "stage": stage, "lr": lr, "loss": trend + rng.gauss(0, 0.09)}
            record |= {"grad_norm": math.exp(rng.gauss(-0.5, 0.2)) + 3 * math.exp(-share * 30), "rope_theta": 1e4}
            if share < 0.08:
                batch_size //= 2
            record |= {"batch_size": batch_size, "seq_len": seq_len}
            speed = rng.gauss(6400, 130) * (1 if stage != "long-context" else 0.9)
            record |= {"step_time_s": 4096 / speed, "tokens_per_s": speed, "mfu": speed * 2.6e7 / 4.1e11}
            if step % max(1, self.steps // 6) == 0 or step == self.steps:
                record["held_out"] = {
                    name: {"loss": trend * factor, "bits_per_byte": trend * factor / 1.55, "tokens": 16384, "bytes": 50000}
                    for name, factor in SOURCES.items()
                }
            yield record

    def metrics(self, steps=None):
        self.lines("metrics.jsonl", self.records(steps))
        return self

    def events(self):
        def event(step, kind, cause, evidence="", action=""):
            clock = {"time": 1.78e9 + step, "tokens": step * 4096, "step": step}
            return clock | {"kind": kind, "cause": cause, "evidence": evidence, "action": action}

        middle = self.steps // 2
        records = [
            event(0, "start", f"tiny: {self.steps} steps", "bf16: the CPU multiplies it natively"),
            event(0, "stage", "stage main begins", "prose 0.5, reference 0.25, code 0.25; batch 8 x 256 tokens"),
            *(event(step, "checkpoint", "saved", f"step-{step:08}") for step in range(25, middle, 25)),
            event(middle, "resume", f"continues after step {middle}", f"step-{middle:08}"),
            event(middle + 20, "spike", "spike of the gradient norm", "gradient norm 9.3, expected 0.61", "none, training goes on"),
            event(self.steps, "finish", "the last step is done"),
        ]
        self.lines("events.jsonl", records)
        return self

    def evaluation(self, **changes):
        held_out = {name: {"loss": 3.0 * f, "bits_per_byte": 1.93 * f, "tokens": 90_000, "bytes": 201_000} for name, f in SOURCES.items()}
        task = {"n": 200, "accuracy": 0.62, "accuracy_bytes": 0.66, "stderr": 0.034, "chance": 0.25}
        text = " of this country have been called upon to make the sacrifice, and the Congress has met\nthe demand with a spirit of unity."
        value = {"schema": "preheat.evaluation/1", "step": self.steps, "tokens": self.total, "held_out": held_out}
        value |= {"overall": {"bits_per_byte": 1.861, "loss": 2.9}, "choices": {f"continuation-{name}": task for name in SOURCES}}
        value |= {"baselines": {"unigram": {"bits_per_byte": 3.512}, "kneser_ney_4gram": {"bits_per_byte": 2.014}}}
        code = {"prompt": "def main(", "text": "self, path):\n    return os.path.join(path)"}
        value |= {"samples": [{"prompt": "The people", "text": text}, code]}
        self.json("evaluation.json", value | changes)
        return self

    def data(self):
        def source(name, documents, size):
            return {
                "name": name,
                "licence": "public domain (works of the US government)",
                "format": "text",
                "policy": "prose",
                "funnel": {
                    "documents": documents,
                    "bytes": size,
                    "repaired": {"byte order mark": 3},
                    "edited": {"spaces": 17},
                    "dropped": {"clean": {"too short": 12, "generated": 0}, "dedup": {"exact duplicate": 11, "near-duplicate": 8}},
                    "kept": documents - 31,
                },
                "train": {"prefix": f"{name}-train", "documents": documents - 40, "tokens": size // 4, "bytes": size - 400_000},
                "held_out": {"prefix": f"{name}-held-out", "documents": 9, "tokens": 88_000, "bytes": 360_000},
            }

        self.json("data.json", {"schema": "preheat.data/1", "sources": [source(name, 240, 12_345_678) for name in SOURCES]})
        return self

    def whole(self):
        return self.recipe().environment().plan().metrics().events().evaluation().data()


@pytest.fixture
def run(tmp_path):
    return RunBuilder(tmp_path / "run")


@pytest.fixture
def long_run(tmp_path):
    return RunBuilder(tmp_path / "long", steps=100_000)

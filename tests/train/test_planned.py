"""What a run's `plan.json` says of the speed that is to be expected."""

from types import SimpleNamespace
from typing import Any

import torch

from preheat.arithmetic import Timeline
from preheat.hardware import Cluster
from preheat.recipe import load
from preheat.train.device import Device
from preheat.train.planned import cluster_of, plan

NO_DATA: Any = SimpleNamespace(usage={})


def planned(name: str, gpus: str | None) -> dict[str, Any]:
    recipe = load(name).recipe
    return plan(recipe, Timeline(recipe), NO_DATA, Cluster.parse(gpus) if gpus is not None else None)


def test_hours_on_gpus_that_are_known() -> None:
    """10B tokens of GPT-2 on 4 A100 are hours and tens of dollars, as `preheat plan` says."""
    found = planned("toy-124m", "4xA100")["foreseen"]
    assert (found["gpus"], found["gpu"], found["fits"]) == (4, "A100-80", True)
    assert 1 < found["days"] * 24 < 12
    assert found["tokens_per_s"] * found["step_time_s"] == 512 * 1024


def test_an_unknown_device_is_told() -> None:
    found = planned("toy-124m", None)
    assert found["foreseen"] is None
    assert "no kind of GPU" in found["unforeseen"]
    assert cluster_of(Device(torch.device("cpu"), "CPU", torch.float32, ""), 1) is None


def test_what_can_t_be_planned_is_no_reason_not_to_train() -> None:
    found = planned("llama3-8b-fp8", "8xA100")
    assert found["foreseen"] is None
    assert "no peak for fp8" in found["unforeseen"]
    assert found["total_steps"] > 0

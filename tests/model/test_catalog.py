"""Every model of the catalog is built, without its memory, and counted against what was published."""

import csv
import resource
import time
from pathlib import Path

import pytest
import torch

from preheat.model import Transformer
from preheat.recipe import Model, catalog, load

CARDS = Path(__file__).parents[1] / "arithmetic" / "model_cards.csv"


def published() -> set[tuple[int, int]]:
    """Total and active parameters of each card; which recipe is of which card is tested in `arithmetic`."""
    with CARDS.open() as file:
        return {(int(card["total"]), int(card["active"])) for card in csv.DictReader(file)}


def built(model: Model) -> tuple[int, int]:
    """Total parameters, and those that a token passes through: of stacks of experts the share that it chooses."""
    with torch.device("meta"):
        transformer = Transformer(model)
    total = active = 0
    for name, parameter in transformer.named_parameters():
        total += parameter.numel()
        stacked = ".experts." in name and model.experts is not None
        active += parameter.numel() * model.experts.active // model.experts.count if stacked and model.experts else parameter.numel()
    return total, active


@pytest.mark.parametrize("name", sorted({*catalog()} - {"tiny"}))
def test_a_model_of_the_catalog_has_its_published_parameters(name: str) -> None:
    model = load(name).recipe.model
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    assert built(model) in published()
    assert time.perf_counter() - start < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB; the smallest layer of a 671B model is more

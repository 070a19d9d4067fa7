"""Checkpoints on disk: whole or absent, exact, and never lost to a failure."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from preheat.errors import RunFailed
from preheat.model import Transformer, build
from preheat.recipe import Model, Optimizer
from preheat.train import checkpoint
from preheat.train.optimizer import build_optimizer, set_rate

MODEL = Model(layers=1, hidden=8, heads=2, ffn_hidden=16, vocab_size=300, rope_theta=1e4)


def trained(model: Model, seed: int, steps: int = 2) -> tuple[Transformer, torch.optim.Optimizer]:
    network = build(model, seed)
    optimizer = build_optimizer(network, Optimizer())
    set_rate(optimizer, 1e-2)
    step(network, optimizer, steps)
    return network, optimizer


def step(network: Transformer, optimizer: torch.optim.Optimizer, steps: int) -> None:
    tokens = torch.arange(12).view(2, 6)
    for _ in range(steps):
        network(tokens, tokens.roll(-1, 1)).total.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("tied", [True, False])
def test_a_restored_run_goes_on_with_the_same_bits(tmp_path: Path, tied: bool) -> None:
    shape = MODEL.model_copy(update={"tied_embeddings": tied})
    network, optimizer = trained(shape, seed=1)
    saved = checkpoint.save(tmp_path, 2, 24, network, optimizer, "f")
    other, other_optimizer = trained(shape, seed=2, steps=1)
    checkpoint.load(saved, other, other_optimizer)
    step(network, optimizer, 3)
    step(other, other_optimizer, 3)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_tied_matrices_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    network, optimizer = trained(MODEL, seed=1)
    saved = checkpoint.save(tmp_path, 2, 24, network, optimizer, "f")
    size = sum(parameter.numel() * 4 for parameter in network.parameters())
    assert size <= (saved.path / "model.safetensors").stat().st_size < size + 10_000
    other, _ = trained(MODEL, seed=2)
    checkpoint.load(saved, other)
    assert other.output_weight is other.embedding.weight


def test_another_model_is_refused_by_its_shapes(tmp_path: Path) -> None:
    network, optimizer = trained(MODEL, seed=1)
    saved = checkpoint.save(tmp_path, 2, 24, network, optimizer, "f")
    with pytest.raises((RuntimeError, KeyError)):
        checkpoint.load(saved, build(MODEL.model_copy(update={"layers": 2}), 0))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "empty"])
def test_every_damage_is_seen_and_the_one_before_is_taken(tmp_path: Path, name: str, damage: str) -> None:
    network, optimizer = trained(MODEL, seed=1)
    checkpoint.save(tmp_path, 1, 12, network, optimizer, "f")
    path = checkpoint.save(tmp_path, 2, 24, network, optimizer, "f").path / name
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes({"cut": content[:-3], "flip": flipped, "empty": b""}[damage])
    found, damaged = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.step == 1
    assert [entry.path.name for entry in damaged] == ["step-00000002"]


def test_a_full_disk_leaves_the_checkpoints_before_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, optimizer = trained(MODEL, seed=1)
    checkpoint.save(tmp_path, 1, 12, network, optimizer, "f")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(RunFailed, match="No space left") as caught:
        checkpoint.save(tmp_path, 2, 24, network, optimizer, "f")
    assert caught.value.exit_code == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_retention_keeps_the_newest(tmp_path: Path) -> None:
    network, optimizer = trained(MODEL, seed=1)
    for number in (1, 2, 3, 11):
        checkpoint.save(tmp_path, number, 12 * number, network, optimizer, "f")
    checkpoint.retain(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000011"]

"""Checkpoints on disk: whole or absent, exact, and never lost to a failure."""

from __future__ import annotations

import errno
import hashlib
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from preheat.errors import RunFailed
from preheat.parallel import Engine, Objective
from preheat.recipe import Model, Optimizer, Parallel
from preheat.train import checkpoint
from preheat.train.files import write_tensors
from preheat.train.optimizer import build_optimizer, set_rate
from preheat.train.state import restore, run_state

MODEL = Model(layers=1, hidden=8, heads=2, ffn_hidden=16, vocab_size=300, rope_theta=1e4)


def trained(model: Model, seed: int, steps: int = 2) -> tuple[Engine, torch.optim.Optimizer]:
    engine = Engine(model, Parallel(), seed, torch.device("cpu"), torch.float32)
    optimizer = build_optimizer(engine, Optimizer())
    set_rate(optimizer, 1e-2)
    step(engine, optimizer, steps)
    return engine, optimizer


def step(engine: Engine, optimizer: torch.optim.Optimizer, steps: int) -> None:
    tokens = torch.arange(12).view(2, 6)
    for _ in range(steps):
        engine.accumulate(tokens, tokens.roll(-1, 1), 2, Objective(12))
        optimizer.step()
        optimizer.zero_grad()


def save(folder: Path, step: int, engine: Engine, optimizer: torch.optim.Optimizer) -> checkpoint.Checkpoint:
    return checkpoint.save(folder, step, 12 * step, checkpoint.stage(run_state(engine, optimizer, once=True)).copy(), "f")


@pytest.mark.parametrize("tied", [True, False])
def test_a_restored_run_goes_on_with_the_same_bits(tmp_path: Path, tied: bool) -> None:
    shape = MODEL.model_copy(update={"tied_embeddings": tied})
    network, optimizer = trained(shape, seed=1)
    saved = save(tmp_path, 2, network, optimizer)
    other, other_optimizer = trained(shape, seed=2, steps=1)
    restore(saved, other, other_optimizer)
    step(network, optimizer, 3)
    step(other, other_optimizer, 3)
    others = dict(other.named_tensors())
    for name, tensor in network.named_tensors():
        assert torch.equal(tensor, others[name]), name


def test_tied_matrices_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    network, optimizer = trained(MODEL, seed=1)
    saved = save(tmp_path, 2, network, optimizer)
    size = 3 * sum(parameter.numel() * 4 for _, parameter in network.named_parameters())
    assert size <= (saved.path / "rank-00000.safetensors").stat().st_size < size + 10_000
    other, other_optimizer = trained(MODEL, seed=2)
    restore(saved, other, other_optimizer)
    (piece,) = other.pieces
    assert piece.transformer.output_weight is dict(other.named_parameters())["embedding.weight"]


def test_another_model_is_refused_by_its_shapes(tmp_path: Path) -> None:
    network, optimizer = trained(MODEL, seed=1)
    saved = save(tmp_path, 2, network, optimizer)
    with pytest.raises(RunFailed, match=r"blocks\.1.*not there"):
        restore(saved, *trained(MODEL.model_copy(update={"layers": 2}), seed=1))
    with pytest.raises(RunFailed, match=r"\(300, 8\), and the run has \(301, 8\)"):
        restore(saved, *trained(MODEL.model_copy(update={"vocab_size": 301}), seed=1))


@pytest.mark.parametrize("name", ["rank-00000.safetensors", "rank-00000.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "empty"])
def test_every_damage_is_seen_and_the_one_before_is_taken(tmp_path: Path, name: str, damage: str) -> None:
    network, optimizer = trained(MODEL, seed=1)
    save(tmp_path, 1, network, optimizer)
    path = save(tmp_path, 2, network, optimizer).path / name
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
    save(tmp_path, 1, network, optimizer)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_tensors", full)
    with pytest.raises(RunFailed, match="No space left") as caught:
        save(tmp_path, 2, network, optimizer)
    assert caught.value.exit_code == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_retention_keeps_the_newest(tmp_path: Path) -> None:
    network, optimizer = trained(MODEL, seed=1)
    for number in (1, 2, 3, 11):
        save(tmp_path, number, network, optimizer)
    checkpoint.retain(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000003", "step-00000011"]
    assert (tmp_path / "latest").resolve().name == "step-00000011"


def test_some_checkpoints_stay_for_good(tmp_path: Path) -> None:
    network, optimizer = trained(MODEL, seed=1)
    for number in range(1, 8):
        save(tmp_path, number, network, optimizer)
        checkpoint.retain(tmp_path, 2, lambda step: step % 3 == 0)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [f"step-0000000{number}" for number in (3, 6, 7)]


def test_a_disk_without_room_is_seen_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, optimizer = trained(MODEL, seed=1)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(RunFailed, match=r"it needs \d+_?\d* bytes and 1_000 are free"):
        save(tmp_path, 1, network, optimizer)
    assert not list(tmp_path.iterdir())


def test_a_damaged_checkpoint_does_not_push_out_good_ones(tmp_path: Path) -> None:
    """Cases E02, E05, E06: it is kept under another name, and what is no checkpoint is neither counted nor touched."""
    network, optimizer = trained(MODEL, seed=1)
    for number in (1, 2, 8, 9):
        save(tmp_path, number, network, optimizer)
    (tmp_path / "step-00000009" / "manifest.json").unlink()
    (tmp_path / "step-00000008" / "rank-00000.json").write_text("{}")
    (tmp_path / "step-00000030").mkdir()  # an empty one
    (tmp_path / ".step-00000040.partial").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "step-of-mine").mkdir()
    found, damaged = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.step == 2
    assert [bad.path.name for bad in damaged] == ["step-00000030", "step-00000009", "step-00000008"]
    for bad in damaged:
        checkpoint.set_aside(bad)
    save(tmp_path, 3, network, optimizer)
    checkpoint.retain(tmp_path, 2)
    assert [path.name for path in checkpoint.published(tmp_path)] == ["step-00000003", "step-00000002"]
    assert {"notes", "step-of-mine", "damaged-step-00000009"} < {path.name for path in tmp_path.iterdir()}
    assert not (tmp_path / ".step-00000040.partial").exists()


def test_steps_beyond_eight_digits_are_newer(tmp_path: Path) -> None:
    network, optimizer = trained(MODEL, seed=1)
    for number in (99_999_999, 100_000_000):
        save(tmp_path, number, network, optimizer)
    found, _ = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.step == 100_000_000


def test_the_best_stay(tmp_path: Path) -> None:
    network, optimizer = trained(MODEL, seed=1)
    parts = checkpoint.stage(run_state(network, optimizer, once=True)).copy()
    for number, loss in enumerate([3.0, 2.0, 2.5, 1.0, 4.0, None, 2.0, 5.0], start=1):
        notes = {} if loss is None else {"held_out_loss": loss}
        checkpoint.save(tmp_path, number, number, parts, "f", notes=notes)
        checkpoint.retain(tmp_path, 1, best=2)
    assert [path.name[-1] for path in checkpoint.published(tmp_path)] == ["8", "7", "4"]


def test_a_checkpoint_without_a_moment_is_refused(tmp_path: Path) -> None:
    """Cases E10, E12: nothing goes on from moments that are not there."""
    network, optimizer = trained(MODEL, seed=1)
    state = run_state(network, optimizer, once=True)
    gone = next(name for name in state if name.startswith("optimizer/exp_avg/"))
    saved = checkpoint.save(tmp_path, 2, 24, checkpoint.stage({k: v for k, v in state.items() if k != gone}).copy(), "f")
    with pytest.raises(RunFailed, match=gone):
        restore(saved, *trained(MODEL, seed=2, steps=0))


def test_the_library_reads_what_we_write(tmp_path: Path) -> None:
    tensors = {
        "a": torch.arange(5, dtype=torch.bfloat16),
        "b/c": torch.randn(2, 3, dtype=torch.float64),
        "number": torch.tensor(7.0),
        "none": torch.zeros(0, 4),
        "whole": torch.tensor([2**62, -1]),
    }
    told = write_tensors(tmp_path / "t.safetensors", tensors)
    content = (tmp_path / "t.safetensors").read_bytes()
    assert told == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    read = load_file(tmp_path / "t.safetensors")
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)

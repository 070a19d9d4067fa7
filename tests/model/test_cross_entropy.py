import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.model import cross_entropy
from preheat.model.cross_entropy import summed_cross_entropy, token_cross_entropies


def problem(rows: int, vocab: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden, weight = torch.randn(rows, 6, generator=generator) * 3, torch.randn(vocab, 6, generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), torch.randint(0, vocab, (rows,), generator=generator)


def reference(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, z_loss: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both losses as their definitions read, over the scored rows, in fp64."""
    scored = labels >= 0
    hidden, weight = hidden.detach()[scored].double().requires_grad_(), weight.detach().double().requires_grad_()
    logits = hidden @ weight.T
    normaliser = logits.exp().sum(-1)
    loss = -(logits.exp()[torch.arange(len(logits)), labels[scored]] / normaliser).log().sum()
    return loss, z_loss * (normaliser.log() ** 2).sum(), hidden, weight


@pytest.mark.parametrize("per_chunk", [1, 3, 5, 64])
@given(
    rows=st.integers(1, 17),
    vocab=st.integers(2, 9),
    scale=st.sampled_from([1.0, 0.125, -3.0]),
    z_loss=st.sampled_from([0.0, 1e-4, 0.5]),
    unscored=st.sets(st.integers(0, 16)),
)
@settings(max_examples=25, deadline=None)
def test_losses_and_gradients_are_those_of_the_scored_rows_at_once(
    per_chunk: int, rows: int, vocab: int, scale: float, z_loss: float, unscored: set[int]
) -> None:
    hidden, weight, labels = problem(rows, vocab)
    left_out = torch.tensor([row in unscored for row in range(rows)])
    labels[left_out] = -100
    with torch.no_grad():
        hidden[left_out] = torch.nan  # a bug report had NaN times the mask's 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cross_entropy.LOGITS_AT_ONCE, "cpu", per_chunk * vocab)
        patch.setattr(cross_entropy, "ROWS_AT_LEAST", 1)
        losses = summed_cross_entropy(hidden, weight, labels, z_loss)
        (losses.total * scale).backward()
        with torch.no_grad():
            same = summed_cross_entropy(hidden, weight, labels, z_loss)
        each = token_cross_entropies(hidden, weight, labels)
    expected, expected_z, hidden_64, weight_64 = reference(hidden, weight, labels, z_loss)
    ((expected + expected_z) * scale).backward()
    for got in (losses, same):
        assert got.cross_entropy.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-5)
        assert got.z.item() == pytest.approx(expected_z.item(), rel=1e-4, abs=1e-5)
        assert got.total.item() == pytest.approx((expected + expected_z).item(), rel=1e-4, abs=1e-5)
    assert each.sum().item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-5)
    assert not each[left_out].any()
    assert hidden.grad is not None
    assert weight.grad is not None
    assert hidden_64.grad is not None
    assert not hidden.grad[left_out].any()
    torch.testing.assert_close(hidden.grad[~left_out].double(), hidden_64.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(weight.grad.double(), weight_64.grad, rtol=1e-4, atol=1e-4)


def test_a_batch_without_any_label_has_no_loss_and_no_gradient() -> None:
    """A bug report: the mean over no tokens was NaN and destroyed all parameters."""
    hidden, weight, labels = problem(5, 7)
    losses = summed_cross_entropy(hidden, weight, torch.full_like(labels, -1), z_loss=1e-4)
    losses.total.backward()
    assert [value.item() for value in losses] == [0, 0, 0]
    assert hidden.grad is not None
    assert weight.grad is not None
    assert not hidden.grad.any()
    assert not weight.grad.any()


def test_logits_far_from_zero_neither_overflow_nor_vanish() -> None:
    hidden = torch.tensor([[1000.0], [-1000.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [0.0]], requires_grad=True)
    losses = summed_cross_entropy(hidden, weight, torch.tensor([1, 1]))
    losses.total.backward()
    assert losses.cross_entropy.item() == 1000.0
    assert hidden.grad is not None
    assert hidden.grad.tolist() == [[1.0], [0.0]]


def test_the_z_loss_of_a_uniform_softmax() -> None:
    """V logits that are all 0 have the normaliser V; each gets 2 z log(V) / V of gradient beside the cross-entropy's."""
    hidden, weight = torch.ones(1, 1, requires_grad=True), torch.zeros(8, 1, requires_grad=True)
    losses = summed_cross_entropy(hidden, weight, torch.tensor([3]), z_loss=0.25)
    losses.total.backward()
    assert losses.z.item() == pytest.approx(0.25 * math.log(8) ** 2)
    assert weight.grad is not None
    expected = [1 / 8 + 2 * 0.25 * math.log(8) / 8 - (row == 3) for row in range(8)]
    assert weight.grad[:, 0].tolist() == pytest.approx(expected)


def test_rows_that_pad_the_vocabulary_get_neither_probability_nor_gradient() -> None:
    hidden, weight, labels = problem(6, 5)
    padded = torch.cat((weight.detach(), torch.full((3, 6), 50.0))).requires_grad_()
    losses = summed_cross_entropy(hidden, padded[:5], labels)
    losses.total.backward()
    assert losses.total.item() == summed_cross_entropy(hidden, weight, labels).total.item()
    assert padded.grad is not None
    assert padded.grad[:5].any()
    assert not padded.grad[5:].any()


def test_nothing_as_large_as_the_logits_is_kept_for_the_backward_pass() -> None:
    hidden, weight, labels = problem(4096, 1000)
    kept: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        node = summed_cross_entropy(hidden, weight, labels).total.grad_fn
    kept += [tensor.numel() for tensor in node.saved_tensors]  # type: ignore[union-attr]
    assert max(kept) <= 4096 * 6


def test_a_second_backward_pass_gives_the_same_gradient_again() -> None:
    """Zero-bubble pipelines come twice, for the inputs and for the weights."""
    hidden, weight, labels = problem(3, 5)
    total = summed_cross_entropy(hidden, weight, labels).total * 2
    first = torch.autograd.grad(total, (hidden, weight), retain_graph=True)
    again = torch.autograd.grad(total, (hidden, weight))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert all(gradient.any() for gradient in first)


def test_a_label_outside_of_the_vocabulary_is_an_error() -> None:
    hidden, weight, _ = problem(2, 5)
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        summed_cross_entropy(hidden, weight, torch.tensor([1, 5]))

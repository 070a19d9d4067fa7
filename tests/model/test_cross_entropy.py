import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.model import cross_entropy


def problem(rows: int, vocab: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden, weight = torch.randn(rows, 6, generator=generator) * 3, torch.randn(vocab, 6, generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), torch.randint(0, vocab, (rows,), generator=generator)


@pytest.mark.parametrize("per_chunk", [1, 3, 5, 64])
@given(rows=st.integers(1, 17), vocab=st.integers(2, 9), scale=st.sampled_from([1.0, 0.125, -3.0]))
@settings(max_examples=20, deadline=None)
def test_loss_and_gradients_are_those_of_all_rows_at_once(per_chunk: int, rows: int, vocab: int, scale: float) -> None:
    hidden, weight, labels = problem(rows, vocab)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cross_entropy.LOGITS_AT_ONCE, "cpu", per_chunk * vocab)
        loss = cross_entropy.summed_cross_entropy(hidden, weight, labels)
        (loss * scale).backward()
        with torch.no_grad():
            same = cross_entropy.summed_cross_entropy(hidden, weight, labels)
    hidden_64, weight_64 = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    expected = -(hidden_64 @ weight_64.T).log_softmax(-1)[torch.arange(rows), labels].sum()
    (expected * scale).backward()
    for got in (loss, same):
        assert got.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-5)
    assert hidden.grad is not None
    assert weight.grad is not None
    torch.testing.assert_close(hidden.grad.double(), hidden_64.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(weight.grad.double(), weight_64.grad, rtol=1e-4, atol=1e-4)


def test_logits_far_from_zero_neither_overflow_nor_vanish() -> None:
    hidden = torch.tensor([[1000.0], [-1000.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [0.0]], requires_grad=True)
    loss = cross_entropy.summed_cross_entropy(hidden, weight, torch.tensor([1, 1]))
    loss.backward()
    assert loss.item() == 1000.0
    assert hidden.grad is not None
    assert hidden.grad.tolist() == [[1.0], [0.0]]


def test_nothing_as_large_as_the_logits_is_kept_for_the_backward_pass() -> None:
    hidden, weight, labels = problem(4096, 1000)
    sizes: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        cross_entropy.summed_cross_entropy(hidden, weight, labels)
    assert max(sizes) <= 4096 * 6


def test_a_label_outside_of_the_vocabulary_is_an_error() -> None:
    hidden, weight, _ = problem(2, 5)
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        cross_entropy.summed_cross_entropy(hidden, weight, torch.tensor([1, 5]))

"""Seconds of one transformer layer and of the head on one GPU, for one micro-batch and one split of the layer."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot
from typing import NamedTuple

from preheat.arithmetic import head_dim, kv_heads, padded_vocab
from preheat.arithmetic.parameters import value_dim
from preheat.plan.constants import Software
from preheat.plan.kernels import Device
from preheat.plan.links import Links
from preheat.recipe import Model

_BF16 = 2
_AHEAD = 0.5
"""Share of the launches of a layer with experts that is left when their tokens need not be counted before."""


class Split(NamedTuple):
    """How one layer and one micro-batch are divided."""

    micro_batch: int
    """Samples."""
    tensor: int
    context: int
    expert: int
    expert_tensor: int
    sequence: bool
    """Tensor-parallel ranks share norms and residual branches along the sequence (arXiv 2205.05198); else each computes them whole."""


@dataclass(slots=True)
class Pass:
    """Seconds of one layer in one direction, by what they go to; exchanges are what computation doesn't hide."""

    matrix: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0
    experts: float = 0.0
    """Routing, permuting and the experts' own matrix products."""
    tensor: float = 0.0
    """Exchange between tensor-parallel ranks."""
    context: float = 0.0
    """Exchange of keys and values between context-parallel ranks."""
    exchange: float = 0.0
    """All-to-all between expert-parallel ranks."""
    host: float = 0.0
    """Waiting for the host to launch kernels."""

    @property
    def total(self) -> float:
        return self.matrix + self.attention + self.elementwise + self.experts + self.tensor + self.context + self.exchange + self.host

    def __add__(self, other: Pass) -> Pass:
        return Pass(
            self.matrix + other.matrix,
            self.attention + other.attention,
            self.elementwise + other.elementwise,
            self.experts + other.experts,
            self.tensor + other.tensor,
            self.context + other.context,
            self.exchange + other.exchange,
            self.host + other.host,
        )

    def __mul__(self, times: float) -> Pass:
        return Pass(
            self.matrix * times,
            self.attention * times,
            self.elementwise * times,
            self.experts * times,
            self.tensor * times,
            self.context * times,
            self.exchange * times,
            self.host * times,
        )


PARTS = ("matrix", "attention", "elementwise", "experts", "tensor", "context", "exchange", "host")


@dataclass(slots=True)
class LayerTimes:
    """Seconds of one kind of layer."""

    forward: Pass
    backward: Pass
    selective: Pass
    """What recomputing attention alone adds to the backward pass."""


@dataclass(frozen=True)
class Costs:
    """Times of a model's layers on a device."""

    model: Model
    seq_len: int
    device: Device
    links: Links
    software: Software

    def layer(self, split: Split, sparse: bool) -> LayerTimes:
        """One layer, with experts or with a dense feed-forward."""
        rows = split.micro_batch * self.seq_len / split.context
        attention = self._attention(split, rows)
        feed_forward = self._experts(split, rows) if sparse else self._dense(split, rows, self.model.ffn_hidden)
        residual = self._residual(split, rows)
        forward, backward = (
            self._waited(one + two + three, split, sparse) for one, two, three in zip(attention[:2], feed_forward, residual, strict=True)
        )
        return LayerTimes(forward, backward, attention[2])

    def head(self, split: Split, predictions: int) -> tuple[Pass, Pass]:
        """The output matrix and the loss, for each predicted token."""
        rows = split.micro_batch * self.seq_len / split.context
        columns = padded_vocab(self.model.vocab_size, split.tensor) / split.tensor
        forward, backward = self.device.linear(rows, columns, self.model.hidden, wide=True)
        logits = self.device.move(rows * columns * 4) * self.software.elementwise
        return Pass(matrix=forward, elementwise=3 * logits) * predictions, Pass(matrix=backward, elementwise=2 * logits) * predictions

    def _waited(self, work: Pass, split: Split, sparse: bool) -> Pass:
        """With the waits of a GPU whose kernels the host launches as it goes.

        Where it must first learn how many tokens each expert gets, it can't run ahead: some kernels of a layer wait for it and it waits
        for others, which adds up to more than the longer of the two. A capacity makes the counts known beforehand.
        """
        launch, experts = self.software.launch, self.model.experts
        if sparse and experts is not None:
            launch = self.software.launch_expert + self.software.launch_each * experts.count / split.expert
            if experts.capacity_factor is not None:
                launch *= _AHEAD
        work.host = hypot(work.total, launch) - work.total
        return work

    def _attention(self, split: Split, rows: float) -> tuple[Pass, Pass, Pass]:
        model, device = self.model, self.device
        heads = model.heads / split.tensor
        key, value = head_dim(model), value_dim(model)
        seen = self.seq_len / 2 if model.sliding_window is None else min(model.sliding_window, self.seq_len / 2)
        forward, backward = device.attend(rows, seen, heads, key + value, self.software)
        linear_forward = linear_backward = 0.0
        for n, k in self._projections(split.tensor):
            one, two = device.linear(rows, n, k)
            linear_forward, linear_backward = linear_forward + one, linear_backward + two
        kept = max(kv_heads(model) / split.tensor, 1) if model.mla is None else heads
        turned = rows * (heads + kept) * key * _BF16 * 2 * self.software.elementwise
        tensor = self._tensor(split, rows)
        ring = self._context(split, rows, kept * (key + value), forward)
        out = Pass(linear_forward, forward, device.move(turned), tensor=tensor, context=ring)
        back = Pass(linear_backward, backward, device.move(turned), tensor=tensor, context=2 * ring)
        return out, back, Pass(attention=forward)

    def _projections(self, tensor: int) -> list[tuple[float, float]]:
        """(output, input) features of attention's linear layers on a rank."""
        model, mla = self.model, self.model.mla
        if mla is None:
            query, shared = model.heads * head_dim(model), kv_heads(model) * head_dim(model)
            return [((query + 2 * shared) / tensor, model.hidden), (model.hidden, query / tensor)]
        key = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        heads = model.heads / tensor
        down = [
            (mla.kv_lora_rank + mla.qk_rope_head_dim, model.hidden),
            (heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank),
        ]
        queries: list[tuple[float, float]] = [(heads * key, model.hidden)]
        if mla.q_lora_rank is not None:
            queries = [(mla.q_lora_rank, model.hidden), (heads * key, mla.q_lora_rank)]
        return [*down, *queries, (model.hidden, heads * mla.v_head_dim)]

    def _dense(self, split: Split, rows: float, width: int) -> tuple[Pass, Pass]:
        model, device = self.model, self.device
        inner = width / split.tensor
        up, up_back = device.linear(rows, inner * (2 if model.activation == "swiglu" else 1), model.hidden)
        down, down_back = device.linear(rows, model.hidden, inner)
        moved = rows * inner * _BF16 * (3 if model.activation == "swiglu" else 2) * self.software.elementwise
        tensor = self._tensor(split, rows)
        forward = Pass(up + down, elementwise=device.move(moved), tensor=tensor)
        return forward, Pass(up_back + down_back, elementwise=device.move(5 / 3 * moved), tensor=tensor)

    def _experts(self, split: Split, rows: float) -> tuple[Pass, Pass]:
        model, device, experts = self.model, self.device, self.model.experts
        assert experts is not None
        arrived = rows * experts.active * split.expert_tensor / split.tensor
        local = experts.count / split.expert
        each = max(arrived / local, 1.0)
        inner = experts.ffn_hidden / split.expert_tensor
        gated = 2 if model.activation == "swiglu" else 1
        up, up_back = device.linear(each, inner * gated, model.hidden, groups=local, at_once=self.software.experts_at_once)
        down, down_back = device.linear(each, model.hidden, inner, groups=local, at_once=self.software.experts_at_once)
        passes = inner * (gated + 1) + 4 * model.hidden
        if model.bias:  # read and written once more, for grouped products don't add biases
            passes += 2 * (inner * gated + model.hidden)
        moved = arrived * passes * _BF16 * self.software.expert
        sent = rows / split.tensor * model.hidden * _BF16
        shown = 2 * (1 - self.software.exchange_overlap)  # there and back
        exchange = shown * self.links.exchange(sent, experts.active, split.expert, split.expert_tensor)
        forward = Pass(experts=up + down + device.move(moved), exchange=exchange)
        backward = Pass(experts=up_back + down_back + device.move(2 * moved), exchange=exchange)
        if experts.shared:
            shared = self._dense(split, rows, experts.ffn_hidden * experts.shared)
            forward, backward = forward + shared[0], backward + shared[1]
        return forward, backward

    def _residual(self, split: Split, rows: float) -> tuple[Pass, Pass]:
        """Norms and residual branches."""
        moved = rows / (split.tensor if split.sequence else 1) * self.model.hidden * _BF16 * self.software.elementwise
        return Pass(elementwise=self.device.move(8 * moved)), Pass(elementwise=self.device.move(12 * moved))

    def _tensor(self, split: Split, rows: float) -> float:
        """An all-gather and a reduce-scatter of the activations (arXiv 2205.05198, section 4.2.2), or the all-reduce that is both."""
        whole = rows * self.model.hidden * _BF16
        return 2 * self.links.gather(whole, split.tensor, 1) * (1 - self.software.tensor_overlap)

    def _context(self, split: Split, rows: float, width: float, attention: float) -> float:
        """Keys and values of the other ranks, as far as attention takes less time than they."""
        whole = rows * split.context * width * _BF16
        return max(0.0, self.links.gather(whole, split.context, split.tensor) - attention)

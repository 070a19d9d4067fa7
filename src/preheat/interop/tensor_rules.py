"""Pairs of tensor layouts: what one program keeps under one name and in one shape lies under others in the next.

A `Rule` says which tensors of ours are which of theirs, and turns each side into the other. A format is a list of rules that names every
tensor of both sides; conversion, the check for missing tensors and the plan of files are all read from that list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from preheat.errors import refuse

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class Rule:
    """Tensors of ours, in order, and what they are called and how they lie elsewhere."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    outward: Callable[[Tensors], Tensors]
    """From ours to theirs. Moves numbers and changes none; runs on the meta device too."""
    inward: Callable[[Tensors], Tensors]
    """From theirs to ours: undoes `outward`."""


def outward(rules: Iterable[Rule], ours: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Their tensors from ours, in the order of the rules, reading ours as they are needed."""
    for rule in rules:
        yield from zip(rule.theirs, rule.outward(tuple(ours[name] for name in rule.ours)), strict=True)


def inward(rules: Iterable[Rule], theirs: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Our tensors from theirs, in the order of the rules, reading theirs as they are needed."""
    for rule in rules:
        yield from zip(rule.ours, rule.inward(tuple(theirs[name] for name in rule.theirs)), strict=True)


def refuse_other_tensors(
    expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], rule: str, where: object, fix: str
) -> None:
    """Refuse when names or shapes differ, naming the first of each kind.

    Raises:
        PreheatError: a tensor is missing, one has no place, or a shape is another one.
    """
    missing, extra = [name for name in expected if name not in found], [name for name in found if name not in expected]
    shaped = [name for name in expected if name in found and tuple(expected[name]) != tuple(found[name])]
    parts = [f"{len(names)} {what} ({', '.join(names[:3])}{' ...' if len(names) > 3 else ''})" for names, what in
             ((missing, "tensors are missing"), (extra, "have no place in the model")) if names]  # fmt: skip
    parts += [f"{name} is {_by(found[name])} and not {_by(expected[name])}" for name in shaped[:3]]
    if parts:
        refuse(rule, "; ".join(parts), f"{len(expected)} tensors are expected, {len(found)} found", fix, file=where)


def same(ours: str, theirs: str) -> Rule:
    """One tensor under two names."""
    return Rule((ours,), (theirs,), _identity, _identity)


def transposed(ours: str, theirs: str) -> Rule:
    """A matrix that the other side keeps as inputs x outputs."""
    return Rule((ours,), (theirs,), _transpose, _transpose)


def joined(ours: Sequence[str], theirs: str, rows: Sequence[int], *, dim: int = 0, transpose: bool = False) -> Rule:
    """Tensors that the other side keeps as one, joined along `dim`; `transpose` if it then keeps that as inputs x outputs."""

    def out(parts: Tensors) -> Tensors:
        whole = torch.cat(parts, dim=dim)
        return (whole.T.contiguous() if transpose else whole,)

    def back(whole: Tensors) -> Tensors:
        return tuple(part.contiguous() for part in (whole[0].T if transpose else whole[0]).split(list(rows), dim=dim))

    return Rule(tuple(ours), (theirs,), out, back)


def interleaved_heads(query: str, key: str, value: str, theirs: str, *, groups: int, queries: int, width: int) -> Rule:
    """Query, key and value projections that the other side keeps group by group: its query heads, then its key, then its value head.

    Args:
        groups: key and value heads.
        queries: query heads of each group.
        width: rows of a head.
    """
    rows = (queries * width, width, width)

    def out(parts: Tensors) -> Tensors:
        grouped = [part.unflatten(0, (groups, count)) for part, count in zip(parts, rows, strict=True)]
        return (torch.cat(grouped, dim=1).flatten(0, 1),)

    def back(whole: Tensors) -> Tensors:
        return tuple(part.flatten(0, 1).contiguous() for part in whole[0].unflatten(0, (groups, sum(rows))).split(rows, dim=1))

    return Rule((query, key, value), (theirs,), out, back)


def unstacked(ours: str, theirs: Sequence[str]) -> Rule:
    """One tensor whose first dim the other side keeps as tensors of their own."""
    return Rule((ours,), tuple(theirs), lambda t: tuple(t[0].unbind()), lambda t: (torch.stack(t),))


def stacked(each: Sequence[Rule]) -> Rule:
    """Rules of as many layers, each of which makes one tensor; the other side keeps these as one with the layers as first dim."""
    ends = [sum(len(rule.ours) for rule in each[: number + 1]) for number in range(len(each))]
    starts = [0, *ends[:-1]]

    def out(parts: Tensors) -> Tensors:
        return (torch.stack([rule.outward(parts[start:end])[0] for rule, start, end in zip(each, starts, ends, strict=True)]),)

    def back(whole: Tensors) -> Tensors:
        return tuple(part for rule, layer in zip(each, whole[0].unbind(), strict=True) for part in rule.inward((layer,)))

    return Rule(tuple(name for rule in each for name in rule.ours), each[0].theirs, out, back)


def padded(ours: str, theirs: str, own: int, rows: int) -> Rule:
    """A table that the other side fills up with rows of zeros, from `own` to `rows`."""
    return Rule((ours,), (theirs,), lambda t: (torch.nn.functional.pad(t[0], (0, 0, 0, rows - own)),), lambda t: (t[0][:own].contiguous(),))


def reordered(ours: str, theirs: str, order: Sequence[int]) -> Rule:
    """Rows in another order: row i of theirs is row `order[i]` of ours."""
    there = torch.tensor(order)
    back = torch.argsort(there)
    return Rule((ours,), (theirs,), lambda t: (t[0][there.to(t[0].device)],), lambda t: (t[0][back],))


def copied(ours: str, theirs: Sequence[str]) -> Rule:
    """One tensor that the other side keeps several times; coming back, the copies have to be equal."""

    def back(copies: Tensors) -> Tensors:
        for name, other in zip(theirs[1:], copies[1:], strict=True):
            if not torch.equal(copies[0], other):
                refuse(
                    "weights.copies", f"{name} is not equal to {theirs[0]}", "both are the same tensor", "These weights have no place here"
                )
        return copies[:1]

    return Rule((ours,), tuple(theirs), lambda t: (*t, *(t[0].clone() for _ in theirs[1:])), back)


def _identity(tensors: Tensors) -> Tensors:
    return tensors


def _transpose(tensors: Tensors) -> Tensors:
    return (tensors[0].T.contiguous(),)


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a number"

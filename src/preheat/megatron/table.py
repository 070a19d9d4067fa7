"""The arguments that Megatron-LM's parser knows, by version, and remarks on names that it does not know or does not heed."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from preheat.errors import refuse

VERSIONS = ("0.17", "0.18", "0.19")
"""Versions of megatron-core whose parsers are in the table."""
NEWEST = VERSIONS[-1]


@dataclass(frozen=True)
class Option:
    """One argument of the parser."""

    flag: str
    """The first spelling, with its dashes."""
    dest: str
    """The name of the value in Megatron-LM's namespace."""
    kind: str
    """`value` takes values, `on` sets, `off` clears, `switch` has a `--no-` form."""
    type: str
    """`int`, `float`, `str`, `bool`, `tuple` of integers, or `pattern` (an integer or a list expression such as `([0]*3+[1]*58)`)."""
    nargs: str
    """Empty for exactly one value, else `+`, `*` or a number."""
    default: str
    """As Python prints it; empty for none."""
    choices: tuple[str, ...]
    versions: tuple[str, ...]


@dataclass(frozen=True)
class Remark:
    """What is to be said about a flag that people write."""

    flag: str
    kind: str
    """`renamed`, `removed`, `inert`, `ignored` or `retired`."""
    now: str
    """The flag to write instead, or nothing."""
    carry: str
    """How the value moves there: `same`, `set`, `=VALUE`, `tokens`, or not at all."""
    versions: tuple[str, ...]
    """Where it holds; empty for every version."""
    note: str


@cache
def options(version: str) -> Mapping[str, Option]:
    """Every spelling -> its option, in one version."""
    return {flag: option for flag, option in _spellings() if known_version(version) in option.versions}


def versions_of(flag: str) -> tuple[str, ...]:
    """The versions whose parser knows a flag."""
    return tuple(version for version in VERSIONS if any(flag == name and version in option.versions for name, option in _spellings()))


@cache
def remarks(version: str) -> Mapping[str, Remark]:
    """Flag -> remark, in one version."""
    return {remark.flag: remark for remark in _remarks() if not remark.versions or known_version(version) in remark.versions}


def known_version(version: str) -> str:
    """A version of the table, from "0.19" or "0.19.2".

    Raises:
        PreheatError: the table has no such version.
    """
    short = ".".join(version.split(".")[:2])
    if short not in VERSIONS:
        refuse("megatron.version", f"Megatron-LM version {version}", f"known: {', '.join(VERSIONS)}", "Choose a known version")
    return short


@cache
def _spellings() -> tuple[tuple[str, Option], ...]:
    found = []
    for row in _rows("arguments.csv"):
        flags = row["flags"].split()
        option = Option(
            flags[0],
            row["dest"],
            row["kind"],
            row["type"],
            row["nargs"],
            row["default"],
            tuple(row["choices"].split()),
            tuple(row["versions"].split()),
        )
        found += [(flag, option) for flag in flags]
    return tuple(found)


@cache
def _remarks() -> tuple[Remark, ...]:
    return tuple(
        Remark(row["flag"], row["kind"], row["now"], row["carry"], tuple(row["versions"].split()), row["note"])
        for row in _rows("remarks.csv")
    )


def _rows(name: str) -> csv.DictReader[str]:
    text = resources.files("preheat.megatron").joinpath(name).read_text("utf-8")
    return csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))

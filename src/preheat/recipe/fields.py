"""The kinds of values that a recipe file holds: strict tables, quantities with units, exact weights, settings that change over time."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

from preheat.units import PATTERN, Quantity

LARGEST = 10**12
"""A count above this is a slip of the keyboard: no model has so many layers and no batch so many samples."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class Table(BaseModel):
    """One table of the file."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", arbitrary_types_allowed=True)


def _quantity(value: object) -> Quantity:
    if isinstance(value, Quantity):
        return value
    if isinstance(value, str):
        return Quantity.parse(value)
    raise ValueError(f'{value!r} has no unit: write for instance "{value} tokens" or "{value} steps"')


def _share(value: object) -> Quantity:
    quantity = _quantity(value)
    if quantity.unit != "%":
        raise ValueError(f"{quantity} is no share: write a percentage")
    return quantity


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _exact(value: object) -> Fraction:
    """A TOML number as the exact decimal that the file spells."""
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a weight is a number")
    if not -LARGEST <= value <= LARGEST:  # nor NaN
        raise ValueError(f"a weight is at most {LARGEST:_}")
    return Fraction(str(value))


_AS_TEXT = PlainSerializer(str, return_type=str)
List = BeforeValidator(_tuple)
"""Marks a tuple that a file writes as an array."""
Amount = Annotated[Quantity, BeforeValidator(_quantity), _AS_TEXT, WithJsonSchema({"type": "string", "pattern": PATTERN})]
Share = Annotated[Quantity, BeforeValidator(_share), _AS_TEXT, WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)?\s*%$"})]
Weight = Annotated[
    Fraction,
    BeforeValidator(_exact),
    PlainSerializer(float, return_type=float),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": LARGEST}),
    Field(gt=0),
]
Name = Annotated[str, Field(pattern=NAME)]
"""A name that is safe as a file name."""
Count = Annotated[int, Field(ge=1, le=LARGEST)]
WholeNumber = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fractional = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
"""A share in [0, 1), as of dropout."""


class RateChange(Table):
    """From `at` on, the rate is `rate`."""

    at: Amount
    rate: NonNegative


class WeightChange(Table):
    """From `at` on, the weight is `weight`."""

    at: Amount
    weight: NonNegative


def _changes(name: str) -> BeforeValidator:
    """A plain number is one entry that holds from the start."""

    def spread(value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return ({"at": "0 tokens", name: value},)
        return _tuple(value)

    return BeforeValidator(spread)


def _number_or_list(name: str) -> WithJsonSchema:
    number = {"type": "number", "minimum": 0}
    entry = {"type": "object", "additionalProperties": False, "required": ["at", name]}
    entry["properties"] = {"at": {"type": "string", "pattern": PATTERN}, name: number}
    return WithJsonSchema({"anyOf": [number, {"type": "array", "minItems": 1, "items": entry}]})


def _plain(name: str) -> PlainSerializer:
    """The reverse of `_changes`: one entry from the start is written as a number."""

    def write(entries: tuple[Table, ...]) -> Any:
        if len(entries) == 1 and entries[0].at.amount == 0:  # type: ignore[attr-defined]
            return getattr(entries[0], name)
        return [entry.model_dump(mode="json") for entry in entries]

    return PlainSerializer(write)


Rates = Annotated[tuple[RateChange, ...], _changes("rate"), _plain("rate"), Field(min_length=1), _number_or_list("rate")]
"""A rate that may change during the run: in a file a number, or a list of `{ at, rate }` whose first entry starts at zero."""
Weights = Annotated[tuple[WeightChange, ...], _changes("weight"), _plain("weight"), Field(min_length=1), _number_or_list("weight")]
"""The same for a weight: a number, or a list of `{ at, weight }`."""

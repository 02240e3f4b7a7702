"""The operator's prices for models: money per million tokens, by model name and day.

Owns the file of prices, its errors, and the exact arithmetic. Knows neither calls nor users. The file is JSON::

    {
      "currency": "USD",
      "models": {
        "claude-sonnet-5-5": {"input": "3", "cacheRead": "0.30", "cacheWrite": "3.75", "output": "15"},
        "gpt-5*": [
          {"input": "1.25", "cacheRead": "0.125", "output": "10"},
          {"from": "2027-01-01", "input": "1", "cacheRead": "0.1", "output": "8"}
        ]
      }
    }

A key is a model's name, with or without its provider, or a pattern with ``*``. A name takes precedence over a pattern,
and a long pattern over a short one. Of several prices, the latest one that began by the day of the call applies.
Cache prices that are missing default to the price of input.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, field_validator

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.events import Usage
from agentic_rag.base.forms import Form, read_form
from agentic_rag.base.startup_errors import BadConfiguration

SETTING = "AGENTIC_RAG_PRICES"
FREE = "extractive"
"""The embedded model. It is always free, even if the file has a price for it."""

_MILLION = Decimal(1_000_000)
_MOST = Decimal(1_000_000)
"""Highest price per million tokens. A higher one is taken for a typing error."""
_DATED = re.compile(r"-(?:\d{8}|\d{4}-\d\d-\d\d)$")
"""The date that services append to the name of the requested model."""


def _number(value: object) -> object:
    """Accept integers, decimals and text, but no float: a Python float would not be exact."""
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise ValueError('a number is expected, or text with one: 3 or "0.30".')
    return value


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as exc:
        raise ValueError("a day is expected: 2026-01-31.") from exc


Money = Annotated[Decimal, BeforeValidator(_number), Field(ge=0, le=_MOST, allow_inf_nan=False)]


class PriceForm(Form):
    """The prices of a model, valid from a day on."""

    since: Annotated[str, AfterValidator(_day)] = Field("", alias="from")
    input: Money
    cache_read: Money | None = None
    cache_write: Money | None = None
    output: Money


class PricesForm(Form):
    """The content of the file of prices."""

    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]
    models: dict[str, list[PriceForm]]

    @field_validator("models", mode="before")
    @classmethod
    def _single(cls, models: object) -> object:
        if not isinstance(models, dict):
            return models
        return {name: [entry] if isinstance(entry, dict) else entry for name, entry in models.items()}


@dataclass(frozen=True, slots=True)
class Price:
    """Money per million tokens, valid from the day ``since`` on (empty: always)."""

    since: str
    input: Decimal
    cache_read: Decimal
    cache_write: Decimal
    output: Decimal

    def cost(self, usage: Usage) -> Decimal:
        """Return the cost of the used tokens."""
        parts = (
            usage.input * self.input,
            usage.cache_read * self.cache_read,
            usage.cache_write * self.cache_write,
            usage.output * self.output,
        )
        return sum(parts, Decimal(0)) / _MILLION

    def most(self, sent: int, received: int) -> Decimal:
        """Return the highest possible cost of a call that sends and receives so many tokens."""
        return (sent * max(self.input, self.cache_read, self.cache_write) + received * self.output) / _MILLION


_NOTHING = Price("", Decimal(0), Decimal(0), Decimal(0), Decimal(0))


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of the operator's models.

    ``currency``: empty if there are no prices. Usage then counts tokens only.
    """

    currency: str = ""
    by_name: Mapping[str, Sequence[Price]] = field(default_factory=dict)

    def find(self, model: str, day: str) -> Price | None:
        """Return the price of a model on a day (``2026-01-31``), or None if the file has none."""
        if model == FREE:
            return _NOTHING
        for place in self._places_of(_names_of(model)):
            fitting = [price for price in self.by_name[place] if price.since <= day]
            if fitting:
                return fitting[-1]
        return None

    def _places_of(self, names: Sequence[str]) -> Iterator[str]:
        """Yield the keys of the file that match these names of a model, the best match first."""
        yield from (name for name in names if name in self.by_name)
        # Patterns come last: an exact name, with or without provider and date, is more specific.
        patterns = [
            pattern for pattern in self.by_name if "*" in pattern and any(fnmatchcase(name, pattern) for name in names)
        ]
        yield from sorted(patterns, key=len, reverse=True)


def _names_of(model: str) -> list[str]:
    """Return the names to look up for a model: the full name, without its provider, without its date."""
    bare = model.partition(":")[2] or model
    return list(dict.fromkeys((model, bare, _DATED.sub("", model), _DATED.sub("", bare))))


def read_prices(path: Path | None) -> Prices:
    """Read the file of prices. Without a path, returns `Prices` with no entries.

    Raises:
        BadConfiguration: the file cannot be read or is invalid. The error names the field, or the line with the JSON
            error.
    """
    if path is None:
        return Prices()
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise BadConfiguration(SETTING, f"{path} cannot be read: {exc}") from exc
    try:
        # `json` rather than `orjson`: only its hooks keep decimals exact and see a name that is listed twice.
        form = read_form(PricesForm, json.loads(text, parse_float=Decimal, parse_int=Decimal, object_pairs_hook=_once))
    except json.JSONDecodeError as exc:
        raise BadConfiguration(SETTING, f"{path}, line {exc.lineno}: this is no JSON: {exc.msg}.") from exc
    except _Twice as exc:
        # The parser names no line for a duplicate; the last line with the name is most likely the second entry.
        lines = [number for number, line in enumerate(text.splitlines(), 1) if json.dumps(exc.name) in line]
        line = lines[-1] if lines else 1
        raise BadConfiguration(SETTING, f"{path}, line {line}: {exc.name} is listed twice.") from exc
    except RecursionError as exc:
        raise BadConfiguration(SETTING, f"{path}, line 1: it is nested too deep.") from exc
    except InvalidInput as exc:
        raise BadConfiguration(SETTING, f"{path}: {exc}") from exc
    return Prices(form.currency, {name: _in_order(forms) for name, forms in form.models.items()})


def _in_order(forms: Sequence[PriceForm]) -> tuple[Price, ...]:
    prices = [
        Price(
            form.since,
            form.input,
            form.input if form.cache_read is None else form.cache_read,
            form.input if form.cache_write is None else form.cache_write,
            form.output,
        )
        for form in forms
    ]
    return tuple(sorted(prices, key=lambda price: price.since))


class _Twice(Exception):
    """A duplicate name in one JSON object."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _Twice(twice)
    return dict(pairs)

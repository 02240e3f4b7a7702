"""What models cost, as the operator says: prices for a million tokens, by a model's name and by the day.

Owns the file of prices, its errors, and the arithmetic, which is exact. Knows no call and whose it was. The file is
JSON::

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

A name is a model's own, with or without its provider, or a pattern with ``*``; the name goes before a pattern, and a
long pattern before a short one. Of several prices the one counts that was the last to begin on the day of the call.
What is not there costs as input does.
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
"""The embedded model, which costs nothing whatever the file says."""

_MILLION = Decimal(1_000_000)
_MOST = Decimal(1_000_000)
"""For a million tokens; more is a slip of the keyboard."""
_DATED = re.compile(r"-(?:\d{8}|\d{4}-\d\d-\d\d)$")
"""What services put behind the name of a model that they were asked for."""


def _number(value: object) -> object:
    """Take a number only as it is written: a float of Python's would not be exact any more."""
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
    """The prices of a model from a day on."""

    since: Annotated[str, AfterValidator(_day)] = Field("", alias="from")
    input: Money
    cache_read: Money | None = None
    cache_write: Money | None = None
    output: Money


class PricesForm(Form):
    """The whole file."""

    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]
    models: dict[str, list[PriceForm]]

    @field_validator("models", mode="before")
    @classmethod
    def _single(cls, models: object) -> object:
        if not isinstance(models, dict):
            return models
        return {name: [each] if isinstance(each, dict) else each for name, each in models.items()}


@dataclass(frozen=True, slots=True)
class Price:
    """Money for a million tokens, from the day ``since`` on (empty: always)."""

    since: str
    input: Decimal
    cache_read: Decimal
    cache_write: Decimal
    output: Decimal

    def cost(self, usage: Usage) -> Decimal:
        """Return what these tokens cost."""
        parts = (
            usage.input * self.input,
            usage.cache_read * self.cache_read,
            usage.cache_write * self.cache_write,
            usage.output * self.output,
        )
        return sum(parts, Decimal(0)) / _MILLION

    def most(self, sent: int, received: int) -> Decimal:
        """Return what a call costs at most that sends and receives so many tokens."""
        return (sent * max(self.input, self.cache_read, self.cache_write) + received * self.output) / _MILLION


_NOTHING = Price("", Decimal(0), Decimal(0), Decimal(0), Decimal(0))


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of an operator's models. ``currency``: empty where there are none: usage then counts tokens only."""

    currency: str = ""
    by_name: Mapping[str, Sequence[Price]] = field(default_factory=dict)

    def find(self, model: str, day: str) -> Price | None:
        """Return the price of a model on a day (``2026-01-31``); None: nobody has said it."""
        if model == FREE:
            return _NOTHING
        for place in self._places_of(_names_of(model)):
            fitting = [each for each in self.by_name[place] if each.since <= day]
            if fitting:
                return fitting[-1]
        return None

    def _places_of(self, names: Sequence[str]) -> Iterator[str]:
        """Yield where a model with these names may have its price, the best place first."""
        yield from (name for name in names if name in self.by_name)
        # only then: whoever wrote a name down meant it, with or without provider and date
        patterns = [each for each in self.by_name if "*" in each and any(fnmatchcase(name, each) for name in names)]
        yield from sorted(patterns, key=len, reverse=True)


def _names_of(model: str) -> list[str]:
    """Return the names under which a model may stand: as it is, without its provider, without its date."""
    bare = model.partition(":")[2] or model
    return list(dict.fromkeys((model, bare, _DATED.sub("", model), _DATED.sub("", bare))))


def read_prices(path: Path | None) -> Prices:
    """Return the prices of a file, or no prices without a file.

    Raises:
        BadConfiguration: the file cannot be read, or something in it is wrong. The error names the field, or the line
            of text that is not JSON.
    """
    if path is None:
        return Prices()
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise BadConfiguration(SETTING, f"{path} cannot be read: {exc}") from exc
    try:
        form = read_form(PricesForm, json.loads(text, parse_float=Decimal, parse_int=Decimal, object_pairs_hook=_once))
    except json.JSONDecodeError as exc:
        raise BadConfiguration(SETTING, f"{path}, line {exc.lineno}: this is no JSON: {exc.msg}.") from exc
    except _Twice as exc:
        lines = [number for number, line in enumerate(text.splitlines(), 1) if json.dumps(exc.name) in line]
        line = lines[-1] if lines else 1
        raise BadConfiguration(SETTING, f"{path}, line {line}: {exc.name} is there twice.") from exc
    except RecursionError as exc:
        raise BadConfiguration(SETTING, f"{path}, line 1: it is nested too deep.") from exc
    except InvalidInput as exc:
        raise BadConfiguration(SETTING, f"{path}: {exc}") from exc
    return Prices(form.currency, {name: _in_order(each) for name, each in form.models.items()})


def _in_order(forms: Sequence[PriceForm]) -> tuple[Price, ...]:
    prices = [
        Price(
            each.since,
            each.input,
            each.input if each.cache_read is None else each.cache_read,
            each.input if each.cache_write is None else each.cache_write,
            each.output,
        )
        for each in forms
    ]
    return tuple(sorted(prices, key=lambda price: price.since))


class _Twice(Exception):
    """A name stands twice in one object: which of the two counts would be chance."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _Twice(twice)
    return dict(pairs)

"""Values as JSON documents, and back: the one place that knows camelCase.

Owns writing (`to_json`) and reading (`from_json`) of frozen dataclasses: for stored documents, for answers of the API,
for frozen definitions; and the fast and exact conversion of a document to text (`to_text`). Names are camelCase in JSON
and snake_case in Python. Knows no table and no route. ``forms`` reads untrusted input, with errors that name the
problem.
"""

import dataclasses
import json
import math
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cache
from typing import Annotated, Any, TypeGuard, TypeVar

import orjson

T = TypeVar("T")
Json = dict[str, Any]
"""A JSON object."""

_ABSENT = "absent"
Absent = Annotated[T | None, _ABSENT]
"""The type of a dataclass's field that is left out of the JSON form when it is None: ``page: Absent[int] = None``."""

_PLAIN = frozenset({str, int, float, bool, type(None)})


@cache
def camel(name: str) -> str:
    """Return a snake_case name in camelCase: ``chunk_id`` → ``chunkId``."""
    first, *more_parts = name.split("_")
    return first + "".join(part.capitalize() for part in more_parts)


@cache
def _members(kind: type) -> tuple[tuple[str, str, bool], ...]:
    """Return (attribute, JSON name, whether it is absent when None) of a dataclass's fields."""
    return tuple(
        (field.name, camel(field.name), _ABSENT in typing.get_args(field.type)) for field in dataclasses.fields(kind)
    )


def to_json(value: Any) -> Any:
    """Return the JSON form: dataclasses as objects, enums by value, sequences as lists, mapping keys as text.

    Raises:
        TypeError: A value has no JSON form.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list or kind is tuple:  # checked first, because the other checks take longer
        return [to_json(item) for item in value]
    if dataclasses.is_dataclass(kind):
        return {
            name: item if type(item) in _PLAIN else to_json(item)
            for attribute, name, absent in _members(kind)
            if (item := getattr(value, attribute)) is not None or not absent
        }
    if isinstance(value, Enum):  # before the plain types: a StrEnum is a str
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | AbstractSet):
        return [to_json(item) for item in value]
    if isinstance(value, str | int | float):
        return value
    raise TypeError(f"{kind.__name__} has no JSON form")


def to_cut_json(value: Any, levels: int) -> Any:
    """Return the JSON form of a value of unlimited nesting, with ``"…"`` in place of everything below ``levels``."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        members = ((name, getattr(value, attribute), absent) for attribute, name, absent in _members(type(value)))
        return {name: to_cut_json(item, levels) for name, item, absent in members if item is not None or not absent}
    if isinstance(value, Mapping | list | tuple | AbstractSet):
        if not levels:
            return "…"
        if isinstance(value, Mapping):
            return {str(key): to_cut_json(item, levels - 1) for key, item in value.items()}
        return [to_cut_json(item, levels - 1) for item in value]
    return to_json(value)


def from_json(kind: type[T], value: Any) -> T:
    """Return a value of a type from its `to_json` form; absent members take their defaults.

    Types: dataclasses, enums, ``X | None``, ``tuple[X, ...]``, ``list[X]``, ``frozenset[X]``, mappings from text, and
    JSON's own types. Members that the type does not know are ignored.

    Raises:
        TypeError, KeyError, ValueError: The document is not one of this type.
    """
    hint: Any = kind
    result: T = reader_of(hint)(value)
    return result


@cache
def reader_of(hint: Any) -> Callable[[Any], Any]:
    """Return the function that reads a value of a type."""
    if isinstance(hint, typing.NewType):
        return reader_of(hint.__supertype__)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _object_reader(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return reader_of(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return _optional_reader(arguments)
    if origin in (tuple, list, frozenset, Sequence):
        inner = reader_of(arguments[0])
        make: Callable[[Any], Any] = list if origin is list else frozenset if origin is frozenset else tuple
        return lambda value: make(inner(item) for item in value)
    if origin in (dict, Mapping):
        inner = reader_of(arguments[1])
        return lambda value: {key: inner(item) for key, item in value.items()}
    return lambda value: value


def _optional_reader(arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
    members = [argument for argument in arguments if argument is not type(None)]
    if len(members) == 1:
        inner = reader_of(members[0])
        return lambda value: None if value is None else inner(value)
    # Nothing in the document says which of several records it is.
    if any(dataclasses.is_dataclass(member) for member in members):
        raise TypeError(f"a union of records needs a from_json of its own: {arguments}")
    return lambda value: value


def _object_reader(kind: type) -> Callable[[Any], Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    readers = tuple((attribute, name, reader_of(hints[attribute])) for attribute, name, _ in _members(kind))

    def read(value: Any) -> Any:
        return kind(**{attribute: inner(value[name]) for attribute, name, inner in readers if name in value})

    return read


def is_finite_number(value: object) -> TypeGuard[float]:
    """Return whether a JSON value is a finite number. An integer beyond every float is none, as `math` refuses it."""
    # Not `math.isfinite`, which raises for such an integer. A comparison with NaN is false.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def to_text(document: Any) -> str:
    """Return a JSON document as text, keys in their order.

    A model's arguments may hold values that orjson refuses (a lone surrogate, an integer past 64 bits). The standard
    library writes those escaped or in full. NaN and infinite numbers, which JSON does not have, become null.
    """
    try:
        return orjson.dumps(document).decode()
    except TypeError:
        try:
            return json.dumps(document, allow_nan=False)
        except ValueError:
            return json.dumps(_with_finite_numbers(document))


def _with_finite_numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_finite_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_finite_numbers(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


from_text = json.loads
"""Reverses `to_text` with the standard library, since orjson would turn an integer past 64 bits into a float."""

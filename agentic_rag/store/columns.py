"""Column types of the store, and the derivation of a record's columns from its field annotations.

Text, numbers, flags and bytes become columns of their own kind, an enum is stored as text, and every other type is
stored as a JSON document. PostgreSQL stores those as ``json``, not ``jsonb``, because the order of keys is part of a
request's prefix. Times are UTC text, ISO-8601 with milliseconds and ``Z`` (`now` in ``clock``), so that both databases
sort and print them alike.
"""

import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import JSON, Dialect, String, TypeDecorator
from sqlalchemy.types import TypeEngine
from sqlmodel import Field

from agentic_rag.base.json_form import reader_of, to_json, to_text

T = TypeVar("T")
Key = Annotated[T, Field(primary_key=True)]
"""The type of a field of the table's primary key."""

Indexed = Annotated[T, Field(index=True)]
"""The type of a field whose column has an index of its own."""

BigInt = typing.NewType("BigInt", int)
"""The type of an integer field that may exceed two thousand million."""

RowNumber = typing.NewType("RowNumber", int)
"""The type of a 64-bit integer key. On SQLite it is an ``INTEGER``, which makes it the row's ``rowid``."""

Convert = Callable[[Any], Any]
"""A function that converts one value for a driver, or from a driver."""

_COLUMN_TYPES: dict[Any, type[TypeEngine[Any]]] = {
    BigInt: sa.BigInteger,
    str: String,
    int: sa.Integer,
    float: sa.Float,
    bool: sa.Boolean,
    bytes: sa.LargeBinary,
}
_JSON_TYPES = (str, int, float, bool, type(None), Any)


def document_text(document: Any) -> str | None:
    """Return a JSON document as text; None stays None, because no column tells NULL from a JSON null."""
    return None if document is None else to_text(document)


class JsonDocument(TypeDecorator[Any]):
    """A column of JSON documents that are values of one type, converted by ``json_form``."""

    impl = JSON
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        super().__init__(none_as_null=True)
        self.kind = kind
        self._read = reader_of(kind)

    def bind_processor(self, dialect: Dialect) -> Convert:
        return lambda value: document_text(to_json(value))

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else self._read(value)


class EnumText(TypeDecorator[Any]):
    """A column that holds the values of an enum as text."""

    impl = String
    cache_ok = True

    def __init__(self, kind: type[Enum]) -> None:
        super().__init__()
        self.kind = kind

    def bind_processor(self, dialect: Dialect) -> Convert:
        texts = {member: member.value for member in self.kind}
        return lambda value: texts.get(value, value)

    def result_processor(self, dialect: Dialect, coltype: object) -> Convert:
        kind = self.kind
        members = {member.value: member for member in kind}
        return lambda value: members.get(value) or (None if value is None else kind(value))


def column_type(annotation: Any) -> TypeEngine[Any]:
    """Return the column type for a field's annotation without None."""
    if typing.get_origin(annotation) is typing.Literal:
        return String()
    if annotation is RowNumber:
        return sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    if annotation in _COLUMN_TYPES:
        return _COLUMN_TYPES[annotation]()
    if isinstance(annotation, typing.NewType):
        return column_type(annotation.__supertype__)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return EnumText(annotation)
    return JSON(none_as_null=True) if _is_json(annotation) else JsonDocument(annotation)


def without_none(annotation: Any) -> tuple[Any, bool]:
    """Return an annotation without None, and whether None was part of it."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        parts = [part for part in typing.get_args(annotation) if part is not type(None)]
        if len(parts) == 1:
            return parts[0], True
    return annotation, False


def _is_json(annotation: Any) -> bool:
    """Return whether a type's values can be stored as JSON without conversion."""
    if typing.get_origin(annotation) in (dict, list):
        return all(_is_json(part) for part in typing.get_args(annotation))
    return getattr(annotation, "__supertype__", annotation) in _JSON_TYPES

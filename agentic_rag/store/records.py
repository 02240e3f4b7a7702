"""Record classes and their tables: a table's columns are the fields of a frozen dataclass.

This module turns a dataclass into a SQLAlchemy `Table`, and reads and writes its values. Text, numbers, flags and bytes
are columns of their kind, an enum is stored as text, and every other type is a JSON document. PostgreSQL stores those
as ``json``, not ``jsonb``, because key order is part of a request's prefix. A column has the name of its field. A field
that may be None may be NULL. Times are UTC text, ISO-8601 with milliseconds and ``Z`` (`now` in ``clock``), so that
both databases sort and print them alike.

The module also holds the prepared statements of hot paths. Their parameters are named after the columns, each statement
is compiled once, and SQLite runs them without SQLAlchemy.
"""

import sqlite3
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy import (
    JSON,
    BindParameter,
    Column,
    Connection,
    CursorResult,
    Delete,
    Dialect,
    Index,
    Insert,
    MetaData,
    Select,
    String,
    Table,
    TextClause,
    TypeDecorator,
    Update,
    bindparam,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import SchemaItem
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TypeEngine

from agentic_rag.base.json_form import reader_of, to_json, to_text

R = TypeVar("R")

# Statements of hot paths: compiled once, run without SQLAlchemy's compiler, and in SQLite without SQLAlchemy

_PREFIX = "of_"  # no column name starts like this; SQLAlchemy reserves a column's own name for SET and VALUES


def parameter(column: Column[Any]) -> BindParameter[Any]:
    """Return a parameter with the column's name and type, whose value is passed when the statement runs."""
    return bindparam(_PREFIX + column.name, type_=column.type)


def sqlite_of(conn: Connection) -> sqlite3.Connection:
    """Return the underlying `sqlite3` connection."""
    driver: Any = conn.connection.dbapi_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def run_by_sqlite(conn: Connection, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
    """Run a statement without SQLAlchemy, which takes ten times as long as SQLite itself.

    Raises:
        DBAPIError: SQLAlchemy's, IntegrityError and so on, as for any other statement.
    """
    driver: Any = conn.connection.dbapi_connection
    try:
        cursor: sqlite3.Cursor = driver.execute(sql, parameters)
        return cursor
    except sqlite3.Error as exc:
        raise DBAPIError.instance(sql, None, exc, sqlite3.Error, dialect=conn.dialect) from exc


def bind_values(values: Mapping[str, object]) -> dict[str, object]:
    """Return values by column as SQLAlchemy parameters, for a statement that uses `parameter`."""
    return {_PREFIX + name: value for name, value in values.items()}


_Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A statement compiled for one driver.

    ``row`` holds its values, with placeholders for those that change between calls: the ``plain`` ones, which are
    passed to the driver unchanged, and the ``encoded`` ones, both by name. ``decoders`` convert the driver's values to
    those of the columns, by the column's position.
    """

    sql: str
    by_sqlite: bool
    row: list[Any] = field(default_factory=list)
    plain: list[tuple[int, str]] = field(default_factory=list)
    encoded: list[tuple[int, str, _Convert]] = field(default_factory=list)
    decoders: list[tuple[int, _Convert]] = field(default_factory=list)

    def run(self, conn: Connection, values: Mapping[str, object]) -> sqlite3.Cursor | CursorResult[Any]:
        """Run the statement with values by name."""
        row = self.row.copy()
        for place, name in self.plain:
            row[place] = values[name]
        for place, name, encode in self.encoded:
            row[place] = encode(values[name])
        return run_by_sqlite(conn, self.sql, row) if self.by_sqlite else conn.exec_driver_sql(self.sql, tuple(row))

    def read(self, row: Sequence[Any]) -> Sequence[Any]:
        """Return a result row with decoded values."""
        if not self.decoders:
            return row
        result = list(row)
        for place, decode in self.decoders:
            result[place] = decode(result[place])
        return result


class Prepared:
    """A statement of a hot path, compiled once for each kind of database.

    Values are passed by column name: all columns of an INSERT, and those marked by `parameter` in other statements. The
    statement cannot contain a list that is expanded at run time (``in_`` of values).
    """

    def __init__(self, statement: Insert | Update | Delete | Select[Any] | TextClause) -> None:
        self._statement = statement
        self._compiled: dict[str, _Compiled] = {}

    def run(self, conn: Connection, **values: object) -> int:
        """Run the statement and return the number of changed rows."""
        compiled = self._compiled.get(conn.dialect.name) or self._compile(conn.dialect)
        return compiled.run(conn, values).rowcount

    def first(self, conn: Connection, **values: object) -> Sequence[Any] | None:
        """Run the statement and return the first row found, or the first changed one (``returning``)."""
        compiled = self._compiled.get(conn.dialect.name) or self._compile(conn.dialect)
        row = compiled.run(conn, values).fetchone()
        return None if row is None else compiled.read(row)

    def all(self, conn: Connection, **values: object) -> list[Sequence[Any]]:
        """Run the statement and return all rows."""
        compiled = self._compiled.get(conn.dialect.name) or self._compile(conn.dialect)
        return [compiled.read(row) for row in compiled.run(conn, values).fetchall()]

    def _compile(self, dialect: Dialect) -> _Compiled:
        compiled = self._statement.compile(dialect=dialect)
        assert isinstance(compiled, SQLCompiler)
        assert compiled.positiontup is not None
        result = self._compiled[dialect.name] = _Compiled(compiled.string, dialect.name == "sqlite")
        for place, name in enumerate(compiled.positiontup):
            bind = compiled.binds[name]
            encode = _encoder(bind.type, dialect)
            if not bind.required:
                result.row.append(bind.value if encode is None else encode(bind.value))
                continue
            result.row.append(None)
            if encode is None:
                result.plain.append((place, name.removeprefix(_PREFIX)))
            else:
                result.encoded.append((place, name.removeprefix(_PREFIX), encode))
        if not isinstance(self._statement, TextClause):
            for place, column in enumerate(self._statement.exported_columns):
                decode = column.type.dialect_impl(dialect).result_processor(dialect, None)
                if decode is not None:
                    result.decoders.append((place, decode))
        return result


_BITS = {False: 0, True: 1}


def _encoder(kind: TypeEngine[Any], dialect: Dialect) -> _Convert | None:
    """Return the function that converts a value for the driver, or None if no conversion is needed."""
    if isinstance(kind, sa.Boolean) and dialect.name == "sqlite":
        return _BITS.get  # faster than SQLAlchemy's converter, which checks each value in two functions
    if type(kind) is JSON:  # none of our columns distinguishes NULL from a JSON null
        return _document_text
    return kind.dialect_impl(dialect).bind_processor(dialect)


def _document_text(document: Any) -> str | None:
    return None if document is None else to_text(document)


# Record classes and their tables

METADATA = MetaData()
"""All tables, complete once the package is imported."""

BigInt = typing.NewType("BigInt", int)
"""The type of an integer field that may exceed two thousand million."""

_COLUMN_TYPES: dict[Any, type[TypeEngine[Any]]] = {
    BigInt: sa.BigInteger,
    str: String,
    int: sa.Integer,
    float: sa.Float,
    bool: sa.Boolean,
    bytes: sa.LargeBinary,
}
_JSON_TYPES = (str, int, float, bool, type(None), Any)
_PARTS: dict[str, list[Column[Any]]] = {}


class JsonDocument(TypeDecorator[Any]):
    """A column of JSON documents that are values of one type, converted by ``json_form``."""

    impl = JSON
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        super().__init__(none_as_null=True)
        self.kind = kind
        self._read = reader_of(kind)

    def bind_processor(self, dialect: Dialect) -> _Convert:
        return lambda value: _document_text(to_json(value))

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else self._read(value)


class EnumText(TypeDecorator[Any]):
    """A column that holds the values of an enum as text."""

    impl = String
    cache_ok = True

    def __init__(self, kind: type[Enum]) -> None:
        super().__init__()
        self.kind = kind

    def bind_processor(self, dialect: Dialect) -> _Convert:
        texts = {each: each.value for each in self.kind}
        return lambda value: texts.get(value, value)

    def result_processor(self, dialect: Dialect, coltype: object) -> _Convert:
        kind = self.kind
        members = {each.value: each for each in kind}
        return lambda value: members.get(value) or (None if value is None else kind(value))


class RecordTable(Generic[R]):
    """The table of a record class, which must be a dataclass.

    ``key`` lists the primary key's columns. ``indexed`` lists the columns with an index of their own. ``part_of`` is
    the noun whose deletion also deletes these rows (`delete_parts`), identified by the column ``{part_of}_id``.
    ``items`` and ``options`` are SQLAlchemy's: further constraints and indexes, and settings of one database.
    """

    def __init__(
        self,
        record: type[R],
        name: str,
        *items: SchemaItem,
        key: Sequence[str] = ("id",),
        indexed: Sequence[str] = (),
        part_of: str | None = None,
        **options: Any,
    ) -> None:
        hints = typing.get_type_hints(record)
        indexes = [Index(f"ix_{name}_{column}", column) for column in indexed]
        self.names = tuple(hints)
        self.table = Table(
            name,
            METADATA,
            *(_column(field, hint, field in key) for field, hint in hints.items()),
            *indexes,
            *items,
            **options,
        )
        self.c = self.table.c
        self.select: Select[Any] = sa.select(self.table)
        """A query of all columns, in the order of the record's fields."""
        self._record = record
        self._get = attrgetter(*self.names)
        self._insert = Prepared(sa.insert(self.table))
        if part_of is not None:
            _PARTS.setdefault(part_of, []).append(self.c[f"{part_of}_id"])

    def insert(self, conn: Connection, record: R) -> None:
        """Store a new row.

        Raises:
            IntegrityError: the key, or another unique value, is taken.
        """
        self._insert.run(conn, **self.values(record))

    def values(self, record: R) -> dict[str, Any]:
        """Return a record's fields as column values."""
        return dict(zip(self.names, self._get(record), strict=True))

    def first(self, conn: Connection, query: Select[Any] | Prepared, **values: object) -> R | None:
        """Return the first record of a query that extends ``select``, or None.

        ``values`` are the values of its `parameter`s, by column.
        """
        if isinstance(query, Prepared):
            row = query.first(conn, **values)
        else:
            row = conn.execute(query, bind_values(values)).first()
        return None if row is None else self._record(**dict(zip(self.names, row, strict=True)))

    def all(self, conn: Connection, query: Select[Any] | Prepared, **values: object) -> list[R]:
        """Return the records of a query that extends ``select``; ``values`` as in `first`."""
        record, names = self._record, self.names
        if isinstance(query, Prepared):
            rows: Iterable[Sequence[Any]] = query.all(conn, **values)
        else:
            rows = conn.execute(query, bind_values(values))
        return [record(**dict(zip(names, row, strict=True))) for row in rows]


def delete_parts(conn: Connection, noun: str, ident: str) -> None:
    """Delete the rows of every table that is ``part_of`` a noun and belongs to ``ident``."""
    for column in _PARTS[noun]:
        conn.execute(sa.delete(column.table).where(column == ident))


def _column(name: str, hint: Any, is_key: bool) -> Column[Any]:
    kind, nullable = _without_none(hint)
    return Column(name, _column_type(kind), primary_key=is_key, nullable=nullable, autoincrement=False)


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return the type without None, and whether None was part of it."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        others = [each for each in typing.get_args(hint) if each is not type(None)]
        if len(others) == 1:
            return others[0], True
    return hint, False


def _column_type(kind: Any) -> TypeEngine[Any]:
    if typing.get_origin(kind) is typing.Literal:
        return String()
    if kind in _COLUMN_TYPES:
        return _COLUMN_TYPES[kind]()
    if isinstance(kind, typing.NewType):
        return _column_type(kind.__supertype__)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return EnumText(kind)
    return JSON(none_as_null=True) if _is_json(kind) else JsonDocument(kind)


def _is_json(kind: Any) -> bool:
    """Return whether a type's values can be stored as JSON without conversion."""
    if typing.get_origin(kind) in (dict, list):
        return all(_is_json(each) for each in typing.get_args(kind))
    return getattr(kind, "__supertype__", kind) in _JSON_TYPES

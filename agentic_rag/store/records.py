"""A record class is its table: columns from its fields, rows as its values.

Owns how a frozen dataclass becomes a SQLAlchemy `Table`, and how its values are written and read. Text, numbers, flags
and bytes are columns of their kind, an enum is its text, and every other type is a JSON document. PostgreSQL keeps
those as ``json``, not ``jsonb``: key order is part of a request's prefix. A column is named as its field; a field that
may be None may be NULL. Times are UTC text, ISO-8601 with milliseconds and ``Z`` (`now` in ``clock``), so that both
databases sort and print them alike. Also the statements of hot paths: their parameters are named as the columns, they
are compiled once, and SQLite runs them without SQLAlchemy. Knows no noun.
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

from agentic_rag.json_form import reader_of, to_json, to_text

R = TypeVar("R")

# Statements of hot paths: compiled once, run past SQLAlchemy's compiler, and for SQLite past all of it

_PREFIX = "of_"  # no column's name begins so; SQLAlchemy keeps their own names for those of SET and VALUES to itself


def parameter(column: Column[Any]) -> BindParameter[Any]:
    """Return a value that is given when the statement runs, under the column's name and of its type."""
    return bindparam(_PREFIX + column.name, type_=column.type)


def sqlite_of(conn: Connection) -> sqlite3.Connection:
    """Return SQLite's own connection."""
    driver: Any = conn.connection.dbapi_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def run_by_sqlite(conn: Connection, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
    """Run a statement past SQLAlchemy, whose way costs ten times what SQLite needs.

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
    """Return values by column as SQLAlchemy's parameters, for a statement that `parameter` was used in."""
    return {_PREFIX + name: value for name, value in values.items()}


_Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A statement as a driver takes it.

    ``row``: its values, with places for those that change each time: by name the ``plain`` ones, which the driver takes
    as they are, and the ``encoded`` ones. ``decoders``: what makes a value of a column of what the driver gives, by the
    column's place.
    """

    sql: str
    by_sqlite: bool
    row: list[Any] = field(default_factory=list)
    plain: list[tuple[int, str]] = field(default_factory=list)
    encoded: list[tuple[int, str, _Convert]] = field(default_factory=list)
    decoders: list[tuple[int, _Convert]] = field(default_factory=list)

    def run(self, conn: Connection, values: Mapping[str, object]) -> sqlite3.Cursor | CursorResult[Any]:
        """Run it with values by name."""
        row = self.row.copy()
        for place, name in self.plain:
            row[place] = values[name]
        for place, name, encode in self.encoded:
            row[place] = encode(values[name])
        return run_by_sqlite(conn, self.sql, row) if self.by_sqlite else conn.exec_driver_sql(self.sql, tuple(row))

    def read(self, row: Sequence[Any]) -> Sequence[Any]:
        """Return a row that was found with the values of its columns."""
        if not self.decoders:
            return row
        result = list(row)
        for place, decode in self.decoders:
            result[place] = decode(result[place])
        return result


class Prepared:
    """A statement of a hot path, compiled once for each kind of database.

    Its values are given by the names of their columns: those of an INSERT, and what `parameter` made in others. It
    holds no list that is expanded when it runs (``in_`` of values).
    """

    def __init__(self, statement: Insert | Update | Delete | Select[Any] | TextClause) -> None:
        self._statement = statement
        self._compiled: dict[str, _Compiled] = {}

    def run(self, conn: Connection, **values: object) -> int:
        """Run it and return how many rows it changed."""
        compiled = self._compiled.get(conn.dialect.name) or self._compile(conn.dialect)
        return compiled.run(conn, values).rowcount

    def first(self, conn: Connection, **values: object) -> Sequence[Any] | None:
        """Run it and return the first row that it finds, or of those that it changed (``returning``)."""
        compiled = self._compiled.get(conn.dialect.name) or self._compile(conn.dialect)
        row = compiled.run(conn, values).fetchone()
        return None if row is None else compiled.read(row)

    def all(self, conn: Connection, **values: object) -> list[Sequence[Any]]:
        """Run it and return all rows."""
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
    """Return what makes of a value of a type what the driver takes; None: it takes the value."""
    if isinstance(kind, sa.Boolean) and dialect.name == "sqlite":
        return _BITS.get  # SQLAlchemy's checks each value in two functions
    if type(kind) is JSON:  # none of ours tells a NULL from a document that is null
        return _document_text
    return kind.dialect_impl(dialect).bind_processor(dialect)


def _document_text(document: Any) -> str | None:
    return None if document is None else to_text(document)


# Record classes and their tables

METADATA = MetaData()
"""All tables, once the package is imported."""

BigInt = typing.NewType("BigInt", int)
"""Of a field that may pass two thousand million."""

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
    """A column whose documents are values of one type, written and read by ``json_form``."""

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

    ``key``: the primary key's columns. ``indexed``: columns with an index of their own. ``part_of``: the noun whose
    deletion takes the rows along (`delete_parts`), named by the column ``{part_of}_id``. ``items`` and ``options`` are
    SQLAlchemy's: further constraints and indexes, settings of one database.
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
        """All columns, in the order of the record's fields."""
        self._record = record
        self._get = attrgetter(*self.names)
        self._insert = Prepared(sa.insert(self.table))
        if part_of is not None:
            _PARTS.setdefault(part_of, []).append(self.c[f"{part_of}_id"])

    def insert(self, conn: Connection, record: R) -> None:
        """Store a new row.

        Raises:
            IntegrityError: the key, or another value that must be unique, is taken.
        """
        self._insert.run(conn, **self.values(record))

    def values(self, record: R) -> dict[str, Any]:
        """Return a record's fields as the values of its columns."""
        return dict(zip(self.names, self._get(record), strict=True))

    def first(self, conn: Connection, query: Select[Any] | Prepared, **values: object) -> R | None:
        """Return the first record of a query that extends ``select``, None when it finds none.

        ``values``: those of the `parameter`s in it, by column.
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
    """Delete the rows of every table that is ``part_of`` a noun, of which ``ident`` is one."""
    for column in _PARTS[noun]:
        conn.execute(sa.delete(column.table).where(column == ident))


def _column(name: str, hint: Any, is_key: bool) -> Column[Any]:
    kind, nullable = _without_none(hint)
    return Column(name, _column_type(kind), primary_key=is_key, nullable=nullable, autoincrement=False)


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return the type that stands beside None, and whether None does."""
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
    """Say whether a type's values are JSON as they are."""
    if typing.get_origin(kind) in (dict, list):
        return all(_is_json(each) for each in typing.get_args(kind))
    return getattr(kind, "__supertype__", kind) in _JSON_TYPES

"""Prepared statements of hot paths: compiled once, run without SQLAlchemy's compiler, and in SQLite without SQLAlchemy.

The parameters of a prepared statement are named after the columns.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import (
    JSON,
    BindParameter,
    Column,
    Connection,
    CursorResult,
    Delete,
    Dialect,
    Insert,
    Select,
    TextClause,
    Update,
    bindparam,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TypeEngine

from agentic_rag.store.columns import Convert, document_text

T = TypeVar("T")

MOST_VALUES = 500
"""Values in one ``IN`` list. PostgreSQL's driver takes 32 767 parameters, and SQLite as many or, if older, 999."""

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


def in_parts(values: Iterable[T]) -> Iterator[list[T]]:
    """Yield the values of an ``IN`` list in parts of `MOST_VALUES`."""
    remaining = iter(values)
    while part := list(islice(remaining, MOST_VALUES)):
        yield part


def bind_values(values: Mapping[str, object]) -> dict[str, object]:
    """Return values by column as SQLAlchemy parameters, for a statement that uses `parameter`."""
    return {_PREFIX + name: value for name, value in values.items()}


class StatementCache(dict[Any, Any]):
    """Compiled statements that all engines of a dialect share: SQLAlchemy's execution option ``compiled_cache``.

    SQLAlchemy gives each engine its own cache. A process that opens many files (a rehearsed upgrade, a restore, the
    tests) would compile the same statements again for each of them, which takes a millisecond each. SQLAlchemy's keys
    begin with the dialect object; here they begin with its name. So the engines must be created with the same options.
    A full cache is cleared.
    """

    LIMIT = 1_000

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get((key[0].name, *key[1:]), default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        if len(self) >= self.LIMIT:
            self.clear()
        super().__setitem__((key[0].name, *key[1:]), compiled)


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
    encoded: list[tuple[int, str, Convert]] = field(default_factory=list)
    decoders: list[tuple[int, Convert]] = field(default_factory=list)

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


def _encoder(kind: TypeEngine[Any], dialect: Dialect) -> Convert | None:
    """Return the function that converts a value for the driver, or None if no conversion is needed."""
    if isinstance(kind, sa.Boolean) and dialect.name == "sqlite":
        return _BITS.get  # faster than SQLAlchemy's converter, which checks each value in two functions
    if type(kind) is JSON:  # none of our columns distinguishes NULL from a JSON null
        return document_text
    return kind.dialect_impl(dialect).bind_processor(dialect)

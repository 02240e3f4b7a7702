"""Statements of hot paths: compiled once, and for SQLite run past SQLAlchemy.

Owns the names of parameters, which are those of their columns, and the short way to SQLite. Knows no table and no noun.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Column, Connection, Insert, Select, TextClause, Update, bindparam
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler

_PREFIX = "of_"  # SQLAlchemy keeps the columns' own names for the parameters of SET to itself


def parameter(column: Column[Any]) -> BindParameter[Any]:
    """Return a value that is given when the statement runs, under the column's name and of its type."""
    return bindparam(_PREFIX + column.name, type_=column.type)


def sqlite_of(conn: Connection) -> sqlite3.Connection:
    """Return SQLite's own connection."""
    driver = conn.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def run_by_sqlite(conn: Connection, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
    """Run a statement past SQLAlchemy, whose way costs ten times what SQLite needs.

    Raises:
        DBAPIError: SQLAlchemy's, IntegrityError and so on, as for any other statement.
    """
    try:
        return sqlite_of(conn).execute(sql, parameters)
    except sqlite3.Error as exc:
        raise DBAPIError.instance(sql, None, exc, sqlite3.Error, dialect=conn.dialect) from exc


def named_values(values: Mapping[str, object]) -> dict[str, object]:
    """Return values by column as SQLAlchemy's parameters, for a statement that `parameter` was used in."""
    return {_PREFIX + name: value for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A statement as SQLite takes it: its text, its row of values, and which of them are given each time."""

    sql: str
    row: list[Any]
    given: list[tuple[int, str, Callable[[Any], Any] | None]]


class Prepared:
    """A statement of a hot path: for SQLite compiled once and then run by `run_by_sqlite`.

    Its values are given by the names of their columns: those of an INSERT, and what `parameter` made in others.
    """

    def __init__(self, statement: Insert | Update | Select[Any] | TextClause) -> None:
        self._statement = statement
        self._prefixed = not isinstance(statement, Insert | TextClause)
        self._compiled: _Compiled | None = None

    def run(self, conn: Connection, **values: object) -> int:
        """Run it and return how many rows it changed."""
        if conn.dialect.name != "sqlite":
            return conn.execute(self._statement, self._named(values)).rowcount
        return self._execute(conn, values).rowcount

    def first(self, conn: Connection, **values: object) -> Sequence[Any] | None:
        """Run it and return the first row, as the database has it: its columns hold text and numbers only."""
        if conn.dialect.name != "sqlite":
            return conn.execute(self._statement, self._named(values)).first()
        row: Sequence[Any] | None = self._execute(conn, values).fetchone()
        return row

    def _named(self, values: dict[str, object]) -> dict[str, object]:
        return named_values(values) if self._prefixed else values

    def _execute(self, conn: Connection, values: dict[str, object]) -> sqlite3.Cursor:
        compiled = self._compiled = self._compiled or self._compile(conn)
        row = compiled.row.copy()
        for place, name, encode in compiled.given:
            row[place] = values[name] if encode is None else encode(values[name])
        return run_by_sqlite(conn, compiled.sql, row)

    def _compile(self, conn: Connection) -> _Compiled:
        compiled = self._statement.compile(dialect=conn.dialect)
        assert isinstance(compiled, SQLCompiler)
        assert compiled.positiontup is not None
        result = _Compiled(compiled.string, [], [])
        for place, name in enumerate(compiled.positiontup):
            bind = compiled.binds[name]
            encode = bind.type.dialect_impl(conn.dialect).bind_processor(conn.dialect)
            if bind.required:
                result.row.append(None)
                result.given.append((place, name.removeprefix(_PREFIX) if self._prefixed else name, encode))
            else:
                result.row.append(bind.value if encode is None else encode(bind.value))
        return result

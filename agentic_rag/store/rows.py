"""How a record crosses the border between Python and a table: by column name, nothing else.

Owns the conversions that every noun's module uses, and the short way to SQLite for the statements of hot paths.
Knows no table, no query and no noun.
"""

import dataclasses
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, Connection, Insert, Select, Table, TextClause, Update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler


def names(record: type) -> tuple[str, ...]:
    """Return the field names of a dataclass."""
    return tuple(field.name for field in dataclasses.fields(record))


def columns(table: Table, record: type) -> list[Column[Any]]:
    """Return the columns a dataclass is built from."""
    return [table.c[name] for name in names(record)]


def values(record: object, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the named attributes of a record as the parameters of a statement."""
    return {name: getattr(record, name) for name in names}


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


class Prepared:
    """A statement of a hot path: for SQLite compiled once and then run by `run_by_sqlite`.

    ``parameters`` are the names of the values it is run with.
    """

    def __init__(self, statement: Insert | Update | Select[Any] | TextClause, parameters: Sequence[str]) -> None:
        self._statement = statement
        self._parameters = parameters
        self._sql = ""
        self._fields: list[tuple[str, Callable[[Any], Any] | None]] = []
        self._constants: dict[str, Any] = {}

    def run(self, conn: Connection, row: Mapping[str, Any]) -> int:
        """Run it and return how many rows it changed."""
        if conn.dialect.name != "sqlite":
            return conn.execute(self._statement, row).rowcount
        return self._execute(conn, row).rowcount

    def run_all(self, conn: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run it once for each row."""
        if conn.dialect.name == "sqlite":
            for row in rows:
                self._execute(conn, row)
        elif rows:
            conn.execute(self._statement, rows)

    def first(self, conn: Connection, row: Mapping[str, Any]) -> Sequence[Any] | None:
        """Run it and return the first row found; its columns hold text and numbers only."""
        if conn.dialect.name != "sqlite":
            return conn.execute(self._statement, row).first()
        found: Sequence[Any] | None = self._execute(conn, row).fetchone()
        return found

    def _execute(self, conn: Connection, row: Mapping[str, Any]) -> sqlite3.Cursor:
        if not self._sql:
            self._compile(conn)
        if self._constants:
            row = {**self._constants, **row}
        given = [row[name] if write is None else write(row[name]) for name, write in self._fields]
        return run_by_sqlite(conn, self._sql, given)

    def _compile(self, conn: Connection) -> None:
        compiled = self._statement.compile(dialect=conn.dialect, column_keys=list(self._parameters))
        assert isinstance(compiled, SQLCompiler)
        assert compiled.positiontup is not None
        types = {name: bind.type.dialect_impl(conn.dialect) for name, bind in compiled.binds.items()}
        self._constants = {name: bind.value for name, bind in compiled.binds.items() if name not in self._parameters}
        self._fields = [(name, types[name].bind_processor(conn.dialect)) for name in compiled.positiontup]
        self._sql = compiled.string

"""Tables of any version as rows of values, in a format common to both databases.

A row is a list of text, numbers, flags and None, in the order of the table's columns. A JSON document is its stored
text, and bytes are base64. No record class is used, so that tables of an older version can be read and written too. All
functions take a connection.
"""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection, inspect, text
from sqlalchemy.types import TypeEngine

from agentic_rag.store import message_texts
from agentic_rag.store.record import METADATA
from agentic_rag.store.statements import run_by_sqlite, sqlite_of

VERSIONS = "alembic_version"
FORMER: frozenset[str] = frozenset()
"""Tables that only older versions have; a migration that drops a table adds its name here."""
ROWS = 500
"""Number of rows held in memory."""

T_co = TypeVar("T_co", covariant=True)
Value = str | int | float | bool | None
Row = Sequence[Value]


class Work(Protocol[T_co]):
    """A function that works on the whole database in one transaction. It blocks without a time limit."""

    def __call__(self, conn: Connection, /) -> T_co: ...


class ValueKind(StrEnum):
    """The kind of value in a column."""

    TEXT = "text"
    INTEGER = "integer"
    FLOAT = "float"
    FLAG = "flag"
    BYTES = "bytes"
    JSON = "json"


_TYPES: dict[ValueKind, type[TypeEngine[Any]]] = {
    ValueKind.TEXT: sa.String,
    ValueKind.INTEGER: sa.BigInteger,
    ValueKind.FLOAT: sa.Double,
    ValueKind.FLAG: sa.Boolean,
    ValueKind.BYTES: sa.LargeBinary,
    ValueKind.JSON: sa.String,
}


@dataclass(frozen=True, slots=True)
class RawColumn:
    """A column's name and kind."""

    name: str
    kind: ValueKind


@dataclass(frozen=True, slots=True)
class RawTable:
    """A table; ``key`` lists the columns of its primary key, which is the order in which rows are read."""

    name: str
    columns: tuple[RawColumn, ...]
    key: tuple[str, ...]


def list_tables(conn: Connection) -> list[RawTable]:
    """Return the product's existing tables by name; other tables in the database are ignored."""
    inspector = inspect(conn)
    there = set(inspector.get_table_names()) & (set(METADATA.tables) | FORMER)
    tables = []
    for name in sorted(there):
        columns = [RawColumn(column["name"], _kind_of(column["type"])) for column in inspector.get_columns(name)]
        key = inspector.get_pk_constraint(name)["constrained_columns"]
        tables.append(RawTable(name, tuple(sorted(columns, key=lambda column: column.name)), tuple(key)))
    return tables


def _kind_of(column: TypeEngine[Any]) -> ValueKind:
    for kind, of in (
        (ValueKind.JSON, sa.JSON),
        (ValueKind.FLAG, sa.Boolean),
        (ValueKind.BYTES, sa.LargeBinary),
        (ValueKind.INTEGER, sa.Integer),
        (ValueKind.FLOAT, sa.Numeric),
    ):
        if isinstance(column, of):
            return kind
    return ValueKind.TEXT


def count_rows(conn: Connection, name: str) -> int:
    """Return the number of rows of a table."""
    return int(conn.execute(text(f"SELECT count(*) FROM {_quote(name)}")).scalar_one())


def read_rows(conn: Connection, table: RawTable) -> Iterator[Row]:
    """Yield a table's rows by key, `ROWS` of them in memory; both databases sort text by its bytes."""
    postgresql = conn.dialect.name == "postgresql"
    columns = ", ".join(
        f"{_quote(column.name)}::text" if postgresql and column.kind is ValueKind.JSON else _quote(column.name)
        for column in table.columns
    )
    kinds = {column.name: column.kind for column in table.columns}
    order = ", ".join(
        _quote(name) + (' COLLATE "C"' if postgresql and kinds[name] is ValueKind.TEXT else "") for name in table.key
    )
    query = f"SELECT {columns} FROM {_quote(table.name)} ORDER BY {order}"
    forms = [_FORMS[column.kind] for column in table.columns]
    if postgresql:
        result = conn.execute(text(query), execution_options={"stream_results": True, "max_row_buffer": ROWS})
        for part in result.partitions(ROWS):
            for row in part:
                yield [form.write(value) for form, value in zip(forms, row, strict=True)]
        return
    cursor = run_by_sqlite(conn, query)
    while rows := cursor.fetchmany(ROWS):
        for row in rows:
            yield [form.write(value) for form, value in zip(forms, row, strict=True)]


def insert_rows(conn: Connection, table: RawTable, rows: Sequence[Row]) -> None:
    """Store rows that `read_rows` returned, from either database."""
    forms = [_FORMS[column.kind] for column in table.columns]
    values = [[form.read(value) for form, value in zip(forms, row, strict=True)] for row in rows]
    columns = ", ".join(_quote(column.name) for column in table.columns)
    if conn.dialect.name == "postgresql":
        places = ", ".join(
            f"CAST(:p{number} AS json)" if column.kind is ValueKind.JSON else f":p{number}"
            for number, column in enumerate(table.columns)
        )
        binds = [sa.bindparam(f"p{number}", type_=_TYPES[column.kind]()) for number, column in enumerate(table.columns)]
        statement = text(f"INSERT INTO {_quote(table.name)} ({columns}) VALUES ({places})").bindparams(*binds)
        conn.execute(statement, [{f"p{number}": value for number, value in enumerate(row)} for row in values])
        return
    places = ", ".join("?" for _ in table.columns)
    sqlite_of(conn).executemany(f"INSERT INTO {_quote(table.name)} ({columns}) VALUES ({places})", values)


def drop_tables(conn: Connection) -> None:
    """Drop the product's tables, so that those of another version can be created."""
    index = [message_texts.INDEX] if conn.dialect.name == "sqlite" else []
    for name in [*index, *(table.name for table in list_tables(conn)), VERSIONS]:
        conn.execute(text(f"DROP TABLE IF EXISTS {_quote(name)}"))


def delete_rows(conn: Connection, table: RawTable) -> None:
    """Delete the rows of a table, to remove those that a migration inserted."""
    conn.execute(text(f"DELETE FROM {_quote(table.name)}"))


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class _Form:
    """Converts values of one kind from and to a database."""

    def __init__(self, kind: ValueKind) -> None:
        self._kind = kind

    def write(self, value: object) -> Value:
        if value is None:
            return None
        if self._kind is ValueKind.FLAG:
            return bool(value)
        if isinstance(value, bytes):
            return base64.b64encode(value).decode("ascii")
        assert isinstance(value, str | int | float)
        return value

    def read(self, value: Value) -> object:
        if self._kind is ValueKind.BYTES and isinstance(value, str):
            return base64.b64decode(value, validate=True)
        return float(value) if self._kind is ValueKind.FLOAT and value is not None else value


_FORMS = {kind: _Form(kind) for kind in ValueKind}

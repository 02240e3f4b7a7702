"""Tables of dataclasses, for the nouns that are not yet records of ``record``."""

import typing
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy import Column, Connection, Index, Select, Table
from sqlalchemy.schema import SchemaItem

from agentic_rag.store.columns import BigInt, EnumText, JsonDocument, column_type, without_none
from agentic_rag.store.record import _PARTS, METADATA, delete_parts
from agentic_rag.store.statements import Prepared, bind_values, parameter, run_by_sqlite, sqlite_of

__all__ = [
    "METADATA",
    "BigInt",
    "EnumText",
    "JsonDocument",
    "Prepared",
    "RecordTable",
    "delete_parts",
    "parameter",
    "run_by_sqlite",
    "sqlite_of",
]

R = TypeVar("R")


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

    def values(self, record: R) -> dict[str, object]:
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


def _column(name: str, hint: Any, is_key: bool) -> Column[Any]:
    kind, nullable = without_none(hint)
    return Column(name, column_type(kind), primary_key=is_key, nullable=nullable, autoincrement=False)

"""How a record crosses the border between Python and a table: by column name, nothing else.

Owns the conversions that every noun's module uses. Knows no table, no query and no noun.
"""

import dataclasses
from typing import Any

from sqlalchemy import Column, Table


def names(record: type) -> tuple[str, ...]:
    """Return the field names of a dataclass."""
    return tuple(field.name for field in dataclasses.fields(record))


def columns(table: Table, record: type) -> list[Column[Any]]:
    """Return the columns a dataclass is built from."""
    return [table.c[name] for name in names(record)]


def values(record: object, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the named attributes of a record as the parameters of a statement."""
    return {name: getattr(record, name) for name in names}

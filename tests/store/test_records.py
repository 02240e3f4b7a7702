"""A record class is its table: what becomes of each type of field, and that every value comes back."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NewType

import pytest
from sqlalchemy import JSON, Boolean, Float, Integer, LargeBinary, String, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.types import TypeEngine

from agentic_rag.store.database import Database
from agentic_rag.store.records import METADATA, EnumText, JsonDocument, Prepared, RecordTable, delete_parts, parameter

WidgetId = NewType("WidgetId", str)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Place:
    first_row: int
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WidgetRecord:
    id: WidgetId
    box_id: str
    colour: Colour = Colour.RED
    side: Literal["left", "right"] = "left"
    weight: float = 0.5
    whole: bool = True
    data: bytes = b"\0\xff"
    place: Place | None = None
    places: tuple[Place, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    free: dict[str, Any] = field(default_factory=dict)
    at: int | None = None


WIDGETS = RecordTable(WidgetRecord, "test_widgets", indexed=("colour",), part_of="box")
METADATA.remove(WIDGETS.table)  # the migrations know nothing of it
_c = WIDGETS.c


def _whole(ident: str, box: str = "box_1") -> WidgetRecord:
    return WidgetRecord(
        id=WidgetId(ident),
        box_id=box,
        colour=Colour.BLUE,
        side="right",
        weight=1.25,
        whole=False,
        data=b"x",
        place=Place(3),
        places=(Place(1, "a"), Place(2)),
        counts={"a": 1},
        free={"kept_as_it_is": [None, 2**70]},
        at=7,
    )


@pytest.mark.parametrize(
    ("name", "kind", "nullable"),
    [
        ("id", String, False),
        ("colour", EnumText, False),
        ("side", String, False),
        ("weight", Float, False),
        ("whole", Boolean, False),
        ("data", LargeBinary, False),
        ("place", JsonDocument, True),
        ("places", JsonDocument, False),
        ("counts", JsonDocument, False),
        ("free", JSON, False),
        ("at", Integer, True),
    ],
)
def test_a_fields_type_decides_its_column(name: str, kind: type[TypeEngine[Any]], nullable: bool) -> None:
    column = _c[name]
    assert type(column.type) is kind
    assert (column.nullable, column.primary_key) == (nullable, name == "id")


@pytest.fixture
async def widgets(database: Database) -> AsyncIterator[Database]:
    """A database of each kind that has the table for as long as the test runs."""
    await database.write(WIDGETS.table.create)
    try:
        yield database
    finally:
        await database.write(WIDGETS.table.drop)


async def test_what_is_stored_comes_back_equal_whatever_its_type(widgets: Database) -> None:
    small = WidgetRecord(id=WidgetId("w_2"), box_id="box_1")
    for record in (_whole("w_1"), small):
        await widgets.write(lambda conn, record=record: WIDGETS.insert(conn, record))  # type: ignore[misc]
    query = WIDGETS.select.order_by(_c.id)
    records = await widgets.read(lambda conn: WIDGETS.all(conn, query))
    assert records == [_whole("w_1"), small]
    assert type(records[0].colour) is Colour
    assert await widgets.read(lambda conn: WIDGETS.first(conn, query.where(_c.colour == Colour.BLUE))) == records[0]
    assert await widgets.read(lambda conn: WIDGETS.first(conn, query.where(_c.place.is_(None)))) == small
    assert await widgets.read(lambda conn: WIDGETS.first(conn, query.where(_c.id == "w_9"))) is None
    with pytest.raises(IntegrityError):
        await widgets.write(lambda conn: WIDGETS.insert(conn, small))


async def test_documents_are_stored_in_camel_case(sqlite: Database) -> None:
    await sqlite.write(WIDGETS.table.create)
    await sqlite.write(lambda conn: WIDGETS.insert(conn, _whole("w_1")))
    sql = "SELECT colour, place, counts, free FROM test_widgets"
    row = await sqlite.read(lambda conn: tuple(conn.exec_driver_sql(sql).one()))
    assert row == ("blue", '{"firstRow":3,"note":null}', '{"a":1}', f'{{"kept_as_it_is": [null, {2**70}]}}')


async def test_a_prepared_statement_takes_its_values_by_column(widgets: Database) -> None:
    await widgets.write(lambda conn: WIDGETS.insert(conn, _whole("w_1")))
    # a constant and a parameter of one column, in SET and in WHERE
    change = update(WIDGETS.table).where(
        _c.id == parameter(_c.id), _c.colour == parameter(_c.colour), _c.side == "right"
    )
    paint = Prepared(change.values(colour=Colour.RED, place=parameter(_c.place), side="left", at=None))
    values = {"id": "w_1", "colour": Colour.BLUE, "place": Place(9)}
    assert [await widgets.write(lambda conn: paint.run(conn, **values)) for _ in range(2)] == [1, 0]
    painted = await widgets.read(lambda conn: WIDGETS.first(conn, WIDGETS.select))
    assert painted is not None
    assert (painted.colour, painted.place, painted.side, painted.at) == (Colour.RED, Place(9), "left", None)


async def test_a_deletion_takes_the_parts_of_one_noun_only(widgets: Database) -> None:
    for ident, box in (("w_1", "box_1"), ("w_2", "box_1"), ("w_3", "box_2")):
        await widgets.write(lambda conn, ident=ident, box=box: WIDGETS.insert(conn, _whole(ident, box)))  # type: ignore[misc]
    await widgets.write(lambda conn: delete_parts(conn, "box", "box_1"))
    assert [each.id for each in await widgets.read(lambda conn: WIDGETS.all(conn, WIDGETS.select))] == ["w_3"]

"""A record class is its table: every type of field is stored and loaded unchanged."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NewType

import pytest
from sqlalchemy import JSON, Boolean, Float, Integer, LargeBinary, String, create_engine, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.types import TypeEngine
from sqlmodel import Field, Session
from sqlmodel import select as session_select

from agentic_rag.store.columns import EnumText, Indexed, JsonDocument, Key
from agentic_rag.store.database import Database
from agentic_rag.store.record import METADATA, Record, delete_parts
from agentic_rag.store.statements import Prepared, parameter

WidgetId = NewType("WidgetId", str)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Place:
    first_row: int
    note: str | None = None


class WidgetRecord(Record, table=True):
    __tablename__ = "test_widgets"
    part_of = "box"

    id: Key[WidgetId]
    box_id: str
    colour: Indexed[Colour] = Colour.RED
    side: Literal["left", "right"] = "left"
    weight: float = 0.5
    whole: bool = True
    data: bytes = b"\0\xff"
    place: Place | None = None
    places: tuple[Place, ...] = ()
    counts: Mapping[str, int] = Field(default_factory=dict)
    free: dict[str, Any] = Field(default_factory=dict)
    at: int | None = None


WIDGETS = WidgetRecord.__table__
METADATA.remove(WIDGETS)  # the migrations do not know it
_c = WIDGETS.c


def _make_widget(ident: str, box: str = "box_1") -> WidgetRecord:
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
    """A database of each kind that has the table while the test runs."""
    await database.write(WIDGETS.create)
    try:
        yield database
    finally:
        await database.write(WIDGETS.drop)


async def test_values_of_every_type_are_read_as_stored(widgets: Database) -> None:
    small = WidgetRecord(id=WidgetId("w_2"), box_id="box_1")
    for record in (_make_widget("w_1"), small):
        await widgets.write(lambda conn, record=record: record.insert(conn))  # type: ignore[misc]
    query = select(WIDGETS).order_by(_c.id)
    records = await widgets.read(lambda conn: WidgetRecord.all(conn, query))
    assert records == [_make_widget("w_1"), small]
    assert type(records[0].colour) is Colour
    assert (
        await widgets.read(lambda conn: WidgetRecord.first(conn, query.where(_c.colour == Colour.BLUE))) == records[0]
    )
    assert await widgets.read(lambda conn: WidgetRecord.first(conn, query.where(_c.place.is_(None)))) == small
    assert await widgets.read(lambda conn: WidgetRecord.first(conn, query.where(_c.id == "w_9"))) is None
    with pytest.raises(IntegrityError):
        await widgets.write(lambda conn: small.insert(conn))


async def test_documents_are_stored_in_camel_case(sqlite: Database) -> None:
    await sqlite.write(WIDGETS.create)
    await sqlite.write(lambda conn: _make_widget("w_1").insert(conn))
    sql = "SELECT colour, place, counts, free FROM test_widgets"
    row = await sqlite.read(lambda conn: tuple(conn.exec_driver_sql(sql).one()))
    assert row == ("blue", '{"firstRow":3,"note":null}', '{"a":1}', f'{{"kept_as_it_is": [null, {2**70}]}}')


async def test_a_prepared_statement_takes_its_values_by_column(widgets: Database) -> None:
    await widgets.write(lambda conn: _make_widget("w_1").insert(conn))
    # a constant and a parameter of one column, in SET and in WHERE
    change = update(WIDGETS).where(_c.id == parameter(_c.id), _c.colour == parameter(_c.colour), _c.side == "right")
    paint = Prepared(change.values(colour=Colour.RED, place=parameter(_c.place), side="left", at=None))
    values = {"id": "w_1", "colour": Colour.BLUE, "place": Place(9)}
    assert [await widgets.write(lambda conn: paint.run(conn, **values)) for _ in range(2)] == [1, 0]
    painted = await widgets.read(lambda conn: WidgetRecord.first(conn, select(WIDGETS)))
    assert painted is not None
    assert (painted.colour, painted.place, painted.side, painted.at) == (Colour.RED, Place(9), "left", None)


async def test_a_deletion_removes_the_parts_of_one_record_only(widgets: Database) -> None:
    for ident, box in (("w_1", "box_1"), ("w_2", "box_1"), ("w_3", "box_2")):
        await widgets.write(lambda conn, ident=ident, box=box: _make_widget(ident, box).insert(conn))  # type: ignore[misc]
    await widgets.write(lambda conn: delete_parts(conn, "box", "box_1"))
    assert [widget.id for widget in await widgets.read(lambda conn: WidgetRecord.all(conn, select(WIDGETS)))] == ["w_3"]


def test_a_record_has_exactly_its_fields_and_is_immutable() -> None:
    record = _make_widget("w_1")
    with pytest.raises(TypeError, match=r"WidgetRecord lacks \['box_id'\]"):
        WidgetRecord(id=WidgetId("w_1"))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"WidgetRecord has no field \['shape'\]"):
        WidgetRecord(id=WidgetId("w_1"), box_id="box_1", shape="round")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"WidgetRecord has no field \['shape'\]"):
        record.replace(shape="round")
    with pytest.raises(AttributeError, match=r"WidgetRecord\.weight cannot be assigned"):
        record.weight = 3.0  # type: ignore[misc]
    assert record == _make_widget("w_1")


def test_a_replaced_field_leaves_the_original_record_unchanged() -> None:
    record = _make_widget("w_1")
    replaced = record.replace(weight=9.0)
    assert (record.weight, replaced.weight) == (1.25, 9.0)
    assert replaced != record
    assert replaced.replace(weight=1.25) == record
    first_widget, second_widget = (WidgetRecord(id=WidgetId(ident), box_id="box_1") for ident in ("w_1", "w_2"))
    assert first_widget.free is not second_widget.free, "each record has its own default value"


def test_a_sqlmodel_session_stores_and_queries_records() -> None:
    engine = create_engine("sqlite://")
    WIDGETS.create(engine)
    with Session(engine) as session:
        session.add(_make_widget("w_1"))
        session.commit()
        loaded = session.exec(session_select(WidgetRecord).where(WidgetRecord.colour == Colour.BLUE)).one()
        assert loaded == _make_widget("w_1")
        session.commit()  # expires the objects that the session has loaded
        assert loaded.weight == 1.25, "an expired value is read again"
    engine.dispose()

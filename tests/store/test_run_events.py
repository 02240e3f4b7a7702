"""The run log's rows: adjacent events share a row, and no reader sees a difference."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, func, select
from sqlalchemy.exc import IntegrityError

from agentic_rag.base.ids import TurnId
from agentic_rag.store import run_events
from agentic_rag.store.database import Database
from agentic_rag.store.run_events import EventBatch
from tests.store.logged import Logged, batches


def count_rows(conn: Connection) -> int:
    return conn.execute(select(func.count()).select_from(run_events.RUN_EVENTS)).scalar_one()


async def test_adjacent_items_stored_together_share_a_row(database: Database) -> None:
    events = [*(("turn_1", seq, b"%d" % seq) for seq in (1, 2, 3, 70, 71)), ("turn_2", 1, b"other")]
    await database.write(lambda conn: run_events.append(conn, batches(*events)))
    assert await database.read(count_rows) == 3
    assert await database.read(lambda conn: run_events.read(conn, TurnId("turn_1"), 0, 10)) == [
        (seq, b"%d" % seq) for seq in (1, 2, 3, 70, 71)
    ]


async def test_a_group_of_deltas_can_be_read_from_its_middle(database: Database) -> None:
    payloads = [b"", b"\n", bytes(range(256)), b"x" * 100_000]
    await database.write(lambda conn: run_events.append(conn, [EventBatch("turn_1", 5, payloads)]))
    for after in range(4, 9):
        events = await database.read(lambda conn, after=after: run_events.read(conn, TurnId("turn_1"), after, 10))  # type: ignore[misc]
        assert events == [(5 + index, payload) for index, payload in enumerate(payloads)][after - 4 :]
    assert await database.read(lambda conn: run_events.last_seq(conn, TurnId("turn_1"))) == 8


async def test_short_events_are_stored_compactly_and_read_completely(database: Database) -> None:
    short = [b'text 5,"text":"a"}', b'{"type":"done"}', b'text 7,"text":"}"}']
    complete = [
        b'{"type":"text","conversationId":"conv_1","turnId":"turn_1","seq":5,"text":"a"}',
        b'{"type":"done"}',
        b'{"type":"text","conversationId":"conv_1","turnId":"turn_1","seq":7,"text":"}"}',
    ]
    await database.write(lambda conn: run_events.append(conn, [EventBatch("turn_1", 5, short, "conv_1")]))
    events = await database.read(lambda conn: run_events.read(conn, TurnId("turn_1"), 4, 10))
    assert events == [*enumerate(complete, 5)]
    packed = await database.read(lambda conn: conn.execute(select(run_events.RUN_EVENTS.c.payload)).scalar_one())
    assert run_events.unpack(3, packed) == (short, b"conv_1")


async def test_a_delta_group_that_overlaps_a_stored_end_is_refused(database: Database) -> None:
    await database.write(lambda conn: run_events.append(conn, [EventBatch("turn_1", 1, [b"x", b"x"])]))
    with pytest.raises(IntegrityError):
        await database.write(lambda conn: run_events.append(conn, batches(("turn_2", 1, b"y"), ("turn_1", 2, b"y"))))
    assert await database.read(count_rows) == 1


@given(
    numbers=st.lists(st.integers(1, 400), unique=True, min_size=1, max_size=60).map(sorted),
    cuts=st.sets(st.integers(0, 60)),
)
def test_any_split_into_groups_packs_and_unpacks_to_the_same_events(numbers: list[int], cuts: set[int]) -> None:
    events: list[Logged] = [("turn_1", seq, b"%d" % seq * (seq % 7)) for seq in numbers]
    bounds = sorted({0, len(events), *(cut for cut in cuts if cut < len(events))})
    stored_batches = [batch for start, end in pairwise(bounds) for batch in batches(*events[start:end])]
    unpacked: list[tuple[int, bytes]] = []
    for batch in stored_batches:
        group, rest = run_events.unpack(len(batch.events), run_events.pack(batch.events) + b"conv_1")
        assert rest == b"conv_1"
        unpacked += enumerate(group, batch.first)
    assert unpacked == [(seq, payload) for _, seq, payload in events]
    assert [batch.last for batch in stored_batches] == sorted(batch.last for batch in stored_batches)

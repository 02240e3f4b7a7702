"""Groups of the run log as records that several turns share, and their conversion to rows of their turns."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError

from agentic_rag.base.ids import TurnId
from agentic_rag.runtime.log.groups import AT_ONCE, GROUPS, Groups
from agentic_rag.store import run_events, run_groups
from agentic_rag.store.database import Database
from agentic_rag.store.run_events import EventBatch
from tests.store.logged import Logged, batches
from tests.store.records import turn


async def add_turns(database: Database, *names: str) -> None:
    for name in names:
        await database.write(turn(name).insert)


async def read(database: Database, name: str) -> list[tuple[int, bytes]]:
    return await database.read(lambda conn: run_events.read(conn, TurnId(name), 0, 10_000))


async def count(database: Database) -> int:
    query = select(func.count()).select_from(run_groups.RUN_GROUPS)
    return await database.read(lambda conn: conn.execute(query).scalar_one())


async def test_groups_left_by_a_dead_process_become_rows_once(database: Database) -> None:
    await add_turns(database, "turn_1", "turn_2")
    groups: list[list[Logged]] = [
        [("turn_1", 1, b"{a}"), ("turn_1", 2, b'text 2,"text":"short"}'), ("turn_2", 1, b"{}")],
        [("turn_1", 3, b"{c}"), ("turn_gone", 1, b"deleted meanwhile")],
        [("turn_1", 4, b"{d}"), ("turn_2", 2, b"{" + bytes(range(256)))],
    ]
    for number, events in enumerate(groups):
        await database.write(partial(run_groups.add, group=number, batches=batches(*events)))
    stored_events = [*groups[0][:2], groups[1][0]]  # by its turn, while another one still needed the records
    rows = [batch._replace(conversation_id="conv_1") for batch in batches(*stored_events)]
    await database.write(partial(run_events.append, batches=rows))

    assert await database.write(run_groups.settle) == 3
    second_event = b'{"type":"text","conversationId":"conv_1","turnId":"turn_1","seq":2,"text":"short"}'
    assert await read(database, "turn_1") == [(1, b"{a}"), (2, second_event), (3, b"{c}"), (4, b"{d}")]
    assert await read(database, "turn_2") == [(1, b"{}"), (2, b"{" + bytes(range(256)))]
    assert await read(database, "turn_gone") == []
    assert await count(database) == 0
    assert await database.write(run_groups.settle) == 0


async def test_a_record_exists_until_the_records_before_another_are_deleted(database: Database) -> None:
    for number in (5, 6, 9):
        await database.write(partial(run_groups.add, group=number, batches=[EventBatch("turn_1", number, [b"x"])]))
    with pytest.raises(IntegrityError):
        await database.write(partial(run_groups.add, group=9, batches=[]))
    await database.write(partial(run_groups.drop_before, group=9))
    are_stored = [await database.read(partial(run_groups.is_there, group=number)) for number in (5, 6, 9)]
    assert are_stored == [False, False, True]


async def test_a_long_run_of_adjacent_passages_is_several_rows(database: Database) -> None:
    most = run_events.MOST
    await database.write(partial(run_events.append, batches=[EventBatch("turn_1", 1, [b"x"] * (2 * most + 1))]))
    assert [seq for seq, _ in await read(database, "turn_1")] == list(range(1, 2 * most + 2))
    query = select(run_events.RUN_EVENTS.c.last_seq).order_by(run_events.RUN_EVENTS.c.last_seq)
    rows = await database.read(lambda conn: conn.execute(query).scalars().all())
    assert rows == [most, 2 * most, 2 * most + 1]


@given(st.lists(st.tuples(st.lists(st.integers(0, 9), unique=True), st.sets(st.integers(0, 9))), max_size=400))
def test_no_needed_record_is_deleted_and_none_is_needed_for_long(
    steps: list[tuple[list[int], set[int]]],
) -> None:
    groups: Groups[int] = Groups()
    needs: dict[int, list[int]] = {}
    group_numbers: list[int] = []
    for writing, ending in steps:
        due = groups.due()
        number = groups.begin(writing)
        oldest_needed = min(groups.needed_without(due), number)
        for log in due:
            needs[log] = []
            groups.settle(log, group=number if log in writing else None)
        for log in writing:
            needs.setdefault(log, []).append(number)
        group_numbers = [group_number for group_number in [*group_numbers, number] if group_number >= oldest_needed]
        groups.drop(oldest_needed)
        for log in ending:
            oldest_needed = groups.needed_without((log,))
            groups.settle(log)
            groups.drop(oldest_needed)
            needs[log] = []
            group_numbers = [group_number for group_number in group_numbers if group_number >= oldest_needed]
        for numbers in needs.values():
            assert set(numbers) <= set(group_numbers)
            assert not numbers or numbers[0] >= number - GROUPS - 2  # of ten that are due at the same time, two wait
        assert groups.left_over == (bool(group_numbers) and not any(needs.values()))


def test_some_due_turns_are_settled_with_each_record() -> None:
    groups: Groups[int] = Groups()
    for _ in range(GROUPS + 1):
        groups.begin(range(160))
    assert groups.due() == list(range(AT_ONCE + 10))

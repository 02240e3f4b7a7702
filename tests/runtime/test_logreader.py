"""Readers of a running turn: pushed to while they keep up, and served from the log otherwise."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random

import anyio
import anyio.lowlevel
import pytest
from sqlalchemy import func, select

from agentic_rag.base.errors import StorageFull
from agentic_rag.base.events import AgentEvent, EventBody, IterationStart, Text, Thinking
from agentic_rag.base.ids import ConversationId, TurnId
from agentic_rag.runtime.log.fanout import InProcessFanout
from agentic_rag.runtime.log.groups import GROUPS
from agentic_rag.runtime.log.mirror import Mirror
from agentic_rag.runtime.log.reader import LogReader
from agentic_rag.runtime.log.remote_logs import RemoteLogs
from agentic_rag.runtime.log.runlog import GROUP_EVENTS, MAX_UNJOURNALLED, TAIL_EVENTS, Journal, RunLog
from agentic_rag.store import run_events, run_groups
from agentic_rag.store.database import Database
from agentic_rag.store.run_events import EventBatch
from tests.databases import POSTGRESQL
from tests.runtime.log_rig import DONE, Desk, open_desk
from tests.store.records import turn

needs_groups = pytest.mark.skipif(POSTGRESQL, reason="PostgreSQL takes a group as rows")


async def read_all(
    reader: LogReader, push: Callable[[Sequence[AgentEvent]], int] | None, received: list[AgentEvent]
) -> None:
    """Read to the end; ``push`` adds to ``received`` itself."""
    while events := await reader.next(push):
        received.extend(events)


async def write(desk: Desk, bodies: Sequence[EventBody]) -> None:
    for body in bodies:
        await desk.log.wait_for_room()
        desk.log.append(body)
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("seed", range(12))
async def test_readers_at_any_pace_get_every_event_once(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    bodies = [random.choice((Text("a"), Thinking("b"), IterationStart(2))) for _ in range(300)]

    async with open_desk(tmp_path) as desk, anyio.create_task_group() as readers:
        received: list[list[AgentEvent]] = [[] for _ in range(5)]
        starts = [0, 0, 3, 100, 301]

        def push_at_random(events_of_reader: list[AgentEvent]) -> Callable[[Sequence[AgentEvent]], int]:
            def push(events: Sequence[AgentEvent]) -> int:
                count = random.randint(0, len(events))
                events_of_reader.extend(events[:count])
                return count

            return push

        for index, (events_of_reader, start) in enumerate(zip(received, starts, strict=True)):
            readers.start_soon(
                read_all, desk.reader(start), push_at_random(events_of_reader) if index else None, events_of_reader
            )
        await write(desk, bodies)
        await desk.end()
    for events_of_reader, start in zip(received, starts, strict=True):
        assert [event.seq for event in events_of_reader] == list(range(start + 1, len(bodies) + 2))
    assert [event.type for event in received[0]] == [*(body.type for body in bodies), "done"]


async def test_a_delta_is_pushed_before_its_append_returns_and_wakes_no_reader(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as desk, anyio.create_task_group() as readers:
        pushed_numbers: list[int] = []
        returned_events: list[AgentEvent] = []

        def push(events: Sequence[AgentEvent]) -> int:
            pushed_numbers.extend(event.seq for event in events)
            return len(events)

        readers.start_soon(read_all, desk.reader(), push, returned_events)
        await anyio.wait_all_tasks_blocked()
        desk.log.append(Text("one"))
        assert pushed_numbers == [1]
        desk.log.append(IterationStart(1))
        assert pushed_numbers == [1]  # not durable yet
        await desk.end()
        assert pushed_numbers == [1, 2, 3]
    assert returned_events == []


async def test_events_not_taken_by_a_push_are_returned_at_once(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as desk:
        reader, returned = desk.reader(), anyio.Event()

        async def read_once() -> None:
            events = await reader.next(lambda events: 0)
            assert [event.seq for event in events] == [1]
            returned.set()

        async with anyio.create_task_group() as readers:
            readers.start_soon(read_once)
            await anyio.wait_all_tasks_blocked()
            desk.log.append(Text("one"))
            await returned.wait()


async def test_a_push_that_fails_ends_its_reader_and_not_the_turn(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as desk:
        other_events: list[AgentEvent] = []
        failures: list[Exception] = []

        def push_with_error(events: Sequence[AgentEvent]) -> int:
            raise ValueError("a bug in an encoder")

        async def read_with_error() -> None:
            try:
                await desk.reader().next(push_with_error)
            except ValueError as exc:
                failures.append(exc)

        async with anyio.create_task_group() as readers:
            readers.start_soon(read_all, desk.reader(), None, other_events)
            readers.start_soon(read_with_error)
            await anyio.wait_all_tasks_blocked()
            desk.log.append(Text("one"))
            await desk.end()
        assert [event.seq for event in other_events] == [1, 2]
        assert len(failures) == 1


async def test_a_stop_between_two_groups_leaves_only_whole_delivered_groups(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as desk:
        received: list[AgentEvent] = []
        async with anyio.create_task_group() as readers:
            readers.start_soon(read_all, desk.reader(), None, received)
            await write(desk, [Text(f"part {n}") for n in range(5 * GROUP_EVENTS)])
            await anyio.wait_all_tasks_blocked()
            readers.cancel_scope.cancel()
        await desk.database.write(run_groups.settle)  # as the next start does
        stored_events = await desk.database.read(lambda conn: run_events.read(conn, TurnId("turn_test"), 0, 1000))
        delivered_events = [(event.seq, event.data) for event in received]
        assert stored_events == delivered_events[: len(stored_events)]
        assert len(stored_events) >= len(delivered_events) - MAX_UNJOURNALLED


async def test_a_log_refused_by_the_store_is_not_written_further(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as desk:
        failed_log, other_log = desk.log, RunLog(desk.journal, ConversationId("conv_test"), TurnId("turn_other"))
        failed_log.append(Text("lost"))
        failed_log.take_batch()
        failed_log.fail_batch(StorageFull("disk full"))
        failed_log.append(IterationStart(1))  # if it were stored, the log would have an unnamed gap
        with pytest.raises(StorageFull):
            await failed_log.commit([DONE], lambda conn: None)
        other_log.append(IterationStart(1))
        desk.journal.add(other_log)
        await read_one(LogReader(desk.journal, TurnId("turn_other")))
        await desk.database.write(run_groups.settle)
        assert await desk.database.read(lambda conn: run_events.last_seq(conn, TurnId("turn_other"))) == 1
        assert await desk.database.read(lambda conn: run_events.last_seq(conn, TurnId("turn_test"))) == 0


async def count_groups(desk: Desk) -> int:
    query = select(func.count()).select_from(run_groups.RUN_GROUPS)
    return await desk.database.read(lambda conn: conn.execute(query).scalar_one())


@needs_groups
async def test_a_late_reader_gets_events_that_are_not_stored_yet(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as desk, anyio.create_task_group() as readers:
        while desk.log.last < TAIL_EVENTS + 1000:  # in few groups, all recent enough to be unsettled
            await desk.log.wait_for_room()
            desk.log.append(Text("x"))
        assert await desk.database.read(lambda conn: run_events.last_seq(conn, TurnId("turn_test"))) == 0
        received: list[AgentEvent] = []
        readers.start_soon(read_all, desk.reader(), None, received)
        await anyio.wait_all_tasks_blocked()
        await desk.end()
    assert [event.seq for event in received] == list(range(1, desk.log.last + 1))


@needs_groups
async def test_a_silent_turn_is_settled_and_nothing_remains_after_all_ended(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as desk:
        silent_log = RunLog(desk.journal, ConversationId("conv_test"), TurnId("turn_other"))
        desk.journal.add(silent_log)
        silent_log.append(Text("a word"))
        for number in range(2 * GROUPS):
            desk.log.append(IterationStart(number))  # each is a group
            while desk.log.journalled < desk.log.last:
                await anyio.lowlevel.checkpoint()
        stored_events = await desk.database.read(lambda conn: run_events.read(conn, TurnId("turn_other"), 0, 10))
        assert [seq for seq, _ in stored_events] == [1]
        assert 0 < await count_groups(desk) <= GROUPS + 1
        silent_log.append(Text("another"))
        desk.log.append(Text("and another"))
        async with anyio.create_task_group() as closing:  # each waits for an event of the other, before it ends
            closing.start_soon(desk.end)
            closing.start_soon(silent_log.commit, [DONE], lambda conn: None)
        while await count_groups(desk):
            await anyio.lowlevel.checkpoint()
        stored_events = await desk.database.read(lambda conn: run_events.read(conn, TurnId("turn_other"), 0, 10))
        assert [seq for seq, _ in stored_events] == [1, 2, 3]


@needs_groups
async def test_a_turn_is_settled_once_the_store_can_be_written_again(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as desk:
        silent_log = RunLog(desk.journal, ConversationId("conv_test"), TurnId("turn_other"))
        desk.journal.add(silent_log)
        for log, count in ((silent_log, 1), (desk.log, GROUPS)):
            for number in range(count):
                log.append(IterationStart(number))
                while log.journalled < log.last:
                    await anyio.lowlevel.checkpoint()
        desk.log.append(Text("meanwhile"))
        desk.log.take_batch()  # like a running commit
        desk.journal.mark_dirty(desk.log, urgent=True)
        await anyio.wait_all_tasks_blocked()
        desk.log.confirm_batch()
        await silent_log.commit([DONE], lambda conn: None)
        stored_events = await desk.database.read(lambda conn: run_events.read(conn, TurnId("turn_other"), 0, 10))
        assert [seq for seq, _ in stored_events] == [1, 2]


@pytest.mark.parametrize("seed", range(6))
async def test_journalled_events_are_stored_once_wherever_the_process_ends(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    async with open_desk(tmp_path) as desk:
        names = [f"turn_{number}" for number in range(6)]
        for name in names:
            await desk.database.write(turn(name, fence=1).insert)
        logs = [RunLog(desk.journal, ConversationId("conv_test"), TurnId(name)) for name in names]
        steps = random.randint(50, 3 * GROUPS)
        for _ in range(steps):
            log = random.choice(logs[: random.randint(1, len(logs))])  # some write rarely
            log.append(random.choice((Text("a"), IterationStart(2))))
            if random.random() < 0.05:
                async with anyio.create_task_group() as commits:
                    commits.start_soon(log.commit, [Text("b")], lambda conn: None)
                    await anyio.lowlevel.checkpoint()
                    log.append(Text("meanwhile"))  # a delegate's, for example
            while random.random() < 0.8 and log.journalled < log.last:
                await anyio.lowlevel.checkpoint()
        last_numbers = {log.turn_id: log.journalled for log in logs}  # the process ends here
        await desk.database.write(run_groups.settle)
        for name, last_number in last_numbers.items():
            stored_events = await desk.database.read(partial(run_events.read, turn_id=name, after=0, limit=10_000))
            assert [seq for seq, _ in stored_events][:last_number] == list(range(1, last_number + 1))
            assert [seq for seq, _ in stored_events] == list(range(1, len(stored_events) + 1))


class ClaimingLogs(RemoteLogs):
    """Looks for a turn in other processes while this process claims it."""

    def __init__(self, database: Database, begin: Callable[[], None]) -> None:
        super().__init__(database, InProcessFanout())
        self._begin_here = begin

    async def mirror(self, turn_id: TurnId) -> Mirror | None:
        self._begin_here()
        return await super().mirror(turn_id)


async def test_a_turn_that_starts_locally_during_a_remote_lookup_is_followed(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as desk, anyio.create_task_group() as tasks:
        neighbours = ClaimingLogs(desk.database, lambda: journal.add(log))
        journal = Journal(desk.database, neighbours)
        log = RunLog(journal, ConversationId("conv_test"), TurnId("turn_test"))
        await desk.database.write(
            partial(run_events.append, batches=[EventBatch("turn_test", 1, [b'{"type":"text"}'])])
        )
        log.unload(1)
        tasks.start_soon(journal.run)
        reader = LogReader(journal, TurnId("turn_test"), 1)
        received: list[AgentEvent] = []
        async with anyio.create_task_group() as readers:
            readers.start_soon(read_all, reader, None, received)
            while not log.reader_count:
                await anyio.lowlevel.checkpoint()
            await log.commit([DONE], lambda conn: None)
        assert [event.seq for event in received] == [2]
        tasks.cancel_scope.cancel()


async def read_one(reader: LogReader) -> None:
    assert len(await reader.next()) == 1

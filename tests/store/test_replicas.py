"""Several servers on one PostgreSQL database act as one: each obeys requests made at another, and tells its readers."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from threading import Thread

import anyio
import pytest
from sqlalchemy import Connection, text, update

from agentic_rag.base.errors import StorageUnavailable, TurnInProgress
from agentic_rag.base.events import AgentEvent
from agentic_rag.base.ids import ConversationId, SessionId, TurnId
from agentic_rag.runtime.log.fanout import InProcessFanout
from agentic_rag.runtime.log.runlog import EPOCH, Journal
from agentic_rag.store import compactions, run_events, sessions, turns
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.sessions import SessionLabels
from agentic_rag.store.turns import TurnStatus
from agentic_rag.testing.scripted import Scripted, ScriptedModel, Stalled
from agentic_rag.testing.steps import Say, Step, say, use
from tests.runtime.harness import SESSION, Bench, bench, definition, kinds, text_of, toolset
from tests.runtime.test_compaction import SUMMARY
from tests.runtime.test_waits import ASKING, answer, echo, open_waits
from tests.waiting import pause

from .conftest import needs_postgresql
from .test_leases import PATIENCE, listen, store

__all__ = ["store"]
pytestmark = needs_postgresql
PIECES = Step((Say("One two three.", pieces=("One ", "two ", "three.")),))


@asynccontextmanager
async def replicas(
    folder: Path, store: str, *scripts: Sequence[Scripted] | ScriptedModel, most_turns: int = 0
) -> AsyncIterator[list[Bench]]:
    """Servers that signal each other, each with a model that gives these answers."""
    async with AsyncExitStack() as stack:
        benches = []
        for script in scripts:
            model = script if isinstance(script, ScriptedModel) else ScriptedModel(*script)
            await stack.enter_async_context(model)
            server = bench(folder, model, toolset(write=echo), store=store, hears=True, most_turns=most_turns)
            benches.append(await stack.enter_async_context(server))
        yield benches


async def other_session(b: Bench) -> SessionId:
    """Create a second session."""
    labels = SessionLabels(conversation_id=ConversationId("conv_other"))
    session_id = SessionId("sess_other")
    await b.database.write(lambda conn: sessions.create(conn, session_id, labels, created_at=now()))
    return session_id


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE):
        while not condition():
            await pause()


async def test_a_message_to_another_server_is_refused_or_waits_as_on_one(tmp_path: Path, store: str) -> None:
    slow = Stalled(say("One two three."), 1)
    async with replicas(tmp_path, store, [slow, say("Second.")], []) as (a, b):
        running = await a.send("Hi", definition())
        await slow.reached.wait()
        with pytest.raises(TurnInProgress):
            await b.send("Me too", definition())
        queued_turn = await b.send("And?", definition(), on_busy="queue")
        assert queued_turn.queued
        repeated = await b.send("And?", definition(), on_busy="queue", client_message_id="c1")
        assert (await b.send("And?", definition(), client_message_id="c1")).turn_id == repeated.turn_id
        assert await b.runtime.interrupt(SESSION, turn_id=repeated.turn_id)
        slow.until.set()
        assert kinds(await listen(b, running.turn_id))[-1] == "done"
        assert text_of(await listen(b, queued_turn.turn_id)) == "Second."
        assert kinds(await listen(a, repeated.turn_id)) == ["interrupted"]
        assert (await a.turn(queued_turn.turn_id)).owner == a.runtime.owner


async def test_a_turn_of_another_server_is_read_live_to_its_end(tmp_path: Path, store: str) -> None:
    slow = Stalled(PIECES, 3)
    async with replicas(tmp_path, store, [slow], []) as (a, b):
        accepted_turn = await a.send("Hi", definition())
        events: list[AgentEvent] = []

        async def follow() -> None:
            async for event in b.runtime.follow(accepted_turn.turn_id):
                events.append(event)  # noqa: PERF401 - they are looked at meanwhile

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await slow.reached.wait()
            await until(lambda: text_of(events) == "One ")  # the model's text appears long before its end
            slow.until.set()
        assert events == await listen(a, accepted_turn.turn_id)


async def test_followers_of_a_conversation_are_notified_of_turns_on_other_servers(tmp_path: Path, store: str) -> None:
    async with replicas(tmp_path, store, [say("One."), say("Two.")], []) as (a, b):
        turn_ids: list[TurnId] = []

        async def follow() -> None:
            while len(turn_ids) < 2:
                turn_ids.append(await b.runtime.next_turn(SESSION, turn_ids[-1] if turn_ids else None))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await anyio.wait_all_tasks_blocked()
            first_turn = (await a.send("Hi", definition())).turn_id
            await listen(a, first_turn)
            second_turn = (await a.send("And?", definition())).turn_id
            with anyio.fail_after(PATIENCE):
                while len(turn_ids) < 2:
                    await pause()
        assert turn_ids == [first_turn, second_turn]


async def test_a_session_continues_on_any_server(tmp_path: Path, store: str) -> None:
    async with replicas(tmp_path, store, [say("One."), say("Three.")], [say("Two.")]) as (a, b):
        for server, content in ((a, "first"), (b, "second"), (a, "third")):
            assert kinds(await server.say(content))[-1] == "done"
        texts = [row["content"][0]["text"] for row in await a.transcript()]
        assert texts == ["first", "One.", "second", "Two.", "third", "Three."]


async def test_one_of_two_simultaneous_messages_to_two_servers_starts(tmp_path: Path, store: str) -> None:
    slow = Stalled(say("x"), 0)  # the first one must still run when the second one arrives
    async with replicas(tmp_path, store, ScriptedModel(then=slow), ScriptedModel(then=slow)) as servers:
        accepted_turns = []

        async def send(server: Bench) -> None:
            accepted_turns.append(await server.send("Hi", definition(), on_busy="queue"))

        async with anyio.create_task_group() as tasks:
            for server in servers:
                tasks.start_soon(send, server)
        slow.until.set()
        assert sorted(accepted_turn.queued for accepted_turn in accepted_turns) == [False, True]
        for accepted_turn in accepted_turns:
            assert kinds(await listen(servers[0], accepted_turn.turn_id))[-1] == "done"


async def test_an_interrupt_reaches_the_server_that_runs_the_turn(tmp_path: Path, store: str) -> None:
    slow = Stalled(say("One two three."), 1)
    async with replicas(tmp_path, store, [slow], []) as (a, b):
        accepted_turn = await a.send("Hi", definition())
        await slow.reached.wait()
        assert await b.runtime.interrupt(SESSION)
        assert kinds(await listen(b, accepted_turn.turn_id))[-1] == "interrupted"
        assert not await b.runtime.interrupt(SESSION)


async def test_an_unhandled_interrupt_applies_to_the_resumed_turn(tmp_path: Path, store: str) -> None:
    slow = Stalled(say("One two three."), 1)
    async with replicas(tmp_path, store, []) as (b,):
        async with ScriptedModel(slow) as model, bench(tmp_path, model, store=store) as a:  # which receives no signals
            accepted_turn = await a.send("Hi", definition())
            await slow.reached.wait()
            assert await b.runtime.interrupt(SESSION)
        assert kinds(await listen(b, accepted_turn.turn_id))[-1] == "interrupted"


async def test_a_call_continues_with_an_answer_sent_to_another_server(tmp_path: Path, store: str) -> None:
    async with replicas(tmp_path, store, [use("write", query="a"), say("Written.")], []) as (a, b):
        accepted_turn = await a.send("Write it.", definition(**ASKING))
        (wait,) = await open_waits(a)
        await answer(b, wait)
        assert text_of(await listen(b, accepted_turn.turn_id)) == "Written."
        assert (await a.turn(accepted_turn.turn_id)).status is TurnStatus.DONE


async def test_a_reader_follows_a_turn_over_two_servers_that_die(tmp_path: Path, store: str) -> None:
    slow, slower = Stalled(PIECES, 3), Stalled(PIECES, 3)
    events: list[AgentEvent] = []

    async def take_over(dead: Bench, server: Bench) -> None:
        expire = update(turns.TURNS).values(lease_until="2000-01-01T00:00:00.000Z")
        with anyio.fail_after(PATIENCE):
            claimed = 0
            while not claimed:  # a process that seems dead may renew its lease a last time
                await dead.database.write(lambda conn: conn.execute(expire).close())
                claimed = await server.runtime.recover()

    async with replicas(tmp_path, store, [slow], [slower], [say("Whole.")]) as (a, b, c):
        accepted_turn = await a.send("Hi", definition())

        async def follow() -> None:
            async for event in c.runtime.follow(accepted_turn.turn_id):
                events.append(event)  # noqa: PERF401 - they are looked at meanwhile

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await slow.reached.wait()
            await take_over(a, b)
            with anyio.fail_after(PATIENCE):
                await slower.reached.wait()
            await until(lambda: events[-1].seq > EPOCH and events[-1].type == "text")
            await take_over(b, c)
        assert kinds(events)[-1] == "done"
        assert events[-1].seq > 2 * EPOCH
        assert [event.seq for event in events] == sorted({event.seq for event in events})
        slow.until.set()
        slower.until.set()
        for server in (a, b):
            await server.runtime.renew_leases()
            assert server.ended_turns == []
        # A server that has lost its lease may still deliver text. The next one declares its number void.
        voids = [event.fields()["voids"] for event in events if event.type == "resumed"]
        events_of_owner = [
            event
            for event in await listen(a, accepted_turn.turn_id)
            if not any(first <= event.seq <= last for first, last in voids)
        ]
        assert [event for event in events if event in events_of_owner] == events_of_owner


async def test_a_server_at_its_limit_leaves_a_turn_to_another(tmp_path: Path, store: str) -> None:
    slow = Stalled(say("One two three."), 1)
    async with replicas(tmp_path, store, [slow], [say("Elsewhere.")], most_turns=1) as (a, b):
        await a.send("Hi", definition())
        await slow.reached.wait()
        other_session_id = await other_session(a)
        accepted_turn = await (await a.runtime.session(other_session_id)).send("Hi too", definition())
        assert accepted_turn.queued
        assert text_of(await listen(a, accepted_turn.turn_id)) == "Elsewhere."
        assert (await a.turn(accepted_turn.turn_id)).owner == b.runtime.owner
        slow.until.set()


async def test_a_stopping_server_releases_its_turns_to_others_at_once(tmp_path: Path, store: str) -> None:
    slow = Stalled(say("One two three."), 1)
    async with replicas(tmp_path, store, [say("Whole.")]) as (b,):
        async with replicas(tmp_path, store, [slow]) as (a,):
            accepted_turn = await a.send("Hi", definition())
            await slow.reached.wait()
        assert kinds(await listen(b, accepted_turn.turn_id))[-1] == "done"
        assert (await b.turn(accepted_turn.turn_id)).resumes == 0


async def test_without_live_events_a_turn_is_followed_by_its_rows(tmp_path: Path, store: str) -> None:
    """All live events are lost, so readers receive everything from the rows."""
    slow = Stalled(say("One two three."), 1)
    async with (
        ScriptedModel(slow) as first_model,
        ScriptedModel() as second_model,
        bench(tmp_path, first_model, store=store, fanout=InProcessFanout()) as a,
        bench(tmp_path, second_model, store=store, fanout=InProcessFanout()) as b,
    ):
        accepted_turn = await a.send("Hi", definition())
        await slow.reached.wait()
        slow.until.set()
        assert await listen(b, accepted_turn.turn_id) == await listen(a, accepted_turn.turn_id)


async def test_a_commit_that_succeeds_during_its_retry_counts(tmp_path: Path, store: str) -> None:
    """The connection broke during a commit, which the server was still executing when its result was queried."""
    tries = 0

    def append(conn: Connection) -> None:
        run_events.append(conn, [run_events.EventBatch("turn_1", 1, [b"x"])])

    async def append_in_database() -> None:
        database = await Database.open(store)
        await database.write(append)
        await database.aclose()

    def write(conn: Connection) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise StorageUnavailable("on purpose")
        thread = Thread(target=anyio.run, args=(append_in_database,))
        thread.start()
        thread.join()
        append(conn)

    async with replicas(tmp_path, store, []) as (a,):
        await Journal(a.database).store(write, [run_events.EventBatch("turn_1", 1, [b"x"])])
        assert tries == 2
        assert await a.database.read(lambda conn: run_events.last_seq(conn, TurnId("turn_1"))) == 1


async def test_a_compaction_outdated_by_another_server_is_not_stored(tmp_path: Path, store: str) -> None:
    slow = Stalled(say(SUMMARY), 0)
    chat = [say(f"Answer {number}.") for number in range(10)]
    async with replicas(tmp_path, store, [*chat, slow], [say("Elsewhere.")]) as (a, b):
        for number in range(10):
            await a.say(f"Question {number}?")
        async with anyio.create_task_group() as tasks:

            async def compact() -> None:
                with pytest.raises(TurnInProgress):
                    await a.compact()

            tasks.start_soon(compact)
            await slow.reached.wait()
            assert text_of(await b.say("And?")) == "Elsewhere."
            slow.until.set()
        assert await a.database.read(lambda conn: compactions.of_session(conn, SESSION)) == []
        assert len(await a.transcript()) == 22


async def test_no_server_compacts_a_conversation_that_another_is_answering(tmp_path: Path, store: str) -> None:
    slow = Stalled(say("One two three."), 1)
    async with replicas(tmp_path, store, [slow], []) as (a, b):
        await a.send("Hi", definition())
        await slow.reached.wait()
        with pytest.raises(TurnInProgress):
            await b.compact()
        slow.until.set()


async def test_unknown_signals_of_a_newer_server_are_ignored(tmp_path: Path, store: str) -> None:
    slow = Stalled(say("One two three."), 1)
    number = "CAST(CAST(pg_current_xact_id() AS text) AS bigint)"
    newer_signal = text(f"INSERT INTO signals VALUES ('sig_newer', {number}, 'later', '', '', '{now()}')")
    async with replicas(tmp_path, store, [slow], []) as (a, b):
        accepted_turn = await a.send("Hi", definition())
        await slow.reached.wait()
        await b.database.write(lambda conn: conn.execute(newer_signal).close())
        assert await b.runtime.interrupt(SESSION)
        assert kinds(await listen(b, accepted_turn.turn_id))[-1] == "interrupted"

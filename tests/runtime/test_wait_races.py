"""A turn that waits for a person, and a concurrent restart, queue, interrupt, policy change or full disk."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from sqlalchemy import Connection

from agentic_rag.base.events import Answerer, WaitKind
from agentic_rag.base.ids import ConversationId, SessionId, TurnId, WaitId
from agentic_rag.base.redaction import Redactor
from agentic_rag.runtime.core.sent_messages import OUTCOME_UNKNOWN
from agentic_rag.runtime.services import Answers
from agentic_rag.store import sessions, turns, waits
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.sessions import SessionLabels
from agentic_rag.store.turns import TurnStatus
from agentic_rag.store.waits import WaitRecord, WaitState
from agentic_rag.testing.scripted import ScriptedModel
from agentic_rag.testing.steps import say, use
from agentic_rag.tools.base import Ask, CallOutcome, CallRequest, InputNeeded, ProgressSink
from tests.databases import database_at
from tests.runtime.delegate_rig import Crew, define_leader, delegate_to, open_crew
from tests.runtime.harness import SESSION, Disk, MemoryToolset, bench, definition, kinds, ok, text_of, toolset
from tests.runtime.test_waits import (
    ASKING,
    answer,
    echo,
    fields_of,
    open_waits,
    reach_wait,
    read_events,
    wait_for_suspension,
)
from tests.waiting import pause


async def test_after_a_restart_queued_messages_stay_behind_the_waiting_turn(tmp_path: Path) -> None:
    async with reach_wait(tmp_path, use("write", query="a")) as (b, waiting):
        await open_waits(b)
        await wait_for_suspension(b, waiting)
        queued = await b.send("And then?", definition(**ASKING), on_busy="queue")
        assert queued.queued
    steps = (say("Done."), say("Then this."))
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, toolset(write=echo)) as b:
        await b.runtime.recover()
        assert (await b.turn(queued.turn_id)).status is TurnStatus.QUEUED
        (wait,) = await open_waits(b)
        await answer(b, wait)
        assert text_of(await read_events(b, waiting)) == "Done."
        assert text_of(await read_events(b, queued)) == "Then this."


async def test_a_call_that_a_remembered_approval_let_run_is_not_run_again_after_a_kill(tmp_path: Path) -> None:
    call_started = anyio.Event()

    async def hang_second(request: CallRequest) -> CallOutcome:
        if request.arguments["query"] == "a":
            return ok("did a")
        call_started.set()
        await anyio.sleep_forever()
        raise AssertionError

    steps = (use("write", query="a"), say("One."), use("write", query="b"))
    async with reach_wait(tmp_path, *steps, tools=toolset(write=hang_second)) as (b, first_accepted):
        (wait,) = await open_waits(b)
        await answer(b, wait, scope="conversation")
        await read_events(b, first_accepted)
        accepted = await b.send("Again.", definition(**ASKING))
        with anyio.fail_after(240):
            await call_started.wait()
    tools = toolset(write=echo)
    async with ScriptedModel(say("Done.")) as model, bench(tmp_path, model, tools) as b:
        await b.runtime.recover()
        events = await read_events(b, accepted)
    assert tools.requests == []
    assert fields_of(events, "tool_result")[-1]["content"] == OUTCOME_UNKNOWN


async def test_a_conversation_approval_does_not_replace_an_admins(tmp_path: Path) -> None:
    steps = (use("write", query="a"), say("One."), use("write", query="b"), say("Two."))
    async with reach_wait(tmp_path, *steps) as (b, accepted):
        (wait,) = await open_waits(b)
        await answer(b, wait, scope="conversation")
        await read_events(b, accepted)
        next_accepted = await b.send("Again.", definition(**ASKING, tool_policy={"write": "ask-admin"}))
        (wait,) = await open_waits(b)
        assert wait.answerer is Answerer.ADMIN
        await answer(b, wait)
        assert kinds(await read_events(b, next_accepted))[-1] == "done"


async def test_an_interrupt_ends_suspended_delegates_and_their_waits(tmp_path: Path) -> None:
    tasks = delegate_to(("digger", "dig here"), ("writer", "note there"))
    script = Crew(Lead=(tasks,), dig=(use("write", query="d"),), note=(use("write", query="n"),))
    settings = define_leader(**ASKING, tool_policy={"delegate": "allow"})
    async with open_crew(tmp_path, script, write=echo) as b:
        accepted = await b.send("Lead", settings)
        open_records = await open_waits(b, 2)
        await wait_for_suspension(b, accepted)
        assert await b.runtime.interrupt(SESSION)
        events = await read_events(b, accepted)
        assert kinds(events)[-1] == "interrupted"
        answers = fields_of(events, "input_answered")
        assert {(fields["waitId"], fields["action"]) for fields in answers} == {
            (record.id, "cancel") for record in open_records
        }
        for wait in open_records:
            (stored_wait,) = await b.database.read(partial(waits.of_turn, turn_id=wait.turn_id))
            assert stored_wait.state is WaitState.CANCELLED
            assert (await b.turn(wait.turn_id)).status is TurnStatus.INTERRUPTED


async def answer_without_arguments(request: CallRequest) -> CallOutcome:
    return ok("done")


class HeldDatabase(Disk):
    """A real database whose ``hold``-th next read waits for a permission."""

    def __init__(self, inner: Database) -> None:
        super().__init__(inner)
        self.hold = 0
        self.reading, self.permitted = anyio.Event(), anyio.Event()

    async def read(self, fn: Callable[[Connection], Any], *, single: bool = False) -> Any:
        self.hold -= 1
        if self.hold == 0:
            self.reading.set()
            await self.permitted.wait()
        return await super().read(fn, single=single)


def store_answer(wait: WaitRecord) -> Callable[[Connection], None]:
    """Return a function that stores an answer, as the callers of the runtime do."""

    def store(conn: Connection) -> None:
        waits.finish(conn, wait.id, WaitState.ACCEPTED, answer={}, by="ann", at=now())
        turns.wake(conn, wait.root_turn_id)

    return store


async def test_an_answer_that_arrives_during_another_ones_handling_is_used(tmp_path: Path) -> None:
    answers, database = Answers(), await Database.open(database_at(tmp_path / "test.db"))
    held_database = HeldDatabase(database)
    model = ScriptedModel(use("write", query="a"), say("Done."))
    async with (
        model as model,
        bench(tmp_path, model, toolset(write=echo), database=held_database, answers=answers) as b,
    ):
        accepted = await b.send("Do it.", definition(**ASKING))
        (wait,) = await open_waits(b)
        await wait_for_suspension(b, accepted)
        held_database.hold = 2  # the read of due waits, and the one after which the awake turns were claimed
        answers.notify(WaitId("wait_other"))
        with anyio.fail_after(240):
            await held_database.reading.wait()
        await b.database.write(store_answer(wait))
        answers.notify(wait.id)
        held_database.permitted.set()
        assert kinds(await read_events(b, accepted))[-1] == "done"
    await database.aclose()


async def test_a_drain_does_not_wait_for_a_store_that_refuses_to_suspend_a_turn(tmp_path: Path) -> None:
    database = await Database.open(database_at(tmp_path / "test.db"))
    disk, model = Disk(database), ScriptedModel(use("write", query="a"))
    async with model as model, bench(tmp_path, model, toolset(write=echo), database=disk) as b:
        await b.send("Do it.", definition(**ASKING))
        await open_waits(b)
        disk.fill()
        with anyio.fail_after(240):
            assert await b.runtime.drain(0.01) == 1
    await database.aclose()


async def test_an_interrupt_during_a_suspension_ends_the_turn(tmp_path: Path) -> None:
    database = await Database.open(database_at(tmp_path / "test.db"))
    disk, model = Disk(database), ScriptedModel(use("write", query="a"))
    async with model as model, bench(tmp_path, model, toolset(write=echo), database=disk) as b:
        accepted = await b.send("Do it.", definition(**ASKING))
        await open_waits(b)
        await pause()
        disk.refused = anyio.Event()
        disk.fill(refusals=1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(b.runtime.check_waits)
            with anyio.fail_after(240):
                await disk.refused.wait()
            assert await b.runtime.interrupt(SESSION)
        assert kinds(await read_events(b, accepted))[-1] == "interrupted"
    await database.aclose()


async def test_an_interrupt_after_an_unprocessed_answer_ends_the_turn(tmp_path: Path) -> None:
    tools = toolset(write=echo)
    async with reach_wait(tmp_path, use("write", query="a"), tools=tools) as (b, accepted):
        (wait,) = await open_waits(b)
        await wait_for_suspension(b, accepted)
        await b.database.write(store_answer(wait))
        assert await b.runtime.interrupt(SESSION)
        if b.database.shared:
            await b.runtime.recover()  # as every server does periodically
        assert kinds(await read_events(b, accepted))[-1] == "interrupted"
    assert tools.requests == []


async def test_deleting_a_conversation_does_not_block_turns_of_others(tmp_path: Path) -> None:
    steps = (use("write", query="a"), use("write", query="b"), say("Done."))
    async with reach_wait(tmp_path, *steps) as (b, accepted):
        other_session = SessionId("sess_other")
        labels = SessionLabels(conversation_id=ConversationId("conv_other"))
        await b.database.write(lambda conn: sessions.create(conn, other_session, labels, created_at=now()))
        (first_wait,) = await open_waits(b)
        other_accepted = await (await b.runtime.session(other_session)).send("Do it.", definition(**ASKING))
        await open_waits(b, 2)
        await wait_for_suspension(b, accepted)
        await wait_for_suspension(b, other_accepted)
        (_, wait) = await open_waits(b, 2)
        await (await b.runtime.session(SESSION)).close()
        # rows that another process has left just before, which this one claims with all others
        left_row = (await b.turn(first_wait.turn_id)).replace(
            id=TurnId("turn_left"), status=TurnStatus.RUNNING, owner=""
        )
        await b.database.write(lambda conn: left_row.insert(conn))
        await answer(b, wait)
        assert kinds(await read_events(b, other_accepted))[-1] == "done"


class AsksLive(MemoryToolset):
    """Its tool ``ask`` asks on an open connection during the call."""

    async def call(
        self, request: CallRequest, timeout: float, progress: ProgressSink | None = None, ask: Ask | None = None
    ) -> CallOutcome | InputNeeded:
        if request.tool.name == "ask":
            assert ask is not None
            person_answer = await ask(InputNeeded(WaitKind.FORM, "srv asks", "Your name?", schema={"type": "object"}))
            return ok(person_answer.action.value)
        return await super().call(request, timeout, progress, ask)


async def test_a_question_whose_connection_a_kill_closed_is_cancelled_on_resume(tmp_path: Path) -> None:
    functions = toolset(write=echo, ask=echo).functions
    rules = definition(**ASKING, tool_policy={"ask": "allow"})
    async with (
        ScriptedModel(use("ask", query="a")) as model,
        bench(tmp_path, model, AsksLive(functions)) as b,
    ):
        accepted = await b.send("Do it.", rules)
        (dead_wait,) = await open_waits(b)
    async with (
        ScriptedModel(use("write", query="b"), say("Done.")) as model,
        bench(tmp_path, model, AsksLive(functions)) as b,
    ):
        await b.runtime.recover()
        with anyio.fail_after(240):
            while "write" not in [open_wait.request.get("toolName") for open_wait in await open_waits(b)]:
                await pause()
        (wait,) = await open_waits(b)
        await answer(b, wait)
        events = await read_events(b, accepted)
    ended_waits = [(fields["waitId"], fields["action"]) for fields in fields_of(events, "input_answered")]
    assert ended_waits == [(dead_wait.id, "cancel"), (wait.id, "accept")]


async def test_a_secret_that_a_person_enters_in_arguments_is_hidden_from_the_model(tmp_path: Path) -> None:
    redactor = Redactor()
    redactor.add("dom_test", "TOKEN", "sesame-81723")
    model = ScriptedModel(use("write", query="a"), say("Done."))
    async with model as model, bench(tmp_path, model, toolset(write=answer_without_arguments), redactor=redactor) as b:
        accepted = await b.send("Do it.", definition(**ASKING))
        (wait,) = await open_waits(b)
        await answer(b, wait, arguments={"query": "sesame-81723"})
        await read_events(b, accepted)
        transcript = str(await b.transcript())
    assert "changed its arguments" in transcript
    assert "sesame" not in transcript

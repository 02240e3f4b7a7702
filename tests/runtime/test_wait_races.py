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
from tests.runtime.delegate_rig import Crew, crew, handed, leading
from tests.runtime.harness import SESSION, Disk, MemoryToolset, bench, definition, kinds, ok, text_of, toolset
from tests.runtime.test_waits import ASKING, answer, asked, echo, events_of, fields_of, open_waits, put_down
from tests.waiting import pause


async def test_after_a_restart_queued_messages_stay_behind_the_waiting_turn(tmp_path: Path) -> None:
    async with asked(tmp_path, use("write", query="a")) as (b, first):
        await open_waits(b)
        await put_down(b, first)
        second = await b.send("And then?", definition(**ASKING), on_busy="queue")
        assert second.queued
    steps = (say("Done."), say("Then this."))
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, toolset(write=echo)) as b:
        await b.runtime.recover()
        assert (await b.turn(second.turn_id)).status is TurnStatus.QUEUED
        (wait,) = await open_waits(b)
        await answer(b, wait)
        assert text_of(await events_of(b, first)) == "Done."
        assert text_of(await events_of(b, second)) == "Then this."


async def test_a_call_that_a_remembered_approval_let_run_is_not_run_again_after_a_kill(tmp_path: Path) -> None:
    begun = anyio.Event()

    async def second_hangs(request: CallRequest) -> CallOutcome:
        if request.arguments["query"] == "a":
            return ok("did a")
        begun.set()
        await anyio.sleep_forever()
        raise AssertionError

    steps = (use("write", query="a"), say("One."), use("write", query="b"))
    async with asked(tmp_path, *steps, tools=toolset(write=second_hangs)) as (b, first):
        (wait,) = await open_waits(b)
        await answer(b, wait, scope="conversation")
        await events_of(b, first)
        accepted = await b.send("Again.", definition(**ASKING))
        with anyio.fail_after(240):
            await begun.wait()
    tools = toolset(write=echo)
    async with ScriptedModel(say("Done.")) as model, bench(tmp_path, model, tools) as b:
        await b.runtime.recover()
        events = await events_of(b, accepted)
    assert tools.requests == []
    assert fields_of(events, "tool_result")[-1]["content"] == OUTCOME_UNKNOWN


async def test_a_conversation_approval_does_not_replace_an_admins(tmp_path: Path) -> None:
    steps = (use("write", query="a"), say("One."), use("write", query="b"), say("Two."))
    async with asked(tmp_path, *steps) as (b, accepted):
        (wait,) = await open_waits(b)
        await answer(b, wait, scope="conversation")
        await events_of(b, accepted)
        again = await b.send("Again.", definition(**ASKING, tool_policy={"write": "ask-admin"}))
        (wait,) = await open_waits(b)
        assert wait.answerer is Answerer.ADMIN
        await answer(b, wait)
        assert kinds(await events_of(b, again))[-1] == "done"


async def test_an_interrupt_ends_suspended_delegates_and_their_waits(tmp_path: Path) -> None:
    tasks = handed(("digger", "dig here"), ("writer", "note there"))
    script = Crew(Lead=(tasks,), dig=(use("write", query="d"),), note=(use("write", query="n"),))
    asking = leading(**ASKING, tool_policy={"delegate": "allow"})
    async with crew(tmp_path, script, write=echo) as b:
        accepted = await b.send("Lead", asking)
        waiting = await open_waits(b, 2)
        await put_down(b, accepted)
        assert await b.runtime.interrupt(SESSION)
        events = await events_of(b, accepted)
        assert kinds(events)[-1] == "interrupted"
        answered = fields_of(events, "input_answered")
        assert {(each["waitId"], each["action"]) for each in answered} == {(each.id, "cancel") for each in waiting}
        for wait in waiting:
            (kept,) = await b.database.read(partial(waits.of_turn, turn_id=wait.turn_id))
            assert kept.state is WaitState.CANCELLED
            assert (await b.turn(wait.turn_id)).status is TurnStatus.INTERRUPTED


async def quiet(request: CallRequest) -> CallOutcome:
    return ok("done")


class Held(Disk):
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
    answers, own = Answers(), await Database.open(database_at(tmp_path / "test.db"))
    held = Held(own)
    model = ScriptedModel(use("write", query="a"), say("Done."))
    async with model as model, bench(tmp_path, model, toolset(write=echo), database=held, answers=answers) as b:
        accepted = await b.send("Do it.", definition(**ASKING))
        (wait,) = await open_waits(b)
        await put_down(b, accepted)
        held.hold = 2  # the read of due waits, and the one after which the awake turns were claimed
        answers.notify(WaitId("wait_other"))
        with anyio.fail_after(240):
            await held.reading.wait()
        await b.database.write(store_answer(wait))
        answers.notify(wait.id)
        held.permitted.set()
        assert kinds(await events_of(b, accepted))[-1] == "done"
    await own.aclose()


async def test_a_drain_does_not_wait_for_a_store_that_refuses_to_suspend_a_turn(tmp_path: Path) -> None:
    own = await Database.open(database_at(tmp_path / "test.db"))
    disk, model = Disk(own), ScriptedModel(use("write", query="a"))
    async with model as model, bench(tmp_path, model, toolset(write=echo), database=disk) as b:
        await b.send("Do it.", definition(**ASKING))
        await open_waits(b)
        disk.fill()
        with anyio.fail_after(240):
            assert await b.runtime.drain(0.01) == 1
    await own.aclose()


async def test_an_interrupt_during_a_suspension_ends_the_turn(tmp_path: Path) -> None:
    own = await Database.open(database_at(tmp_path / "test.db"))
    disk, model = Disk(own), ScriptedModel(use("write", query="a"))
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
        assert kinds(await events_of(b, accepted))[-1] == "interrupted"
    await own.aclose()


async def test_an_interrupt_after_an_unprocessed_answer_ends_the_turn(tmp_path: Path) -> None:
    tools = toolset(write=echo)
    async with asked(tmp_path, use("write", query="a"), tools=tools) as (b, accepted):
        (wait,) = await open_waits(b)
        await put_down(b, accepted)
        await b.database.write(store_answer(wait))
        assert await b.runtime.interrupt(SESSION)
        if b.database.shared:
            await b.runtime.recover()  # as every server does periodically
        assert kinds(await events_of(b, accepted))[-1] == "interrupted"
    assert tools.requests == []


async def test_deleting_a_conversation_does_not_block_turns_of_others(tmp_path: Path) -> None:
    steps = (use("write", query="a"), use("write", query="b"), say("Done."))
    async with asked(tmp_path, *steps) as (b, accepted):
        other = SessionId("sess_other")
        labels = SessionLabels(conversation_id=ConversationId("conv_other"))
        await b.database.write(lambda conn: sessions.create(conn, other, labels, created_at=now()))
        (first,) = await open_waits(b)
        second = await (await b.runtime.session(other)).send("Do it.", definition(**ASKING))
        await open_waits(b, 2)
        await put_down(b, accepted)
        await put_down(b, second)
        (_, wait) = await open_waits(b, 2)
        await (await b.runtime.session(SESSION)).close()
        # rows that another process has left just before, which this one claims with all others
        left = (await b.turn(first.turn_id)).replace(id=TurnId("turn_left"), status=TurnStatus.RUNNING, owner="")
        await b.database.write(lambda conn: left.insert(conn))
        await answer(b, wait)
        assert kinds(await events_of(b, second))[-1] == "done"


class AsksLive(MemoryToolset):
    """Its tool ``ask`` asks on an open connection during the call."""

    async def call(
        self, request: CallRequest, timeout: float, progress: ProgressSink | None = None, ask: Ask | None = None
    ) -> CallOutcome | InputNeeded:
        if request.tool.name == "ask":
            assert ask is not None
            given = await ask(InputNeeded(WaitKind.FORM, "srv asks", "Your name?", schema={"type": "object"}))
            return ok(given.action.value)
        return await super().call(request, timeout, progress, ask)


async def test_a_question_whose_connection_a_kill_closed_is_cancelled_on_resume(tmp_path: Path) -> None:
    functions = toolset(write=echo, ask=echo).functions
    rules = definition(**ASKING, tool_policy={"ask": "allow"})
    async with (
        ScriptedModel(use("ask", query="a")) as model,
        bench(tmp_path, model, AsksLive(functions)) as b,
    ):
        accepted = await b.send("Do it.", rules)
        (dead,) = await open_waits(b)
    async with (
        ScriptedModel(use("write", query="b"), say("Done.")) as model,
        bench(tmp_path, model, AsksLive(functions)) as b,
    ):
        await b.runtime.recover()
        with anyio.fail_after(240):
            while "write" not in [each.request.get("toolName") for each in await open_waits(b)]:
                await pause()
        (wait,) = await open_waits(b)
        await answer(b, wait)
        events = await events_of(b, accepted)
    ended = [(each["waitId"], each["action"]) for each in fields_of(events, "input_answered")]
    assert ended == [(dead.id, "cancel"), (wait.id, "accept")]


async def test_a_secret_that_a_person_enters_in_arguments_is_hidden_from_the_model(tmp_path: Path) -> None:
    redactor = Redactor()
    redactor.add("dom_test", "TOKEN", "sesame-81723")
    model = ScriptedModel(use("write", query="a"), say("Done."))
    async with model as model, bench(tmp_path, model, toolset(write=quiet), redactor=redactor) as b:
        accepted = await b.send("Do it.", definition(**ASKING))
        (wait,) = await open_waits(b)
        await answer(b, wait, arguments={"query": "sesame-81723"})
        await events_of(b, accepted)
        said = str(await b.transcript())
    assert "changed its arguments" in said
    assert "sesame" not in said

"""Messages queued behind a turn: durable, in order, at most five, and removed only on request."""

from pathlib import Path

import anyio
import pytest

from agentic_rag.base.errors import TurnInProgress
from agentic_rag.base.messages import plain_text
from agentic_rag.runtime.acceptance import MAX_QUEUED, Accepted
from agentic_rag.store import turns
from agentic_rag.testing.scripted import ScriptedModel, Stalled
from agentic_rag.testing.steps import say
from tests.runtime.harness import SESSION, Bench, bench, definition, kinds, text_of


async def fill(b: Bench, slow_step: Stalled) -> tuple[Accepted, list[Accepted]]:
    """Start a turn that stalls, and queue the maximum number of messages."""
    running = await b.send("first", definition())
    await slow_step.reached.wait()
    queued_turns = [
        await b.send(f"queued {number}", definition(), on_busy="queue", client_message_id=str(number))
        for number in range(MAX_QUEUED)
    ]
    return running, queued_turns


async def read_questions(b: Bench) -> list[str]:
    return [plain_text(message["content"]) for message in await b.transcript() if message["role"] == "user"]


async def test_five_messages_queue_in_order_a_sixth_is_refused_and_a_duplicate_joins_its_turn(tmp_path: Path) -> None:
    slow_step = Stalled(say("One."), 1)
    async with (
        ScriptedModel(slow_step, *[say(f"To {number}.") for number in range(5)]) as model,
        bench(tmp_path, model) as b,
    ):
        _, queued_turns = await fill(b, slow_step)
        with pytest.raises(TurnInProgress, match="5 messages wait"):
            await b.send("too much", definition(), on_busy="queue")
        repeated = await b.send("queued 2", definition(), on_busy="queue", client_message_id="2")
        assert (repeated.turn_id, repeated.duplicate, repeated.queued) == (queued_turns[2].turn_id, True, True)
        assert [(await b.turn(queued_turn.turn_id)).status for queued_turn in queued_turns] == ["queued"] * 5
        slow_step.until.set()
        with anyio.fail_after(240):
            for number, queued_turn in enumerate(queued_turns):
                events = [event async for event in b.runtime.follow(queued_turn.turn_id)]
                assert kinds(events)[0] == "turn_started"
                assert text_of(events) == f"To {number}."
        assert await read_questions(b) == ["first", *[f"queued {number}" for number in range(5)]]


async def test_an_interrupt_keeps_queued_turns_unless_it_includes_them(tmp_path: Path) -> None:
    first_step, second_step = Stalled(say("One."), 1), Stalled(say("Two."), 1)
    async with ScriptedModel(first_step, second_step, say("New.")) as model, bench(tmp_path, model) as b:
        running, queued_turns = await fill(b, first_step)
        with anyio.fail_after(240):
            assert await b.runtime.interrupt(SESSION)
            assert [event async for event in b.runtime.follow(running.turn_id)][-1].type == "interrupted"
            await second_step.reached.wait()
            assert b.runtime.running(SESSION) == queued_turns[0].turn_id
            assert await b.runtime.interrupt(SESSION, turn_id=queued_turns[3].turn_id)
            assert (await b.turn(queued_turns[3].turn_id)).status == "interrupted"
            assert (await b.turn(queued_turns[2].turn_id)).status == "queued"
            assert await b.runtime.interrupt(SESSION, queued=True)
            for queued_turn in queued_turns:
                events = [event async for event in b.runtime.follow(queued_turn.turn_id)]
                assert kinds(events)[-1] == "interrupted"
                assert [event.terminal for event in events].count(True) == 1
        assert await b.runtime.interrupt(SESSION, queued=True) is False
        assert text_of(await b.say("new")) == "New."
        assert await read_questions(b) == ["first", "queued 0", "new"]


async def test_queued_messages_survive_a_restart_in_order(tmp_path: Path) -> None:
    slow_step = Stalled(say("One."), 1)
    async with ScriptedModel(slow_step) as model, bench(tmp_path, model) as b:
        running, queued_turns = await fill(b, slow_step)
    steps = [say(f"Answer {number}.") for number in range(6)]
    async with ScriptedModel(*steps) as model, bench(tmp_path, model) as b:
        await b.runtime.recover()
        with anyio.fail_after(240):
            assert text_of([event async for event in b.runtime.follow(queued_turns[-1].turn_id)]) == "Answer 5."
        assert await read_questions(b) == ["first", *[f"queued {number}" for number in range(5)]]
        rows = await b.database.read(lambda conn: turns.of_session(conn, SESSION))
        assert [row.id for row in rows] == [running.turn_id, *[queued_turn.turn_id for queued_turn in queued_turns]]
        assert {row.status for row in rows} == {"done"}
        assert [row.fence for row in rows] == [2, 1, 1, 1, 1, 1]

"""Retries: a question is answered again on a new branch, which shares the earlier messages."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentic_rag.base.errors import IdempotencyMismatch, ModelError, NotFound, StorageFull, TurnInProgress
from agentic_rag.base.events import AgentEvent
from agentic_rag.base.ids import ConversationId, MessageId, TurnId
from agentic_rag.base.messages import plain_text
from agentic_rag.models.base import ModelRequest
from agentic_rag.runtime.core.definition import Limits
from agentic_rag.store import sessions
from agentic_rag.store.database import Database
from agentic_rag.store.sessions import SessionLabels
from agentic_rag.testing.fake_api import FakeMessagesAPI
from agentic_rag.testing.scripted import ScriptedModel, Stalled
from agentic_rag.testing.steps import Say, Step, Think, say
from tests.databases import database_at
from tests.runtime.harness import SESSION, Bench, Disk, bench, text_of
from tests.runtime.test_append_only import BASE, ask, bare, brain, open_world, persona


async def follow(b: Bench, turn_id: str) -> list[AgentEvent]:
    with anyio.fail_after(240):
        return [event async for event in b.runtime.follow(TurnId(turn_id))]


async def answer_again(b: Bench, message_id: str, content: str | None = None, **options: Any) -> list[AgentEvent]:
    return await follow(b, (await b.answer_again(message_id, content, **options)).turn_id)


async def branch_texts(b: Bench) -> list[str]:
    return [plain_text(message["content"]) for message in await b.transcript()]


def question_id(events: list[AgentEvent]) -> str:
    return str(events[0].fields()["userMessageId"])


def sent_texts(request: ModelRequest) -> list[str]:
    return [plain_text(message["content"]) for message in request.messages]


async def test_a_failed_question_is_retried_without_a_second_copy(tmp_path: Path) -> None:
    error = ModelError("no", http_status=400)
    async with ScriptedModel(say("Hi."), error, say("Now.")) as model, bench(tmp_path, model) as b:
        await b.say("Hello")
        failed_events = await b.say("How much?")
        events = await answer_again(b, question_id(failed_events))
        assert text_of(events) == "Now."
        assert question_id(events) == question_id(failed_events)
        assert events[0].fields()["messageId"] != failed_events[0].fields()["messageId"]
        assert sent_texts(model.requests[-1]) == ["Hello", "Hi.", "How much?"]
        assert await branch_texts(b) == ["Hello", "Hi.", "How much?", "Now."]
        assert b.hooks.branched_sessions == [(SESSION, 2)]


async def test_answers_are_retried_and_questions_edited_and_all_branches_stay(tmp_path: Path) -> None:
    steps = [say(f"A{number}.") for number in range(7)]
    async with ScriptedModel(*steps) as model, bench(tmp_path, model) as b:
        first_events, second_events = await b.say("Q0"), await b.say("Q1")
        retry_events = await answer_again(b, str(second_events[0].fields()["messageId"]))  # by the id of its answer
        assert await branch_texts(b) == ["Q0", "A0.", "Q1", "A2."]
        await b.say("Q2")
        await answer_again(b, question_id(first_events), "Other")
        assert sent_texts(model.requests[-1]) == ["Other"]
        await b.say("More")
        assert await branch_texts(b) == ["Other", "A4.", "More", "A5."]
        session = await b.runtime.session(SESSION)
        await session.activate(MessageId(question_id(second_events)))
        assert await branch_texts(b) == ["Q0", "A0.", "Q1", "A2.", "Q2", "A3."], "the newest branch with that message"
        await session.activate(MessageId(str(second_events[0].fields()["messageId"])))
        assert await branch_texts(b) == ["Q0", "A0.", "Q1", "A1."]
        await b.say("Go on")
        assert sent_texts(model.requests[-1]) == ["Q0", "A0.", "Q1", "A1.", "Go on"]
        assert question_id(retry_events) == question_id(second_events)
    async with ScriptedModel(say("Still.")) as model, bench(tmp_path, model) as b:
        await b.say("After a restart")
        assert sent_texts(model.requests[-1])[:-1] == ["Q0", "A0.", "Q1", "A1.", "Go on", "A6."]


async def test_a_repeated_client_message_creates_one_branch_and_another_is_refused(tmp_path: Path) -> None:
    slow_step = Stalled(say("Again."), 1)
    async with ScriptedModel(say("A."), slow_step, say("Queued.")) as model, bench(tmp_path, model) as b:
        first_events = await b.say("Q", client_message_id="c0")
        retry = await b.answer_again(question_id(first_events), client_message_id="c1")
        with anyio.fail_after(240):
            await slow_step.reached.wait()
        repeated = await b.answer_again(question_id(first_events), client_message_id="c1")
        assert (repeated.turn_id, repeated.duplicate) == (retry.turn_id, True)
        for content, client in (("Other", "c1"), (None, "c0")):
            with pytest.raises(IdempotencyMismatch):
                await b.answer_again(question_id(first_events), content, client_message_id=client)
        with pytest.raises(TurnInProgress):
            await b.answer_again(question_id(first_events))
        session = await b.runtime.session(SESSION)
        with pytest.raises(TurnInProgress):
            await session.activate(MessageId(question_id(first_events)))
        queued = await b.send("Next", on_busy="queue")
        with pytest.raises(NotFound):
            await b.answer_again(queued.user_message_id)
        slow_step.until.set()
        await follow(b, queued.turn_id)
        assert await branch_texts(b) == ["Q", "Again.", "Next", "Queued."]
        for attempt in (b.answer_again("msg_x"), session.activate(MessageId("msg_x"))):
            with pytest.raises(NotFound):
                await attempt


@pytest.mark.parametrize("dies_at", range(1, 6))
async def test_after_a_kill_between_a_fork_and_its_answer_the_right_branch_continues(
    tmp_path: Path, dies_at: int
) -> None:
    database = await Database.open(database_at(tmp_path / "test.db"))
    await database.write(
        lambda conn: sessions.create(
            conn, SESSION, SessionLabels(conversation_id=ConversationId("c")), created_at="2026"
        )
    )
    disk = Disk(database)
    async with bench(tmp_path, ScriptedModel(say("A0."), say("A1."), say("B."), strict=False), database=disk) as b:
        first_events, second_events = await b.say("Q0"), await b.say("Q1")
        disk.fill(at=dies_at)
        if dies_at == 1:
            with pytest.raises(StorageFull):
                await b.answer_again(question_id(second_events), "Other")
        else:
            branch = await b.answer_again(question_id(second_events), "Other")
            async for event in b.runtime.follow(branch.turn_id):
                if event.type == "notice":  # the notice about the full disk
                    break
    await database.aclose()
    async with ScriptedModel(then=say("B.")) as model, bench(tmp_path, model) as b:
        await b.runtime.recover()
        if dies_at == 1:
            assert await branch_texts(b) == ["Q0", "A0.", "Q1", "A1."], "nothing of the branch is there"
        else:
            events = await follow(b, branch.turn_id)
            assert [event.type for event in events if event.terminal] == ["done"]
            assert await branch_texts(b) == ["Q0", "A0.", "Other", "B."]
            assert all(sent_texts(request) == ["Q0", "A0.", "Other"] for request in model.requests)
        await (await b.runtime.session(SESSION)).activate(MessageId(str(second_events[0].fields()["messageId"])))
        assert await branch_texts(b) == ["Q0", "A0.", "Q1", "A1."]
        assert question_id(first_events) != question_id(second_events)


def think_and_answer(request: dict[str, Any]) -> Step:
    """Answer with `brain`, and summarise on request."""
    if "Summarise the conversation" not in str(request["messages"][-1]):
        return brain(request)
    return Step((Think("All."), Say('{"facts": [{"fact": "Holidays were asked about.", "documents": ["doc_1"]}]}')))


async def test_a_branch_keeps_the_prefix_byte_for_byte_and_its_thinking(tmp_path: Path) -> None:
    async with FakeMessagesAPI(then=brain) as api, open_world(tmp_path, api) as (b, world):
        turns = [await b.say(f"Question {number}?", definition=world.settings) for number in range(3)]
        requests_before = len(api.requests)
        retry_events = await answer_again(b, question_id(turns[2]), definition=world.settings)
        assert bare(api.requests[requests_before]) == bare(api.requests[requests_before - 2]), (
            "the same question is the same request"
        )
        persona(world, style="concise")
        edited_events = await answer_again(b, question_id(turns[1]), "Another question?", definition=world.settings)
        fork = bare(api.requests[2])["messages"][:-1]
        assert bare(api.requests[-1])["messages"][: len(fork)] == fork
        assert "Be brief." in str(api.requests[-1]["messages"]), "what changed is told on the new branch too"
        session = await b.runtime.session(SESSION)
        for turn_events in (turns[2], retry_events, edited_events):
            await session.activate(MessageId(str(turn_events[0].fields()["messageId"])))
            await ask(b, world, "And now?")
            assert str(api.requests[-1]["messages"]).count("Be brief.") == 1
    assert api.refused == []
    assert api.dropped == []


async def test_branches_around_a_moved_window_fit_together(tmp_path: Path) -> None:
    async with FakeMessagesAPI(then=brain) as api, open_world(tmp_path, api) as (b, world):
        turns = [await b.say(f"Question {number}?", definition=BASE) for number in range(5)]
        world.settings = replace(BASE, limits=Limits(max_steps=6, context_messages=6))
        edited_events = await answer_again(b, question_id(turns[3]), "Another question?", definition=world.settings)
        for number in range(3):  # the window moves and rewrites messages that both branches share
            await ask(b, world, f"More {number}?")
        world.settings = BASE
        session = await b.runtime.session(SESSION)
        for turn_events in (turns[4], edited_events, turns[4]):
            await session.activate(MessageId(str(turn_events[0].fields()["messageId"])))
            await ask(b, world, "And now?")
        await answer_again(b, question_id(turns[1]), definition=world.settings)
    assert api.refused == []
    assert api.dropped == []


async def test_branches_around_a_compaction_keep_their_sent_prefix(tmp_path: Path) -> None:
    async with FakeMessagesAPI(then=think_and_answer) as api, open_world(tmp_path, api) as (b, world):
        turns = [await b.say(f"Question {number}?", definition=world.settings) for number in range(11)]
        compaction = await b.compact(world.settings)
        later_events = await b.say("After it?", definition=world.settings)
        await answer_again(b, question_id(later_events), definition=world.settings)
        assert "Holidays were asked about" in str(api.requests[-1]["messages"])
        assert "Question 9?" not in str(api.requests[-1]["messages"][1:])
        await answer_again(b, question_id(turns[4]), "Before it?", definition=world.settings)
        assert "Holidays were asked about" not in str(api.requests[-1]["messages"])
        assert "Question 3?" in str(api.requests[-1]["messages"])
        assert "Question 4?" not in str(api.requests[-1]["messages"])
        session = await b.database.read(lambda conn: sessions.get(conn, SESSION))
        assert session is not None
        assert session.compacted_to == 0
        await (await b.runtime.session(SESSION)).activate(MessageId(str(later_events[0].fields()["messageId"])))
        await ask(b, world, "And now?")
        assert "Holidays were asked about" in str(api.requests[-1]["messages"])
        counts = await b.database.read(lambda conn: sessions.count_messages(conn, SESSION))
        assert counts == (26, 22)
        assert compaction.message_count == 22
    assert api.refused == []
    assert api.dropped == []

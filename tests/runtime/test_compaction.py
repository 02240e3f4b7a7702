"""Compaction replaces messages by a summary, and a failure changes nothing."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection

from agentic_rag.base.errors import (
    CompactionNotNeeded,
    GenerationAborted,
    GenerationTimeout,
    ModelError,
    StorageFull,
    TurnInProgress,
)
from agentic_rag.base.events import Usage
from agentic_rag.base.messages import Message, plain_text, text_block, user_message
from agentic_rag.models.base import ModelRequest
from agentic_rag.models.extractive import ExtractiveModel, decide
from agentic_rag.runtime.core.definition import Definition, Limits
from agentic_rag.runtime.core.summary import (
    CheckedSummary,
    ConversationDocuments,
    ask_apart,
    head_after,
    read_summary,
    said_before,
)
from agentic_rag.runtime.core.window import tokens_of
from agentic_rag.store import compactions, sessions, usage
from agentic_rag.store.compactions import CompactionRecord
from agentic_rag.store.database import Database
from agentic_rag.store.sessions import MessageRecord
from agentic_rag.testing.scripted import Broken, Scripted, ScriptedModel, Stalled
from agentic_rag.testing.steps import Say, Step, say, use
from agentic_rag.tools.base import CallOutcome, CallRequest
from tests.databases import database_at
from tests.runtime.harness import SESSION, Bench, Disk, MemoryToolset, bench, definition, info, kinds, ok, text_of

FACT = "They spoke of pumps."
SUMMARY = json.dumps({"facts": [{"fact": FACT, "documents": []}], "wishes": ["Short answers."]})
RENDERED_SUMMARY = f"Facts:\n- {FACT}\nThe user's wishes:\n- Short answers."


async def activate(request: CallRequest) -> CallOutcome:
    return ok("Be kind.", {"role": "guide", "hash": "h1"})


def tools() -> MemoryToolset:
    return MemoryToolset({"promptx_action": (info("promptx_action", origin="system"), activate)})


def long_chat(turns: int = 10) -> list[Scripted]:
    """Return the steps of a chat whose first turn activates the role."""
    return [use("promptx_action", query="x"), *[say(f"Answer {number}.") for number in range(turns)]]


async def chat(b: Bench, turns: int = 10, settings: Definition | None = None) -> None:
    for number in range(turns):
        await b.say(f"Question {number}?", definition=settings or definition())


async def read_state(b: Bench) -> tuple[list[MessageRecord], Any, list[CompactionRecord]]:
    def read(conn: Connection) -> tuple[list[MessageRecord], Any, list[CompactionRecord]]:
        return (
            sessions.transcript(conn, SESSION),
            sessions.get(conn, SESSION),
            compactions.of_session(conn, SESSION),
        )

    return await b.database.read(read)


async def test_a_summary_replaces_all_messages_and_the_role_stays(tmp_path: Path) -> None:
    steps = (*long_chat(), Step((Say(SUMMARY),), usage=Usage(50, 0, 0, 7)), say("Eleven."), say("Twelve."))
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, tools()) as b:
        await chat(b)
        rows_before, _, _ = await read_state(b)
        compaction = await b.compact()
        assert (compaction.summary, compaction.message_count, compaction.from_seq, compaction.created_by) == (
            RENDERED_SUMMARY,
            20,
            1,
            "user",
        )
        assert b.hooks.compacted_sessions == [(SESSION, (20, 20))]
        summary_request = model.requests[-1]
        previous_request = model.requests[-2]
        assert (summary_request.tools, summary_request.system, summary_request.tool_choice) == (
            previous_request.tools,
            previous_request.system,
            None,
        )
        assert summary_request.messages[: len(previous_request.messages)] == previous_request.messages
        assert plain_text(summary_request.messages[-1]["content"]).startswith("[note: Summarise the conversation")
        archived_rows, session, _ = await read_state(b)
        assert [row.content for row in archived_rows] == [row.content for row in rows_before]
        assert (session.compaction_id, session.compacted_to) == (compaction.id, archived_rows[-1].seq)
        rows = await b.database.read(lambda conn: usage.of_session(conn, SESSION))
        assert [(row.turn_id, row.input, row.output) for row in rows if row.turn_id is None] == [(None, 50, 7)]
        assert text_of(await b.say("And now?")) == "Eleven."
        sent_messages = model.requests[-1].messages
        assert len(sent_messages) == 1
        texts = [block["text"] for block in sent_messages[0]["content"]]
        assert texts[0].endswith(RENDERED_SUMMARY)
        assert texts[1].splitlines()[1:] == [line for n in range(10) for line in ("---", f"Question {n}?")]
        assert texts[2].endswith("Be kind.")
        assert texts[3] == "And now?"
        assert kinds(await b.say("More?"))[-1] == "done"
        assert model.requests[-1].messages[:1] == sent_messages


async def test_a_compacted_session_continues_after_a_restart_and_is_compacted_again(tmp_path: Path) -> None:
    async with ScriptedModel(*long_chat(), say(SUMMARY)) as model, bench(tmp_path, model, tools()) as b:
        await chat(b)
        first_compaction = await b.compact()
    steps = (*[say(f"New {number}.") for number in range(10)], say('{"facts": ["All in all."]}'), say("End."))
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, tools()) as b:
        await chat(b)
        second_compaction = await b.compact()
        assert second_compaction.from_seq == first_compaction.to_seq + 1
        assert FACT in plain_text(model.requests[-1].messages[0]["content"])
        await b.say("Still there?")
        texts = [block["text"] for block in model.requests[-1].messages[0]["content"]]
        assert texts[0].endswith("All in all.")
        assert texts[1].count("Question 9?") == 2
        assert texts[2].endswith("Be kind.")
        _, _, archives = await read_state(b)
        assert [archive.id for archive in archives] == [second_compaction.id, first_compaction.id]


async def test_a_short_conversation_is_not_compacted(tmp_path: Path) -> None:
    async with ScriptedModel(*long_chat(9)) as model, bench(tmp_path, model, tools()) as b:
        await chat(b, 9)
        state_before = await read_state(b)
        with pytest.raises(CompactionNotNeeded) as error:
            await b.compact()
        assert (error.value.count, error.value.minimum, error.value.status) == (18, 20, 409)
        assert await read_state(b) == state_before


async def test_a_summary_whose_cost_cannot_be_stored_releases_its_reservation(tmp_path: Path) -> None:
    database = await Database.open(database_at(tmp_path / "test.db"))
    disk = Disk(database)

    def refuse(request: ModelRequest) -> ModelError:
        disk.fill(refusals=1)
        return ModelError("no", http_status=400)

    try:
        async with (
            ScriptedModel(*long_chat(), say("No summary."), refuse) as model,
            bench(tmp_path, model, tools(), database=disk, hard="1000000") as b,
        ):
            await chat(b)
            with pytest.raises(StorageFull):
                await b.compact()
            assert disk.refusals == 0
            assert await b.read_reservations() == []
    finally:
        await database.aclose()


@pytest.mark.parametrize(
    "failing_step",
    [
        ModelError("no", http_status=400),
        Broken(say("Half a summary of it"), 3, ModelError("broke", started=True)),
        Stalled(say("Silent for ever."), 2),
    ],
)
async def test_a_failed_compaction_changes_nothing(tmp_path: Path, failing_step: Scripted) -> None:
    steps = (*long_chat(), failing_step, say("Next."))
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, tools(), model_idle=0.3) as b:
        await chat(b)
        state_before = await read_state(b)
        with pytest.raises((ModelError, GenerationTimeout)) as error:
            await b.compact()
        assert getattr(error.value, "code", "") in ("LLM_SERVICE_ERROR", "GENERATION_TIMEOUT")
        assert await read_state(b) == state_before
        assert text_of(await b.say("Go on")) == "Next."
        assert len(model.requests[-1].messages) > 20


async def test_an_interrupted_compaction_changes_nothing_and_a_send_waits_for_it(tmp_path: Path) -> None:
    slow_step = Stalled(say(SUMMARY), 2)
    async with ScriptedModel(*long_chat(), slow_step, say("Next.")) as model, bench(tmp_path, model, tools()) as b:
        await chat(b)
        state_before = await read_state(b)
        outcomes: list[str] = []

        async def compact() -> None:
            with pytest.raises(GenerationAborted):
                await b.compact()
            outcomes.append("aborted")

        async def send() -> None:
            outcomes.append(text_of(await b.say("Meanwhile")))

        with anyio.fail_after(240):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(compact)
                await slow_step.reached.wait()
                tasks.start_soon(send)
                await anyio.wait_all_tasks_blocked()
                assert b.runtime.running(SESSION) is None
                assert (await read_state(b)) == state_before
                assert await b.runtime.interrupt(SESSION)
        assert outcomes == ["aborted", "Next."]


async def test_a_compaction_beside_new_messages_loses_none_and_all_are_answered(tmp_path: Path) -> None:
    slow_step = Stalled(say(SUMMARY), 1)
    steps = (*long_chat(), slow_step, *[say("Sent.")] * 3)
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, tools()) as b:
        await chat(b)
        answers: list[str] = []

        async def send(number: int) -> None:
            answers.append(text_of(await b.say(f"Meanwhile {number}", on_busy="queue")))

        with anyio.fail_after(240):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(b.compact)
                await slow_step.reached.wait()
                for number in range(3):
                    tasks.start_soon(send, number)
                await anyio.wait_all_tasks_blocked()
                slow_step.until.set()
        assert answers == ["Sent."] * 3
        rows, session, _ = await read_state(b)
        live_rows = [row for row in rows if row.seq > session.compacted_to]
        assert [row.role for row in live_rows] == ["user", "assistant"] * 3
        assert len({row.seq for row in rows}) == len(rows)
        assert session.last_seq == rows[-1].seq


async def test_a_manual_compaction_during_a_turn_is_refused(tmp_path: Path) -> None:
    slow_step = Stalled(say("One two three."), 1)
    async with ScriptedModel(*long_chat(), slow_step) as model, bench(tmp_path, model, tools()) as b:
        await chat(b)
        accepted = await b.send("Go", definition())
        await slow_step.reached.wait()
        with pytest.raises(TurnInProgress) as error:
            await b.compact()
        assert error.value.turn_id == accepted.turn_id
        slow_step.until.set()
        with anyio.fail_after(240):
            assert [event async for event in b.runtime.follow(accepted.turn_id)][-1].type == "done"


async def test_a_session_past_its_share_is_compacted_between_turns(tmp_path: Path) -> None:
    full_step = Step((Say("Answer 10."),), usage=Usage(input=7_500))
    limits = definition(limits=Limits(context_tokens=10_000))
    async with (
        ScriptedModel(*long_chat(), full_step, say(SUMMARY), say("Next.")) as model,
        bench(tmp_path, model, tools()) as b,
    ):
        await chat(b, 10, limits)
        await b.say("Question 10?", definition=limits)
        assert text_of(await b.say("And?", definition=limits)) == "Next."
        rows, session, archives = await read_state(b)
        assert [(archive.created_by, archive.message_count) for archive in archives] == [("auto", 22)]
        assert sum(row.seq > session.compacted_to for row in rows) == 2
        assert plain_text(session.head[:1]).endswith(RENDERED_SUMMARY)


async def test_a_failed_automatic_compaction_is_not_retried_at_once(tmp_path: Path) -> None:
    full_step = Step((Say("Answer 10."),), usage=Usage(input=7_500))
    limits = definition(limits=Limits(context_tokens=10_000))
    error = ModelError("no", http_status=400)
    async with (
        ScriptedModel(*long_chat(), full_step, error, full_step, say("B.")) as model,
        bench(tmp_path, model, tools()) as b,
    ):
        await chat(b, 10, limits)
        for question in ("Question 10?", "Question 11?", "Question 12?"):
            assert kinds(await b.say(question, definition=limits))[-1] == "done"
        assert (await read_state(b))[2] == []


async def test_a_kill_during_the_summary_changes_nothing(tmp_path: Path) -> None:
    slow_step = Stalled(say(SUMMARY), 1)
    async with ScriptedModel(*long_chat(), slow_step) as model, bench(tmp_path, model, tools()) as b:
        await chat(b)
        state_before = await read_state(b)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(b.compact)
            await slow_step.reached.wait()
            tasks.cancel_scope.cancel()
    async with ScriptedModel(say("Next.")) as model, bench(tmp_path, model, tools()) as b:
        assert await read_state(b) == state_before
        assert text_of(await b.say("Go on")) == "Next."


async def test_without_a_language_model_the_summary_is_made_of_extracts(tmp_path: Path) -> None:
    async with ScriptedModel(*long_chat()) as model, bench(tmp_path, model, tools()) as b:
        await chat(b)
    async with bench(tmp_path, ExtractiveModel(), tools()) as b:
        compaction = await b.compact()
        lines = compaction.summary.splitlines()
        assert lines[:2] == ["Facts:", "- Answer 0."]
        assert lines[-2:] == ["- Question 8?", "- Question 9?"]


def conversation(pairs: list[tuple[str, str]]) -> list[Message]:
    messages: list[Message] = []
    for question, answer in pairs:
        messages += [user_message(question), {"role": "assistant", "content": [text_block(answer)]}]
    return messages


words = st.text(min_size=1, max_size=300)


@given(st.lists(st.tuples(words, words), min_size=1, max_size=12), st.integers(100, 4_000))
def test_a_request_for_a_summary_is_answered_by_extracts(pairs: list[tuple[str, str]], limit: int) -> None:
    request = ask_apart(definition(limits=Limits(context_tokens=limit)), conversation(pairs), limit)
    assert tokens_of(request.messages[0]["content"]) <= limit * 2
    (block,) = decide(request)
    assert block["type"] == "text"
    assert block["text"].strip()
    assert tokens_of(block["text"]) <= request.max_tokens + 300
    assert read_summary(block["text"], "end_turn", ConversationDocuments(), 1_000_000).text


@given(st.lists(words, max_size=12), st.lists(words, max_size=12), st.integers(50, 2_000))
def test_the_newest_messages_are_kept_verbatim_as_far_as_they_fit(
    previous_texts: list[str], new_texts: list[str], limit: int
) -> None:
    earlier_head: list[Message] = [
        {"role": "user", "content": head_after(CheckedSummary("s"), [], previous_texts, 1_000_000)}
    ]
    head = head_after(CheckedSummary("Summary."), earlier_head, new_texts, limit)
    carried_texts = said_before([{"role": "user", "content": head}])
    all_texts = [*previous_texts, *new_texts]
    assert carried_texts == all_texts[len(all_texts) - len(carried_texts) :]
    assert sum(tokens_of(text) for text in carried_texts) <= limit / 4


def test_a_summary_request_is_recognised_only_by_its_prompt() -> None:
    plain = ModelRequest(
        "m", 100, (text_block("You are the assistant."),), (user_message("Summarise the conversation so far"),)
    )
    assert not decide(plain)[0].get("text", "").startswith("{")

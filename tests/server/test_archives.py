"""Compaction, archives, tool calls and stored references over REST."""

from functools import partial
from pathlib import Path
from typing import Any

import anyio
from sqlalchemy import Connection

from agentic_rag.access.users import LOCAL
from agentic_rag.base.ids import ConversationId, MessageId, SessionId, TurnId
from agentic_rag.base.messages import Block, text_block, tool_result_block
from agentic_rag.models.base import ModelRequest
from agentic_rag.store import conversations, payloads, sessions
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.turns import TurnRecord, TurnStatus
from agentic_rag.testing.scripted import ScriptedModel, Stalled
from agentic_rag.testing.steps import Step, say, use
from tests.server.rig import Rig, types_of


async def plant(rig: Rig, conversation: str, count: int) -> None:
    """Store this number of ended turns as the runtime does, before the conversation was ever loaded."""
    record = await rig.application.services.conversations.get(LOCAL, ConversationId(conversation))

    def store(conn: Connection) -> None:
        for number in range(count):
            turn = TurnRecord(
                id=TurnId(new_id("turn")),
                session_id=record.session_id,
                conversation_id=ConversationId(conversation),
                content=f"Question {number}?",
                user_message_id=MessageId(new_id("msg")),
                message_id=MessageId(new_id("msg")),
                status=TurnStatus.DONE,
                image_id="img_x",
                started_at=now(),
            )
            answer = sessions.MessageRecord(
                session_id=turn.session_id,
                seq=number * 2 + 2,
                turn_id=turn.id,
                step=1,
                role="assistant",
                content=[text_block(f"Answer {number}.")],
                message_id=turn.message_id,
                created_at=now(),
            )
            turn.insert(conn)
            sessions.append_question(conn, turn, number * 2 + 1)
            sessions.append_message(conn, answer)
        conversations.add_messages(conn, ConversationId(conversation), count * 2, now())

    await rig.application.database.write(store)


SUMMARY = '{"facts": ["A summary."]}'


async def read_pages(rig: Rig, conversation: str) -> tuple[list[dict[str, Any]], list[bool]]:
    """Read a conversation's messages page by page, oldest first, each with whether it is compacted."""
    path, before = f"/api/conversations/{conversation}/messages", dict[str, str]()
    items: list[dict[str, Any]] = []
    while page := (await rig.ok("GET", path, params={"limit": "70", **before}))["items"]:
        items = page + items
        before = {"before": page[0]["id"]}
    return items, [item["metadata"].pop("compacted") for item in items]


async def test_a_conversation_of_200_messages_reads_the_same_after_two_compactions(tmp_path: Path) -> None:
    def answer(request: ModelRequest) -> Step:
        return say(SUMMARY) if "Summarise" in f"{request.system}{request.messages[-1]}" else say("Yes.")

    model = ScriptedModel(then=answer)
    async with Rig(tmp_path, instead=model) as rig:
        conversation = await rig.conversation()
        path = f"/api/conversations/{conversation}"
        await plant(rig, conversation, 90)
        first, _ = await read_pages(rig, conversation)
        await rig.ok("POST", f"{path}/compact")
        assert await read_pages(rig, conversation) == (first, [True] * 180)
        for number in range(10):
            await rig.say(conversation, f"And {number}?")
        assert len(model.requests[-1].messages) == 19, "the model is sent less than people read"
        before, flags = await read_pages(rig, conversation)
        assert flags == [True] * 180 + [False] * 20
        await rig.ok("POST", f"{path}/compact")
        assert await read_pages(rig, conversation) == (before, [True] * 200)
        assert before[:180] == first
        assert (await rig.ok("GET", path))["messageCount"] == 200


async def test_the_messages_behind_a_summary_can_be_read(tmp_path: Path) -> None:
    answers = [say(f"a{number}") for number in range(10)]
    async with Rig(tmp_path, *answers, say('{"facts": ["They counted."]}'), say("a10")) as rig:
        conversation = await rig.conversation()
        path = f"/api/conversations/{conversation}"
        for number in range(10):
            await rig.say(conversation, f"q{number}")
        archive = await rig.ok("POST", f"{path}/compact")
        assert (archive["summary"], archive["messageCount"], archive["createdBy"]) == (
            "Facts:\n- They counted.",
            20,
            "user",
        )
        assert (await rig.ok("GET", f"{path}/archives"))["items"] == [archive]
        await rig.say(conversation, "q10")
        path_of_messages = f"{path}/archives/{archive['id']}/messages"
        items = (await rig.ok("GET", path_of_messages, params={"limit": "3"}))["items"]
        assert [item["content"] for item in items] == ["a8", "q9", "a9"]
        before = {"limit": "200", "before": items[0]["id"]}
        assert len((await rig.ok("GET", path_of_messages, params=before))["items"]) == 17
        missing = await rig.refused("GET", f"{path}/archives/comp_x/messages")
        assert missing[:2] == (404, "ARCHIVE_NOT_FOUND")


async def test_a_full_conversation_accepts_messages_after_its_compaction(tmp_path: Path) -> None:
    async with Rig(tmp_path, *[say("Yes.")] * 10, say(SUMMARY), say("More.")) as rig:
        conversation = await rig.conversation()
        path = f"/api/conversations/{conversation}"
        for number in range(10):
            await rig.say(conversation, f"q{number}")
        full = partial(conversations.update, conversation_id=ConversationId(conversation), message_count=1_000)
        await rig.application.database.write(full)
        assert (await rig.refused("POST", f"{path}/messages", {"content": "Hi"}))[:2] == (409, "CONVERSATION_FULL")
        await rig.ok("POST", f"{path}/compact")
        assert types_of(await rig.say(conversation, "Hi"))[-1] == "done"
        assert (await rig.ok("GET", path))["messageCount"] == 1_002


async def test_a_compaction_is_refused_below_the_threshold_and_during_a_turn(tmp_path: Path) -> None:
    stalled = Stalled(say("Long answer."), 1)
    async with Rig(tmp_path, stalled) as rig:
        conversation = await rig.conversation()
        path = f"/api/conversations/{conversation}"
        assert (await rig.refused("POST", f"{path}/compact"))[:2] == (409, "COMPACTION_NOT_NEEDED")
        await rig.ok("POST", f"{path}/messages", {"content": "Go"}, headers={"accept": "application/json"})
        with anyio.fail_after(240):
            await stalled.reached.wait()
        assert (await rig.refused("POST", f"{path}/compact"))[:2] == (409, "TURN_IN_PROGRESS")
        assert (await rig.refused("POST", "/api/conversations/conv_x/compact"))[0] == 404


async def test_tool_calls_are_listed_and_filtered(tmp_path: Path) -> None:
    steps = (use("promptx_discover"), use("promptx_action", role="nobody"), say("Done."))
    async with Rig(tmp_path, *steps) as rig:
        conversation = await rig.conversation()
        events = await rig.say(conversation, "Go")
        path = f"/api/conversations/{conversation}/tool-calls"
        items = (await rig.ok("GET", path))["items"]
        assert [(item["toolName"], item["status"]) for item in items] == [
            ("promptx_discover", "ok"),
            ("promptx_action", "error"),
        ]
        assert items[0]["turnId"] == events[0]["turnId"]
        assert items[0]["size"] == len(items[0]["result"][0]["text"].encode())
        assert (await rig.ok("GET", path, params={"status": "error"}))["items"] == items[1:]
        assert (await rig.ok("GET", path, params={"toolName": "promptx_discover"}))["items"] == items[:1]
        assert (await rig.ok("GET", path, params={"limit": "1"}))["items"] == items[1:]
        assert (await rig.refused("GET", path, params={"status": "odd"}))[:2] == (422, "VALIDATION_ERROR")


async def test_stored_references_are_resolved_and_a_bad_one_fails_one_item(tmp_path: Path) -> None:
    async with Rig(tmp_path, use("promptx_discover"), say("Here.")) as rig:
        conversation = await rig.conversation()
        await rig.say(conversation, "Chart")
        good, deleted, foreign = new_id("ref"), new_id("ref"), new_id("ref")
        folder = rig.settings.data / "payloads"
        folder.mkdir()
        chart, secret = b'{"bars": [1, 2], "_kept": true}', b'"secret"'
        (folder / good).write_bytes(chart)
        (folder / foreign).write_bytes(secret)
        record = await rig.application.services.conversations.get(LOCAL, ConversationId(conversation))
        structured = {
            "title": "Sales",
            "charts": [{"_ref": good}, {"_ref": deleted}, {"_ref": foreign}, {"_ref": "../x"}, {"_ref": 5}],
        }

        def plant(conn: Connection) -> None:
            own, foreign_owner = record.session_id, SessionId("sess_other")
            for ref, owner, data in ((good, own, chart), (deleted, own, b"x"), (foreign, foreign_owner, secret)):
                payloads.put(conn, payloads.record_of(ref, owner, "application/json", data))
            rows = sessions.transcript(conn, record.session_id)
            row = next(row for row in rows if row.content[0]["type"] == "tool_result")
            block: Block = tool_result_block(row.content[0]["tool_use_id"], [text_block("shown")])
            sessions.set_content(conn, record.session_id, row.seq, [block | {"_structured": structured}])

        await rig.application.database.write(plant)
        items = (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"]
        block: dict[str, Any] = next(block for block in items[1]["blocks"] if block["type"] == "tool_result")
        charts = block["structuredContent"]["charts"]
        assert block["structuredContent"]["title"] == "Sales"
        assert charts[0] == {"bars": [1, 2], "_kept": True}
        assert all(chart["unavailable"] is True and chart["reason"] for chart in charts[1:])
        assert len(charts) == 5
        assert "secret" not in str(items)
        assert not [key for key in block if key.startswith("_")]


async def test_deleting_a_conversation_removes_the_files_of_its_payloads(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Hi.")) as rig:
        conversation = await rig.conversation()
        assert types_of(await rig.say(conversation, "Hi"))[-1] == "done"
        record = await rig.application.services.conversations.get(LOCAL, ConversationId(conversation))
        ref, other_ref = new_id("ref"), new_id("ref")
        folder = rig.settings.data / "payloads"
        folder.mkdir()
        for name in (ref, other_ref):
            (folder / name).write_bytes(b"x")
        row = payloads.record_of(ref, record.session_id, "text/plain", b"x")
        await rig.application.database.write(lambda conn: payloads.put(conn, row))
        await rig.ok("DELETE", f"/api/conversations/{conversation}")
        assert [path.name for path in folder.iterdir()] == [other_ref]

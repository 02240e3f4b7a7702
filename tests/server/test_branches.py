"""Retries over REST and the WebSocket: retry, edit, branches, and the return to an earlier branch."""

from pathlib import Path
from typing import Any

import anyio
import pytest
import sqlalchemy as sa

from agentic_rag.base.errors import ModelError
from agentic_rag.base.ids import ConversationId
from agentic_rag.models.base import ModelRequest
from agentic_rag.store import branches, conversations, sessions, turns
from agentic_rag.testing.scripted import Stalled
from agentic_rag.testing.steps import Step, say, use
from tests.server.rig import Rig, events_of, types_of
from tests.ws.serving import client, serving

AS_JSON = {"accept": "application/json"}


async def read_texts(rig: Rig, conversation: str, **params: str) -> list[str]:
    items = (await rig.ok("GET", f"/api/conversations/{conversation}/messages", params=params))["items"]
    return [item["content"] for item in items]


async def test_a_failed_question_is_retried_and_an_answered_one_edited_and_both_branches_can_be_read(
    tmp_path: Path,
) -> None:
    failure = ModelError("no", http_status=400)
    async with Rig(tmp_path, failure, use("promptx_discover"), say("Now."), say("Else."), say("On.")) as rig:
        conversation = await rig.conversation()
        path = f"/api/conversations/{conversation}"
        failed_turn = await rig.say(conversation, "What is the notice period?")
        message = failed_turn[0]["userMessageId"]
        retried = events_of((await rig.http.post(f"{path}/messages/{message}/retry")).text)
        assert (types_of(retried)[-1], retried[0]["userMessageId"]) == ("done", message)
        assert "title" not in types_of(retried)
        items = (await rig.ok("GET", f"{path}/messages"))["items"]
        assert [item["content"] for item in items] == ["What is the notice period?", "Now."]
        assert [item["parentMessageId"] for item in items] == [None, message]
        assert (await rig.ok("GET", path))["messageCount"] == 2
        edited_turn = await rig.ok(
            "POST", f"{path}/messages/{message}/edit", {"content": "And holidays?"}, headers=AS_JSON
        )
        assert (
            events_of((await rig.http.get(f"/api/turns/{edited_turn['id']}/events")).text)[1]["title"]
            == "And holidays?"
        )
        await rig.say(conversation, "More")
        assert await read_texts(rig, conversation) == ["And holidays?", "Else.", "More", "On."]
        record = await rig.ok("GET", path)
        assert (record["messageCount"], record["title"]) == (4, "And holidays?")
        branches = (await rig.ok("GET", f"{path}/branches"))["items"]
        assert [
            (branch["content"], branch["turnCount"], branch["active"], branch["status"]) for branch in branches
        ] == [
            ("What is the notice period?", 1, False, "failed"),
            ("What is the notice period?", 1, False, "done"),
            ("And holidays?", 2, True, "done"),
        ]
        assert await read_texts(rig, conversation, leaf=branches[1]["leaf"]) == ["What is the notice period?", "Now."]
        assert await read_texts(rig, conversation, leaf=branches[0]["leaf"]) == ["What is the notice period?", ""]
        conversation_record = await rig.ok("PATCH", path, {"activeLeaf": branches[1]["leaf"]})
        assert conversation_record["messageCount"] == 2
        assert await read_texts(rig, conversation) == ["What is the notice period?", "Now."]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/messages/msg_x/retry", {}),
        ("POST", "/messages/msg_x/edit", {"content": "Other"}),
        ("PATCH", "", {"activeLeaf": "msg_x"}),
        ("GET", "/messages?leaf=msg_x", None),
    ],
)
async def test_an_unknown_message_is_not_found(
    tmp_path: Path, method: str, path: str, body: dict[str, Any] | None
) -> None:
    async with Rig(tmp_path, say("A."), say("B.")) as rig:
        domain = await rig.domain()
        conversation, other_conversation = await rig.conversation(domain), await rig.conversation(domain)
        await rig.say(conversation, "Hello")
        foreign_message = (await rig.say(other_conversation, "Hello"))[0]["userMessageId"]
        for ident in ("msg_x", foreign_message):
            place = f"/api/conversations/{conversation}{path}".replace("msg_x", ident)
            sent_body = body and {key: value.replace("msg_x", ident) for key, value in body.items()}
            assert (await rig.refused(method, place, sent_body))[:2] == (404, "MESSAGE_NOT_FOUND")


async def test_a_socket_retries_and_edits_and_a_running_or_archived_conversation_refuses(tmp_path: Path) -> None:
    slow = Stalled(say("Slowly."), 1)
    steps = (say("One."), say("Two."), say("Three."), slow)
    async with Rig(tmp_path, *steps) as rig, serving(rig.application.app) as address, client(address) as socket:
        conversation = await rig.conversation()
        message = (await rig.say(conversation, "Count."))[0]["userMessageId"]
        await socket.say("retry", conversationId=conversation, messageId=message, clientMessageId="c1")
        assert (await socket.hear_turn())[-1]["type"] == "done"
        await socket.say("edit", conversationId=conversation, messageId=message, content="Count on.")
        assert (await socket.hear_turn())[-1]["type"] == "done"
        assert await read_texts(rig, conversation) == ["Count on.", "Three."]
        path = f"/api/conversations/{conversation}"
        edit = f"{path}/messages/{message}/edit"
        assert (await rig.refused("POST", edit, {"content": " "}))[:2] == (400, "MESSAGE_CONTENT_REQUIRED")
        await rig.ok("PATCH", path, {"status": "archived"})
        assert (await rig.refused("POST", f"{path}/messages/{message}/retry"))[:2] == (409, "CONVERSATION_ARCHIVED")
        assert await read_texts(rig, conversation) == ["Count on.", "Three."], "what is refused moves nothing"
        await rig.ok("PATCH", path, {"status": "active"})
        await rig.ok("POST", f"{path}/messages/{message}/retry", headers=AS_JSON)
        with anyio.fail_after(240):
            await slow.reached.wait()
        for method, place, body in (("POST", edit, {"content": "x"}), ("PATCH", path, {"activeLeaf": message})):
            assert (await rig.refused(method, place, body))[:2] == (409, "TURN_IN_PROGRESS")
        await rig.ok("DELETE", path)
        tables = (sessions.SESSIONS, sessions.MESSAGES, turns.TURNS, branches.CONTEXTS)
        for table in tables:
            count = sa.select(sa.func.count()).select_from(table)
            assert await rig.application.database.read(lambda conn, query=count: conn.execute(query).scalar()) == 0  # type: ignore[misc]


async def test_a_new_branch_contains_no_delegates_of_the_old_one(tmp_path: Path) -> None:
    prompts: list[str] = []

    def child(answer: str) -> Any:
        def step(request: ModelRequest) -> Step:
            prompts.append(str(request.messages))
            return say(answer)

        return step

    def last(request: ModelRequest) -> Step:
        prompts.append(str(request.messages))
        return say("Summed up anew.")

    first = (use("delegate", role="assistant", task="Dig at the OLD place."), child("OLDGOLD found."), say("OLDSUM."))
    second_turn = (use("delegate", role="assistant", task="Dig at the new place."), child("Newly found."), last)
    async with Rig(tmp_path, *first, *second_turn, say("On.")) as rig:
        conversation = await rig.conversation(await rig.domain(subRoleIds=["assistant"]))
        path = f"/api/conversations/{conversation}"
        old = await rig.say(conversation, "Where is it?")
        edit = f"{path}/messages/{old[0]['userMessageId']}/edit"
        new = events_of((await rig.http.post(edit, json={"content": "Where else?"})).text)
        assert new[-1]["type"] == "done"
        assert not any("OLD" in prompt for prompt in prompts[1:])
        assert {event.get("agent", "assistant") for event in new} == {"assistant"}, "paths begin anew in each turn"
        texts = [event["text"] for event in new if event["type"] == "text"]
        assert "OLD" not in "".join(texts)
        (child_of_new,) = (await rig.ok("GET", f"/api/turns/{new[0]['turnId']}/children"))["items"]
        assert child_of_new["messages"][0]["content"] == "Dig at the new place."
        (child_of_old,) = (await rig.ok("GET", f"/api/turns/{old[0]['turnId']}/children"))["items"]
        assert child_of_old["messages"][1]["content"] == "OLDGOLD found.", "the other branch keeps its own"
        assert await read_texts(rig, conversation) == ["Where else?", "Summed up anew."]
        await rig.say(conversation, "Go on.")
        assert (await rig.ok("GET", path))["messageCount"] == 4
        await rig.ok("DELETE", path)
        count = sa.select(sa.func.count()).select_from(sessions.SESSIONS)
        assert await rig.application.database.read(lambda conn: conn.execute(count).scalar()) == 0


async def test_a_full_conversation_can_be_retried_because_it_does_not_grow(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("One."), say("Two."), say("Three.")) as rig:
        conversation = await rig.conversation()
        path = f"/api/conversations/{conversation}"
        message = (await rig.say(conversation, "Count."))[0]["userMessageId"]
        await rig.say(conversation, "On.")
        database = rig.application.database
        await database.write(lambda conn: conversations.update(conn, ConversationId(conversation), message_count=1_000))
        send = f"{path}/messages"
        assert (await rig.refused("POST", send, {"content": "More"}))[:2] == (409, "CONVERSATION_FULL")
        events = events_of((await rig.http.post(f"{path}/messages/{message}/retry")).text)
        assert events[-1]["type"] == "done"
        assert (await rig.ok("GET", path))["messageCount"] == 2


async def test_queued_messages_follow_the_running_answers_branch(tmp_path: Path) -> None:
    slow = Stalled(say("Slowly."), 1)
    async with Rig(tmp_path, say("One."), slow, say("Queued.")) as rig:
        conversation = await rig.conversation()
        path = f"/api/conversations/{conversation}"
        message = (await rig.say(conversation, "Count."))[0]["userMessageId"]
        retried = await rig.ok("POST", f"{path}/messages/{message}/retry", headers=AS_JSON)
        with anyio.fail_after(240):
            await slow.reached.wait()
        body = {"content": "Then?", "onBusy": "queue"}
        queued = await rig.ok("POST", f"{path}/messages", body, headers=AS_JSON)
        assert queued["status"] == "queued"
        assert (await rig.refused("POST", f"{path}/messages/{message}/retry"))[:2] == (409, "TURN_IN_PROGRESS")
        slow.until.set()
        for turn in (retried, queued):
            assert types_of(events_of((await rig.http.get(f"/api/turns/{turn['id']}/events")).text))[-1] == "done"
        assert await read_texts(rig, conversation) == ["Count.", "Slowly.", "Then?", "Queued."]

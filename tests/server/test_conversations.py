"""Conversations, messages and turns over REST and SSE."""

from pathlib import Path

import anyio
import pytest

from agentic_rag.access.users import User
from agentic_rag.base.errors import ModelError, NotFound, StorageFull
from agentic_rag.base.ids import ConversationId
from agentic_rag.models.base import ModelRequest
from agentic_rag.store import conversations, run_events
from agentic_rag.testing.scripted import Broken, Scripted, Stalled
from agentic_rag.testing.steps import Say, Step, say, use
from tests.server.rig import Rig, events_of, types_of


async def test_a_message_streams_its_turn_and_both_messages_can_be_read(tmp_path: Path) -> None:
    async with Rig(tmp_path, use("promptx_discover"), say("Hello there.")) as rig:
        conversation = await rig.conversation()
        events = await rig.say(conversation, "Hi, who are you?")
        assert types_of(events)[:2] == ["turn_started", "title"]
        assert types_of(events)[-1] == "done"
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert "".join(event["text"] for event in events if event["type"] == "text") == "Hello there."
        items = (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"]
        assert [(item["role"], item["content"]) for item in items] == [
            ("user", "Hi, who are you?"),
            ("assistant", "Hello there."),
        ]
        question, answer = items
        assert question["id"] == events[0]["userMessageId"]
        assert answer["id"] == events[0]["messageId"] == events[-1]["messageId"]
        assert [block["type"] for block in answer["blocks"]] == ["tool_use", "tool_result", "text"]
        assert answer["metadata"]["stopReason"] == "end_turn"
        assert answer["metadata"]["interrupted"] is False
        record = await rig.ok("GET", f"/api/conversations/{conversation}")
        assert record["messageCount"] == 2
        assert record["lastMessageAt"] is not None


async def test_a_json_client_gets_the_turn_and_follows_it_by_number(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("One two three.")) as rig:
        conversation = await rig.conversation()
        path = f"/api/conversations/{conversation}/messages"
        accepted = await rig.http.post(path, json={"content": "Count."}, headers={"accept": "application/json"})
        assert accepted.status_code == 202
        turn = accepted.json()
        assert turn["conversationId"] == conversation
        stream = f"/api/turns/{turn['id']}/events"
        all_events = events_of((await rig.http.get(stream)).text)
        assert all_events[0]["userMessageId"] == turn["userMessageId"]
        for after in range(len(all_events)):
            later_events = events_of((await rig.http.get(stream, params={"after": str(after)})).text)
            assert later_events == all_events[after:]
            headers = {"last-event-id": f"{turn['id']}:{after}"}
            assert events_of((await rig.http.get(stream, headers=headers)).text) == later_events
        turn_record = await rig.ok("GET", f"/api/turns/{turn['id']}")
        assert (turn_record["status"], turn_record["endReason"]) == ("done", "end_turn")


async def test_a_deleted_log_is_an_error(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Short-lived.")) as rig:
        events = await rig.say(await rig.conversation(), "Hi")
        await rig.application.database.write(lambda conn: run_events.prune(conn, "9999"))
        status, code, _ = await rig.refused("GET", f"/api/turns/{events[0]['turnId']}/events")
        assert (status, code) == (410, "LOG_GONE")


BAD_MESSAGES: list[tuple[object, int, str]] = [
    ({"content": ""}, 400, "MESSAGE_CONTENT_REQUIRED"),
    ({"content": " \n\t "}, 400, "MESSAGE_CONTENT_REQUIRED"),
    ({"content": "\x00 \x00"}, 400, "MESSAGE_CONTENT_REQUIRED"),
    ({"content": "x" * 10_001}, 400, "MESSAGE_TOO_LONG"),
    ({}, 400, "MESSAGE_CONTENT_REQUIRED"),
    ({"content": None}, 400, "MESSAGE_CONTENT_REQUIRED"),
    ({"content": 5}, 422, "VALIDATION_ERROR"),
    ({"content": "hi", "colour": "red"}, 422, "VALIDATION_ERROR"),
    ({"content": "hi", "onBusy": "shout"}, 422, "VALIDATION_ERROR"),
    ([], 422, "VALIDATION_ERROR"),
    (None, 400, "MESSAGE_CONTENT_REQUIRED"),
]


async def test_a_bad_message_is_refused_plainly_and_the_next_is_answered(tmp_path: Path) -> None:
    async with Rig(tmp_path, *(say("Still here.") for _ in BAD_MESSAGES)) as rig:
        conversation = await rig.conversation()
        path = f"/api/conversations/{conversation}/messages"
        for body, status, code in BAD_MESSAGES:
            refusal = await rig.refused("POST", path, body)
            assert (body, *refusal[:2]) == (body, status, code)
            assert refusal[2]
            assert types_of(await rig.say(conversation, "Hello?"))[-1] == "done"


async def test_a_malformed_body_is_a_validation_error(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        path = f"/api/conversations/{await rig.conversation()}/messages"
        for content in (b"{", b"\xff\xfe", b'{"content": "\\ud800"}', b"[" * 5_000, b"x" * 1_100_000):
            refusal = await rig.refused("POST", path, content=content)
            assert (content[:20], *refusal[:2]) == (content[:20], 422, "VALIDATION_ERROR")


UNKNOWN_IDS: list[tuple[str, str, str]] = [
    ("GET", "/api/conversations/conv_x", "CONVERSATION_NOT_FOUND"),
    ("PATCH", "/api/conversations/conv_x", "CONVERSATION_NOT_FOUND"),
    ("DELETE", "/api/conversations/conv_x", "CONVERSATION_NOT_FOUND"),
    ("GET", "/api/conversations/conv_x/messages", "CONVERSATION_NOT_FOUND"),
    ("POST", "/api/conversations/conv_x/interrupt", "CONVERSATION_NOT_FOUND"),
    ("GET", "/api/turns/turn_x", "TURN_NOT_FOUND"),
    ("GET", "/api/turns/turn_x/events", "TURN_NOT_FOUND"),
    ("GET", "/api/domains/dom_x", "DOMAIN_NOT_FOUND"),
    ("GET", "/api/domains/dom_x/documents", "DOMAIN_NOT_FOUND"),
    ("GET", "/api/domains/dom_x/roles", "DOMAIN_NOT_FOUND"),
]


async def test_an_unknown_id_is_not_found(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        for method, path, code in UNKNOWN_IDS:
            body: object = None if method in ("GET", "DELETE") else {}
            assert (path, *(await rig.refused(method, path, body))[:2]) == (path, 404, code)


async def test_another_owners_conversation_is_not_found(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Mine.")) as rig:
        conversation = await rig.conversation()
        events = await rig.say(conversation, "Hi")
        eve, conversations = User("eve"), rig.application.services.conversations
        for attempt in (
            conversations.get(eve, ConversationId(conversation)),
            conversations.send(eve, ConversationId(conversation), "hi"),
            conversations.messages(eve, ConversationId(conversation)),
            rig.application.services.deletion.conversation(eve, ConversationId(conversation)),
            conversations.interrupt(eve, ConversationId(conversation)),
            conversations.turn(eve, events[0]["turnId"]),
        ):
            with pytest.raises(NotFound):
                await attempt
        assert (await conversations.list_page(eve)).total == 0


async def test_a_repeated_client_message_creates_one_turn_and_other_content_is_refused(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("Once.")) as rig:
        conversation = await rig.conversation()
        first = await rig.say(conversation, "Do it", clientMessageId="c-1")
        repeated = await rig.say(conversation, "Do it", clientMessageId="c-1")
        assert repeated == first
        path = f"/api/conversations/{conversation}/messages"
        refusal = await rig.refused("POST", path, {"content": "Do more", "clientMessageId": "c-1"})
        assert refusal[:2] == (409, "IDEMPOTENCY_MISMATCH")
        assert len((await rig.ok("GET", path))["items"]) == 2


async def test_a_running_turn_refuses_a_second_message_queues_one_and_can_be_interrupted(tmp_path: Path) -> None:
    stalled = Stalled(say("This takes long."), 3)
    async with Rig(tmp_path, stalled, say("Next.")) as rig:
        conversation = await rig.conversation()
        path = f"/api/conversations/{conversation}"
        as_json = {"accept": "application/json"}
        turn = await rig.ok("POST", f"{path}/messages", {"content": "Go"}, headers=as_json)
        with anyio.fail_after(240):
            await stalled.reached.wait()
        assert (await rig.refused("POST", f"{path}/messages", {"content": "Me too"}))[:2] == (409, "TURN_IN_PROGRESS")
        queued = await rig.ok("POST", f"{path}/messages", {"content": "Later", "onBusy": "queue"}, headers=as_json)
        assert queued["status"] == "queued"
        assert await rig.ok("POST", f"{path}/interrupt", {"turnId": turn["id"]}) == {"interrupted": True}
        assert types_of(events_of((await rig.http.get(f"/api/turns/{turn['id']}/events")).text))[-1] == "interrupted"
        assert types_of(events_of((await rig.http.get(f"/api/turns/{queued['id']}/events")).text))[-1] == "done"
        assert await rig.ok("POST", f"{path}/interrupt", {"turnId": turn["id"]}) == {"interrupted": False}
        items = (await rig.ok("GET", f"{path}/messages"))["items"]
        assert [item["content"] for item in items if item["role"] == "user"] == ["Go", "Later"]
        assert (await rig.ok("GET", path))["messageCount"] == len(items)


async def test_the_first_message_gives_the_title_unless_the_user_chose_one(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("A."), say("B."), say("C.")) as rig:
        domain = await rig.domain()
        untitled = await rig.conversation(domain)
        text = "What is the notice period in the trial month? And is it the same for part-time contracts?"
        events = await rig.say(untitled, text)
        assert events[1]["title"] == "What is the notice period in the trial month?"
        assert "title" not in types_of(await rig.say(untitled, "More"))
        titled_id = await rig.conversation(domain, title="  My   case ")
        assert "title" not in types_of(await rig.say(titled_id, "Hello"))
        assert (await rig.ok("GET", f"/api/conversations/{titled_id}"))["title"] == "My case"


async def test_an_archived_or_full_conversation_refuses_messages(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        conversation = await rig.conversation()
        path = f"/api/conversations/{conversation}"
        assert (await rig.ok("PATCH", path, {"status": "archived"}))["status"] == "archived"
        assert (await rig.refused("POST", f"{path}/messages", {"content": "Hi"}))[:2] == (409, "CONVERSATION_ARCHIVED")
        await rig.ok("PATCH", path, {"status": "active"})
        await rig.application.database.write(
            lambda conn: conversations.update(conn, ConversationId(conversation), message_count=1000)
        )
        assert (await rig.refused("POST", f"{path}/messages", {"content": "Hi"}))[:2] == (409, "CONVERSATION_FULL")
        assert (await rig.ok("GET", f"{path}/messages"))["items"] == []


async def test_messages_are_paged_backwards(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("a1"), say("a2"), say("a3")) as rig:
        conversation = await rig.conversation()
        for question in ("q1", "q2", "q3"):
            await rig.say(conversation, question)
        path = f"/api/conversations/{conversation}/messages"
        last_items = (await rig.ok("GET", path, params={"limit": "3"}))["items"]
        assert [item["content"] for item in last_items] == ["a2", "q3", "a3"]
        before = {"limit": "10", "before": last_items[0]["id"]}
        assert [item["content"] for item in (await rig.ok("GET", path, params=before))["items"]] == ["q1", "a1", "q2"]
        assert (await rig.refused("GET", path, params={"before": "msg_x"}))[:2] == (404, "MESSAGE_NOT_FOUND")
        assert (await rig.refused("GET", path, params={"limit": "0"}))[:2] == (422, "VALIDATION_ERROR")


async def test_conversations_are_listed_sorted_filtered_and_changed(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        for title in ("Bravo", "Alpha", "Charlie"):
            await rig.conversation(domain, title=title)
        query = {"sortBy": "title", "sortOrder": "asc", "pageSize": "2"}
        page = await rig.ok("GET", "/api/conversations", params=query)
        assert ([item["title"] for item in page["items"]], page["total"]) == (["Alpha", "Bravo"], 3)
        assert (await rig.ok("GET", "/api/conversations", params={"q": "char"}))["items"][0]["title"] == "Charlie"
        path = f"/api/conversations/{page['items'][0]['id']}"
        conversation_record = await rig.ok("PATCH", path, {"title": "Delta", "metadata": {"case": 7}})
        assert (conversation_record["title"], conversation_record["titleSource"], conversation_record["metadata"]) == (
            "Delta",
            "user",
            {"case": 7},
        )
        assert (await rig.refused("PATCH", path, {"title": " "}))[:2] == (422, "VALIDATION_ERROR")


async def test_deleting_a_conversation_ends_its_turn_and_leaves_nothing(tmp_path: Path) -> None:
    stalled = Stalled(Step((Say("Long."),)), 1)
    async with Rig(tmp_path, stalled) as rig:
        conversation = await rig.conversation()
        path = f"/api/conversations/{conversation}"
        as_json = {"accept": "application/json"}
        turn = await rig.ok("POST", f"{path}/messages", {"content": "Go"}, headers=as_json)
        with anyio.fail_after(240):
            await stalled.reached.wait()
        await rig.ok("DELETE", path)
        assert (await rig.refused("GET", path))[0] == 404
        assert (await rig.refused("GET", f"/api/turns/{turn['id']}"))[0] == 404


async def test_context_documents_must_belong_to_the_domain(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        body = {"domainId": domain, "contextDocumentIds": ["doc_x"]}
        assert (await rig.refused("POST", "/api/conversations", body))[:2] == (404, "DOCUMENT_NOT_FOUND")


def fail_with(error: Exception) -> Scripted:
    """Return a step that fails with an exception that no model client maps."""

    def step(request: ModelRequest) -> Step:
        raise error

    return step


PLACE = "http://10.1.2.3:8081/v1"
FAILURES: dict[str, tuple[Scripted, bool]] = {
    "overloaded": (ModelError(f"failed (529): {PLACE} says no", http_status=529), True),
    "too many requests": (ModelError(f"slow down, org-42 at {PLACE}", http_status=429), True),
    "unreachable": (ModelError(f"{PLACE} cannot be reached. Check ANTHROPIC_BASE_URL.", retryable=True), True),
    "not allowed": (ModelError(f"{PLACE} says org-42 may not", http_status=403), False),
    "broken off": (Broken(say("Half of it"), 3, ModelError(f"lost {PLACE}", http_status=200, started=True)), False),
    "no room": (fail_with(StorageFull("[Errno 28] /var/lib/data/agentic-rag.db")), False),
    "a bug": (fail_with(RuntimeError("/srv/app.py")), False),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_failed_turn_stays_visible_with_a_plain_reason(tmp_path: Path, name: str) -> None:
    failure, retryable = FAILURES[name]
    async with Rig(tmp_path, failure, say("Now it works."), retry_budget_seconds=0) as rig:
        conversation = await rig.conversation()
        events = await rig.say(conversation, "Hello?")
        path = f"/api/conversations/{conversation}"
        question, answer = (await rig.ok("GET", f"{path}/messages"))["items"]
        error = answer["metadata"]["error"]
        assert (question["content"], answer["role"], answer["turnId"]) == ("Hello?", "assistant", events[0]["turnId"])
        assert answer["id"] == events[0]["messageId"]
        assert error == {key: events[-1][key] for key in ("code", "message", "retryable")}
        assert error["retryable"] is retryable
        assert error["message"].endswith((".", ")."))
        for secret in ("10.1.2.3", "8081", "org-42", "Errno", "/var", "/srv"):
            assert secret not in str((answer, events))
        assert (await rig.ok("GET", path))["messageCount"] == 2
        await rig.say(conversation, "And now?")
        items = (await rig.ok("GET", f"{path}/messages"))["items"]
        assert [item["role"] for item in items] == ["user", "assistant"] * 2
        assert (await rig.ok("GET", path))["messageCount"] == 4
        for limit in (1, 2, 3):  # a page may end between a question and an answer without text
            last_page = await rig.ok("GET", f"{path}/messages", params={"limit": str(limit)})
            before = {"before": last_page["items"][0]["id"]}
            first_page = await rig.ok("GET", f"{path}/messages", params=before)
            assert ([*first_page["items"], *last_page["items"]], last_page["hasMore"], first_page["hasMore"]) == (
                items,
                True,
                False,
            )


async def test_a_conversation_shows_its_running_and_waiting_turns(tmp_path: Path) -> None:
    stalled = Stalled(say("Long."), 1)
    async with Rig(tmp_path, stalled, say("Next.")) as rig:
        conversation = await rig.conversation()
        path = f"/api/conversations/{conversation}"
        assert (await rig.ok("GET", path))["turn"] is None
        as_json = {"accept": "application/json"}
        turn = await rig.ok("POST", f"{path}/messages", {"content": "Go"}, headers=as_json)
        await stalled.reached.wait()
        queued = {"content": "Then", "onBusy": "queue"}
        follower = await rig.ok("POST", f"{path}/messages", queued, headers=as_json)
        running = {"id": turn["id"], "status": "running"}
        assert (await rig.ok("GET", path))["turn"] == running
        assert (await rig.ok("GET", "/api/conversations"))["items"][0]["turn"] == running
        stalled.until.set()
        await rig.http.get(f"/api/turns/{follower['id']}/events")
        assert (await rig.ok("GET", path))["turn"] is None


@pytest.mark.parametrize("dialect", ["native", "observable", "message", "agentx", "knowledge", "ag-ui"])
async def test_a_stream_resumes_after_each_of_its_ids(tmp_path: Path, dialect: str) -> None:
    async with Rig(tmp_path, use("search_documents", query="x"), say("Nothing is written about it.")) as rig:
        events = await rig.say(await rig.conversation(), "What is x?")
        path = f"/api/turns/{events[0]['turnId']}/events?dialect={dialect}"
        whole = (await rig.http.get(path)).text
        blocks = [block for block in whole.split("\n\n") if block.strip()]
        ids = {block.partition("id: ")[2].partition("\n")[0] for block in blocks} - {""}
        assert ids
        for event_id in ids:
            response = await rig.http.get(path, headers={"Last-Event-ID": event_id})
            assert response.status_code == 200, response.text
            rest = [block for block in response.text.split("\n\n") if block.strip()]
            assert rest == blocks[max(at for at, block in enumerate(blocks) if f"id: {event_id}\n" in block) + 1 :]

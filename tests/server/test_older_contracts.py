"""The older contracts at their own paths, as their unchanged clients use them."""

from pathlib import Path
from typing import Any

import anyio
import httpx2
import orjson

from agentic_rag.access.users import User
from agentic_rag.base.errors import ModelError
from agentic_rag.testing.scripted import Broken, Stalled
from agentic_rag.testing.steps import Cite, Say, Step, say, use
from tests.server.dialects.reading import SseEvent, parse_sse
from tests.server.dialects.test_older_contracts import parse_like_older_clients
from tests.server.rig import Rig
from tests.ws.serving import serving

LEAVE = b"# Leave\n\nFull-time staff have 27 days of paid leave a year.\n"
SEARCH = use("search_documents", query="paid leave")
MORE = 3
CITED = say("You have 27 days of paid leave.", Cite(0))


async def open_default_domain(tmp_path: Path, *steps: Any) -> tuple[str, Rig]:
    """Create a domain, and return a rig that has it as its default."""
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        document = await rig.upload(domain, "Leave.md", LEAVE)
        assert document["status"] == "indexed"
    return domain, Rig(tmp_path, *steps, default_domain=domain)


async def ask(rig: Rig, path: str, **body: Any) -> list[SseEvent]:
    response = await rig.http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return parse_sse(response.text)


async def test_a_knowledge_client_has_its_own_path(tmp_path: Path) -> None:
    _, opening = await open_default_domain(tmp_path, SEARCH, CITED, *[say(f"Answer {n}.") for n in range(MORE)])
    async with opening as rig:
        conversation = await rig.ok("POST", "/api/conversation", {"title": "Leave", "userId": "local"})
        assert conversation.keys() == {
            *("id", "title", "userId", "contextEntityIds", "metadata", "messageCount", "createdAt", "updatedAt"),
        }
        assert (conversation["title"], conversation["userId"], conversation["contextEntityIds"]) == (
            "Leave",
            "local",
            [],
        )
        path = f"/api/conversation/{conversation['id']}"
        sse_events = await ask(rig, f"{path}/message", content="How much leave?", userId="local")
        assert [event.event for event in sse_events][:2] == ["user_message", "context_ready"]
        (reference,) = orjson.loads(sse_events[1].data)["references"]
        assert reference["entityName"] == "Leave.md"
        answer = "".join(event.data for event in sse_events if event.event == "chunk")
        assert answer == "You have 27 days of paid leave.[[Leave.md]]"
        final = orjson.loads(sse_events[-1].data)
        assert (sse_events[-1].event, [reference["entityName"] for reference in final["references"]]) == (
            "done",
            ["Leave.md"],
        )
        assert "27 days" in final["references"][0]["snippet"]
        question, answer_message = await rig.ok("GET", f"{path}/messages")
        assert question["id"] == orjson.loads(sse_events[0].data)["id"]
        assert (question["role"], question["content"]) == ("user", "How much leave?")
        assert (answer_message["id"], answer_message["references"]) == (final["id"], final["references"])
        assert answer_message["content"] == answer
        assert [item["id"] for item in await rig.ok("GET", "/api/conversation")] == [conversation["id"]]
        assert (await rig.ok("GET", path))["messageCount"] == 2
        for n in range(MORE):
            await rig.say(conversation["id"], f"Question {n}")
        later_texts = [message["content"] for message in await rig.ok("GET", f"{path}/messages")][2:]
        assert later_texts == [text for n in range(MORE) for text in (f"Question {n}", f"Answer {n}.")]
        await rig.ok("DELETE", path)
        assert await rig.ok("GET", "/api/conversation") == []
        assert (await rig.refused("GET", path))[:2] == (404, "CONVERSATION_NOT_FOUND")


async def test_older_clients_line_parser_reads_the_whole_answer(tmp_path: Path) -> None:
    words = "  Leave:\n\n- 27 days , paid\n-  part-time staff: *pro rata* \r\n\nAsk  HR.\n"
    pieces = tuple(words[index : index + 3] for index in range(0, len(words), 3))
    _, opening = await open_default_domain(tmp_path, Step((Say(words, pieces=pieces),)))
    async with opening as rig, serving(rig.application.app) as address:
        conversation = await rig.ok("POST", "/api/conversation", {})
        url = f"http://{address}/api/conversation/{conversation['id']}/message"
        async with httpx2.AsyncClient(trust_env=False) as http:
            text = (await http.post(url, json={"content": "Go"})).text
        messages = await rig.ok("GET", f"/api/conversation/{conversation['id']}/messages")
    full_text = messages[1]["content"]
    assert full_text.split() == words.split()
    assert parse_like_older_clients(text) == "".join(line.strip() for line in full_text.splitlines())
    assert text.count("event: chunk") > 5


async def test_context_entities_of_a_message_limit_its_own_searches_only(tmp_path: Path) -> None:
    domain, opening = await open_default_domain(tmp_path, SEARCH, say("Nothing."), SEARCH, say("Found."))
    async with opening as rig:
        second_document = await rig.upload(domain, "Other.md", b"# Parking\n\nParking is free.\n")
        conversation = await rig.ok("POST", "/api/conversation", {})
        path = f"/api/conversation/{conversation['id']}/message"
        names = []
        for context in ([second_document["id"]], []):
            sse_events = await ask(rig, path, content="How much leave?", contextEntityIds=context)
            names.append({reference["entityName"] for reference in orjson.loads(sse_events[1].data)["references"]})
        assert "Leave.md" not in names[0]
        assert "Leave.md" in names[1]
        body = {"content": "Hi", "contextEntityIds": ["doc_nowhere"]}
        assert (await rig.refused("POST", path, body))[:2] == (404, "DOCUMENT_NOT_FOUND")


async def test_the_knowledge_contract_lists_own_conversations_of_the_default_domain_only(tmp_path: Path) -> None:
    domain, opening = await open_default_domain(tmp_path)
    async with opening as rig:
        foreign_conversation = await rig.conversation()
        conversations = rig.application.services.conversations
        anothers = (await conversations.create(User("eve", operator=True), domain)).id
        for conversation in (foreign_conversation, anothers, "conv_none"):
            path = f"/api/conversation/{conversation}"
            for method, place in [
                ("GET", path),
                ("DELETE", path),
                ("GET", f"{path}/messages"),
                ("POST", f"{path}/message"),
            ]:
                response = await rig.http.request(method, place, json={"content": "Hi"} if method == "POST" else None)
                refusal = response.json()
                assert response.status_code == 404
                assert refusal["code"] == refusal["error"]["code"] == "CONVERSATION_NOT_FOUND"
                assert refusal["message"] == refusal["error"]["message"]
        refusal = await rig.refused("POST", "/api/v1/chat", {"message": "Hi", "session_id": anothers})
        assert refusal[:2] == (404, "CONVERSATION_NOT_FOUND")
        assert await rig.ok("GET", "/api/conversation") == []
        assert (await rig.ok("GET", f"/api/conversations/{foreign_conversation}"))["domainId"] != domain


async def test_a_chat_client_needs_one_call(tmp_path: Path) -> None:
    domain, opening = await open_default_domain(tmp_path, SEARCH, CITED, say("Yes."))
    async with opening as rig:
        sse_events = await ask(rig, "/api/v1/chat", message="How much leave?")
        assert sse_events[-1].data == "[DONE]"
        parts = [orjson.loads(event.data) for event in sse_events[:-1]]
        session = parts[0]["data"]["session_id"]
        assert parts[0]["type"] == "session_created"
        assert (await rig.ok("GET", f"/api/conversations/{session}"))["domainId"] == domain
        final = parts[-1]["data"]
        assert final["final_message"] == {"role": "assistant", "content": "You have 27 days of paid leave."}
        assert [call["tool_name"] for call in final["tool_calls"]] == ["search_documents"]
        second_events = await ask(rig, "/api/v1/chat", message="Sure?", session_id=session, agent_id=domain)
        assert [orjson.loads(event.data)["type"] for event in second_events[:2]] == ["thinking", "text"]
        assert orjson.loads(second_events[-2].data)["data"]["session_id"] == session
        assert (await rig.ok("GET", f"/api/conversations/{session}"))["messageCount"] == 4


async def test_a_key_that_the_contract_lacks_or_another_users_id_is_refused_by_name(tmp_path: Path) -> None:
    _, opening = await open_default_domain(tmp_path, say("Yes."))
    async with opening as rig:
        conversation = await rig.ok("POST", "/api/conversation", {"user_id": "local"})
        message = f"/api/conversation/{conversation['id']}/message"
        for path, body in (
            ("/api/conversation", {"title": "Leave"}),
            (message, {"content": "Hi"}),
            (message, {"message": "Hi"}),
            ("/api/v1/chat", {"message": "Hi"}),
        ):
            user = "user_id" if path == "/api/v1/chat" else "userId"
            for key, value in ((user, "eve"), ("temperature", 0.3), ("colour", None)):
                _, code, text = await rig.refused("POST", path, {**body, key: value})
                assert (code, text.split(":")[0]) == ("VALIDATION_ERROR", key)
            _, _, text = await rig.refused("POST", path, {**body, user: "e" * 5_000})
            assert "'local'" in text
            assert len(text) < 500
        assert (await rig.refused("GET", "/api/conversation?userId=eve"))[1] == "VALIDATION_ERROR"
        assert len(await rig.ok("GET", "/api/conversation", params={"userId": "local"})) == 1
        assert (await rig.ok("GET", f"/api/conversation/{conversation['id']}"))["messageCount"] == 0
        sse_events = await ask(rig, "/api/v1/chat", message="Hi", user_id="local")
        assert sse_events[-1].data == "[DONE]"


async def test_chat_creates_a_session_once_even_with_queued_or_retried_messages(tmp_path: Path) -> None:
    stalled = Stalled(say("First."), 1)
    _, opening = await open_default_domain(tmp_path, stalled, say("Second."), say("Again."))
    async with opening as rig:
        path = f"/api/conversations/{await rig.conversation()}/messages"
        as_json = {"accept": "application/json"}
        first = (await rig.http.post(path, json={"content": "One"}, headers=as_json)).json()
        await stalled.reached.wait()
        queued = {"content": "Two", "onBusy": "queue"}
        queued_turn = (await rig.http.post(path, json=queued, headers=as_json)).json()

        async def kinds(turn: str) -> list[str]:
            text = (await rig.http.get(f"/api/turns/{turn}/events", params={"dialect": "chat"})).text
            return [orjson.loads(event.data)["type"] for event in parse_sse(text) if event.data != "[DONE]"]

        stalled.until.set()
        assert (await kinds(first["id"])).count("session_created") == 1
        assert "session_created" not in await kinds(queued_turn["id"])
        retry = f"{path}/{first['userMessageId']}/retry"
        retried = (await rig.http.post(retry, json={}, headers=as_json)).json()
        assert "session_created" not in await kinds(retried["id"])


BAD_CHATS: list[tuple[Any, int, str]] = [
    ({}, 422, "VALIDATION_ERROR"),
    ({"message": " "}, 400, "MESSAGE_CONTENT_REQUIRED"),
    ({"message": "x" * 10_001}, 400, "MESSAGE_TOO_LONG"),
    ({"message": "Hi", "agent_id": "dom_none"}, 404, "DOMAIN_NOT_FOUND"),
    ({"message": "Hi", "session_id": "conv_none"}, 404, "CONVERSATION_NOT_FOUND"),
    ({"message": "Hi", "session_id": "conv_\0"}, 422, "VALIDATION_ERROR"),
    ({"message": "Hi", "session_id": "x" * 201}, 422, "VALIDATION_ERROR"),
    ({"message": ["Hi"]}, 422, "VALIDATION_ERROR"),
    ([], 422, "VALIDATION_ERROR"),
]


async def test_a_bad_chat_gets_the_contracts_error_and_creates_no_conversation(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        for body, status, code in BAD_CHATS:
            response = await rig.http.post("/api/v1/chat", json=body)
            refusal = response.json()
            assert (response.status_code, refusal["data"]["code"], refusal["error"]["code"]) == (status, code, code)
            assert (refusal["type"], refusal["data"]["error"]) == ("error", refusal["error"]["message"])
        assert (await rig.ok("GET", "/api/conversations"))["total"] == 0
        session, other_domain = await rig.conversation(), await rig.domain()
        body = {"message": "Hi", "session_id": session, "agent_id": other_domain}
        assert (await rig.refused("POST", "/api/v1/chat", body))[:2] == (422, "VALIDATION_ERROR")


async def test_an_interrupt_is_an_error_of_these_contracts_and_the_turn_can_be_read_again(tmp_path: Path) -> None:
    stalled = Stalled(say("This takes long."), 3)
    _, opening = await open_default_domain(tmp_path, stalled)
    async with opening as rig:
        conversation = await rig.ok("POST", "/api/conversation", {})
        path = f"/api/conversations/{conversation['id']}/messages"
        turn = (await rig.http.post(path, json={"content": "Go"}, headers={"accept": "application/json"})).json()
        await stalled.reached.wait()
        await rig.ok("POST", f"/api/conversations/{conversation['id']}/interrupt", {})
        stream = f"/api/turns/{turn['id']}/events"
        for dialect in ("knowledge", "chat", "message", "agentx", "observable"):
            sse_events = parse_sse((await rig.http.get(stream, params={"dialect": dialect})).text)
            word = "interrupted" if dialect in ("agentx", "observable") else "GENERATION_ABORTED"
            assert any(word in event.data for event in sse_events)
            ids = [event.id for event in sse_events]
            assert (set(ids) == {None}) == (dialect == "chat")
            for ident in set(ids) - {None, ids[-1]}:
                headers = {"last-event-id": str(ident)}
                later_events = parse_sse(
                    (await rig.http.get(stream, params={"dialect": dialect}, headers=headers)).text
                )
                following = sse_events[ids.index(ident) + 1 :]
                assert [(event.event, event.data) for event in later_events] == [
                    (event.event, event.data) for event in following
                ]


async def test_a_message_client_lists_assistants_and_can_wait_for_json(tmp_path: Path) -> None:
    failing_answer = Broken(say("Never."), 0, ModelError("The model gives no answer."))
    stalled = Stalled(say("This takes long."), 3)
    domain, opening = await open_default_domain(tmp_path, SEARCH, CITED, failing_answer, stalled)
    async with opening as rig:
        conversation = await rig.ok("POST", "/api/conversations", {"assistantId": domain})
        assert conversation["assistantId"] == conversation["domainId"] == domain
        assert (await rig.refused("POST", "/api/conversations", {"assistantId": domain, "domainId": "dom_x"}))[:2] == (
            422,
            "VALIDATION_ERROR",
        )
        page = await rig.ok("GET", "/api/conversations", params={"assistantId": domain})
        assert [item["assistantId"] for item in page["items"]] == [domain]
        path = f"/api/conversations/{conversation['id']}/messages"
        waiting: Any = {"params": {"dialect": "message"}, "headers": {"accept": "application/json"}}
        answer = await rig.ok("POST", path, {"content": "How much leave?"}, **waiting)
        message_shown = (await rig.ok("GET", path))["items"][1]
        for name in ("id", "conversationId", "turnId", "parentMessageId", "role", "content", "references"):
            assert answer[name] == message_shown[name]
        (source,) = message_shown["metadata"]["sources"]
        assert (source["documentName"], source["content"][:5]) == ("Leave.md", answer["references"][0]["citedText"][:5])
        usage = message_shown["metadata"]["usage"]
        assert message_shown["metadata"]["tokensUsed"] == {
            name: usage[name] for name in ("inputTokens", "outputTokens")
        }
        assert {name: message_shown["metadata"][name] for name in answer["metadata"]} == answer["metadata"]
        refusal = await rig.refused("POST", path, {"content": "Again?"}, **waiting)
        assert refusal == (502, "LLM_SERVICE_ERROR", refusal[2])
        outcome: list[tuple[int, str, str]] = []

        async def send_and_wait() -> None:
            outcome.append(await rig.refused("POST", path, {"content": "And now?"}, **waiting))

        async with anyio.create_task_group() as group:
            group.start_soon(send_and_wait)
            await stalled.reached.wait()
            await rig.ok("POST", f"/api/conversations/{conversation['id']}/interrupt", {})
        assert outcome[0][:2] == (499, "GENERATION_ABORTED")

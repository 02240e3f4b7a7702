"""Lists of the older contracts and of REST: every parameter is honoured, or refused by its name."""

import sys
from pathlib import Path

import pytest

from agentic_rag.testing.steps import Cite, Step, Use, say, use
from tests.access.tenants import as_operator, bearer, make_key
from tests.server.rig import Rig

LEAVE = b"# Leave\n\nFull-time staff have 27 days of paid leave a year.\n"
ECHO = """
import json, sys
TOOL = {"name": "echo", "description": "Return the text.", "inputSchema": {"type": "object"}}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"error": {"code": -32601, "message": "unknown"}}
    if asked["method"] == "tools/list":
        answer = {"result": {"tools": [TOOL]}}
    elif asked["method"] == "initialize":
        version = asked["params"]["protocolVersion"]
        about = {"name": "plain", "version": "1"}
        answer = {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}}
    elif asked["method"] == "tools/call":
        text = asked["params"]["arguments"]["text"]
        answer = {"result": {"content": [{"type": "text", "text": text}], "structuredContent": {"result": text}}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""
"""An MCP server that starts fast, because it uses only the standard library."""


async def test_a_knowledge_client_pages_its_conversations_and_messages(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
    async with Rig(tmp_path, *[say(f"Answer {n}.") for n in range(3)], default_domain=domain) as rig:
        conversations = [
            await rig.ok("POST", "/api/conversation", {"title": title, "metadata": {"n": title}}) for title in "bca"
        ]
        assert [conversation["metadata"] for conversation in conversations] == [{"n": "b"}, {"n": "c"}, {"n": "a"}]
        assert (await rig.ok("GET", f"/api/conversation/{conversations[0]['id']}"))["metadata"] == {"n": "b"}
        foreign_conversation = await rig.conversation()

        async def page(**query: str | int) -> tuple[list[str], str, str]:
            response = await rig.http.get("/api/conversation", params=query)
            assert response.status_code == 200, response.text
            titles = [conversation["title"] for conversation in response.json()]
            return titles, response.headers["x-total-count"], response.headers["x-has-more"]

        by_title: dict[str, str | int] = {"sortBy": "title", "sortOrder": "asc", "pageSize": 2}
        assert await page(**by_title) == (["a", "b"], "3", "true")
        assert await page(**by_title, page=2) == (["c"], "3", "false")
        assert await page(**by_title, page=3) == ([], "3", "false")
        assert (await page(sort_by="title", sort_order="desc"))[0] == ["c", "b", "a"]
        assert (await page(sortBy="createdAt", sortOrder="asc"))[0] == ["b", "c", "a"]
        assert (await page())[0] == ["a", "c", "b"]

        first_id, second_id = conversations[0]["id"], conversations[1]["id"]
        for n in range(2):
            await rig.say(first_id, f"Question {n}")
        await rig.say(second_id, "Other")
        path = f"/api/conversation/{first_id}/messages"
        messages = await rig.ok("GET", path)
        assert [message["content"] for message in messages] == ["Question 0", "Answer 0.", "Question 1", "Answer 1."]
        last_page = await rig.http.get(path, params={"limit": 2})
        assert (last_page.json(), last_page.headers["x-has-more"]) == (messages[2:], "true")
        before = await rig.http.get(path, params={"limit": 3, "before": messages[2]["id"]})
        assert (before.json(), before.headers["x-has-more"]) == (messages[:2], "false")
        foreign = (await rig.ok("GET", f"/api/conversation/{second_id}/messages"))[0]["id"]
        for reference in (foreign, "msg_none"):
            refusal = await rig.http.get(path, params={"before": reference})
            assert (refusal.status_code, refusal.json()["code"]) == (404, "MESSAGE_NOT_FOUND")
        answer = messages[1]["metadata"]
        assert answer.keys() == {"model", "tokensUsed", "retrievalTimeMs", "generationTimeMs"}
        assert (bool(answer["model"]), answer["tokensUsed"] > 0, messages[0]["metadata"]) == (True, True, {})
        assert (await rig.refused("GET", f"/api/conversation/{foreign_conversation}/messages"))[0] == 404


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ({"page": 0}, "page"),
        ({"pageSize": 101}, "pageSize"),
        ({"sortBy": "colour"}, "sortBy"),
        ({"sortOrder": "up"}, "sortOrder"),
        ({"colour": "red"}, "colour"),
        ({"page": ["1", "2"]}, "page"),
    ],
)
async def test_a_parameter_that_a_list_cannot_honour_is_refused_by_name(
    tmp_path: Path, query: dict[str, object], name: str
) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
    async with Rig(tmp_path, default_domain=domain) as rig:
        for path in ("/api/conversation", "/api/conversations"):
            status, code, message = await rig.refused("GET", path, params=query)
            assert (status, code) == (422, "VALIDATION_ERROR")
            assert message.startswith(f"{name}: ")
        if name == "colour":
            conversation = (await rig.ok("POST", "/api/conversation", {}))["id"]
            for path in (
                *("/api/domains", f"/api/domains/{domain}", f"/api/domains/{domain}/documents", "/api/budgets"),
                *(f"/api/domains/{domain}/roles", f"/api/domains/{domain}/tool-calls", "/api/turns/turn_x/events"),
                *(f"/api/conversation/{conversation}", f"/api/conversation/{conversation}/messages"),
                *(f"/api/conversations/{conversation}", f"/api/conversations/{conversation}/messages"),
                *(f"/api/conversations/{conversation}/{part}" for part in ("branches", "archives", "tool-calls")),
            ):
                assert (await rig.refused("GET", path, params=query))[2].startswith("colour: "), path
            for path in (
                "/api/v1/chat",
                f"/api/conversation/{conversation}/message",
                f"/api/conversations/{conversation}/messages",
            ):
                body = {"message": "Hi", "content": "Hi"} if "conversations" not in path else {"content": "Hi"}
                assert (await rig.refused("POST", path, body, params=query))[2].startswith("colour: "), path


async def test_metadata_is_bounded_from_the_start(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
    async with Rig(tmp_path, default_domain=domain) as rig:
        for path in ("/api/conversation", "/api/conversations"):
            for metadata in ({"x": "y" * 20_000}, ["x"], "x", {str(n): n for n in range(300)}):
                status, _, message = await rig.refused("POST", path, {"metadata": metadata})
                assert status == 422
                assert message.startswith("metadata")
            assert (await rig.ok("POST", path, {"metadata": {"theme": "dark"}}))["metadata"] == {"theme": "dark"}
            assert (await rig.ok("POST", path, {"metadata": None}))["metadata"] == {}


async def test_tool_calls_have_their_structured_content_or_its_ref_and_are_found_by_several_names(
    tmp_path: Path,
) -> None:
    large = "x" * 20_000
    calls = Step((Use("plain__echo", {"text": "small"}, id="c1"), Use("plain__echo", {"text": large}, id="c2")))
    steps = (calls, use("promptx_discover"), use("search_documents", query="paid leave"), say("27 days.", Cite(0)))
    async with Rig(tmp_path, *steps, any_command=True) as rig:
        script = tmp_path / "echo.py"
        script.write_text(ECHO)
        entry = {"command": sys.executable, "args": ["-I", "-S", str(script)]}
        domain = await rig.domain(mcpServers={"plain": entry}, toolPolicy={"*": "allow"})
        await rig.upload(domain, "Leave.md", LEAVE)
        conversation = await rig.conversation(domain)
        await rig.say(conversation, "Go")
        path = f"/api/conversations/{conversation}/tool-calls"
        items = {item["toolCallId"]: item for item in (await rig.ok("GET", path))["items"]}
        assert items["c1"]["structured"] == {"result": "small"}
        ref = items["c2"]["structured"]["_ref"]
        assert (await rig.ok("GET", f"/api/payloads/{ref}")) == {"result": large}
        for query in ("toolName=plain__echo&toolName=promptx_discover", "tool_name=plain__echo,promptx_discover"):
            names = [item["toolName"] for item in (await rig.ok("GET", f"{path}?{query}"))["items"]]
            assert names == ["plain__echo", "plain__echo", "promptx_discover"]
        assert (await rig.ok("GET", f"{path}?toolName=nothing"))["items"] == []

        report = await rig.ok("GET", f"/api/domains/{domain}/tool-calls")
        calls_by_tool = {item["toolName"]: item for item in report["items"]}
        assert calls_by_tool.keys() == {"plain__echo", "promptx_discover", "search_documents"}
        assert calls_by_tool["search_documents"]["hitCount"] == 1
        assert "27 days" not in str(report)
        assert "small" not in str(report)
        totals = {total["toolName"]: (total["status"], total["calls"]) for total in report["totals"]}
        assert totals["plain__echo"] == ("ok", 2)
        some = await rig.ok("GET", f"/api/domains/{domain}/tool-calls?toolName=plain__echo&limit=1&status=ok")
        assert (len(some["items"]), some["hasMore"], len(some["totals"])) == (1, True, 1)
        assert (await rig.ok("GET", f"/api/domains/{domain}/tool-calls?to=2020-01-01"))["totals"] == []
        as_operator(rig)
        member = await make_key(rig, "ann", "member", domain)
        refusal = await rig.refused("GET", f"/api/domains/{domain}/tool-calls", headers=bearer(member))
        assert refusal[:2] == (403, "FORBIDDEN")

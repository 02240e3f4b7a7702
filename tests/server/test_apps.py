"""Apps of MCP servers: who receives a page, the page's security policy, and refused pages."""

import base64
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from sqlalchemy import Connection

from agentic_rag.base.events import ToolStatus
from agentic_rag.base.ids import TurnId
from agentic_rag.store import tool_calls
from agentic_rag.testing.steps import Step, Use, say
from agentic_rag.tools.apps import MEDIA_TYPE, MOST_CHARS, read_app_meta, read_app_page
from agentic_rag.tools.errors import AppUnreadable
from tests.server.rig import Rig
from tests.tools.support import SERVERS

URI = "ui://charts/page"
ENTRY = {"command": sys.executable, "args": ["-I", "-S", str(SERVERS / "app.py")]}


async def test_an_apps_page_has_no_origin_and_no_network(tmp_path: Path) -> None:
    calls = Step((Use("charts__chart", {"title": "Sales"}), Use("charts__plain", {"title": "Rest"})))
    async with Rig(tmp_path, calls, say("There it is."), any_command=True) as rig:
        domain = await rig.domain(mcpServers={"charts": ENTRY}, toolPolicy={"charts__*": "allow"})
        events = await rig.say(await rig.conversation(domain), "Show the sales")
        chart, plain_call = (event for event in events if event["type"] == "tool_call")
        pages = [f"/api/turns/{call['turnId']}/tool-calls/{call['toolCallId']}/app" for call in (chart, plain_call)]
        assert (await rig.refused("GET", pages[0]))[:2] == (403, "MCP_APP_NOT_ALLOWED")
        assert "apps" not in await rig.ok("GET", f"/api/domains/{domain}")

        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"mcpApps": ["charts"]}})
        assert (await rig.ok("GET", f"/api/domains/{domain}"))["apps"] == ["charts"]
        page = await rig.http.get(pages[0])
        assert page.text.startswith("<!doctype html>")
        policy = page.headers["content-security-policy"].split("; ")
        assert {"sandbox allow-scripts allow-forms", "default-src 'none'", "connect-src 'none'"} <= set(policy)
        assert "frame-ancestors 'self'" in policy
        assert not any("http" in name or "allow-same-origin" in name for name in policy)
        assert (await rig.refused("GET", pages[1]))[:2] == (404, "MCP_APP_NOT_FOUND")
        assert (await rig.refused("GET", pages[0].replace(chart["toolCallId"], "toolu_1")))[0] == 404


@asynccontextmanager
async def open_chart(folder: Path, policy: dict[str, str], **settings: Any) -> AsyncGenerator[tuple[Rig, str, str]]:
    """Yield a rig whose conversation has a chart, the domain, and the path of the chart's app."""
    steps = (Step((Use("charts__chart", {"title": "Sales"}),)), say("There it is."))
    async with Rig(folder, *steps, any_command=True) as rig:
        rules = {"charts__chart": "allow", **policy}
        domain = await rig.domain(mcpServers={"charts": ENTRY}, toolPolicy=rules, mcpApps=["charts"], **settings)
        assert (await rig.ok("POST", f"/api/domains/{domain}/mcp-servers/charts/restart"))["state"] == "ready"
        events = await rig.say(await rig.conversation(domain), "Show the sales")
        (call,) = (event for event in events if event["type"] == "tool_call")
        yield rig, domain, f"/api/turns/{call['turnId']}/tool-calls/{call['toolCallId']}/app"


async def calls_of(rig: Rig, domain: str) -> list[tuple[str, str]]:
    items = (await rig.ok("GET", f"/api/domains/{domain}/tool-calls"))["items"]
    return [(item["toolName"], item["status"]) for item in items if "appOf" in item]


async def test_an_app_calls_tools_that_its_server_offers_to_apps(tmp_path: Path) -> None:
    async with open_chart(tmp_path, {"charts__refresh": "allow"}) as (rig, domain, app):
        answer = await rig.ok("POST", f"{app}/tools", {"name": "refresh", "arguments": {"title": "Rest"}})
        assert answer["result"]["content"] == [{"type": "text", "text": "Chart of Rest"}]
        assert answer["result"]["structuredContent"] == {"points": [1, 2]}
        assert answer["result"]["_meta"]["unit"] == "EUR"
        for name in ("report", "promptx_recall", "charts__refresh", "search_documents", "x" * 200):
            assert (await rig.refused("POST", f"{app}/tools", {"name": name}))[:2] == (404, "MCP_APP_TOOL_UNAVAILABLE")
        refusal = await rig.ok("POST", f"{app}/tools", {"name": "refresh", "arguments": {"title": {"a": 1}}})
        assert "do not fit" in refusal["result"]["content"][0]["text"]
        resource = await rig.ok("POST", f"{app}/resources", {"uri": "data://points"})
        assert resource == {"contents": [{"uri": "data://points", "mimeType": "text/csv", "text": "a,b"}]}
        assert await calls_of(rig, domain) == [("resources/read", "ok"), ("charts__refresh", "ok")]
        conversation = (await rig.ok("GET", "/api/conversations"))["items"][0]["id"]
        calls = (await rig.ok("GET", f"/api/conversations/{conversation}/tool-calls"))["items"]
        assert [call["toolName"] for call in calls] == ["charts__chart"]
        of_app = f"/api/conversations/{conversation}/tool-calls?appOf={calls[0]['toolCallId']}"
        assert (await rig.ok("GET", of_app))["items"][0]["arguments"] == {"title": "Rest"}

        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"mcpApps": []}})
        assert (await rig.refused("POST", f"{app}/tools", {"name": "refresh"}))[:2] == (403, "MCP_APP_NOT_ALLOWED")
        assert (await rig.refused("POST", f"{app}/resources", {"uri": "data://points"}))[0] == 403


async def test_a_person_decides_on_a_call_of_an_app(tmp_path: Path) -> None:
    async with open_chart(tmp_path, {"charts__*": "allow"}) as (rig, domain, app):
        call = {"name": "refresh", "arguments": {"title": "Rest"}}
        question = (await rig.ok("POST", f"{app}/tools", call))["question"]
        assert question["message"] == "The app of 'charts__chart' wants to call 'refresh' of the server 'charts'."
        assert question["arguments"] == {"title": "Rest"}
        assert question["sources"] == [{"kind": "tool", "name": "charts__chart"}]
        assert await calls_of(rig, domain) == []  # no call ran

        async def answer(action: str, **content: Any) -> Any:
            approval = {"action": action, "content": content}
            return (await rig.ok("POST", f"{app}/tools", {**call, "approval": approval}))["result"]

        refusal = await answer("decline", reason="Not now")
        assert refusal["isError"]
        assert "declined: Not now" in refusal["content"][0]["text"]
        result = await answer("accept", arguments={"title": "Less"}, scope="conversation")
        assert result["content"][0]["text"] == "Chart of Less"
        assert "question" in await rig.ok("POST", f"{app}/tools", call)  # it may have effects, and a result was read
        wrong = {**call, "approval": {"action": "accept", "content": {"arguments": {"title": 1}}}}
        assert (await rig.refused("POST", f"{app}/tools", wrong))[:2] == (422, "VALIDATION_ERROR")
        assert (await answer("accept", scope="domain"))["content"][0]["text"] == "Chart of Rest"
        assert "result" in await rig.ok("POST", f"{app}/tools", call)
        states = [item["state"] for item in (await rig.ok("GET", "/api/waits"))["items"]]
        assert states == ["accepted", "accepted", "declined"]
        audit = (await rig.ok("GET", "/api/audit"))["items"]
        assert sum(entry["action"] == "wait.accept" and "appOf" in entry["details"] for entry in audit) == 2


async def test_denied_and_secret_calls_of_an_app_do_not_run_and_are_audited(tmp_path: Path) -> None:
    async with open_chart(tmp_path, {"charts__refresh": "deny", "charts__plain": "allow"}) as (rig, domain, app):
        await rig.ok("PUT", f"/api/domains/{domain}/secrets/TOKEN", {"value": "Sales-secret-1234"})
        refusal = (await rig.ok("POST", f"{app}/tools", {"name": "refresh"}))["result"]
        assert refusal["isError"]
        assert "toolPolicy" in refusal["content"][0]["text"]
        secret = {"name": "plain", "arguments": {"title": "Sales-secret-1234"}}
        assert "secret of this domain" in (await rig.ok("POST", f"{app}/tools", secret))["result"]["content"][0]["text"]
        audit = (await rig.ok("GET", "/api/audit"))["items"]
        because = [entry["details"]["because"] for entry in audit if entry["outcome"] == "denied"]
        assert because == ["secret", "toolPolicy"]
        assert await calls_of(rig, domain) == []


async def test_an_app_is_rate_limited_and_its_answers_are_bounded(tmp_path: Path) -> None:
    async with open_chart(tmp_path, {"charts__big": "allow"}) as (rig, domain, app):
        big = (await rig.ok("POST", f"{app}/tools", {"name": "big"}))["result"]
        assert big["isError"]
        assert "longer than" in big["content"][0]["text"]
        assert await calls_of(rig, domain) == [("charts__big", "error")]
        long = {"name": "big", "arguments": {"title": "x" * 70_000}}
        assert (await rig.refused("POST", f"{app}/tools", long))[:2] == (422, "VALIDATION_ERROR")
        answers = [await rig.http.post(f"{app}/tools", json={"name": "nothing"}) for _ in range(40)]
        assert {answer.status_code for answer in answers} == {404, 429}


async def test_a_running_call_of_an_app_ends_with_its_request_and_its_conversation(tmp_path: Path) -> None:
    policy = {"charts__slow": "allow", "charts__cancelled": "allow"}
    async with open_chart(tmp_path, policy) as (rig, domain, app):
        conversation = (await rig.ok("GET", "/api/conversations"))["items"][0]["id"]
        with anyio.move_on_after(0.5):  # the page was closed
            await rig.http.post(f"{app}/tools", json={"name": "slow"})
        assert await calls_of(rig, domain) == [("charts__slow", "interrupted")]
        output = (await rig.ok("POST", f"{app}/tools", {"name": "cancelled"}))["result"]
        assert output["content"][0]["text"] == "1"
        async with anyio.create_task_group() as group:
            ends: list[int] = []

            async def call() -> None:
                ends.append((await rig.http.post(f"{app}/tools", json={"name": "slow"})).status_code)

            group.start_soon(call)
            while ("charts__slow", "running") not in await calls_of(rig, domain):
                await anyio.lowlevel.checkpoint()
            await rig.ok("DELETE", f"/api/conversations/{conversation}")
        assert ends == [404]


async def test_calls_of_a_killed_server_are_ended_at_its_next_start(tmp_path: Path) -> None:
    async with open_chart(tmp_path, {}) as (rig, domain, app):
        turn, call = TurnId(app.split("/")[3]), app.split("/")[5]
        database = rig.application.database

        def leave(conn: Connection) -> None:
            parent = tool_calls.get(conn, turn, call)
            assert parent is not None
            call_left = parent.replace(tool_call_id="call_1", app_of=call, status=ToolStatus.RUNNING, result=None)
            tool_calls.start_of_app(conn, call_left)

        await database.write(leave)
        assert await calls_of(rig, domain) == [("charts__chart", "running")]
    async with Rig(tmp_path, any_command=True) as rig:
        assert await calls_of(rig, domain) == [("charts__chart", "interrupted")]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"mimeType": "text/html", "text": "<p>"}, "its type is 'text/html'"),
        ({"mimeType": MEDIA_TYPE}, "it is empty"),
        ({"mimeType": MEDIA_TYPE, "text": "x" * (MOST_CHARS + 1)}, "longer than"),
        ({"mimeType": MEDIA_TYPE, "blob": "%%"}, "no base64"),
        ({"mimeType": MEDIA_TYPE, "uri": "ui://other", "text": "<p>"}, "does not contain it"),
        ("text", "does not contain it"),
    ],
)
def test_an_answer_without_a_page_gives_the_reason(content: Any, problem: str) -> None:
    with pytest.raises(AppUnreadable, match=problem):
        read_app_page(URI, {"contents": [content]})


def test_a_page_is_read_as_text_or_as_a_blob() -> None:
    blob = base64.b64encode("<p>é".encode()).decode()
    content = {"uri": URI, "mimeType": "text/html; profile=mcp-app"}
    assert read_app_page(URI, {"contents": [{**content, "text": "<p>é"}]}) == "<p>é"
    assert read_app_page(URI, {"contents": [{**content, "blob": blob}]}) == "<p>é"


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"ui": {"resourceUri": URI}}, {"resourceUri": URI}),
        ({"ui/resourceUri": URI}, {"resourceUri": URI}),
        ({"ui": {"resourceUri": "https://evil.example/"}}, {}),
        ({"ui": {"resourceUri": f"ui://{'a' * 2_000}"}}, {}),
        ({"ui": {"visibility": ["app", 1]}}, {"visibility": ["app"]}),
        ({"ui": "text"}, {}),
        (None, {}),
    ],
)
def test_the_metadata_of_a_tool_is_read_with_bounds(meta: Any, expected: Any) -> None:
    assert read_app_meta({"name": "chart", "_meta": meta}) == expected

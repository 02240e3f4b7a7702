"""Apps of MCP servers: who gets a page, under which policy, and which pages are refused."""

import base64
import sys
from pathlib import Path
from typing import Any

import pytest

from agentic_rag.testing.steps import Step, Use, say
from agentic_rag.tools.apps import MEDIA_TYPE, MOST_CHARS, read_app_meta, read_app_page
from agentic_rag.tools.errors import AppUnreadable
from tests.server.rig import Rig
from tests.tools.support import SERVERS

URI = "ui://charts/page"
ENTRY = {"command": sys.executable, "args": ["-I", "-S", str(SERVERS / "app.py")]}


async def test_the_page_of_a_call_has_no_origin_and_no_network(tmp_path: Path) -> None:
    calls = Step((Use("charts__chart", {"title": "Sales"}), Use("charts__plain", {"title": "Rest"})))
    async with Rig(tmp_path, calls, say("There it is."), any_command=True) as rig:
        domain = await rig.domain(mcpServers={"charts": ENTRY}, toolPolicy={"charts__*": "allow"})
        events = await rig.say(await rig.conversation(domain), "Show the sales")
        chart, plain = (each for each in events if each["type"] == "tool_call")
        pages = [f"/api/turns/{each['turnId']}/tool-calls/{each['toolCallId']}/app" for each in (chart, plain)]
        assert (await rig.refused("GET", pages[0]))[:2] == (403, "MCP_APP_NOT_ALLOWED")
        assert "apps" not in await rig.ok("GET", f"/api/domains/{domain}")

        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"mcpApps": ["charts"]}})
        assert (await rig.ok("GET", f"/api/domains/{domain}"))["apps"] == ["charts"]
        page = await rig.http.get(pages[0])
        assert page.text.startswith("<!doctype html>")
        policy = page.headers["content-security-policy"].split("; ")
        assert {"sandbox allow-scripts allow-forms", "default-src 'none'", "connect-src 'none'"} <= set(policy)
        assert "frame-ancestors 'self'" in policy
        assert not any("http" in each or "allow-same-origin" in each for each in policy)
        assert (await rig.refused("GET", pages[1]))[:2] == (404, "MCP_APP_NOT_FOUND")
        assert (await rig.refused("GET", pages[0].replace(chart["toolCallId"], "toolu_1")))[0] == 404


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
def test_an_answer_without_a_page_says_why(content: Any, problem: str) -> None:
    with pytest.raises(AppUnreadable, match=problem):
        read_app_page(URI, {"contents": [content]})


def test_a_page_is_read_as_text_or_as_a_blob() -> None:
    blob = base64.b64encode("<p>é".encode()).decode()
    spaced = {"uri": URI, "mimeType": "text/html; profile=mcp-app"}
    assert read_app_page(URI, {"contents": [{**spaced, "text": "<p>é"}]}) == "<p>é"
    assert read_app_page(URI, {"contents": [{**spaced, "blob": blob}]}) == "<p>é"


@pytest.mark.parametrize(
    ("meta", "read"),
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
def test_the_metadata_of_a_tool_is_read_with_bounds(meta: Any, read: Any) -> None:
    assert read_app_meta({"name": "chart", "_meta": meta}) == read

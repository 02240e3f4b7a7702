"""A headless browser: its `EventSource`, `fetch` and `WebSocket` on a page of another origin."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Page
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route

from agentic_rag.testing.scripted import Stalled
from agentic_rag.testing.steps import say, use
from tests.access.tenants import make_key
from tests.clients.test_eventsource import SENT_BEFORE_A_CUT, Cutting
from tests.console.chromium import browser_context
from tests.console.rig import needs_browser
from tests.server.rig import Rig, types_of
from tests.ws.serving import serving

BLANK = Starlette(routes=[Route("/", lambda request: HTMLResponse("<!doctype html><title>Another origin</title>"))])

pytestmark = needs_browser

ASK = """
async ([url, content]) => {
  const post = async (path, body) => {
    const headers = { "Content-Type": "application/json", Accept: "application/json" };
    const options = { method: "POST", headers, credentials: "include", body: JSON.stringify(body) };
    return (await fetch(url + path, options)).json();
  };
  const { id: domainId } = (await (await fetch(url + "/api/domains", { credentials: "include" })).json()).items[0];
  const conversation = await post("/api/conversations", { domainId });
  return (await post(`/api/conversations/${conversation.id}/messages`, { content })).id;
}
"""
FOLLOW = """
([url, kinds, ends]) => new Promise((resolve) => {
  const source = new EventSource(url, { withCredentials: true });
  const heard = [];
  for (const kind of kinds) {
    source.addEventListener(kind, ({ data, lastEventId }) => {
      if (data === undefined) return;
      heard.push({ id: lastEventId, event: JSON.parse(data) });
      if (ends.includes(kind)) {
        source.close();
        resolve(heard);
      }
    });
  }
})
"""
TRY = """
(url) => new Promise((resolve) => {
  const source = new EventSource(url, { withCredentials: true });
  source.onopen = () => resolve("open");
  source.onerror = () => resolve(source.readyState === EventSource.CLOSED ? "closed" : "trying again");
})
"""
SOCKET = """
([url, key]) => new Promise(async (resolve) => {
  const headers = { Authorization: `Bearer ${key}` };
  const { ticket } = await (await fetch(url + "/api/ws-tickets", { method: "POST", headers })).json();
  const socket = new WebSocket(url.replace("http", "ws") + "/ws", ["agentic-rag.native", "ticket." + ticket]);
  socket.onopen = () => socket.send('{"type": "ping"}');
  socket.onmessage = ({ data }) => resolve([socket.protocol, JSON.parse(data).type]);
  socket.onerror = () => resolve("refused");
})
"""
KINDS = ("turn_started", "iteration_start", "tool_call_started", "tool_arguments", "tool_call", "tool_progress")
MORE = ("retrieval", "tool_result", "text", "title", "notice")
ENDS = ("done", "error", "interrupted")


@asynccontextmanager
async def page_of(origin: str) -> AsyncIterator[Page]:
    """Open a page of an origin."""
    async with browser_context() as context:
        page = await context.new_page()
        await page.goto(origin)
        yield page


async def test_a_page_of_a_listed_origin_loses_three_connections_and_gets_every_event_once(tmp_path: Path) -> None:
    text = "This answer has some words, of which the last ones are late."
    slow = Stalled(say(text), 5)
    async with serving(BLANK) as listed_page, serving(BLANK) as foreign_page:
        origin = f"http://{listed_page}"
        async with Rig(tmp_path, use("promptx_discover"), slow, allowed_origins=origin) as rig:
            await rig.domain()
            proxy = Cutting(rig.application.app, slow)
            async with serving(proxy) as address, page_of(origin) as page:
                url = f"http://{address}"
                turn = await page.evaluate(ASK, [url, "Go"])
                events = f"{url}/api/turns/{turn}/events"
                received: list[Any] = await page.evaluate(FOLLOW, [events, [*KINDS, *MORE, *ENDS], ENDS])
                asked_after = list(proxy.asked_after)
                stream = await rig.ok("GET", f"/api/turns/{turn}/stream")
                key = await make_key(rig, "ann", "operator")
                assert await page.evaluate(TRY, events) == "closed"  # it cannot send a key, and stops trying
                assert await page.evaluate(SOCKET, [url, key]) == ["agentic-rag.native", "pong"]
                await page.goto(f"http://{foreign_page}")
                assert await page.evaluate(TRY, events) == "closed"
    assert [item["event"] for item in received] == stream
    assert "".join(event["text"] for event in stream if event["type"] == "text") == text
    assert types_of(stream)[-1] == "done"
    assert len(asked_after) == len(SENT_BEFORE_A_CUT) + 1 == 4
    # Bytes in transit at a disconnect are lost, so the browser continues after the last event it has read.
    ids = [item["id"] for item in received]
    places = [0 if last is None else ids.index(last) + 1 for last in asked_after]
    assert places[0] == 0 < places[-1] < len(ids)
    assert places == sorted(places)

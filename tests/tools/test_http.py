"""Servers over streamable HTTP and SSE, in both eras, on a real socket."""

import json
import socket
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvicorn
from mcp.server.mcpserver import Context
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentic_rag.base.errors import InvalidInput
from agentic_rag.tools.launch.policy import LaunchPolicy, LiftedRules
from agentic_rag.tools.launch.spec import LaunchSpec
from agentic_rag.tools.toolset import open_toolset
from tests.tools.servers.plain import build
from tests.tools.support import START, call, http_spec, open_hub, text_of, until


@asynccontextmanager
async def serve(app: ASGIApp, port: int = 0) -> AsyncIterator[str]:
    """Serve an application on loopback; yields its base address."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listener])
        await until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True


class OldEra:
    """Answers the newer era's first request with "not found", like an old server or gateway."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and dict(scope["headers"]).get(b"mcp-method") == b"server/discover":
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self.app(scope, receive, send)


class Forgetful:
    """Has forgotten the sessions that are ``forgotten``, and with ``forgets_calls`` each session that calls a tool."""

    def __init__(self, app: ASGIApp, status: int = 404, body: bytes = b"") -> None:
        self.app = app
        self.status = status
        self.body = body
        self.sessions: set[bytes] = set()
        self.forgotten: set[bytes] = set()
        self.forgets_calls = False
        self.refused: list[bytes] = []
        """The sessions of the refused calls."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = dict(scope.get("headers", ())).get(b"mcp-session-id")
        if session is None:
            await self.app(scope, receive, send)
            return
        self.sessions.add(session)
        first = await receive()
        is_call = b"tools/call" in first.get("body", b"")
        if session not in self.forgotten and not (is_call and self.forgets_calls):
            remaining = [first]
            await self.app(scope, lambda: _next_of(remaining, receive), send)
            return
        if is_call:
            self.refused.append(session)
        kind = b"application/json" if self.body.startswith(b"{") else b"text/plain"
        await send({"type": "http.response.start", "status": self.status, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": self.body})


async def _next_of(remaining: list[Message], receive: Receive) -> Message:
    return remaining.pop() if remaining else await receive()


def web(base: str, kind: str = "http", headers: dict[str, str] | None = None) -> LaunchSpec:
    path = "/mcp" if kind == "http" else "/sse"
    return http_spec(base + path, headers, kind)


class Compressing:
    """Sends a gigabyte compressed to a megabyte, for every accepted encoding."""

    def __init__(self) -> None:
        packer = zlib.compressobj(wbits=31)
        first_part, later_part = (packer.compress(b" " * 2**20) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
        self.body = first_part + later_part * 1023  # after a full flush, equal input gives equal bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-encoding", b"gzip")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


async def test_a_compressed_gigabyte_is_not_unpacked(tmp_path: Path) -> None:
    async with serve(Compressing()) as base, open_hub(tmp_path) as hub:
        await open_toolset(hub, [web(base)], wait=START)
        assert "compresses its answers" in hub.status()[0].reason


async def test_a_server_over_streamable_http_is_called_in_the_newer_protocol(tmp_path: Path) -> None:
    async with serve(build().streamable_http_app()) as base, open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [web(base)], wait=START)
        assert text_of(await call(toolset, "web__echo", text="hello")) == "hello"
        assert (await call(toolset, "fail", text="no such row")).status == "error"
        assert [status.protocol for status in hub.status()] == ["2026-07-28"]


@pytest.mark.parametrize("json_response", [False, True])
async def test_a_server_over_streamable_http_is_called_in_the_older_protocol(
    tmp_path: Path, json_response: bool
) -> None:
    app = OldEra(build().streamable_http_app(json_response=json_response))
    async with serve(app) as base, open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [web(base)], wait=START)
        assert text_of(await call(toolset, "web__echo", text="hello")) == "hello"
        assert [status.protocol for status in hub.status()] == ["2025-11-25"]


class Altered:
    """Replaces CUT in each answer of an application by other bytes."""

    def __init__(self, app: ASGIApp, replacement: bytes) -> None:
        self.app = app
        self.other = replacement

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def alter(message: Any) -> None:
            if body := message.get("body"):
                message = {**message, "body": body.replace(b"CUT", self.other)}
            headers = [header for header in message.get("headers", ()) if header[0].lower() != b"content-length"]
            await send({**message, "headers": headers} if "headers" in message else message)

        await self.app(scope, receive, alter if scope["type"] == "http" else send)


@pytest.mark.parametrize("json_response", [False, True])
async def test_half_an_emoji_or_a_broken_byte_costs_only_that_character(tmp_path: Path, json_response: bool) -> None:
    replacement = rb"half \ud83d" + b" \xff, whole " + rb"\ud83d\ude00"
    app = Altered(OldEra(build().streamable_http_app(json_response=json_response)), replacement)
    async with serve(app) as base, open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [web(base)], wait=START)
        assert text_of(await call(toolset, "web__echo", text="CUT.")) == "half \ufffd \ufffd, whole \U0001f600."


async def test_a_batch_of_one_answer_is_that_answer(tmp_path: Path) -> None:
    class Listing(Altered):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            async def enclose(message: Any) -> None:
                if (body := message.get("body")) and body.startswith(b"{"):
                    message = {**message, "body": b"\n[" + body + b"]"}
                await send(message)

            await super().__call__(scope, receive, enclose)

    app = Listing(OldEra(build().streamable_http_app(json_response=True)), b"")
    async with serve(app) as base, open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [web(base)], wait=START)
        assert text_of(await call(toolset, "web__echo", text="hello")) == "hello"


@pytest.mark.parametrize("json_response", [False, True])
async def test_an_answer_that_is_not_json_is_a_plain_error(tmp_path: Path, json_response: bool) -> None:
    app = Altered(OldEra(build().streamable_http_app(json_response=json_response)), b'"')
    async with serve(app) as base, open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [web(base)], wait=START)
        outcome = await call(toolset, "web__echo", text="CUT.")
        assert outcome.status == "error"
        assert text_of(outcome).startswith("web answered in a form that cannot be read (it is not JSON: ")
        assert "validation error" not in text_of(outcome)
        assert text_of(await call(toolset, "web__echo", text="fine")) == "fine"


async def test_a_server_over_sse_is_called(tmp_path: Path) -> None:
    async with serve(build().sse_app()) as base, open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [web(base, "sse")], wait=START)
        assert text_of(await call(toolset, "web__echo", text="hello")) == "hello"


@pytest.mark.parametrize("era", [OldEra, lambda app: app])
async def test_a_restarted_http_server_is_connected_to_again(tmp_path: Path, era: Any) -> None:
    async with open_hub(tmp_path) as hub:
        async with serve(era(build().streamable_http_app())) as base:
            toolset = await open_toolset(hub, [web(base)], wait=START)
        async with serve(era(build().streamable_http_app()), int(base.rpartition(":")[2])):
            hub.restart("web")  # it may pause after failures while the server was away

            async def is_answering() -> bool:
                return text_of(await call(toolset, "web__echo", text="again")) == "again"

            await until(is_answering)


async def test_a_call_while_the_http_server_is_away_is_an_error(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        async with serve(build().streamable_http_app()) as base:
            toolset = await open_toolset(hub, [web(base)], wait=START)
        outcome = await call(toolset, "web__echo", timeout=5, text="hello")
        assert outcome.status == "error"
        assert "not available" in text_of(outcome)


async def test_an_unreachable_address_is_a_notice(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with open_hub(tmp_path) as hub:
            toolset = await open_toolset(hub, [web(f"http://127.0.0.1:{unused.getsockname()[1]}")], wait=START)
            assert toolset.tools == ()
            assert "nothing listens at 127.0.0.1:" in toolset.notices[0][1]
            assert "ConnectError" not in toolset.notices[0][1]


async def test_cancelling_the_caller_cancels_the_call_at_the_http_server(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    for era in (OldEra, lambda app: app):
        async with serve(era(build().streamable_http_app())) as base, open_hub(tmp_path / "homes") as hub:
            toolset = await open_toolset(hub, [web(base)], wait=START)
            with anyio.move_on_after(1) as scope:
                await call(toolset, "slow", 60, journal=str(journal))
            assert scope.cancelled_caught
            await until(lambda: "cancelled" in journal.read_text())
        journal.unlink()


@pytest.mark.parametrize("json_response", [False, True])
async def test_a_body_beyond_the_cap_ends_its_call(tmp_path: Path, json_response: bool) -> None:
    server = build()

    @server.tool()
    async def huge() -> str:
        return "x" * (20 * 1024 * 1024)

    app = OldEra(server.streamable_http_app(json_response=json_response))
    async with serve(app) as base, open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [web(base)], wait=START)
        assert (await call(toolset, "huge", timeout=50)).status == "error"
        assert text_of(await call(toolset, "echo", text="still here")) == "still here"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b""),
        (400, b"Bad Request: No valid session ID provided"),
        (400, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: Server not initialized"}}'),
    ],
)
async def test_a_call_in_a_session_that_the_server_forgot_runs_once_in_a_new_session(
    tmp_path: Path, status: int, body: bytes
) -> None:
    app = Forgetful(OldEra(build().streamable_http_app()), status, body)
    async with serve(app) as base, open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [web(base)], wait=START)
        app.forgotten |= app.sessions
        assert text_of(await call(toolset, "echo", timeout=20, text="hello")) == "hello"
        assert len(app.refused) == 1
        assert app.sessions - app.forgotten


async def test_a_server_that_forgets_each_session_is_asked_twice(tmp_path: Path) -> None:
    app = Forgetful(OldEra(build().streamable_http_app()))
    app.forgets_calls = True
    async with serve(app) as base, open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [web(base)], wait=START)
        outcome = await call(toolset, "echo", timeout=20, text="hello")
        assert "the server ended the session" in text_of(outcome)
        assert len(app.refused) == 2


async def test_tools_are_listed_again_in_a_new_session_if_the_server_forgot_the_old_one(tmp_path: Path) -> None:
    server = build()

    @server.tool()
    async def announce(ctx: Context) -> str:
        await ctx.session.send_tool_list_changed()
        return "announced"

    app = Forgetful(OldEra(server.streamable_http_app()))
    async with serve(app) as base, open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [web(base)], wait=START)
        assert text_of(await call(toolset, "announce")) == "announced"
        app.forgotten |= app.sessions
        again = await open_toolset(hub, [web(base)], wait=START)
        assert {tool.name for tool in again.tools} == {tool.name for tool in toolset.tools}
        assert text_of(await call(again, "web__echo", timeout=20, text="hello")) == "hello"


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_to_another_path_of_the_server_is_followed(tmp_path: Path, status: int) -> None:
    app = build().streamable_http_app(streamable_http_path="/mcp/")

    async def add_slash(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/mcp":
            await send({"type": "http.response.start", "status": status, "headers": [(b"location", b"/mcp/")]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await app(scope, receive, send)

    async with serve(add_slash) as base, open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [web(base)], wait=START)
        assert text_of(await call(toolset, "web__echo", text="hello")) == "hello"


class HandWritten:
    """A small server of the older era with one tool, and with this greeting."""

    def __init__(self, greeting: dict[str, Any]) -> None:
        self.results: dict[str, Any] = {
            "initialize": {"protocolVersion": "2025-06-18", **greeting},
            "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "hello"}]},
        }
        self.answers: dict[str, dict[str, Any]] = {}
        """Whole answers by method, without their ids. They precede ``results``."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = json.loads((await receive()).get("body") or b"{}")
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": request.get("id")}
        result = self.results.get(request.get("method"))
        answer |= {"error": {"code": -32601, "message": "no such method"}} if result is None else {"result": result}
        if request.get("method") in self.answers:
            answer = {"id": request.get("id"), **self.answers[request["method"]]}
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200 if "id" in request else 202, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


@pytest.mark.parametrize(
    "greeting",
    [
        {"capabilities": {"tools": {}}},
        {"serverInfo": {"name": "x", "version": "1"}},
        {"capabilities": {"tools": True, "logging": None}, "serverInfo": {"name": "x", "version": 1.2}},
        {"capabilities": [], "serverInfo": "x", "instructions": ["a"]},
    ],
)
async def test_an_incomplete_greeting_costs_nothing(tmp_path: Path, greeting: dict[str, Any]) -> None:
    async with serve(HandWritten(greeting)) as base, open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [web(base)], wait=START)
        assert text_of(await call(toolset, "web__echo")) == "hello"


async def test_an_answer_that_lacks_members_of_json_rpc_is_read(tmp_path: Path) -> None:
    app = HandWritten({})
    async with serve(app) as base, open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [web(base)], wait=START)
        app.answers["tools/call"] = {"result": {"content": [{"type": "text", "text": "bare"}]}}
        assert text_of(await call(toolset, "web__echo")) == "bare"
        app.answers["tools/call"] = {"jsonrpc": "2.0", "error": "no such row"}
        assert text_of(await call(toolset, "web__echo")) == "no such row"


async def test_a_greeting_that_cannot_be_read_is_explained_without_library_names(tmp_path: Path) -> None:
    async with serve(HandWritten({"protocolVersion": 20250618})) as base, open_hub(tmp_path) as hub:
        await open_toolset(hub, [web(base)], wait=START)
        reason = hub.status()[0].reason
        assert reason.startswith("it answered in a form that cannot be read (protocolVersion: ")


async def test_headers_of_the_entry_are_sent_and_no_proxy_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    authorizations: set[bytes | None] = set()
    app = build().streamable_http_app()

    async def watch_headers(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            authorizations.add(dict(scope["headers"]).get(b"authorization"))
        await app(scope, receive, send)

    async with serve(watch_headers) as base, open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [web(base, headers={"Authorization": "Bearer t"})], wait=START)
        assert (await call(toolset, "echo", text="x")).status == "ok"
    assert authorizations == {b"Bearer t"}


@pytest.mark.parametrize("url", ["", "file:///etc/passwd", "http://", "ftp://example.org"])
def test_only_web_addresses_are_accepted(tmp_path: Path, url: str) -> None:
    policy = LaunchPolicy(tmp_path, lifted=LiftedRules(any_command=True, loopback=True))
    with pytest.raises(InvalidInput):
        policy.endpoint(http_spec(url))

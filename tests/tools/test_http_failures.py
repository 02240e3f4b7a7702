"""A server over HTTP that fails: the reason that its admin reads, and the secrets that nobody reads."""

import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from agentic_rag.tools.toolset import open_toolset
from tests.server.rig import Rig
from tests.tools.servers.plain import build
from tests.tools.support import START, call, open_hub, text_of
from tests.tools.test_http import serve, web

Answer = Callable[[Request, dict[str, Any]], Response]
KEY = "s/9?k#y&x"
"""A secret of nine characters that an address must encode."""


def app(answer: Answer) -> Starlette:
    """An application that answers each POST as ``answer`` says, and everything else with 404."""

    async def handle(request: Request) -> Response:
        body = await request.body()
        if request.method != "POST":
            return PlainTextResponse("not found", 404)
        message = json.loads(body) if body[:1] == b"{" else {}
        return answer(request, message)

    return Starlette(routes=[Route("/{path:path}", handle, methods=["GET", "POST", "DELETE"])])


def speak(message: dict[str, Any]) -> Response:
    """Answer as a small MCP server."""
    results: dict[str, Any] = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "h", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
    }
    if "id" not in message:
        return PlainTextResponse("", 202)
    if message["method"] in results:
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]})
    return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no"}})


@asynccontextmanager
async def rig_with(tmp_path: Path, answer: Answer) -> AsyncIterator[tuple[Rig, str, str]]:
    """Yield an application, a domain of it, and the address of a server with these answers."""
    async with serve(app(answer)) as base, Rig(tmp_path, mcp_hosts="127.0.0.1:*") as rig:
        yield rig, await rig.domain(), base


async def try_entry(rig: Rig, domain: str, entry: dict[str, Any]) -> dict[str, Any]:
    report = await rig.ok("POST", f"/api/domains/{domain}/mcp-servers/test", {"mcpServers": {"s": entry}})
    server: dict[str, Any] = report["items"][0]
    return server


@pytest.mark.parametrize(
    ("entry", "error_body", "words"),
    [
        ({"headers": {"X-Api-Key": "wrong-key"}}, {"error": "bad key"}, "in the header X-Api-Key (HTTP 401: bad key)"),
        ({}, {"error": {"message": "no key"}}, "the server refused the request (HTTP 401: no key)"),
        ({"headers": {"Authorization": "Bearer wrong-key"}}, {"detail": "expired"}, "in the header Authorization"),
        ({"headers": {"X-Api-Key": "wrong-key"}}, {"error": "wrong-key is bad"}, "(HTTP 401: [secret] is bad)"),
        ({"type": "sse", "headers": {"X-Key": "wrong-key"}}, {"error": "bad"}, "in the header X-Key (HTTP 401: bad)"),
        ({"headers": {"X-Api-Key": "wrong-key"}}, {"status": 403}, "in the header X-Api-Key (HTTP 403)"),
        (
            {"headers": {"X-Api-Key": "wrong-key"}},
            {"jsonrpc": "2.0", "id": 1, "error": {"code": -32001, "message": "key wrong-key expired"}},
            "in the header X-Api-Key (HTTP 401: key [secret] expired)",
        ),
    ],
)
async def test_refused_credentials_are_named_and_registration_is_not(
    tmp_path: Path, entry: dict[str, Any], error_body: dict[str, Any], words: str
) -> None:
    async def handle(request: Request) -> Response:
        if request.url.path == "/key":
            return JSONResponse(error_body, error_body.get("status", 401))
        return PlainTextResponse("not found", 404)

    app_with_key = Starlette(routes=[Route("/{path:path}", handle, methods=["GET", "POST", "DELETE"])])
    async with serve(app_with_key) as base, Rig(tmp_path, mcp_hosts="127.0.0.1:*") as rig:
        state = await try_entry(rig, await rig.domain(), {"url": f"{base}/key", **entry})
        assert state["state"] == "failed"
        assert words in state["reason"]
        assert "register" not in state["reason"]
        assert "wrong-key" not in str(state)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda *_: PlainTextResponse("nope", 403), "refused the request (HTTP 403: nope)"),
        (lambda *_: PlainTextResponse("", 404), "there is no MCP server at this path of 127.0.0.1 (HTTP 404)"),
        (lambda *_: PlainTextResponse("", 405), "takes no MCP messages (HTTP 405)"),
        (lambda *_: PlainTextResponse("", 429, {"retry-after": "17"}), "Try again after 17 s."),
        (lambda *_: JSONResponse({"message": "out of memory"}, 500), "127.0.0.1 failed (HTTP 500: out of memory)"),
        (lambda *_: HTMLResponse("<html><title>Sign in</title>"), "answered with a web page (Sign in)"),
        (lambda *_: PlainTextResponse("ok"), "answered with text/plain"),
    ],
    ids=["403", "404", "405", "429", "500", "page", "text"],
)
async def test_an_answer_that_is_not_mcp_is_explained(tmp_path: Path, answer: Answer, words: str) -> None:
    async with rig_with(tmp_path, answer) as (rig, domain, base):
        state = await try_entry(rig, domain, {"url": f"{base}/mcp"})
        assert state["state"] == "failed"
        assert words in state["reason"]


async def test_a_server_that_starts_to_refuse_calls_is_explained_to_the_model_and_retried(tmp_path: Path) -> None:
    failures = iter(
        [
            (JSONResponse({"error": "expired"}, 401), "the server refused the request (HTTP 401: expired)"),
            (PlainTextResponse("", 403), "the server refused the request (HTTP 403)"),
            (PlainTextResponse("", 405), "takes no MCP messages (HTTP 405)"),
            (PlainTextResponse("", 429, {"retry-after": "17"}), "Try again after 17 s."),
            (PlainTextResponse("", 500), "127.0.0.1 failed (HTTP 500)"),
            (HTMLResponse("<title>Sign in</title>"), "answered with a web page (Sign in)"),
            (PlainTextResponse("", 404), "there is no MCP server at this path of 127.0.0.1 (HTTP 404)"),
        ]
    )
    expected: list[str] = []

    def answer(request: Request, message: dict[str, Any]) -> Response:
        if message.get("method") != "tools/call":
            return speak(message)
        failure, words = next(failures, (None, "fine"))
        expected.append(words)
        result = {"content": [{"type": "text", "text": "fine"}]}
        return failure or JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result})

    async with serve(app(answer)) as base, open_hub(tmp_path) as hub:
        toolset = await open_toolset(hub, [web(base)], wait=START)
        for _ in range(8):
            text = text_of(await call(toolset, "web__t", timeout=20))
            assert expected[-1] in text
        assert len(expected) == 8


async def test_a_json_rpc_error_keeps_its_own_message(tmp_path: Path) -> None:
    def answer(request: Request, message: dict[str, Any]) -> Response:
        error = {"jsonrpc": "2.0", "id": message.get("id"), "error": {"code": -32000, "message": "tenant is suspended"}}
        return JSONResponse(error, 400)

    async with rig_with(tmp_path, answer) as (rig, domain, base):
        assert (await try_entry(rig, domain, {"url": f"{base}/mcp"}))["reason"] == "tenant is suspended"


async def test_closed_ports_unknown_hosts_and_missing_tls_have_different_errors(
    tmp_path: Path,
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        async with rig_with(tmp_path, lambda _, message: speak(message)) as (rig, domain, base):
            closed = await try_entry(rig, domain, {"url": f"http://127.0.0.1:{port}/mcp"})
            assert f"nothing listens at 127.0.0.1:{port}" in closed["reason"]
            unresolved = await try_entry(rig, domain, {"url": "https://no-such-host.invalid/mcp"})
            assert "no-such-host.invalid" in unresolved["reason"]
            without_tls = await try_entry(rig, domain, {"url": f"{base.replace('http:', 'https:')}/mcp"})
            assert "no TLS connection" in without_tls["reason"]


async def test_a_secret_in_query_and_path_reaches_the_server_encoded_and_is_never_shown(tmp_path: Path) -> None:
    requests: list[tuple[str, str]] = []

    def answer(request: Request, message: dict[str, Any]) -> Response:
        requests.append((request.query_params.get("key", ""), request.url.path))
        if request.query_params.get("key") != KEY:
            return JSONResponse({"error": f"bad key {request.query_params.get('key')}"}, 401)
        return speak(message)

    async with rig_with(tmp_path, answer) as (rig, domain, base):
        entry = {"url": f"{base}/${{TENANT}}/mcp?key=${{MAPKEY}}"}
        await rig.ok("PUT", f"/api/domains/{domain}/secrets/MAPKEY", {"value": KEY})
        await rig.ok("PUT", f"/api/domains/{domain}/secrets/TENANT", {"value": "a/../b@evil"})
        state = await try_entry(rig, domain, entry)
        assert state["state"] == "ready", state
        assert {key for key, _ in requests} == {KEY}
        assert {path for _, path in requests} == {"/a/../b@evil/mcp"}
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"mcpServers": {"s": entry}}})
        servers = await rig.ok("GET", f"/api/domains/{domain}/mcp-servers")
        assert next(server for server in servers["items"] if server["name"] == "s")["url"] == entry["url"]
        await rig.ok("PUT", f"/api/domains/{domain}/secrets/MAPKEY", {"value": "sesame"})
        rejected = await try_entry(rig, domain, entry)
        assert "in the url (${TENANT}, ${MAPKEY}) (HTTP 401: bad key [secret])" in rejected["reason"]
        audit = await rig.ok("GET", "/api/audit")
        for text in (KEY, "s%2F9%3Fk%23y%26x", "sesame", "b@evil"):
            assert text not in f"{state}{servers}{rejected}{audit}"


async def test_a_secret_in_the_host_of_a_url_is_refused(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        await rig.ok("PUT", f"/api/domains/{domain}/secrets/HOST", {"value": "evil.example"})
        for url in ("https://${HOST}/mcp", "${HOST}/mcp", "https://h.${HOST}?x=1", "https://h/mcp#${HOST}"):
            entry = {"settings": {"mcpServers": {"s": {"url": url}}}}
            status, code, message = await rig.refused("PATCH", f"/api/domains/{domain}", entry)
            assert (status, code) == (422, "VALIDATION_ERROR")
            assert "${HOST} is a secret" in message


async def test_an_entry_with_the_wrong_transport_type_works_with_a_note(tmp_path: Path) -> None:
    async with serve(build().streamable_http_app()) as base, Rig(tmp_path, mcp_hosts="127.0.0.1:*") as rig:
        domain = await rig.domain()
        state = await try_entry(rig, domain, {"type": "sse", "url": f"{base}/mcp"})
        assert state["state"] == "ready", state
        assert "speaks streamable HTTP" in state["notes"][0]
        right = await try_entry(rig, domain, {"type": "http", "url": f"{base}/mcp"})
        assert (right["state"], right["notes"]) == ("ready", [])
    async with serve(build().sse_app()) as base, Rig(tmp_path / "2", mcp_hosts="127.0.0.1:*") as rig:
        state = await try_entry(rig, await rig.domain(), {"type": "http", "url": f"{base}/sse"})
        assert state["state"] == "ready", state
        assert "speaks the older SSE transport" in state["notes"][0]

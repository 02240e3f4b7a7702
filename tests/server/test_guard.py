"""The guard around the application: foreign pages, unknown paths, unexpected failures."""

import io
import logging
from functools import partial
from pathlib import Path
from typing import Any

import anyio.lowlevel
import httpx2
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.base.terminal import log_handler
from agentic_rag.server.auth import Guard
from tests.server.rig import Rig
from tests.ws.serving import serving


@pytest.mark.attack(kind="web")
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "user@127.0.0.1", "10.0.0.1:8000"])
async def test_a_foreign_host_is_refused(tmp_path: Path, host: str) -> None:
    async with Rig(tmp_path) as rig:
        assert (await rig.refused("GET", "/api/health", headers={"host": host}))[:2] == (403, "FORBIDDEN")


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000"])
async def test_requests_to_a_loopback_host_are_served(tmp_path: Path, host: str) -> None:
    async with Rig(tmp_path) as rig:
        assert await rig.ok("GET", "/api/ready", headers={"host": host}) == {"ready": True}


@pytest.mark.attack(kind="web")
@pytest.mark.parametrize(
    "origin",
    ["null", "http://evil.example", "http://127.0.0.1:81", "http://127.0.0.1.evil.example", "http://localhost"],
)
async def test_a_foreign_origin_is_refused(tmp_path: Path, origin: str) -> None:
    async with Rig(tmp_path) as rig:
        assert (await rig.refused("GET", "/api/health", headers={"origin": origin}))[:2] == (403, "FORBIDDEN")
        assert (await rig.http.get("/api/health", headers={"origin": "http://127.0.0.1"})).status_code == 200


async def test_unknown_paths_and_methods_are_answered_in_our_form(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        assert (await rig.refused("GET", "/nothing"))[:2] == (404, "NOT_FOUND")
        assert (await rig.refused("PATCH", "/api/health"))[:2] == (405, "METHOD_NOT_ALLOWED")


async def test_an_unexpected_failure_shows_the_client_only_a_reference(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("the password is swordfish")

    transport = httpx2.ASGITransport(Guard(broken))
    async with httpx2.AsyncClient(base_url="http://127.0.0.1", transport=transport) as http:
        response = await http.get("/")
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (500, "INTERNAL_ERROR")
    assert "swordfish" not in response.text
    assert error["requestId"] in caplog.text
    assert "the password is swordfish" in caplog.text


async def test_health_names_every_part_with_its_state(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        health = await rig.ok("GET", "/api/health")
        assert health["model"] == {"name": "scripted", "state": "ready"}
        assert health["embedder"]["mode"] == "lexical"
        assert {health["store"]["state"], health["index"]["state"]} == {"ready"}
        assert [server["name"] for server in health["servers"]] == ["promptx", "retriever"]
        assert (await rig.ok("GET", "/api/version"))["version"]


@pytest.mark.attack(kind="web")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
async def test_without_a_key_the_server_does_not_start_beyond_loopback(tmp_path: Path, host: str) -> None:
    with pytest.raises(BadConfiguration, match="agentic-rag keys create --user NAME --role operator"):
        async with Rig(tmp_path, host=host):
            pass


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
async def test_without_a_key_the_server_starts_on_loopback(tmp_path: Path, host: str) -> None:
    async with Rig(tmp_path, host=host) as rig:
        assert (await rig.http.get("/api/ready")).status_code == 200


async def test_a_requests_own_id_is_in_its_answer_and_in_its_error(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        for request_id in ("a", "trace-1.2_3", "x" * 128):
            answer = await rig.http.get("/api/turns/turn_none", headers={"x-request-id": request_id})
            assert answer.headers.get_list("x-request-id") == [request_id]
            assert answer.json()["error"]["requestId"] == request_id


@pytest.mark.parametrize("request_id", ["", "x" * 129, "two words", "-dash", "<script>", "a,b", "a;b=c"])
async def test_an_invalid_request_id_is_replaced(tmp_path: Path, request_id: str) -> None:
    async with Rig(tmp_path) as rig:
        for headers in ([("x-request-id", request_id)], [("x-request-id", "one"), ("x-request-id", "two")]):
            answer = await rig.http.get("/api/version", headers=headers)
            assert answer.headers["x-request-id"].startswith("req_")


async def test_every_log_line_of_a_request_names_it_and_no_other_does() -> None:
    lines = io.StringIO()
    handler, log = log_handler(lines), logging.getLogger("agentic_rag.tests.guard")
    log.addHandler(handler)
    working = anyio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        log.warning("begins")
        working.set()
        await anyio.lowlevel.checkpoint()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
        await Response()(scope, receive, send)

    async def work() -> None:
        log.warning("works")

    try:
        transport = httpx2.ASGITransport(Guard(slow))
        http = httpx2.AsyncClient(base_url="http://127.0.0.1", transport=transport)
        async with http, anyio.create_task_group() as tasks:
            tasks.start_soon(partial(http.get, "/", headers={"x-request-id": "mine-1"}))
            await working.wait()
            log.warning("outside")
    finally:
        log.removeHandler(handler)
    messages = [line.split("guard: ")[1] for line in lines.getvalue().splitlines()]
    assert sorted(messages) == ["begins [mine-1]", "outside", "works [mine-1]"]


async def test_without_keys_another_sites_page_cannot_read_or_change_anything(tmp_path: Path) -> None:
    cross = {"sec-fetch-site": "cross-site"}
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        for method, path in (
            ("GET", "/api/domains"),
            ("GET", f"/api/domains/{domain}"),
            ("POST", "/api/domains"),
            ("DELETE", f"/api/domains/{domain}"),
            ("POST", f"/mcp/{domain}"),
            ("GET", "/metrics"),
        ):
            for extra_headers in ({}, {"sec-fetch-mode": "navigate"}, {"sec-fetch-mode": "no-cors"}):
                response = await rig.http.request(method, path, headers={**cross, **extra_headers})
                assert response.status_code == 403, (method, path)
                assert "other sites" in response.text, (method, path)
        for path in ("/", "/web/app.js", "/api/ready"):
            assert (await rig.http.get(path, headers={**cross, "sec-fetch-mode": "navigate"})).status_code == 200
        for site in ("same-origin", "same-site", "none"):
            assert (await rig.http.get("/api/domains", headers={"sec-fetch-site": site})).status_code == 200
        key = (await rig.ok("POST", "/api/keys", {"user": "ann", "role": "operator"}))["key"]
        with_key = {**cross, "authorization": f"Bearer {key}"}
        assert (await rig.http.get("/api/domains", headers=with_key)).status_code == 200, "a page that has a key"


async def test_without_keys_another_sites_page_cannot_open_a_socket(tmp_path: Path) -> None:
    """Browsers always send an `Origin` with a handshake, but the other header must suffice alone."""
    async with Rig(tmp_path) as rig, serving(rig.application.app) as address:
        for path in ("/ws", f"/api/ag-ui/{await rig.domain()}"):
            for site in ("cross-site", "Cross-Site"):
                with pytest.raises(InvalidStatus) as exc_info:
                    await connect(f"ws://{address}{path}", additional_headers={"Sec-Fetch-Site": site}, proxy=None)
                assert exc_info.value.response.status_code == 403, path
                assert b"other sites" in (exc_info.value.response.body or b"")
        for site in ("same-origin", "none"):
            async with connect(f"ws://{address}/ws", additional_headers={"Sec-Fetch-Site": site}, proxy=None):
                pass


async def test_a_page_of_a_listed_origin_can_use_a_keyless_server(tmp_path: Path) -> None:
    origin = "https://desk.example"
    async with Rig(tmp_path, allowed_origins=origin) as rig:
        headers = {"sec-fetch-site": "cross-site", "origin": origin}
        assert (await rig.http.get("/api/domains", headers=headers)).status_code == 200


async def test_every_answer_switches_dns_prefetching_off(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        for path in ("/", "/web/app.js", "/api/domains", "/api/docs", "/nothing"):
            assert (await rig.http.get(path)).headers["x-dns-prefetch-control"] == "off", path


async def test_a_body_with_too_large_a_content_length_is_refused_unread(tmp_path: Path) -> None:
    """A client that waits for `100 Continue` receives it with the first read of its body."""
    answers: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body was asked for")

    async def send(message: Any) -> None:
        answers.append(message)

    async with Rig(tmp_path, quota_document_bytes=1024**3, max_upload_bytes=10 * 1024**2) as rig:
        domain = await rig.domain()
        of_domain = f"/api/domains/{domain}"
        for path, kind in (
            ("/api/auth/sign-in", b"application/json"),
            ("/api/domains", b"application/json"),
            (f"{of_domain}/mcp-servers/x/bundle", b"application/zip"),
            ("/api/bundles", b"application/zip"),
            ("/api/bundles", b"multipart/form-data; boundary=b"),
            (f"{of_domain}/bundle", b"application/zip"),
            (f"{of_domain}/documents", b"multipart/form-data; boundary=b"),
        ):
            headers = [(b"host", b"127.0.0.1"), (b"content-length", b"17179869184"), (b"expect", b"100-continue")]
            headers.append((b"content-type", kind))
            scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
            scope |= {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", None), "scheme": "http", "root_path": ""}
            scope |= {"http_version": "1.1", "raw_path": path.encode()}
            await rig.application.app(scope, receive, send)
            start = answers[0]
            answers.clear()
            assert start["status"] == 413, path

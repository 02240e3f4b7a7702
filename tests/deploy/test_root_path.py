"""A server below a path of a shared host: page, REST, WebSocket, cookies and uploads."""

import json
import re
from pathlib import Path

import httpx2
import pytest
from playwright.async_api import expect
from websockets.asyncio.client import connect

from tests.console.rig import desk_at, needs_browser
from tests.console.test_domain_pages import choose_files
from tests.deploy.proxies import NAME, nginx, nginx_program
from tests.e2e.serving import serving_without_demo

ROOT = "/team/rag"
QUESTION = "How many days of paid leave do full-time staff have?"


@pytest.mark.slow("a server and a browser")
@needs_browser
async def test_the_page_works_below_a_path_of_a_shared_host(tmp_path: Path) -> None:
    with serving_without_demo(tmp_path / "data", AGENTIC_RAG_EMBEDDING="none", AGENTIC_RAG_ROOT_PATH=ROOT) as server:
        domain = await server.make_domain_with("leave.md", b"Full-time staff have 27 days of paid leave a year.")
        async with desk_at(server.url + ROOT) as desk:
            outside: list[str] = []
            desk.page.on("request", lambda request: outside.append(request.url))
            await desk.page.goto(f"{server.url}{ROOT}")  # without a slash at its end
            await desk.page.goto(f"{server.url}{ROOT}/#/chat/{domain}")
            await desk.page.get_by_role("textbox").first.fill(QUESTION)
            await desk.page.keyboard.press("Enter")
            await expect(desk.page.get_by_text("27 days").first).to_be_visible()
            await desk.page.goto(f"{server.url}{ROOT}/#/domains/{domain}/documents")
            await expect(desk.page.get_by_text("leave.md").first).to_be_visible()
            await choose_files(desk.page, "Choose files", ("note.md", b"# Note\n\nThe pump is green."))
            await expect(desk.page.get_by_text("note.md").first).to_be_visible()
        paths = [re.sub(r"^\w+://[^/]+", "", url) for url in outside if url.startswith(server.url)]
        assert [path for path in paths if not path.startswith(ROOT)] == []


async def test_endpoints_work_below_the_root_path_and_cookies_belong_to_it(tmp_path: Path) -> None:
    https = {"x-forwarded-proto": "https"}
    variables = {"AGENTIC_RAG_EMBEDDING": "none", "AGENTIC_RAG_ROOT_PATH": f"{ROOT}/"}
    with serving_without_demo(tmp_path / "data", **variables) as server:
        key = server.call("POST", "/api/keys", {"user": "ann", "role": "operator"})["key"]
        async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as http:
            redirect = await http.get(ROOT)
            assert (redirect.status_code, redirect.headers["location"]) == (308, f"{ROOT}/")
            login = await http.post(
                f"{ROOT}/api/auth/sign-in",
                json={"name": "ann", "key": key},
                headers={**https, "x-requested-with": "page"},
            )
            cookie = login.headers["set-cookie"]
            assert cookie.startswith("__Secure-agentic-rag=")
            assert f"; Path={ROOT};" in cookie
            request_headers = {**https, "cookie": cookie.partition(";")[0]}
            assert (await http.get(f"{ROOT}/api/domains", headers=request_headers)).status_code == 200
            # A proxy that removes the path names it in a header. Programs on this machine use no path.
            prefixed_response = await http.get("/api/domains", headers={**request_headers, "x-forwarded-prefix": ROOT})
            assert prefixed_response.status_code == 200
            assert (await http.get("/api/version")).status_code == 200
        address = f"{server.url.replace('http', 'ws')}{ROOT}/ws"
        async with connect(address, additional_headers={"Authorization": f"Bearer {key}"}) as socket:
            await socket.send(json.dumps({"type": "ping"}))
            assert json.loads(await socket.recv())["type"] == "pong"


@pytest.mark.skipif(nginx_program() is None, reason="nginx is not here")
async def test_nginx_serves_the_server_below_a_location(tmp_path: Path) -> None:
    variables = {"AGENTIC_RAG_ROOT_PATH": ROOT, "AGENTIC_RAG_ALLOWED_HOSTS": NAME, "AGENTIC_RAG_EMBEDDING": "none"}
    with (
        serving_without_demo(tmp_path / "data", **variables) as server,
        nginx(tmp_path / "proxy", server.url.partition("://")[2], f"{ROOT}/") as proxy,
    ):
        server.call("POST", "/api/keys", {"user": "ann", "role": "operator"})
        address = f"https://127.0.0.1:{proxy.port}"
        host = {"host": proxy.authority}
        async with httpx2.AsyncClient(base_url=address, headers=host, verify=False, trust_env=False) as http:
            page = await http.get(f"{ROOT}/")
            assert "<title>Agentic RAG</title>" in page.text
            (script,) = re.findall(r'<script src="([^"]+)"', page.text)
            assert (await http.get(f"{ROOT}/{script}")).status_code == 200
            assert (await http.get(f"{ROOT}/api/version")).status_code == 200
            assert (await http.get("/api/version")).status_code == 404

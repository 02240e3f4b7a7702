"""A stock MCP client without a key signs in through a browser; a person permits it and later revokes it."""

from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import anyio
import httpx2
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from playwright.async_api import expect
from pydantic import AnyUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from agentic_rag.testing.steps import say
from tests.access.tenants import make_key
from tests.console.people import fill_in
from tests.console.rig import console, needs_browser
from tests.server.test_door_sign_in import call_door
from tests.server.test_mcp_door import LIST
from tests.ws.serving import serving

pytestmark = needs_browser

NAME = 'Claude</h1><img src=x onerror="document.title=1"><script>alert(1)</script>\u202e{domain}'


class Storage:
    """The client's storage."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


async def test_a_client_without_a_key_signs_in_through_a_browser_and_asks(tmp_path: Path) -> None:
    redirected = anyio.Event()
    result: list[AuthorizationCodeResult] = []

    async def receive(request: Request) -> Response:
        result.append(AuthorizationCodeResult(**dict(request.query_params)))
        redirected.set()
        return PlainTextResponse("Back in the program.")

    async with (
        serving(Starlette(routes=[Route("/callback", receive)])) as listener,
        console(tmp_path, say("Twelve bar."), mcp_registration=True, expected=("404", "favicon")) as desk,
    ):
        page, rig = desk.page, desk.rig
        domain = await rig.domain()
        ann = await make_key(rig, "ann", "member", domain)
        storage, places = Storage(), list[str]()

        async def walk(address: str) -> None:
            places.append(address)
            await page.goto(address)
            await fill_in(page, "ann", ann)  # the page's usual sign-in comes first
            heading = page.get_by_role("heading", level=1)
            await expect(heading).to_contain_text("wants to use a domain in your name")
            await expect(heading).to_contain_text("<img src=x onerror=")
            assert await page.locator("#main img, #main script").count() == 0
            await expect(page.locator("#main")).to_contain_text("Law")
            await expect(page.locator("#main")).to_contain_text(listener)
            await page.get_by_label("Save memories").uncheck()
            await page.get_by_role("button", name="Permit", exact=True).click()

        async def wait() -> AuthorizationCodeResult:
            await redirected.wait()
            return result[0]

        url = f"{desk.url}/mcp/{domain}"
        metadata = OAuthClientMetadata(redirect_uris=[AnyUrl(f"http://{listener}/callback")], client_name=NAME)
        auth = OAuthClientProvider(url, metadata, storage, walk, wait)
        with anyio.fail_after(240):
            async with (
                httpx2.AsyncClient(auth=auth, trust_env=False, timeout=60) as http,
                Client(streamable_http_client(url, http_client=http)) as client,
            ):
                tools = {tool.name for tool in (await client.list_tools()).tools}
                assert tools == {"search_documents", "read_document", "ask"}
                reply = await client.call_tool("ask", {"question": "How much?"})
                assert "Twelve bar." in str(reply.content)
        assert dict(parse_qsl(urlsplit(places[0]).query))["resource"] == url
        assert storage.tokens is not None
        assert storage.tokens.scope == "search ask"

        await desk.goto("#/programs")
        row = page.get_by_role("row").filter(has_text="Claude")
        await expect(row).to_contain_text("Law")
        await row.get_by_role("button").click()
        await page.get_by_role("dialog").get_by_role("button", name="End access").click()
        await expect(page.locator("#main")).to_contain_text("No programs")
        async with httpx2.AsyncClient(base_url=desk.url, trust_env=False) as plain:
            assert (await call_door(plain, storage.tokens.access_token, LIST, domain)).status_code == 401
            framed = await plain.get("/")
            assert "frame-ancestors 'none'" in framed.headers["content-security-policy"]

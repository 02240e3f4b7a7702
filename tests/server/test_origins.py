"""Pages of origins that the operator has listed, with the requests that browsers send."""

from pathlib import Path

import httpx2
import pytest
from websockets.exceptions import InvalidStatus

from agentic_rag.base.settings import load_settings
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.testing.steps import say
from tests.access.tenants import bearer, count_refused, make_key, socket
from tests.server.rig import Rig, events_of
from tests.ws.serving import serving

LISTED = "https://app.example, http://localhost:5173, https://Shop.Example:443/, app://desk"
SERVED = ["https://app.example", "http://localhost:5173", "https://shop.example", "app://desk"]
LOOK_ALIKES = [
    "http://app.example",
    "https://app.example:8443",
    "https://app.example.evil.example",
    "https://evil-app.example",
    "https://app.example/",
    "https://app.example@evil.example",
    "https://APP.example",
    "https://app.xn--exampl-2of",  # its last letter is Cyrillic, as browsers write it
    "http://localhost",
    "http://localhost:51730",
    "null",
    "*",
    "app://desk.evil",
]


async def preflight(rig: Rig, origin: str, method: str = "POST", path: str = "/api/conversations") -> httpx2.Response:
    """Send a browser's preflight request for a request with a key, without the key."""
    request_headers = {
        "access-control-request-method": method,
        "access-control-request-headers": "authorization,x-acme-trace",
    }
    return await rig.http.request("OPTIONS", path, headers={"origin": origin, **request_headers, "authorization": ""})


@pytest.mark.parametrize("origin", SERVED)
async def test_a_page_of_a_listed_origin_can_send_and_read(tmp_path: Path, origin: str) -> None:
    async with Rig(tmp_path, say("Yes."), allowed_origins=LISTED) as rig:
        key = await make_key(rig, "ann", "operator")
        conversation = await rig.conversation()
        response = await preflight(rig, origin)
        assert response.status_code == 204
        assert response.headers["access-control-allow-origin"] == origin
        assert response.headers["access-control-allow-credentials"] == "true"
        assert "PATCH" in response.headers["access-control-allow-methods"]
        assert response.headers["access-control-allow-headers"] == "authorization,x-acme-trace"
        answers = [
            await rig.http.get("/api/domains", headers={"origin": origin, **bearer(key)}),
            await rig.http.get("/api/domains", headers={"origin": origin, "authorization": ""}),
            await rig.http.get("/api/turns/turn_none", headers={"origin": origin, **bearer(key)}),
            await rig.http.post(
                f"/api/conversations/{conversation}/messages",
                json={"content": "Hi"},
                headers={"origin": origin},
            ),
        ]
        assert [answer.status_code for answer in answers] == [200, 401, 404, 200]
        for answer in (response, *answers):
            assert answer.headers.get_list("access-control-allow-origin") == [origin]
            assert answer.headers["access-control-allow-credentials"] == "true"
            assert "origin" in answer.headers["vary"].split(", ")
            assert "x-request-id" in answer.headers["access-control-expose-headers"].split(", ")
        assert events_of(answers[-1].text)[-1]["type"] == "done"
        own = await rig.http.get("/api/version")
        assert "access-control-allow-origin" not in own.headers
        assert own.headers["vary"] == "origin"


@pytest.mark.attack(kind="web")
async def test_a_lookalike_origin_is_refused_with_the_name_of_the_setting(tmp_path: Path) -> None:
    async with Rig(tmp_path, allowed_origins=LISTED) as rig:
        key = await make_key(rig, "ann", "operator")
        for pages, origin in enumerate(LOOK_ALIKES, 1):
            headers = {"origin": origin, **bearer(key)}
            status, code, message = await rig.refused("POST", "/api/domains", {"name": "x"}, headers=headers)
            assert (origin, status, code) == (origin, 403, "FORBIDDEN")
            assert "AGENTIC_RAG_ALLOWED_ORIGINS" in message
            response = await preflight(rig, origin)
            assert response.status_code == 403
            names = {name: value for name, value in response.headers.items() if name.startswith("access-control-")}
            assert names == {"access-control-allow-origin": "add-this-origin-to-AGENTIC_RAG_ALLOWED_ORIGINS"}
            two_origins = [("origin", SERVED[0]), ("origin", origin), *bearer(key).items()]
            assert (await rig.http.get("/api/domains", headers=two_origins)).status_code == 403
            assert await rig.ok("GET", "/api/domains") == {"items": []}
            assert await count_refused(rig, "anonymous", "FORBIDDEN") == 3 * pages


async def test_a_socket_opens_only_for_a_listed_origin(tmp_path: Path) -> None:
    async with Rig(tmp_path, allowed_origins=LISTED) as rig, serving(rig.application.app) as address:
        key = await make_key(rig, "ann", "operator")
        for origin in (*SERVED, f"http://{address}"):
            async with socket(address, key=key, origin=origin) as client:
                assert await client.ask("ping") == {"type": "pong"}
        for origin in ("http://app.example", "https://app.example.evil.example", "null"):
            with pytest.raises(InvalidStatus) as exc_info:
                async with socket(address, key=key, origin=origin):
                    pass
            assert exc_info.value.response.status_code == 403


async def test_a_development_proxy_that_changes_the_host_works_with_its_origin_listed(tmp_path: Path) -> None:
    proxied = {"host": "127.0.0.1:8000", "origin": "http://localhost:5173"}
    async with Rig(tmp_path / "listed", allowed_origins="http://localhost:5173") as rig:
        assert (await rig.http.get("/api/domains", headers=proxied)).status_code == 200
        assert (await rig.refused("GET", "/api/domains", headers={**proxied, "host": "evil.example"}))[0] == 403
    async with Rig(tmp_path / "unset") as rig:
        assert (await rig.refused("GET", "/api/domains", headers=proxied))[0] == 403


@pytest.mark.parametrize(
    "text", ["*", "null", "https://*.app.example", "app.example", "https://app.example/chat", "https://a b", "http://"]
)
def test_an_invalid_origin_cannot_be_listed(text: str) -> None:
    with pytest.raises(BadConfiguration, match=r"AGENTIC_RAG_ALLOWED_ORIGINS: .*scheme://host"):
        load_settings(allowed_origins=f"https://app.example,{text}")


async def test_a_preflight_of_odd_header_names_is_answered_without_them(tmp_path: Path) -> None:
    async with Rig(tmp_path, allowed_origins=LISTED) as rig:
        headers = {
            "origin": SERVED[0],
            "access-control-request-method": "GET",
            "access-control-request-headers": "a: b",
        }
        answer = await rig.http.request("OPTIONS", "/api/domains", headers=headers)
        assert answer.status_code == 204
        assert "access-control-allow-headers" not in answer.headers

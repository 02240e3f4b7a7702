"""Attacks by a browser, or by the owner of a page, a name server or a log. Each is refused with an audit row."""

from pathlib import Path

import anyio
import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from agentic_rag.server.auth import MAX_TICKETS
from agentic_rag.server.ws.socket import MAX_REFUSED_FRAMES
from agentic_rag.testing.scripted import Stalled
from agentic_rag.testing.steps import say
from tests.access.tenants import as_operator, audited, bearer, count_refused, make_key, socket, tenants
from tests.server.rig import Rig
from tests.waiting import pause
from tests.ws.serving import PATIENCE, serving

pytestmark = pytest.mark.attack(kind="web")

FOREIGN_ORIGINS = [
    "null",
    "",
    "http://evil.example",
    "https://evil.example",
    "http://127.0.0.1.evil.example",
    "http://127.0.0.1@evil.example",
    "http://evil.example/127.0.0.1",
    "http://localhost",
    "http://127.0.0.1:1",
    "http://127.0.0.1:",
    "http://127.0.0.1.",
    "//127.0.0.1",
    "file://127.0.0.1",
    "chrome-extension://127.0.0.1",
    "http://[",
    "http://127.0.0.1 http://evil.example",
]
FOREIGN_HOSTS = [
    "evil.example",
    "evil.example:8000",
    "127.0.0.1.evil.example",
    "127.0.0.1.nip.io",
    "localhost.evil.example",
    "localtest.me",
    "127.0.0.1@evil.example",
    "evil.example#127.0.0.1",
    "127.0.0.1/evil.example",
    "127.1",
    "2130706433",
    "0.0.0.0",
    "10.0.0.1:8000",
    "169.254.169.254",
    "[",
    "",
]


async def status_of(address: str, *protocols: str, **headers: str) -> int:
    """Return the HTTP status that refuses a handshake."""
    with pytest.raises(InvalidStatus) as refusal:
        async with socket(address, *protocols, **headers):
            pass
    return refusal.value.response.status_code


async def test_a_page_of_another_origin_gets_nothing_even_with_the_key(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        key = await make_key(rig, "ann", "operator")
        for pages, origin in enumerate(FOREIGN_ORIGINS, 1):
            headers = {"origin": origin, **bearer(key)}
            refusal = await rig.refused("GET", "/api/domains", headers=headers)
            assert (origin, *refusal[:2]) == (origin, 403, "FORBIDDEN")
            assert (await rig.refused("POST", "/api/domains", {"name": "x"}, headers=headers))[0] == 403
            response = await rig.http.request("OPTIONS", "/api/domains", headers=headers)
            assert "access-control-allow-origin" not in response.headers
            assert (await rig.ok("GET", "/api/domains")) == {"items": []}
            assert await count_refused(rig, "anonymous", "FORBIDDEN") == 3 * pages


async def test_a_dns_rebound_host_is_refused(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        key = await make_key(rig, "ann", "operator")
        for pages, host in enumerate(FOREIGN_HOSTS, 1):
            headers = {"host": host, "origin": f"http://{host}", **bearer(key)}
            refusal = await rig.refused("GET", "/api/domains", headers=headers)
            assert (host, *refusal[:2]) == (host, 403, "FORBIDDEN")
            assert (await rig.refused("GET", "/api/ready", headers=headers))[0] == 403
            assert await count_refused(rig, "anonymous", "FORBIDDEN") == 2 * pages


async def test_a_request_with_two_hosts_is_refused(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        transport = httpx2.ASGITransport(rig.application.app)
        doubled_host = [("host", "127.0.0.1"), ("host", "evil.example")]
        async with httpx2.AsyncClient(base_url="http://127.0.0.1", headers=doubled_host, transport=transport) as http:
            assert (await http.get("/api/ready")).status_code == 403


async def test_beyond_loopback_only_configured_host_names_are_served(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        await make_key(rig, "ann", "operator")
    async with Rig(tmp_path, host="0.0.0.0", allowed_hosts="chat.example.org, Other.example") as rig:
        as_operator(rig)
        for host in ("chat.example.org", "CHAT.example.org:443", "other.example", "10.1.2.3:8000", "[::1]:80"):
            headers = {"host": host, "origin": f"https://{host}"}
            assert (await rig.http.get("/api/domains", headers=headers)).status_code == 200, host
        for host in ("evil.example", "chat.example.org.evil.example", "xchat.example.org", ""):
            assert (await rig.refused("GET", "/api/domains", headers={"host": host}))[0] == 403, host
        assert (await rig.http.get("/api/ready", headers={"authorization": ""})).status_code == 200
        assert (await rig.refused("GET", "/api/health", headers={"authorization": ""}))[0] == 401


@pytest.mark.parametrize("origin", ["null", "http://evil.example", "http://127.0.0.1.evil.example"])
async def test_a_socket_from_another_origin_or_host_is_refused_before_it_opens(tmp_path: Path, origin: str) -> None:
    async with Rig(tmp_path) as rig, serving(rig.application.app) as address:
        key = await make_key(rig, "ann", "operator")
        assert await status_of(address, **bearer(key), origin=origin) == 403
        assert await status_of(address, **bearer(key), host="evil.example") == 403
        async with socket(address, key=key, origin=f"http://{address}") as own:
            assert await own.ask("ping") == {"type": "pong"}
        rows = await audited(rig, actor="anonymous", outcome="refused", action="WS", target="/ws")
        assert sum(row["count"] for row in rows) == 2


QUERIES = ["token={}", "access_token={}", "api_key={}", "key={}", "ticket={}", "Authorization=Bearer%20{}", "q={}"]


async def test_a_key_in_the_address_is_refused_even_beside_a_valid_one(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig, serving(rig.application.app) as address:
        key = await make_key(rig, "ann", "operator")
        for addresses, template in enumerate(QUERIES, 1):
            query = template.format(key)
            for headers in ({"authorization": ""}, bearer(key)):
                status, code, message = await rig.refused("GET", f"/api/conversations?{query}", headers=headers)
                assert (template, status, code) == (template, 401, "UNAUTHENTICATED")
                assert key not in message
            with pytest.raises(InvalidStatus) as refusal:
                async with connect(f"ws://{address}/ws?{query}", additional_headers=bearer(key), proxy=None):
                    pass
            assert refusal.value.response.status_code == 401
            assert await count_refused(rig, "anonymous", "UNAUTHENTICATED") == 3 * addresses
        assert key not in str(await audited(rig))


async def test_a_ticket_opens_one_socket_and_is_answered_with_the_dialect_only(tmp_path: Path) -> None:
    async with tenants(tmp_path) as pair, serving(pair.rig.application.app) as address:
        issued = (await pair.ask(pair.mallory, "POST", "/api/ws-tickets")).json()
        assert issued["expiresInSeconds"] == 30
        ticket = issued["subprotocol"]
        async with socket(address, ticket, "agentic-rag.native") as client:
            assert client.connection.subprotocol == "agentic-rag.native"
            refusal = await client.ask("subscribe", conversationId=pair.ids["conversation"])
            assert refusal["code"] == "CONVERSATION_NOT_FOUND"
            subscription = await client.ask("subscribe", conversationId=pair.own_conversation)
            assert subscription["type"] == "subscribed"
        assert await status_of(address, ticket, "agentic-rag.native") == 401
        assert await count_refused(pair.rig, "anonymous", "UNAUTHENTICATED") == 1
        assert issued["ticket"] not in str(await audited(pair.rig))


@pytest.mark.parametrize("protocol", ["ticket.", "ticket.x", "ticket.{cut}", "ticket.{key}"])
async def test_an_unknown_ticket_opens_no_socket(tmp_path: Path, protocol: str) -> None:
    async with Rig(tmp_path) as rig, serving(rig.application.app) as address:
        key = await make_key(rig, "ann", "operator")
        ticket = (await rig.ok("POST", "/api/ws-tickets", headers=bearer(key)))["ticket"]
        assert await status_of(address, protocol.format(cut=ticket[:-1], key=key)) == 401
        assert await status_of(address) == 401
        assert await status_of(address, "ticket." + ticket, **bearer(key)) == 401  # two credentials are ambiguous
        assert await count_refused(rig, "anonymous", "UNAUTHENTICATED") == 3


async def test_a_ticket_of_a_revoked_key_opens_no_socket(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig, serving(rig.application.app) as address:
        key = await make_key(rig, "ann", "operator")
        ticket = (await rig.ok("POST", "/api/ws-tickets", headers=bearer(key)))["subprotocol"]
        (key_row,) = (await rig.ok("GET", "/api/keys"))["items"]
        await rig.ok("DELETE", f"/api/keys/{key_row['id']}")
        assert await status_of(address, ticket) == 401


async def test_endless_ticket_requests_are_bounded(tmp_path: Path) -> None:
    async with Rig(tmp_path, requests_per_second=10_000) as rig, serving(rig.application.app) as address:
        key = await make_key(rig, "ann", "operator")
        first = (await rig.ok("POST", "/api/ws-tickets", headers=bearer(key)))["subprotocol"]
        for _ in range(MAX_TICKETS):
            last = (await rig.ok("POST", "/api/ws-tickets", headers=bearer(key)))["subprotocol"]
        assert await status_of(address, first) == 401
        async with socket(address, last) as client:
            assert await client.ask("ping") == {"type": "pong"}


async def test_a_flood_of_sockets_ends_at_the_keys_limit_and_affects_no_other_key(tmp_path: Path) -> None:
    async with Rig(tmp_path, connections_per_key=3) as rig, serving(rig.application.app) as address:
        key, other_key = [await make_key(rig, name, "operator") for name in ("eve", "ann")]
        async with socket(address, key=key), socket(address, key=key), socket(address, key=key) as last_client:
            for _ in range(5):
                with pytest.raises(InvalidStatus) as refusal:
                    async with socket(address, key=key):
                        pass
                assert refusal.value.response.status_code == 429
                assert int(refusal.value.response.headers["retry-after"]) >= 1
            assert await last_client.ask("ping") == {"type": "pong"}
            async with socket(address, key=other_key) as other_client:
                assert await other_client.ask("ping") == {"type": "pong"}
        with anyio.fail_after(240):
            while True:  # the server learns of the three closed clients
                try:
                    async with socket(address, key=key) as client:
                        assert await client.ask("ping") == {"type": "pong"}
                        break
                except InvalidStatus:
                    await pause()
        rows = await audited(rig, actor="eve", outcome="refused")
        assert {row["details"]["code"] for row in rows} == {"RATE_LIMITED"}
        assert sum(row["count"] for row in rows) >= 5


async def test_a_flood_of_requests_is_refused_with_a_retry_time_and_writes_few_audit_rows(tmp_path: Path) -> None:
    async with Rig(tmp_path, requests_per_second=0.01) as rig:
        key, other_key = [await make_key(rig, name, "operator") for name in ("eve", "ann")]
        responses = [await rig.http.get("/api/domains", headers=bearer(key)) for _ in range(200)]
        assert [response.status_code for response in responses] == [200] + [429] * 199
        assert int(responses[-1].headers["retry-after"]) > 10
        assert (await rig.http.get("/api/domains", headers=bearer(other_key))).status_code == 200
        rows = await audited(rig, actor="eve", outcome="refused")
        assert sum(row["count"] for row in rows) == 199
        assert len(rows) == 2


async def test_a_flood_of_messages_is_refused_over_rest_and_sockets_alike(tmp_path: Path) -> None:
    stalled = Stalled(say("One."), after=0)
    async with Rig(tmp_path, stalled, messages_per_minute=3) as rig, serving(rig.application.app) as address:
        domain = await rig.domain()
        key = await make_key(rig, "eve", "member", domain)
        conversation = (await rig.ok("POST", "/api/conversations", {"domainId": domain}, headers=bearer(key)))["id"]
        path, body = f"/api/conversations/{conversation}/messages", {"content": "Hi"}
        headers = {**bearer(key), "accept": "application/json"}
        statuses = [(await rig.http.post(path, json=body, headers=headers)).status_code for _ in range(4)]
        assert statuses == [202, 409, 409, 429]
        with anyio.fail_after(PATIENCE):
            await stalled.reached.wait()  # an earlier interrupt would come before the model call
        async with socket(address, key=key) as eve:
            refusal = await eve.ask("message", conversationId=conversation, content="Hi")
            assert (refusal["type"], refusal["code"]) == ("error", "RATE_LIMITED")
            assert refusal["details"]["retryAfter"] > 0
            assert await eve.ask("ping") == {"type": "pong"}
            await eve.say("interrupt", conversationId=conversation)
        assert await count_refused(rig, "eve", "RATE_LIMITED") == 2


async def test_a_socket_that_floods_frames_is_warned_and_then_closed(tmp_path: Path) -> None:
    async with Rig(tmp_path, requests_per_second=0.01) as rig, serving(rig.application.app) as address:
        key = await make_key(rig, "eve", "operator")
        async with socket(address, key=key) as eve:
            for _ in range(MAX_REFUSED_FRAMES):
                assert (await eve.ask("ping"))["code"] == "RATE_LIMITED"
            assert await eve.close_code() == 1008
        rows = await audited(rig, actor="eve", outcome="refused")
        assert sum(row["count"] for row in rows) == MAX_REFUSED_FRAMES
        assert len(rows) == 2


async def test_subscriptions_are_limited_over_all_sockets_of_a_key(tmp_path: Path) -> None:
    async with Rig(tmp_path, subscriptions_per_key=2) as rig, serving(rig.application.app) as address:
        domain = await rig.domain()
        key = await make_key(rig, "eve", "member", domain)
        rig.http.headers.update(bearer(key))
        ids = [(await rig.ok("POST", "/api/conversations", {"domainId": domain}))["id"] for _ in range(3)]
        async with socket(address, key=key) as first_client, socket(address, key=key) as second_client:
            assert (await first_client.ask("subscribe", conversationId=ids[0]))["type"] == "subscribed"
            assert (await second_client.ask("subscribe", conversationId=ids[1]))["type"] == "subscribed"
            assert (await second_client.ask("subscribe", conversationId=ids[2]))["code"] == "RATE_LIMITED"
            assert (await second_client.ask("subscribe", conversationId=ids[1]))["type"] == "subscribed"
            await second_client.say("unsubscribe", conversationId=ids[1])
            assert (await second_client.ask("subscribe", conversationId=ids[2]))["type"] == "subscribed"


async def test_endless_anonymous_refusals_do_not_fill_the_audit_log(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        await make_key(rig, "ann", "operator")
        del rig.http.headers["authorization"]
        for number in range(300):
            assert (await rig.http.get(f"/api/{number}")).status_code == 401
        rows = await audited(rig, actor="anonymous", outcome="refused")
        assert sum(row["count"] for row in rows) == 300
        assert len(rows) <= 32


@pytest.mark.parametrize("path", ["/api/health", "/api/domains", "/nothing", "/api/turns/<script>alert(1)<%2Fscript>"])
async def test_no_answer_runs_as_script_in_a_browser(tmp_path: Path, path: str) -> None:
    async with Rig(tmp_path) as rig:
        response = await rig.http.get(path)
        assert response.headers["content-type"] == "application/json"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
        assert response.headers["x-frame-options"] == "DENY"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert response.headers["cross-origin-resource-policy"] == "same-origin"
        assert response.headers["cache-control"] == "no-store"


async def test_an_event_stream_and_a_refused_handshake_have_these_headers_too(tmp_path: Path) -> None:
    async with Rig(tmp_path, say("<script>alert(1)</script>")) as rig, serving(rig.application.app) as address:
        conversation = await rig.conversation()
        response = await rig.http.post(f"/api/conversations/{conversation}/messages", json={"content": "<b>Hi"})
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers.get_list("cache-control") == ["no-store"]
        with pytest.raises(InvalidStatus) as refusal:
            async with socket(address, origin="null"):
                pass
        assert refusal.value.response.headers["x-content-type-options"] == "nosniff"


async def test_a_trailing_slash_reveals_nothing_without_a_key(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        await make_key(rig, "ann", "operator")
        del rig.http.headers["authorization"]
        for path in ("/api/domains/", "/api/ready/", "//evil.example/api/domains", "/api/ready/../domains"):
            assert (await rig.http.get(path)).status_code == 401

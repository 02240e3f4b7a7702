"""Hostile answers during a sign-in: none is trusted, followed, repeated or waited for."""

import base64
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from agentic_rag.base.settings import Settings
from agentic_rag.store import sign_ins
from agentic_rag.store.clock import later
from agentic_rag.testing.authorization_server import Habits, never
from agentic_rag.tools.launch.addresses import AddressPolicy, parse_hosts
from agentic_rag.tools.oauth import web as checked
from agentic_rag.tools.oauth.errors import SignInProblem, SignInSilent
from agentic_rag.tools.oauth.web import CheckedWeb
from tests.server.rig import Rig
from tests.sign_in.support import CALLBACK, Places, entered, places, sign_in, try_entry, visit
from tests.sign_in.test_sign_in import restart


async def refused(folder: Path, habits: Habits, **settings: Any) -> tuple[str, Places]:
    """Return why a sign-in cannot begin, and the addresses that were requested."""
    async with places(habits) as found, entered(folder, **settings) as rig:
        state = await try_entry(rig, await rig.domain(), {"url": found.url})
        assert state["state"] == "failed", state
        assert not found.granting.find("/token")
        return str(state["reason"]), found


@pytest.mark.parametrize("methods", [None, [], ["plain"]])
async def test_an_authorization_server_without_s256_is_refused(tmp_path: Path, methods: Any) -> None:
    reason, found = await refused(tmp_path, Habits(metadata={"code_challenge_methods_supported": methods}))
    assert "PKCE with S256" in reason
    assert not found.granting.find("/register")


async def test_metadata_of_another_issuer_or_server_is_refused(tmp_path: Path) -> None:
    reason, _ = await refused(tmp_path / "1", Habits(metadata={"issuer": "https://evil.example"}))
    assert "another issuer" in reason
    reason, found = await refused(tmp_path / "2", Habits(resource_metadata={"resource": "https://evil.example/mcp"}))
    assert "of another one: https://evil.example/mcp" in reason
    assert not found.granting.requests


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:9/x", "https://127.0.0.1:9/x", "https://10.0.0.1/x", "http://auth.example/x"]
)
async def test_metadata_that_points_into_a_private_network_is_not_followed(tmp_path: Path, address: str) -> None:
    async with places() as found:
        port = found.url.split(":")[2].split("/")[0]
        issuer_port = found.granting.issuer.rpartition(":")[2]
        hosts = f"127.0.0.1:{port},127.0.0.1:{issuer_port}"
        for key, table in (
            ("authorization_servers", found.granting.habits.resource_metadata),
            ("registration_endpoint", found.granting.habits.metadata),
        ):
            table[key] = [address] if key == "authorization_servers" else address
            async with Rig(tmp_path / key, mcp_hosts=hosts) as rig:
                state = await try_entry(rig, await rig.domain(), {"url": found.url})
            assert state["state"] == "failed"
            assert "https" in state["reason"] or "refused" in state["reason"], state["reason"]
            del table[key]


async def test_redirects_are_not_followed(tmp_path: Path) -> None:
    async def elsewhere(request: Request) -> Response:
        return RedirectResponse("/register-here", 307)

    reason, found = await refused(tmp_path, Habits(instead={"/register": elsewhere}))
    assert "did not register this server as a client (HTTP 307)" in reason
    assert not found.granting.find("/register-here")


@pytest.mark.parametrize(
    "endpoint",
    ["http://accounts.example/authorize", "javascript:alert(1)", "https://accounts.example@evil.example/authorize"],
)
async def test_a_person_is_never_sent_to_an_unsafe_or_lookalike_address(tmp_path: Path, endpoint: str) -> None:
    habits = Habits(metadata={"authorization_endpoint": endpoint})
    reason, _ = await refused(tmp_path, habits)
    assert "no place to sign in" in reason or "no metadata" in reason


async def test_a_host_with_lookalike_letters_is_shown_in_its_ascii_form(tmp_path: Path) -> None:
    habits = Habits(metadata={"authorization_endpoint": "https://\u0430ccounts.example/authorize"})
    async with places(habits) as found, entered(tmp_path) as rig:
        asked = (await try_entry(rig, await rig.domain(), {"url": found.url}))["signIn"]
        assert asked["host"].startswith("xn--")
        assert asked["address"].startswith(f"https://{asked['host']}/authorize?")


async def open_sign_in(rig: Rig, found: Places, **entry: Any) -> tuple[str, dict[str, Any]]:
    domain = await rig.domain(mcpServers={"web": {"url": found.url, **entry}})
    return domain, (await restart(rig, domain))["signIn"]


async def test_a_state_that_is_forged_replayed_or_expired_completes_nothing(tmp_path: Path) -> None:
    async with places() as found, entered(tmp_path) as rig:
        domain, asked = await open_sign_in(rig, found)
        back = await visit(asked["address"])
        for forged in ({}, {"code": back["code"]}, {**back, "state": "x" * 43}, {**back, "state": back["state"][:-1]}):
            page = await rig.http.get(CALLBACK, params=forged)
            assert (page.status_code, "not known here" in page.text) == (400, True)
        doubled = httpx2.QueryParams([*back.items(), ("state", "other")])
        assert (await rig.http.get(CALLBACK, params=doubled)).status_code == 400
        assert (await rig.http.get(CALLBACK, params=back)).status_code == 200
        replayed = await rig.http.get(CALLBACK, params=back)
        assert (replayed.status_code, len(found.granting.find("/token"))) == (400, 1)
        assert (await restart(rig, domain))["state"] == "ready"


async def test_a_sign_in_that_takes_too_long_expires_and_a_new_one_works(tmp_path: Path) -> None:
    async with places() as found, entered(tmp_path) as rig:
        domain, asked = await open_sign_in(rig, found)
        over = sa.update(sign_ins.SIGN_INS).values(expires_at=later(-1))
        await rig.application.database.write(lambda conn: conn.execute(over).rowcount)
        assert "not known here" in (await sign_in(rig, asked)).text
        assert (await rig.refused("GET", f"/api/oauth/begin/{asked['id']}"))[0] == 404
        newer = (await restart(rig, domain))["signIn"]
        assert newer["id"] != asked["id"]
        assert (await sign_in(rig, newer)).status_code == 200


async def test_a_registration_that_ends_in_milliseconds_is_used_again(tmp_path: Path) -> None:
    habits = Habits(registration={"client_secret_expires_at": 1_900_000_000_000})  # as a year, this is 62178
    async with places(habits) as found, entered(tmp_path) as rig:
        domain, _ = await open_sign_in(rig, found)
        over = sa.update(sign_ins.SIGN_INS).values(expires_at=later(-1))
        await rig.application.database.write(lambda conn: conn.execute(over).rowcount)
        assert (await sign_in(rig, (await restart(rig, domain))["signIn"])).status_code == 200
        assert len(found.granting.find("/register")) == 1


async def test_an_answer_of_another_or_no_issuer_completes_no_sign_in(tmp_path: Path) -> None:
    async with places() as found, entered(tmp_path) as rig:
        for iss in ("https://evil.example", None, f"{found.granting.issuer}/"):
            found.granting.habits.iss = iss
            _, asked = await open_sign_in(rig, found)
            page = await sign_in(rig, asked)
            assert (page.status_code, "another authorization server" in page.text) == (400, True)
        assert not found.granting.find("/token")


async def test_a_declined_sign_in_is_reported_without_foreign_text(tmp_path: Path) -> None:
    async with places() as found, entered(tmp_path) as rig:
        domain, asked = await open_sign_in(rig, found)
        back = await visit(asked["address"])
        del back["code"]
        denied = {**back, "error": "access_denied", "error_description": "<script>alert(1)</script>"}
        page = await rig.http.get(CALLBACK, params=denied)
        assert "declined there" in page.text
        assert "script" not in page.text
        assert (await restart(rig, domain))["signIn"]["id"] != asked["id"]


def jwt_for(*audiences: str) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"aud": list(audiences)}).encode()).rstrip(b"=").decode()
    return f"e30.{claims}.sig"


async def html(request: Request) -> Response:
    return HTMLResponse("<h1>Bearer stolen-token-words</h1>")


async def huge(request: Request) -> Response:
    return JSONResponse({"access_token": "x", "token_type": "Bearer", "padding": "x" * checked.ANSWER_BYTES})


async def squeezed(request: Request) -> Response:
    return Response(b"x", headers={"content-encoding": "gzip"})


async def refuses(request: Request) -> Response:
    return JSONResponse({"error": "invalid_request", "error_description": "stolen-token-words"}, 400)


async def broken(request: Request) -> Response:
    return Response("[" * 100_000, media_type="application/json")


async def test_an_invalid_answer_of_the_token_endpoint_completes_no_sign_in(tmp_path: Path) -> None:
    answers = {
        html: "something that is no token",
        huge: "longer than",
        squeezed: "compresses its answers",
        refuses: "(HTTP 400, invalid_request)",
        broken: "something that is no token",
    }
    async with places() as found, entered(tmp_path) as rig:
        for answer, said in answers.items():
            found.granting.habits.instead["/token"] = answer
            domain, asked = await open_sign_in(rig, found)
            page = await sign_in(rig, asked)
            assert (page.status_code, said in page.text) == (400, True), page.text
            assert "stolen" not in page.text
            assert (await rig.ok("GET", f"/api/domains/{domain}/mcp-servers/web/sign-ins"))["items"] == []


async def test_a_token_for_another_server_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    tokens = (
        {"access_token": jwt_for("https://bank.example/api")},
        {"resource": "https://bank.example/api"},
        {"access_token": "two words"},
        {"access_token": ""},
        {"token_type": "DPoP"},
    )
    async with places() as found, entered(tmp_path) as rig:
        for token in tokens:
            found.granting.habits.token = token
            domain, asked = await open_sign_in(rig, found)
            assert (await sign_in(rig, asked)).status_code == 400
            assert (await restart(rig, domain))["state"] == "needs_auth"
        assert set(found.guarded.tokens) == {""}


async def test_a_silent_place_times_out(tmp_path: Path) -> None:
    async with places(Habits(instead={"/token": never})) as found:
        web = CheckedWeb(AddressPolicy(parse_hosts("127.0.0.1:*")), 0.2)
        with pytest.raises(SignInSilent, match="did not answer within"):
            await web.send(httpx2.Request("POST", f"{found.granting.issuer}/token", data={"a": "b"}))


async def test_a_host_that_resolves_to_a_private_network_is_refused_at_the_connection() -> None:
    with pytest.raises(SignInProblem, match=r"leads to an address that is refused"):
        await CheckedWeb(AddressPolicy()).send(httpx2.Request("GET", "https://localhost:9/x"))


@pytest.mark.parametrize(
    ("hosts", "url", "problem"),
    [
        ("a.example:*", "http://a.example:8123/", ""),
        ("a.example:*", "http://b.example:8123/", "it is not https"),
        ("a.example:80", "http://a.example/", ""),
        ("a.example:80", "http://a.example:81/", "it is not https"),
        ("", "https://a.example/", ""),
        ("", "ftp://a.example/", "it is no https:// address"),
        ("", "https://a.example:99999/", "it is no address: Port out of range 0-65535"),
    ],
)
def test_every_port_of_a_listed_host_is_reachable(hosts: str, url: str, problem: str) -> None:
    assert AddressPolicy(parse_hosts(Settings(_env_file=None, mcp_hosts=hosts).mcp_hosts)).problem(url) == problem


async def test_a_token_is_sent_to_no_other_origin_even_after_a_redirect(tmp_path: Path) -> None:
    async with places() as found, places() as other, entered(tmp_path) as rig:
        domain, asked = await open_sign_in(rig, found)
        await sign_in(rig, asked)
        assert (await restart(rig, domain))["state"] == "ready"

        async def leads_away(scope: Any, receive: Any, send: Any) -> None:
            await RedirectResponse(other.url, 307)(scope, receive, send)

        found.guarded.app = leads_away
        assert (await restart(rig, domain))["state"] in ("failed", "degraded")
        assert other.guarded.tokens == []


async def test_a_registered_secret_is_sent_only_to_its_authorization_server(tmp_path: Path) -> None:
    habits = Habits(clients={"ours": "a-very-secret-word"})
    oauth = {"clientId": "ours", "clientSecret": "a-very-secret-word"}
    async with places(habits) as found, places() as evil, entered(tmp_path) as rig:
        pinned = {**oauth, "issuer": found.granting.issuer}
        domain, asked = await open_sign_in(rig, found, oauth=pinned)
        await sign_in(rig, asked)
        found.granting.habits.resource_metadata["authorization_servers"] = [evil.granting.issuer]
        found.granting.live.clear()
        found.granting.refresh.clear()
        assert "its entry allows" in (await restart(rig, domain))["reason"]
        assert not evil.granting.requests
    async with places(habits) as found, places() as evil, entered(tmp_path / "2") as rig:
        found.granting.habits.resource_metadata.clear()
        domain, asked = await open_sign_in(rig, found, oauth=oauth)
        await sign_in(rig, asked)
        found.granting.habits.resource_metadata["authorization_servers"] = [evil.granting.issuer]
        found.granting.live.clear()
        assert (await restart(rig, domain))["state"] == "ready"  # renewed where it was issued
        found.granting.live.clear()
        found.guarded.scopes["tools/list"] = "more"
        found.granting.refresh.clear()
        await restart(rig, domain)
        assert not any("a-very-secret-word" in str(request) for request in evil.granting.requests)


async def test_an_entry_with_an_invalid_client_is_refused_with_its_place(tmp_path: Path) -> None:
    clients: tuple[tuple[Any, str], ...] = (
        ({"clientSecret": "x"}, ".clientId"),
        ({"clientId": "x", "scopes": ['"']}, ".scopes"),
        ({"clientId": "x", "issuer": "auth.example"}, ".issuer"),
        ({"clientId": "x", "grant": "password"}, ".grant"),
        ({"clientId": "x", "grant": "client_credentials"}, ".grant"),
        ("x", ""),
    )
    async with entered(tmp_path) as rig:
        domain = await rig.domain()
        for oauth, place in clients:
            body = {"settings": {"mcpServers": {"web": {"url": "https://a.example/mcp", "oauth": oauth}}}}
            status, code, message = await rig.refused("PATCH", f"/api/domains/{domain}", body)
            assert (status, code) == (422, "VALIDATION_ERROR")
            assert f"mcpServers.web.oauth{place}:" in message

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
from tests.sign_in.support import CALLBACK, Places, make_rig, serve_places, sign_in, try_entry, visit
from tests.sign_in.test_sign_in import restart


async def attempt_sign_in(folder: Path, habits: Habits, **settings: Any) -> tuple[str, Places]:
    """Return why a sign-in cannot begin, and the addresses that were requested."""
    async with serve_places(habits) as places, make_rig(folder, **settings) as rig:
        state = await try_entry(rig, await rig.domain(), {"url": places.url})
        assert state["state"] == "failed", state
        assert not places.granting.find("/token")
        return str(state["reason"]), places


@pytest.mark.parametrize("methods", [None, [], ["plain"]])
async def test_an_authorization_server_without_s256_is_refused(tmp_path: Path, methods: Any) -> None:
    reason, places = await attempt_sign_in(tmp_path, Habits(metadata={"code_challenge_methods_supported": methods}))
    assert "PKCE with S256" in reason
    assert not places.granting.find("/register")


async def test_metadata_of_another_issuer_or_server_is_refused(tmp_path: Path) -> None:
    reason, _ = await attempt_sign_in(tmp_path / "1", Habits(metadata={"issuer": "https://evil.example"}))
    assert "another issuer" in reason
    reason, places = await attempt_sign_in(
        tmp_path / "2", Habits(resource_metadata={"resource": "https://evil.example/mcp"})
    )
    assert "of another one: https://evil.example/mcp" in reason
    assert not places.granting.requests


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:9/x", "https://127.0.0.1:9/x", "https://10.0.0.1/x", "http://auth.example/x"]
)
async def test_metadata_that_points_into_a_private_network_is_not_followed(tmp_path: Path, address: str) -> None:
    async with serve_places() as places:
        port = places.url.split(":")[2].split("/")[0]
        issuer_port = places.granting.issuer.rpartition(":")[2]
        hosts = f"127.0.0.1:{port},127.0.0.1:{issuer_port}"
        for key, table in (
            ("authorization_servers", places.granting.habits.resource_metadata),
            ("registration_endpoint", places.granting.habits.metadata),
        ):
            table[key] = [address] if key == "authorization_servers" else address
            async with Rig(tmp_path / key, mcp_hosts=hosts) as rig:
                state = await try_entry(rig, await rig.domain(), {"url": places.url})
            assert state["state"] == "failed"
            assert "https" in state["reason"] or "refused" in state["reason"], state["reason"]
            del table[key]


async def test_metadata_named_at_another_origin_is_not_requested(tmp_path: Path) -> None:
    async with serve_places() as places, serve_places() as elsewhere, make_rig(tmp_path) as rig:
        domain = await rig.domain()
        issuer = elsewhere.granting.issuer
        for named in (f"{issuer}/.well-known/x", "https://999.1.1.1/x", "/x", "https://[", "https://a.example/\tx"):
            places.granting.habits.named_metadata = named
            assert (await try_entry(rig, domain, {"url": places.url}))["state"] == "needs_auth", named
        assert not elsewhere.granting.requests
    habits = Habits(named_metadata="https://evil.example/x", resource_metadata={"authorization_servers": "none"})
    reason, places = await attempt_sign_in(tmp_path / "2", habits)
    assert "names its metadata at another origin: https://evil.example/x" in reason
    assert not places.granting.requests


@pytest.mark.parametrize("address", ["authorization_endpoint", "registration_endpoint", "token_endpoint", "issuer"])
async def test_an_address_that_the_http_client_cannot_read_is_refused(tmp_path: Path, address: str) -> None:
    endpoint = f"https://auth.example/{'x' * 70_000}"
    habits = Habits(metadata={address: endpoint})
    if address == "issuer":
        habits = Habits(resource_metadata={"authorization_servers": [endpoint]})
    reason, places = await attempt_sign_in(tmp_path, habits)
    assert "it is no address" in reason
    assert len(reason) < 400
    assert not places.granting.find("/register")


async def test_redirects_are_not_followed(tmp_path: Path) -> None:
    async def redirect(request: Request) -> Response:
        return RedirectResponse("/register-here", 307)

    reason, places = await attempt_sign_in(tmp_path, Habits(instead={"/register": redirect}))
    assert "did not register this server as a client (HTTP 307)" in reason
    assert not places.granting.find("/register-here")


@pytest.mark.parametrize(
    "endpoint",
    ["http://accounts.example/authorize", "javascript:alert(1)", "https://accounts.example@evil.example/authorize"],
)
async def test_a_person_is_never_sent_to_an_unsafe_or_lookalike_address(tmp_path: Path, endpoint: str) -> None:
    habits = Habits(metadata={"authorization_endpoint": endpoint})
    reason, _ = await attempt_sign_in(tmp_path, habits)
    assert "no place to sign in" in reason or "no metadata" in reason


async def test_a_host_with_lookalike_letters_is_shown_in_its_ascii_form(tmp_path: Path) -> None:
    habits = Habits(metadata={"authorization_endpoint": "https://\u0430ccounts.example/authorize"})
    async with serve_places(habits) as places, make_rig(tmp_path) as rig:
        sign_in_state = (await try_entry(rig, await rig.domain(), {"url": places.url}))["signIn"]
        assert sign_in_state["host"].startswith("xn--")
        assert sign_in_state["address"].startswith(f"https://{sign_in_state['host']}/authorize?")


async def open_sign_in(rig: Rig, places: Places, **entry: Any) -> tuple[str, dict[str, Any]]:
    domain = await rig.domain(mcpServers={"web": {"url": places.url, **entry}})
    return domain, (await restart(rig, domain))["signIn"]


async def test_a_state_that_is_forged_replayed_or_expired_completes_nothing(tmp_path: Path) -> None:
    async with serve_places() as places, make_rig(tmp_path) as rig:
        domain, sign_in_state = await open_sign_in(rig, places)
        answer = await visit(sign_in_state["address"])
        for forged_answer in (
            {},
            {"code": answer["code"]},
            {**answer, "state": "x" * 43},
            {**answer, "state": answer["state"][:-1]},
        ):
            page = await rig.http.get(CALLBACK, params=forged_answer)
            assert (page.status_code, "not known here" in page.text) == (400, True)
        doubled_answer = httpx2.QueryParams([*answer.items(), ("state", "other")])
        assert (await rig.http.get(CALLBACK, params=doubled_answer)).status_code == 400
        assert (await rig.http.get(CALLBACK, params=answer)).status_code == 200
        repeated_page = await rig.http.get(CALLBACK, params=answer)
        assert (repeated_page.status_code, len(places.granting.find("/token"))) == (400, 1)
        assert (await restart(rig, domain))["state"] == "ready"


async def test_a_sign_in_that_takes_too_long_expires_and_a_new_one_works(tmp_path: Path) -> None:
    async with serve_places() as places, make_rig(tmp_path) as rig:
        domain, sign_in_state = await open_sign_in(rig, places)
        expire = sa.update(sign_ins.SIGN_INS).values(expires_at=later(-1))
        await rig.application.database.write(lambda conn: conn.execute(expire).rowcount)
        assert "not known here" in (await sign_in(rig, sign_in_state)).text
        assert (await rig.refused("GET", f"/api/oauth/begin/{sign_in_state['id']}"))[0] == 404
        new_state = (await restart(rig, domain))["signIn"]
        assert new_state["id"] != sign_in_state["id"]
        assert (await sign_in(rig, new_state)).status_code == 200


async def test_a_registration_that_ends_in_milliseconds_is_used_again(tmp_path: Path) -> None:
    habits = Habits(registration={"client_secret_expires_at": 1_900_000_000_000})  # as a year, this is 62178
    async with serve_places(habits) as places, make_rig(tmp_path) as rig:
        domain, _ = await open_sign_in(rig, places)
        expire = sa.update(sign_ins.SIGN_INS).values(expires_at=later(-1))
        await rig.application.database.write(lambda conn: conn.execute(expire).rowcount)
        assert (await sign_in(rig, (await restart(rig, domain))["signIn"])).status_code == 200
        assert len(places.granting.find("/register")) == 1


async def test_an_answer_of_another_or_no_issuer_completes_no_sign_in(tmp_path: Path) -> None:
    async with serve_places() as places, make_rig(tmp_path) as rig:
        for iss in ("https://evil.example", None, f"{places.granting.issuer}/"):
            places.granting.habits.iss = iss
            _, sign_in_state = await open_sign_in(rig, places)
            page = await sign_in(rig, sign_in_state)
            assert (page.status_code, "another authorization server" in page.text) == (400, True)
        assert not places.granting.find("/token")


async def test_a_declined_sign_in_is_reported_without_foreign_text(tmp_path: Path) -> None:
    async with serve_places() as places, make_rig(tmp_path) as rig:
        domain, sign_in_state = await open_sign_in(rig, places)
        answer = await visit(sign_in_state["address"])
        del answer["code"]
        declined_answer = {**answer, "error": "access_denied", "error_description": "<script>alert(1)</script>"}
        page = await rig.http.get(CALLBACK, params=declined_answer)
        assert "declined there" in page.text
        assert "script" not in page.text
        assert (await restart(rig, domain))["signIn"]["id"] != sign_in_state["id"]


def jwt_for(*audiences: str) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"aud": list(audiences)}).encode()).rstrip(b"=").decode()
    return f"e30.{claims}.sig"


async def send_html(request: Request) -> Response:
    return HTMLResponse("<h1>Bearer stolen-token-words</h1>")


async def send_huge_answer(request: Request) -> Response:
    return JSONResponse({"access_token": "x", "token_type": "Bearer", "padding": "x" * checked.ANSWER_BYTES})


async def send_compressed(request: Request) -> Response:
    return Response(b"x", headers={"content-encoding": "gzip"})


async def send_refusal(request: Request) -> Response:
    return JSONResponse({"error": "invalid_request", "error_description": "stolen-token-words"}, 400)


async def send_deep_json(request: Request) -> Response:
    return Response("[" * 100_000, media_type="application/json")


async def test_an_invalid_answer_of_the_token_endpoint_completes_no_sign_in(tmp_path: Path) -> None:
    problems = {
        send_html: "something that is no token",
        send_huge_answer: "longer than",
        send_compressed: "compresses its answers",
        send_refusal: "(HTTP 400, invalid_request)",
        send_deep_json: "something that is no token",
    }
    async with serve_places() as places, make_rig(tmp_path) as rig:
        for endpoint, problem in problems.items():
            places.granting.habits.instead["/token"] = endpoint
            domain, sign_in_state = await open_sign_in(rig, places)
            page = await sign_in(rig, sign_in_state)
            assert (page.status_code, problem in page.text) == (400, True), page.text
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
    async with serve_places() as places, make_rig(tmp_path) as rig:
        for token in tokens:
            places.granting.habits.token = token
            domain, sign_in_state = await open_sign_in(rig, places)
            assert (await sign_in(rig, sign_in_state)).status_code == 400
            assert (await restart(rig, domain))["state"] == "needs_auth"
        assert set(places.guarded.tokens) == {""}


async def test_a_silent_place_times_out(tmp_path: Path) -> None:
    async with serve_places(Habits(instead={"/token": never})) as places:
        web = CheckedWeb(AddressPolicy(parse_hosts("127.0.0.1:*")), 0.2)
        with pytest.raises(SignInSilent, match="did not answer within"):
            await web.send(httpx2.Request("POST", f"{places.granting.issuer}/token", data={"a": "b"}))


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
    async with serve_places() as places, serve_places() as elsewhere, make_rig(tmp_path) as rig:
        domain, sign_in_state = await open_sign_in(rig, places)
        await sign_in(rig, sign_in_state)
        assert (await restart(rig, domain))["state"] == "ready"

        async def redirect(scope: Any, receive: Any, send: Any) -> None:
            await RedirectResponse(elsewhere.url, 307)(scope, receive, send)

        places.guarded.app = redirect
        assert (await restart(rig, domain))["state"] in ("failed", "degraded")
        assert elsewhere.guarded.tokens == []


async def test_a_registered_secret_is_sent_only_to_its_authorization_server(tmp_path: Path) -> None:
    habits = Habits(clients={"ours": "a-very-secret-word"})
    oauth = {"clientId": "ours", "clientSecret": "a-very-secret-word"}
    async with serve_places(habits) as places, serve_places() as evil_places, make_rig(tmp_path) as rig:
        pinned_oauth = {**oauth, "issuer": places.granting.issuer}
        domain, sign_in_state = await open_sign_in(rig, places, oauth=pinned_oauth)
        await sign_in(rig, sign_in_state)
        places.granting.habits.resource_metadata["authorization_servers"] = [evil_places.granting.issuer]
        places.granting.live.clear()
        places.granting.refresh.clear()
        assert "its entry allows" in (await restart(rig, domain))["reason"]
        assert not evil_places.granting.requests
    async with serve_places(habits) as places, serve_places() as evil_places, make_rig(tmp_path / "2") as rig:
        places.granting.habits.resource_metadata.clear()
        domain, sign_in_state = await open_sign_in(rig, places, oauth=oauth)
        await sign_in(rig, sign_in_state)
        places.granting.habits.resource_metadata["authorization_servers"] = [evil_places.granting.issuer]
        places.granting.live.clear()
        assert (await restart(rig, domain))["state"] == "ready"  # renewed where it was issued
        places.granting.live.clear()
        places.guarded.scopes["tools/list"] = "more"
        places.granting.refresh.clear()
        await restart(rig, domain)
        assert not any("a-very-secret-word" in str(request) for request in evil_places.granting.requests)


async def test_an_entry_with_an_invalid_client_is_refused_with_its_place(tmp_path: Path) -> None:
    clients: tuple[tuple[Any, str], ...] = (
        ({"clientSecret": "x"}, ".clientId"),
        ({"clientId": "x", "scopes": ['"']}, ".scopes"),
        ({"clientId": "x", "issuer": "auth.example"}, ".issuer"),
        ({"clientId": "x", "grant": "password"}, ".grant"),
        ({"clientId": "x", "grant": "client_credentials"}, ".grant"),
        ("x", ""),
    )
    async with make_rig(tmp_path) as rig:
        domain = await rig.domain()
        for oauth, place in clients:
            body = {"settings": {"mcpServers": {"web": {"url": "https://a.example/mcp", "oauth": oauth}}}}
            status, code, message = await rig.refused("PATCH", f"/api/domains/{domain}", body)
            assert (status, code) == (422, "VALIDATION_ERROR")
            assert f"mcpServers.web.oauth{place}:" in message

"""OAuth at the MCP door: the rights of a client, and everything that must be refused."""

import base64
import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import anyio
import httpx2
import orjson
from joserfc.jwk import RSAKey
from sqlalchemy import update
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from agentic_rag.access.authorizations import AuthorizationRequest, Authorizations, DoorPlace
from agentic_rag.access.keys import Access
from agentic_rag.access.oauth_clients import OAuthClient
from agentic_rag.access.rights import narrow
from agentic_rag.access.users import User
from agentic_rag.store.authorizations import AUTHORIZATIONS, CODES, TOKENS
from agentic_rag.store.database import Database
from agentic_rag.store.keys import KeyRole
from agentic_rag.testing.scripted import Scripted
from agentic_rag.testing.steps import say, use
from tests.access.issuer import issuing
from tests.access.tenants import as_operator, audited, bearer, make_key
from tests.server.rig import Json, Rig
from tests.server.test_mcp_door import INITIALIZE, JSON, LIST
from tests.store.conftest import needs_postgresql, postgresql_server
from tests.ws.serving import serving

REDIRECT = "http://127.0.0.1/callback"
VERIFIER = "v" * 43
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()
PAST = "2020-01-01T00:00:00.000Z"


class Door(Rig):
    """A rig with two domains, a key of ann for the first one, and a registered client."""

    law: str
    other: str
    ann: str
    client: str

    @property
    def resource(self) -> str:
        return f"http://127.0.0.1/mcp/{self.law}"

    async def begin(self, **changes: str | None) -> httpx2.Response:
        """Send the client's authorization request. None leaves a parameter out."""
        values = {
            "response_type": "code",
            "client_id": self.client,
            "redirect_uri": REDIRECT,
            "code_challenge": CHALLENGE,
            "code_challenge_method": "S256",
            "resource": self.resource,
            "scope": "search ask remember",
            "state": "s1",
        } | changes
        query = urlencode({name: value for name, value in values.items() if value is not None})
        return await self.http.get(f"/oauth/authorize?{query}", headers={"authorization": ""})

    async def decide(self, opening: httpx2.Response, key: str, *scopes: str, allow: bool = True) -> httpx2.Response:
        """Decide about a request with a key, as the console does after a sign-in."""
        secret = opening.headers["location"].removeprefix("/#/authorize/")
        body = {"allow": allow, "scopes": list(scopes)}
        return await self.http.post(f"/api/authorizations/requests/{secret}", json=body, headers=bearer(key))

    async def code(self, *scopes: str, key: str = "", **changes: str | None) -> str:
        opening = await self.begin(**changes)
        assert opening.status_code == 303, opening.text
        decided = await self.decide(opening, key or self.ann, *(scopes or ("search", "ask", "remember")))
        assert decided.status_code == 200, decided.text
        values = dict(parse_qsl(urlsplit(decided.json()["redirectTo"]).query))
        assert (values["state"], values["iss"]) == ("s1", "http://127.0.0.1")
        return str(values["code"])

    async def exchange(self, code: str, **changes: str) -> httpx2.Response:
        values = {"grant_type": "authorization_code", "code": code, "client_id": self.client}
        values |= {"redirect_uri": REDIRECT, "code_verifier": VERIFIER, **changes}
        return await self.http.post("/oauth/token", data=values, headers={"authorization": ""})

    async def refresh(self, token: str, **changes: str) -> httpx2.Response:
        values = {"grant_type": "refresh_token", "refresh_token": token, "client_id": self.client, **changes}
        return await self.http.post("/oauth/token", data=values, headers={"authorization": ""})

    async def tokens(self, *scopes: str, key: str = "") -> Json:
        response = await self.exchange(await self.code(*scopes, key=key))
        assert response.status_code == 200, response.text
        tokens: Json = response.json()
        return tokens

    async def call(self, token: str, body: Json = LIST, domain: str = "") -> httpx2.Response:
        """Send a message in a new session. If the session is refused, return that answer."""
        return await call_door(self.http, token, body, domain or self.law)

    async def change(self, statement: Any) -> None:
        await self.application.database.write(lambda conn: conn.execute(statement))


async def call_door(http: httpx2.AsyncClient, token: str, body: Json, domain: str) -> httpx2.Response:
    headers = {**JSON, **(bearer(token) if token else {"authorization": ""})}
    response = await http.post(f"/mcp/{domain}", json=INITIALIZE, headers=headers)
    if response.status_code != 200:
        return response
    session = {"mcp-session-id": response.headers["mcp-session-id"]}
    return await http.post(f"/mcp/{domain}", json=body, headers={**headers, **session})


def tool(name: str, **arguments: object) -> Json:
    return {**LIST, "method": "tools/call", "params": {"name": name, "arguments": arguments}}


def open_door(folder: Path, *steps: Scripted, **settings: Any) -> "_Opening":
    return _Opening(folder, steps, settings)


class _Opening:
    def __init__(self, folder: Path, steps: tuple[Scripted, ...], settings: Mapping[str, Any]) -> None:
        self._rig = Door(folder, *steps, **{"mcp_registration": True, **settings})

    async def __aenter__(self) -> Door:
        rig = await self._rig.__aenter__()
        rig.law, rig.other = await rig.domain(), await rig.domain()
        rig.ann = await make_key(rig, "ann", "member", rig.law, rig.other)
        if rig.settings.mcp_registration:
            body = {"redirect_uris": [REDIRECT, "https://app.example/cb"], "client_name": "Tester"}
            registered = await rig.http.post("/oauth/register", json=body)
            assert registered.status_code == 201, registered.text
            rig.client = registered.json()["client_id"]
        return rig

    async def __aexit__(self, *problem: Any) -> None:
        await self._rig.__aexit__(*problem)


async def test_a_client_discovers_the_token_endpoint_and_scopes_limit_its_tools(tmp_path: Path) -> None:
    async with open_door(tmp_path, use("promptx_remember", engrams=[]), say("No.")) as rig:
        refusal = await rig.call("")
        challenge = refusal.headers["www-authenticate"]
        metadata = f"http://127.0.0.1/.well-known/oauth-protected-resource/mcp/{rig.law}"
        assert (refusal.status_code, challenge) == (
            401,
            f'Bearer resource_metadata="{metadata}", scope="search ask remember"',
        )
        resource_metadata = (await rig.http.get(metadata, headers={"authorization": ""})).json()
        assert resource_metadata["resource"] == rig.resource
        assert resource_metadata["authorization_servers"] == ["http://127.0.0.1"]
        server = (await rig.http.get("/.well-known/oauth-authorization-server")).json()
        assert server["issuer"] == "http://127.0.0.1"
        assert server["code_challenge_methods_supported"] == ["S256"]
        assert server["client_id_metadata_document_supported"]
        assert server["registration_endpoint"] == "http://127.0.0.1/oauth/register"

        all_of_them = await rig.tokens()
        assert (all_of_them["token_type"], all_of_them["scope"]) == ("Bearer", "search ask remember")
        assert set(_tools(await rig.call(all_of_them["access_token"]))) == {
            "search_documents",
            "read_document",
            "ask",
            "remember",
        }
        remember_call = tool("remember", content="Ann likes tea.", keywords=["ann", "tea"])
        assert "Saved." in (await rig.call(all_of_them["access_token"], remember_call)).text
        assert "already" in (await rig.call(all_of_them["access_token"], remember_call)).text
        memories = await rig.ok("GET", f"/api/domains/{rig.law}/memories", headers=bearer(rig.ann))
        assert [item["content"] for item in memories["items"]] == ["Ann likes tea."]
        assert await audited(rig, actor="ann", action="memory.add")

        only_ask = (await rig.tokens("ask"))["access_token"]
        assert _tools(await rig.call(only_ask)) == ["ask"]
        for name, needed in (("search_documents", "search"), ("read_document", "search"), ("remember", "remember")):
            response = await rig.call(only_ask, tool(name))
            assert response.status_code == 403
            assert (
                f'error="insufficient_scope", scope="{needed}", resource_metadata="{metadata}"'
                in (response.headers["www-authenticate"])
            )
            assert response.json()["error"]["data"]["code"] == "INSUFFICIENT_SCOPE"
        # The assistant cannot bypass the missing scope.
        assert "No." in (await rig.call(only_ask, tool("ask", question="Remember that I like tea."))).text
        assert "Denied by" in str(rig.model.requests[-1].messages)
        search = (await rig.tokens("search"))["access_token"]
        assert (await rig.call(search, tool("ask", question="Hi"))).status_code == 403
        assert sorted(_tools(await rig.call(search))) == ["read_document", "search_documents"]


def _tools(response: httpx2.Response) -> list[str]:
    assert response.status_code == 200, response.text
    line = next(candidate for candidate in response.text.splitlines() if candidate.startswith(("data: {", "{")))
    return [tool["name"] for tool in orjson.loads(line.removeprefix("data: "))["result"]["tools"]]


async def test_a_token_is_valid_only_for_its_domain_and_endpoint(tmp_path: Path) -> None:
    async with open_door(tmp_path) as rig:
        token = (await rig.tokens())["access_token"]
        response = await rig.call(token, domain=rig.other)
        assert response.status_code == 401
        assert 'error="invalid_token"' in response.headers["www-authenticate"]
        for path in ("/api/domains", "/api/authorizations", f"/api/domains/{rig.law}", "/api/keys"):
            assert (await rig.http.get(path, headers=bearer(token))).status_code == 401
        assert (await rig.call(token + "x")).status_code == 401
        assert (await rig.call(f"arag_at_{'x' * 43}")).status_code == 401
        assert (await rig.call(rig.ann)).status_code == 200  # keys still work


async def test_a_token_ends_with_its_time_its_grant_its_key_and_its_revocation(tmp_path: Path) -> None:
    async with open_door(tmp_path) as rig:
        tokens = await rig.tokens()
        token = tokens["access_token"]
        await rig.ok("PATCH", "/api/users/ann", {"grants": {rig.other: "member"}})
        assert (await rig.call(token)).status_code == 401
        refusal = await rig.refresh(tokens["refresh_token"])
        assert (refusal.status_code, refusal.json()["error"]) == (400, "invalid_grant")
        await rig.ok("PATCH", "/api/users/ann", {"grants": {rig.law: "member"}})
        assert (await rig.call(token)).status_code == 200

        await rig.change(update(TOKENS).values(expires_at=PAST))
        expired = await rig.call(token)
        assert (expired.status_code, 'error="invalid_token"' in expired.headers["www-authenticate"]) == (401, True)

        authorizations = (await rig.ok("GET", "/api/authorizations", headers=bearer(rig.ann)))["items"]
        assert {authorization["client"] for authorization in authorizations} == {"Tester"}
        mallory = await make_key(rig, "mallory", "member", rig.law)
        assert await rig.ok("GET", "/api/authorizations", headers=bearer(mallory)) == {"items": []}
        second_tokens = await rig.tokens()
        newest = (await rig.ok("GET", "/api/authorizations", headers=bearer(rig.ann)))["items"][-1]["id"]
        stranger = await rig.http.delete(f"/api/authorizations/{newest}", headers=bearer(mallory))
        assert stranger.status_code == 404
        await rig.ok("DELETE", f"/api/authorizations/{newest}", headers=bearer(rig.ann))
        assert (await rig.call(second_tokens["access_token"])).status_code == 401
        assert (await rig.refresh(second_tokens["refresh_token"])).json()["error"] == "invalid_grant"
        assert await audited(rig, actor="ann", action="authorization.revoke", target=newest)

        third_tokens = await rig.tokens()
        values = {"token": third_tokens["refresh_token"], "client_id": "client_other"}
        assert (await rig.http.post("/oauth/revoke", data=values)).status_code == 200
        assert (await rig.call(third_tokens["access_token"])).status_code == 200  # another client can revoke nothing
        assert (await rig.http.post("/oauth/revoke", data={**values, "client_id": rig.client})).status_code == 200
        assert (await rig.call(third_tokens["access_token"])).status_code == 401

        second_key = await make_key(rig, "ann", "member", rig.law)
        fourth_token = (await rig.tokens(key=second_key))["access_token"]
        (key,) = (item for item in (await rig.ok("GET", "/api/keys"))["items"][-1:])
        await rig.ok("DELETE", f"/api/keys/{key['id']}")
        assert (await rig.call(fourth_token)).status_code == 401

        fifth_token = (await rig.tokens())["access_token"]
        await rig.ok("POST", "/api/users/ann/disable")
        await rig.ok("POST", "/api/users/ann/enable")
        assert (await rig.call(fifth_token)).status_code == 401


async def test_a_code_and_a_refresh_token_are_good_for_one_exchange(tmp_path: Path) -> None:
    async with open_door(tmp_path) as rig:
        code = await rig.code()
        wrong = [
            ({"code_verifier": "w" * 43}, "invalid_grant"),
            ({"redirect_uri": "http://127.0.0.1:1/callback"}, "invalid_request"),
            ({"client_id": "client_other"}, "invalid_client"),
            ({"resource": f"http://127.0.0.1/mcp/{rig.other}"}, "invalid_target"),
            ({"code_verifier": ""}, "invalid_grant"),
        ]
        for changes, error in wrong:
            response = await rig.exchange(code, **changes)
            assert response.status_code in (400, 401)
            assert response.json()["error"] == error, changes
        first = (await rig.exchange(code, resource=rig.resource)).json()
        assert (await rig.call(first["access_token"])).status_code == 200
        second_exchange = await rig.exchange(code)
        assert (second_exchange.status_code, second_exchange.json()["error"]) == (400, "invalid_grant")
        assert (await rig.call(first["access_token"])).status_code == 401
        assert (await audited(rig, action="authorization.reuse"))[0]["outcome"] == "denied"

        late = await rig.code()
        await rig.change(update(CODES).values(expires_at=PAST))
        assert (await rig.exchange(late)).json()["error"] == "invalid_grant"

        first_tokens = await rig.tokens("search")
        wider = await rig.refresh(first_tokens["refresh_token"], scope="search ask")
        assert (wider.status_code, wider.json()["error"]) == (400, "invalid_scope")
        assert (await rig.refresh(first_tokens["refresh_token"], client_id="client_other")).json()["error"] == (
            "invalid_client"
        )
        renewed_tokens = (await rig.refresh(first_tokens["refresh_token"])).json()
        assert renewed_tokens["refresh_token"] != first_tokens["refresh_token"]
        assert (await rig.call(renewed_tokens["access_token"])).status_code == 200
        assert (await rig.refresh(first_tokens["refresh_token"])).json()["error"] == "invalid_grant"
        for tokens in (first_tokens, renewed_tokens):
            assert (await rig.call(tokens["access_token"])).status_code == 401
        assert (await rig.refresh(renewed_tokens["refresh_token"])).json()["error"] == "invalid_grant"

        # Of many exchanges at the same time, at most one gets tokens, and these end with the reuse.
        answers: list[httpx2.Response] = []
        code = await rig.code()

        async def race() -> None:
            answers.append(await rig.exchange(code))

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(race)
        good = [answer for answer in answers if answer.status_code == 200]
        assert len(good) <= 1
        for answer in good:
            assert (await rig.call(answer.json()["access_token"])).status_code == 401


FOREIGN_ADDRESSES = [
    "http://127.0.0.1/callback/../evil",
    "http://127.0.0.1/callbackx",
    "http://127.0.0.1/Callback",
    "http://127.0.0.1/callback?next=x",
    "http://127.0.0.1/callback#x",
    "http://127.0.0.1@evil.example/callback",
    "http://127.0.0.1:80@evil.example/callback",
    "http://127.0.0.1.evil.example/callback",
    "http://127.0.0.1\\@evil.example/callback",
    "http://localhost/callback",
    "https://127.0.0.1/callback",
    "https://app.example/cb/",
    "https://app.example:444/cb",
    "https://APP.example/cb",
    "https://app.example.evil/cb",
    "https://evil.example/cb",
    "https://app.example/cb%0a",
    "javascript:alert(1)",
    "//app.example/cb",
    "",
]


async def test_an_unregistered_redirect_address_is_refused(tmp_path: Path) -> None:
    async with open_door(tmp_path) as rig:
        for redirect_uri in FOREIGN_ADDRESSES:
            response = await rig.begin(redirect_uri=redirect_uri)
            assert (response.status_code, "location" in response.headers) == (400, False), redirect_uri
            assert "text/html" in response.headers["content-type"]
            assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
        uri = "http://127.0.0.1:49152/callback"  # a native client may listen on any port
        code = await rig.code(redirect_uri=uri)
        assert (await rig.exchange(code, redirect_uri=uri)).status_code == 200


async def test_an_invalid_request_returns_an_error_to_the_client(tmp_path: Path) -> None:
    async with open_door(tmp_path) as rig:
        misfits: list[tuple[dict[str, str | None], str]] = [
            ({"response_type": "token"}, "unsupported_response_type"),
            ({"code_challenge_method": "plain"}, "invalid_request"),
            ({"code_challenge_method": None}, "invalid_request"),
            ({"code_challenge": None}, "invalid_request"),
            ({"code_challenge": "short"}, "invalid_request"),
            ({"resource": None}, "invalid_target"),
            ({"resource": "https://elsewhere.example/mcp/x"}, "invalid_target"),
            ({"resource": "http://127.0.0.1/api"}, "invalid_target"),
            ({"scope": "admin"}, "invalid_scope"),
            ({"request": "x.y.z"}, "request_not_supported"),
        ]
        for changes, error in misfits:
            response = await rig.begin(**changes)
            place = urlsplit(response.headers["location"])
            values = dict(parse_qsl(place.query))
            assert (place.netloc, values["error"]) == ("127.0.0.1", error), changes
            assert (values["state"], values["iss"], "code" in values) == ("s1", "http://127.0.0.1", False)
        unknown: list[dict[str, str | None]] = [{"client_id": "client_x"}, {"client_id": None}, {"state": "x" * 3_000}]
        for changes in unknown:
            assert (await rig.begin(**changes)).status_code == 400
        ambiguous = await rig.http.get(f"/oauth/authorize?client_id={rig.client}&client_id=x")
        assert ambiguous.status_code == 400
        for body, kind in [
            ("grant_type=authorization_code&grant_type=refresh_token", "application/x-www-form-urlencoded"),
            ("{}", "application/json"),
            ("a=1", "multipart/form-data; boundary=x"),
        ]:
            refusal = await rig.http.post("/oauth/token", content=body, headers={"content-type": kind})
            assert (refusal.status_code, refusal.json()["error"]) == (400, "invalid_request")
        large = await rig.http.post(
            "/oauth/token", content=b"x" * 70_000, headers={"content-type": "application/x-www-form-urlencoded"}
        )
        assert large.status_code == 413


async def test_only_a_user_of_the_domain_can_decide_and_only_once(tmp_path: Path) -> None:
    async with open_door(tmp_path) as rig:
        mallory = await make_key(rig, "mallory", "member", rig.other)
        opening = await rig.begin(scope="search")
        assert (await rig.decide(opening, mallory, "search")).status_code == 404
        assert (await rig.decide(opening, rig.application.access.local_key, "search")).status_code == 403
        assert (await rig.decide(opening, rig.ann, "search", "ask")).status_code == 422  # more than was requested
        assert (await rig.decide(opening, rig.ann)).status_code == 422
        assert (await rig.decide(opening, rig.ann, "search")).status_code == 200
        assert (await rig.decide(opening, rig.ann, "search")).status_code == 404

        opening = await rig.begin()
        decision = await rig.decide(opening, rig.ann, allow=False)
        assert "error=access_denied" in decision.json()["redirectTo"]
        assert (await rig.decide(opening, rig.ann, "search")).status_code == 404

        # Another site's form cannot decide: a cookie needs the page's own header.
        signed = {"x-requested-with": "x", "authorization": ""}
        login = await rig.http.post("/api/auth/sign-in", json={"name": "ann", "key": rig.ann}, headers=signed)
        assert login.status_code == 201
        secret = (await rig.begin()).headers["location"].removeprefix("/#/authorize/")
        form_headers = {"authorization": "", "content-type": "text/plain"}
        path = f"/api/authorizations/requests/{secret}"
        body = b'{"allow": true, "scopes": ["search"]}'
        assert (await rig.http.post(path, content=body, headers=form_headers)).status_code == 403
        foreign_headers = {**signed, "origin": "https://evil.example"}
        assert (await rig.http.post(path, content=body, headers=foreign_headers)).status_code == 403


async def test_registration_is_off_by_default_and_refuses_dangerous_addresses(tmp_path: Path) -> None:
    async with open_door(tmp_path, mcp_registration=False) as rig:
        assert (await rig.http.post("/oauth/register", json={"redirect_uris": [REDIRECT]})).status_code == 404
        assert "registration_endpoint" not in (await rig.http.get("/.well-known/oauth-authorization-server")).json()
    async with open_door(tmp_path / "on") as rig:
        for uris in (["javascript:alert(1)"], ["http://evil.example/cb"], ["https://a/#x"], ["data:text/html,x"], []):
            refusal = await rig.http.post("/oauth/register", json={"redirect_uris": uris})
            assert refusal.status_code == 400
            assert refusal.json()["error"] in ("invalid_redirect_uri", "invalid_client_metadata")
        for content in (b"[]", b"{", b'{"redirect_uris": 1}', b'{"redirect_uris": [1]}'):
            assert (await rig.http.post("/oauth/register", content=content)).status_code == 400


@asynccontextmanager
async def documents(**by_path: Any) -> AsyncGenerator[str]:
    """Serve metadata documents, whose ``{url}`` is their own address. Yields host and port."""
    address = ""

    async def show(request: Request) -> Response:
        name = request.path_params["name"]
        if name == "moved":
            return RedirectResponse(f"http://{address}/good")
        document = dict(by_path[name])
        if document.get("client_id") == "{url}":
            document["client_id"] = f"http://{address}/{name}"
        return JSONResponse(document)

    async with serving(Starlette(routes=[Route("/{name}", show)])) as host_and_port:
        address = host_and_port
        yield address


async def test_a_client_is_identified_by_its_metadata_document(tmp_path: Path) -> None:
    base = {"client_id": "{url}", "redirect_uris": [REDIRECT], "client_name": "<b>Doc</b>"}
    metadata_documents: Mapping[str, Json] = {
        "good": base,
        "moved": base,
        "stranger": {**base, "client_id": "https://elsewhere.example/x"},
        "secret": {**base, "client_secret": "x"},
        "confidential": {**base, "token_endpoint_auth_method": "client_secret_post"},
        "nowhere": {**base, "redirect_uris": []},
        "script": {**base, "redirect_uris": ["javascript:alert(1)"]},
        "long": {**base, "client_name": "x" * 20_000},
    }
    async with (
        documents(**metadata_documents) as place,
        open_door(tmp_path, mcp_hosts=place, mcp_registration=False) as rig,
    ):
        rig.client = f"http://{place}/good"
        opening = await rig.begin(scope="search")
        secret = opening.headers["location"].removeprefix("/#/authorize/")
        consent = await rig.ok("GET", f"/api/authorizations/requests/{secret}", headers=bearer(rig.ann))
        assert consent["client"] == "<b>Doc</b>"
        assert (consent["clientHost"], consent["local"], consent["scopes"]) == (place, True, ["search"])
        assert (await rig.tokens("search"))["scope"] == "search"
        for name in set(metadata_documents) - {"good"}:
            assert (await rig.begin(client_id=f"http://{place}/{name}")).status_code == 400, name
        # As for MCP servers, an address inside the network is not fetched.
        for address in ("http://127.0.0.1:1/x", "https://127.0.0.1:1/x", "https://localhost/x", f"http://{place}/"):
            assert (await rig.begin(client_id=address)).status_code == 400, address
        for address in ("https://999.1.1.1/client.json", "https://[x/client.json"):  # no client can read them
            assert (await rig.begin(client_id=address)).status_code == 400, address


async def test_below_a_root_path_all_addresses_name_it(tmp_path: Path) -> None:
    async with open_door(tmp_path, root_path="/rag", public_url="https://rag.example") as rig:
        as_operator(rig)
        headers = {**JSON, "host": "rag.example", "authorization": ""}
        refusal = await rig.http.post(f"/rag/mcp/{rig.law}", json=LIST, headers=headers)
        path = f"/.well-known/oauth-protected-resource/mcp/{rig.law}"
        assert f'resource_metadata="https://rag.example/rag{path}"' in refusal.headers["www-authenticate"]
        at_root = path.replace("/mcp/", "/rag/mcp/")
        for place in (f"/rag{path}", at_root):
            resource_metadata = (await rig.http.get(place, headers=headers)).json()
            assert resource_metadata["resource"] == f"https://rag.example/rag/mcp/{rig.law}"
            assert resource_metadata["authorization_servers"] == ["https://rag.example/rag"]
        places = ("/.well-known/oauth-authorization-server/rag", "/rag/.well-known/openid-configuration")
        for place in places:
            server = (await rig.http.get(place, headers=headers)).json()
            assert server["issuer"] == "https://rag.example/rag"
            assert server["token_endpoint"] == "https://rag.example/rag/oauth/token"
        query = urlencode(
            {
                "response_type": "code",
                "client_id": rig.client,
                "redirect_uri": REDIRECT,
                "code_challenge": CHALLENGE,
                "code_challenge_method": "S256",
                "resource": f"https://rag.example/rag/mcp/{rig.law}",
            }
        )
        opening = await rig.http.get(f"/rag/oauth/authorize?{query}", headers=headers)
        assert opening.headers["location"].startswith("/rag/#/authorize/")


async def test_the_openid_provider_can_issue_the_tokens(tmp_path: Path) -> None:
    mapping = tmp_path / "grants.toml"
    async with issuing() as issuer:
        async with Rig(tmp_path) as rig:  # the mapping names a domain by its id
            law, other_domain = await rig.domain(), await rig.domain()
        lines = [f'[[grants]]\ngroups = "legal"\ndomain = "{name}"\ngrant = "member"\n' for name in (law, other_domain)]
        mapping.write_text("".join(lines))
        settings: Json = {"oidc_issuer": issuer.url, "oidc_client_id": "rag", "oidc_grants": mapping}
        async with Rig(tmp_path, mcp_sign_in="provider", **settings) as rig:
            resource_metadata = (await rig.http.get(f"/.well-known/oauth-protected-resource/mcp/{law}")).json()
            assert resource_metadata["authorization_servers"] == [issuer.url]
            assert (await rig.http.get("/.well-known/oauth-authorization-server")).status_code == 404
            assert (await rig.http.post("/oauth/token", data={"grant_type": "x"})).status_code == 404

            async def call(claims: Json, body: Json = LIST, **sign: Any) -> httpx2.Response:
                token = issuer.sign(claims, **sign)
                return await call_door(rig.http, token, body, law)

            audience = f"http://127.0.0.1/mcp/{law}"
            good = issuer.claims(aud=audience, scope="search openid", azp="some-client")
            assert sorted(_tools(await call(good))) == ["read_document", "search_documents"]
            assert (await call(good, tool("ask", question="Hi"))).status_code == 403
            assert _tools(await call(issuer.claims(aud=[audience, "x"], scp=["ask"]))) == ["ask"]
            assert (await call(issuer.claims(aud=audience))).status_code == 200
            assert _tools(await call(issuer.claims(aud=audience))) == []
            for claims in (
                issuer.claims(aud=f"http://127.0.0.1/mcp/{other_domain}", scope="search"),
                issuer.claims(aud="http://127.0.0.1", scope="search"),
                issuer.claims(aud=audience, scope="search", iss="https://other.example"),
                issuer.claims(aud=audience, scope="search", exp=1),
                issuer.claims(aud=None, scope="search"),
            ):
                refusal = await call(claims)
                assert refusal.status_code == 401
                assert 'error="invalid_token"' in refusal.headers["www-authenticate"]
            assert (await call(good, key=RSAKey.generate_key(2048, {"kid": "first"}))).status_code == 401
            assert (await rig.http.get("/api/domains", headers=bearer(issuer.sign(good)))).status_code == 401
            api = issuer.sign(issuer.claims())  # a token for the API still works here
            assert set(_tools(await call_door(rig.http, api, LIST, law))) >= {"ask", "search_documents"}


async def test_expired_rows_and_rows_of_an_erased_person_are_deleted(tmp_path: Path) -> None:
    async with open_door(tmp_path) as rig:
        await rig.tokens()
        await rig.begin()
        await rig.change(update(AUTHORIZATIONS).values(expires_at=PAST))
        for table in (TOKENS, CODES):
            await rig.change(update(table).values(expires_at=PAST))
        await rig.application.services.authorizations.prune()
        assert await _counts(rig) == (0, 0, 0)
        await rig.tokens()
        await rig.ok("DELETE", "/api/users/ann")
        assert await _counts(rig) == (0, 0, 0)
        bob = await make_key(rig, "bob", "member", rig.law)
        await rig.tokens(key=bob)
        await rig.ok("DELETE", f"/api/domains/{rig.law}")
        assert await _counts(rig) == (0, 0, 0)


async def _counts(rig: Rig) -> tuple[int, ...]:
    tables = [table.name for table in (AUTHORIZATIONS, TOKENS, CODES)]
    return await rig.application.database.read(
        lambda conn: tuple(conn.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one() for table in tables)
    )


@needs_postgresql
async def test_an_authorization_applies_and_ends_on_all_servers() -> None:
    with postgresql_server() as server:
        async with aclosing(await Database.open(server.url)) as database:
            first_access, second_access = Access(database), Access(database)
            key, _ = await first_access.create("ann", KeyRole.OPERATOR)
            ann = User("ann", operator=True, key_id=key.id)
            first_replica, second_replica = (
                Authorizations(database, first_access),
                Authorizations(database, second_access),
            )
            client, place = OAuthClient("client_1", "Tester", (REDIRECT,), documented=False), DoorPlace("dom_1", "r")
            request = AuthorizationRequest(client, "dom_1", REDIRECT, "i", "r", ("ask",), None, CHALLENGE)
            _, code = await second_replica.approve(ann, await first_replica.begin(request), ["ask"])
            code_and_authorization = await first_replica.find_code("client_1", code)
            assert code_and_authorization is not None
            tokens = await first_replica.exchange_code("client_1", code_and_authorization[0].id)
            entrant = await second_replica.check(tokens.access, place)
            assert entrant is not None
            assert (entrant.user, entrant.scopes) == (narrow(ann, "dom_1"), frozenset({"ask"}))
            renewed_tokens = await second_replica.exchange_refresh("client_1", tokens.refresh, ["ask"])
            assert await first_replica.check(renewed_tokens.access, place) is not None
            (authorization,) = await first_replica.list_of("ann")
            await second_replica.revoke(ann, authorization.id)
            for replica in (first_replica, second_replica):
                assert await replica.check(renewed_tokens.access, place) is None

"""Signed-in browsers: what the cookie permits, how the server recognises its own page, and what ends a sign-in."""

import re
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from sqlalchemy import Connection, text
from websockets.exceptions import InvalidStatus

from agentic_rag.access.keys import KEYLESS, Access, Entrant, new_secret
from agentic_rag.access.logins import Logins
from agentic_rag.access.users import LOCAL
from agentic_rag.server.routes.logins import WRONG_AT_ONCE
from agentic_rag.store.database import Database
from tests.access.tenants import as_operator, audited, make_key, socket
from tests.access.test_users import ticket_opens
from tests.server.rig import Json, Rig
from tests.store.conftest import needs_postgresql, postgresql_server
from tests.ws.serving import serving

pytestmark = pytest.mark.attack(kind="web")

PROOF = {"x-requested-with": "page"}


class Page:
    """Our page in a browser: it has a cookie jar and no key."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.jar: dict[str, str] = {}
        self.set = ""

    @property
    def cookie(self) -> str:
        return "; ".join(f"{name}={value}" for name, value in self.jar.items())

    @cookie.setter
    def cookie(self, text: str) -> None:
        self.jar = dict(part.split("=", 1) for part in text.split("; ") if part)

    async def ask(self, method: str, path: str, json: Any = None, **headers: str) -> httpx2.Response:
        sent_headers = {"authorization": "", "cookie": self.cookie, **headers}
        response = await self._rig.http.request(method, path, json=json, headers=sent_headers)
        for header in response.headers.get_list("set-cookie"):
            name, _, value = header.partition(";")[0].partition("=")
            self.set, self.jar[name] = header, value
            if "Max-Age=0" in header:
                del self.jar[name]
        self._rig.http.cookies.clear()
        return response

    async def send(self, method: str, path: str, json: Any = None, **headers: str) -> tuple[int, Json]:
        response = await self.ask(method, path, json, **headers)
        return response.status_code, response.json() if response.content else {}

    async def login(self, name: str, key: str, **headers: str) -> tuple[int, Json]:
        return await self.send("POST", "/api/auth/sign-in", {"name": name, "key": key}, **{**PROOF, **headers})


async def test_a_browser_signs_in_with_name_and_key_and_its_token_is_kept_as_its_hash(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain, page = await rig.domain(), Page(rig)
        key = await make_key(rig, "ann", "member", domain)
        assert (await page.send("GET", "/api/auth"))[1]["name"] is None
        status, account = await page.login("ann", key)
        assert (status, account["name"]) == (201, "ann")
        name, _, token = page.cookie.partition("=")
        assert name == "agentic-rag"
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(page.set.split("; "))
        assert (await page.send("GET", "/api/auth"))[1]["name"] == "ann"
        assert [item["id"] for item in (await page.send("GET", "/api/domains"))[1]["items"]] == [domain]

        def dump(conn: Connection) -> str:
            return str(conn.execute(text("SELECT * FROM logins")).all())

        assert token not in await rig.application.database.read(dump)
        assert token not in str(await audited(rig))
        assert [row["action"] for row in await audited(rig, actor="ann")] == ["login.begin"]


async def test_over_https_the_cookie_is_bound_to_the_host(tmp_path: Path) -> None:
    async with Rig(tmp_path, public_url="https://rag.example") as rig:
        key, page = await make_key(rig, "ann", "operator"), Page(rig)
        headers = {"host": "rag.example", "origin": "https://rag.example"}
        assert (await page.login("ann", key, **headers))[0] == 201
        assert page.cookie.startswith("__Host-agentic-rag=")
        assert "Secure" in page.set.split("; ")
        assert (await page.send("GET", "/api/domains", **headers))[0] == 200
        page.cookie = page.cookie.removeprefix("__Host-")  # a cookie that a neighbouring host can set
        assert (await page.send("GET", "/api/domains", **headers))[0] == 401


async def test_changing_requests_need_a_header_and_our_own_page(tmp_path: Path) -> None:
    async with Rig(tmp_path, allowed_origins="http://app.example") as rig:
        key, page = await make_key(rig, "ann", "operator"), Page(rig)
        body = {"name": "Law"}
        for headers in ({}, {"origin": "http://evil.example"}):
            assert (await page.send("POST", "/api/auth/sign-in", {"name": "ann", "key": key}, **headers))[0] == 403
        await page.login("ann", key)
        for headers, expected in [
            ({}, 403),
            ({**PROOF, "origin": "http://evil.example"}, 403),
            ({**PROOF, "origin": "null"}, 403),
            ({**PROOF, "origin": "http://app.example"}, 403),  # the user may use the server, but not this cookie
            ({**PROOF, "sec-fetch-site": "cross-site"}, 403),
            ({**PROOF, "sec-fetch-site": "same-site"}, 403),
            ({**PROOF, "origin": "http://127.0.0.1", "sec-fetch-site": "same-origin"}, 201),
            (PROOF, 201),
        ]:
            assert (await page.send("POST", "/api/domains", body, **headers))[0] == expected, headers
        assert (await page.send("GET", "/api/domains", **{"sec-fetch-site": "cross-site"}))[0] == 403
        assert (await page.send("DELETE", "/api/domains/nope"))[0] == 403
        assert (await page.send("GET", "/api/domains"))[0] == 200


async def test_the_older_contracts_endpoint_accepts_the_cookie_only_with_json(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain, page = await rig.domain(), Page(rig)
        key = await make_key(rig, "ann", "member", domain)
        await page.login("ann", key)
        status, answer = await page.send("POST", "/api/conversation", {"title": "x"})
        assert (status, answer["error"]["code"]) == (422, "VALIDATION_ERROR")  # allowed, but the demo does not exist
        assert (await page.send("GET", "/api/conversation"))[0] == 200
        form = {"content-type": "text/plain"}
        assert (await page.send("POST", "/api/conversation", {"title": "x"}, **form))[0] == 403
        assert (await page.send("POST", "/api/conversation", {"title": "x"}, **{"sec-fetch-site": "same-site"}))[
            0
        ] == 403


async def test_a_socket_takes_a_ticket_and_never_the_cookie(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig, serving(rig.application.app) as address:
        key, page = await make_key(rig, "ann", "operator"), Page(rig)
        await page.login("ann", key)
        with pytest.raises(InvalidStatus, match="401"):
            async with socket(address, "agentic-rag.native", cookie=page.cookie):
                pass
        ticket = (await page.send("POST", "/api/ws-tickets", **PROOF))[1]["subprotocol"]
        async with socket(address, "agentic-rag.native", ticket) as client:
            assert await client.ask("ping") == {"type": "pong"}
            assert (await page.send("POST", "/api/auth/sign-out", **PROOF))[1] == {"logoutUrl": None}
            assert await client.close_code() == 1008
        assert page.cookie == ""


@pytest.mark.parametrize("how", ["key revoked", "role changed", "disabled", "signed out"])
async def test_a_sign_in_ends_with_its_key_or_account(tmp_path: Path, how: str) -> None:
    async with Rig(tmp_path) as rig, serving(rig.application.app) as address:
        domain, page, other_page = await rig.domain(), Page(rig), Page(rig)
        key = await make_key(rig, "ann", "admin", domain)
        stays = await make_key(rig, "ben", "member", domain)
        await page.login("ann", key)
        await other_page.login("ben", stays)
        cookie = page.cookie
        ticket, unused = [(await page.send("POST", "/api/ws-tickets", **PROOF))[1]["subprotocol"] for _ in range(2)]
        async with socket(address, "agentic-rag.native", ticket) as client:
            as_operator(rig)
            if how == "key revoked":
                ident = (await rig.ok("GET", "/api/users/ann"))["keys"][0]["id"]
                await rig.ok("DELETE", f"/api/keys/{ident}")
            elif how == "role changed":
                await rig.ok("PATCH", "/api/users/ann", {"grants": {domain: "member"}})
            elif how == "disabled":
                await rig.ok("POST", "/api/users/ann/disable")
            else:
                await page.send("POST", "/api/auth/sign-out", **PROOF)
            assert await client.close_code() == 1008
        page.cookie = cookie
        assert (await page.send("GET", "/api/domains"))[0] == 401
        assert (await page.send("POST", "/api/auth/renew", **PROOF))[0] == 401
        assert not await ticket_opens(address, unused)
        assert (await other_page.send("GET", "/api/domains"))[0] == 200


async def test_a_sign_in_is_renewed_until_its_absolute_end(tmp_path: Path) -> None:
    async with Rig(tmp_path, sign_in_minutes=60, sign_in_hours=1.5) as rig:
        key, page = await make_key(rig, "ann", "operator"), Page(rig)
        _, first = await page.login("ann", key)
        status, renewed = await page.send("POST", "/api/auth/renew", **PROOF)
        assert (status, renewed["endsAt"]) == (200, first["endsAt"])
        assert first["expiresAt"] < renewed["expiresAt"] < first["endsAt"]
        await rig.application.database.write(lambda conn: conn.execute(text(NEAR_ITS_END)))
        await rig.application.access.refresh()
        _, last = await page.send("POST", "/api/auth/renew", **PROOF)
        assert last["expiresAt"] == last["endsAt"] == renewed["expiresAt"]
        await rig.application.database.write(lambda conn: conn.execute(text(EXPIRED)))
        await rig.application.access.refresh()
        assert (await page.send("GET", "/api/domains"))[0] == 401
        assert (await page.send("POST", "/api/auth/renew", **PROOF))[0] == 401


NEAR_ITS_END = "UPDATE logins SET ends_at = expires_at"
EXPIRED = "UPDATE logins SET expires_at = '2020-01-01T00:00:00.000Z'"


async def test_wrong_sign_ins_are_refused_rate_limited_and_reveal_nothing(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        key, page = await make_key(rig, "ann", "operator"), Page(rig)
        answers = [
            await page.login(*credentials) for credentials in (("ann", key + "x"), ("bob", key), ("ann", ""), ("", key))
        ]
        messages = {answer["error"]["message"] for _, answer in answers}
        assert [status for status, _ in answers] == [401] * 4
        assert len(messages) == 1
        assert (await page.login("local", rig.application.access.local_key))[0] == 401
        for _ in range(int(WRONG_AT_ONCE)):
            status, _ = await page.login("ann", "wrong")
        assert status == 429
        assert (await page.login("ann", key))[0] == 429
        rows = await audited(rig, actor="anonymous", outcome="refused")
        assert sum(row["count"] for row in rows) >= 10


async def test_an_unknown_cookie_is_ignored_and_a_key_precedes_a_cookie(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        page = Page(rig)
        page.cookie = "agentic-rag=whatever; other=1"
        assert (await page.send("GET", "/api/domains"))[0] == 200  # without keys, the user of this machine
        domain = await rig.domain()
        ann, ben = await make_key(rig, "ann", "operator"), await make_key(rig, "ben", "member", domain)
        page.cookie = ""
        await page.login("ann", ann)
        assert (await page.send("GET", "/api/auth", authorization=f"Bearer {ben}"))[1]["name"] == "ben"
        assert (await page.send("GET", "/api/auth", authorization="Bearer arag_wrong"))[0] == 401
        doubled_cookie = f"{page.cookie}; {page.cookie}"
        assert (await page.send("GET", "/api/domains", cookie=doubled_cookie))[
            0
        ] == 401  # two cookies of one name are ambiguous


async def test_a_sign_in_of_another_process_is_accepted_and_can_be_ended_here(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        key, page = await make_key(rig, "ann", "operator"), Page(rig)
        await page.login("ann", key)
        with anyio.fail_after(240):
            await rig.application.access.refresh()
        assert (await page.send("GET", "/api/domains"))[0] == 200
        await rig.application.database.write(lambda conn: conn.execute(text("DELETE FROM logins")))
        await rig.application.access.refresh()
        assert (await page.send("GET", "/api/domains"))[0] == 401


async def test_a_user_who_is_called_local_stays_who_they_are_when_a_sign_in_is_renewed(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        page = Page(rig)
        await rig.domain()  # neither cookie belongs to a sign-in
        key = await make_key(rig, "local", "member", await rig.domain())
        await page.login("local", key)
        assert len((await page.send("GET", "/api/domains"))[1]["items"]) == 1
        assert (await page.send("POST", "/api/auth/renew", **PROOF))[0] == 200
        assert len((await page.send("GET", "/api/domains"))[1]["items"]) == 1
        assert (await page.send("GET", "/api/keys"))[0] == 403


@needs_postgresql
async def test_the_local_key_is_accepted_by_all_workers_and_no_other_server() -> None:
    with postgresql_server() as server:
        database, key = await Database.open(server.url), new_secret()
        try:
            first_access, second_access, foreign_access = (
                Access(database, local_key=key),
                Access(database, local_key=key),
                Access(database),
            )
            login, token = await Logins(database, first_access).begin_with(Entrant(LOCAL, None))
            assert await second_access.signed_in(token) == (Entrant(LOCAL, login.id), login)
            assert await foreign_access.signed_in(token) is None
            await Logins(database, second_access).end(login)
            await first_access.refresh()  # the notice arrives a moment later
            assert await first_access.signed_in(token) is None
            for entrant in (Entrant(LOCAL, None), Entrant(LOCAL, KEYLESS)):
                ticket = str(await first_access.issue_ticket(entrant, 30))
                assert await second_access.redeem_ticket(ticket) == entrant
                assert await first_access.redeem_ticket(ticket) is None
                assert await foreign_access.redeem_ticket(str(await first_access.issue_ticket(entrant, 30))) is None
            unused_ticket = str(await first_access.issue_ticket(Entrant(LOCAL, KEYLESS), 30))
            second_access.required = True  # a key exists now
            assert await second_access.redeem_ticket(unused_ticket) is None
        finally:
            await database.aclose()


async def test_the_first_key_signs_in_the_browser_that_creates_it(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        page = Page(rig)
        status, key = await page.send("POST", "/api/keys", {"user": "ann", "role": "operator"}, **PROOF)
        assert (status, key["first"]) == (201, True)
        assert (await page.send("GET", "/api/keys"))[0] == 200
        _, identity = await page.send("GET", "/api/auth")
        assert (identity["signedIn"]["name"], identity["operator"], identity["refusal"]) == (LOCAL.id, True, None)
        page.cookie = ""
        assert (await page.send("GET", "/api/auth"))[1]["refusal"] == "keyRequired"


async def test_an_approval_signs_its_browser_in_once_and_a_second_tab_says_so(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain = await rig.domain()
        local = rig.settings.data / "mcp" / "local"
        local.mkdir(parents=True)
        requests = []
        for name in ("notes", "other"):
            (local / f"{name}.py").write_text(f"print({name!r})")
            entry = {"command": "python3", "args": [f"./{name}.py"]}
            requests.append(await rig.ok("POST", f"/api/domains/{domain}/mcp-servers/{name}/request", entry))
        page = Page(rig)
        approve = {"fingerprint": requests[0]["fingerprint"], "network": True}
        path = f"/api/launch-requests/{requests[0]['id']}/approve"
        assert (await page.send("POST", path, approve, **PROOF))[0] == 200
        assert (await page.send("GET", "/api/auth"))[1]["signedIn"]["name"] == LOCAL.id
        cookie = page.cookie
        status, refusal = await page.send("POST", path, approve, **PROOF)  # the other tab shares the cookie
        assert (status, refusal["error"]["code"]) == (409, "LAUNCH_REQUEST_CLOSED")
        assert re.search(r"approved|installed", refusal["error"]["message"]), refusal
        approve = {"fingerprint": requests[1]["fingerprint"], "network": True}
        path = f"/api/launch-requests/{requests[1]['id']}/approve"
        assert (await page.send("POST", path, approve, **PROOF))[0] == 200
        assert page.cookie == cookie
        assert (await page.send("GET", "/api/domains"))[0] == 200


async def test_our_own_origin_can_be_listed_and_a_foreign_one_needs_a_key(
    tmp_path: Path,
) -> None:
    own, foreign = "http://127.0.0.1", "https://other.example"
    async with Rig(tmp_path, allowed_origins=f"{own},{foreign}") as rig:
        rig.http.headers["host"] = "127.0.0.1"
        key = await make_key(rig, "ann", "operator")
        page = Page(rig)
        status, refusal = await page.login("ann", key, origin=foreign)
        assert status == 403
        assert "key" in refusal["error"]["message"]
        assert page.jar == {}
        assert (await page.login("ann", key, origin=own))[0] == 201
        response = await page.send("POST", "/api/domains", {"name": "Law"}, origin=own, **PROOF)
        assert response[0] == 201


async def test_our_page_behind_a_proxy_that_changes_the_host_signs_in_with_its_origin_listed(
    tmp_path: Path,
) -> None:
    own = "https://rag.example"
    async with Rig(tmp_path, allowed_origins=own) as rig:
        rig.http.headers["host"] = "127.0.0.1:8000"
        key = await make_key(rig, "ann", "operator")
        page = Page(rig)
        listed_headers = {"origin": own, "sec-fetch-site": "same-origin"}
        assert (await page.login("ann", key, **listed_headers))[0] == 201
        assert (await page.send("POST", "/api/domains", {"name": "Law"}, **listed_headers, **PROOF))[0] == 201
        for site in ("cross-site", "same-site"):
            other_headers = {"origin": own, "sec-fetch-site": site}
            assert (await page.send("POST", "/api/domains", {"name": "Law"}, **other_headers, **PROOF))[0] == 403
            assert (await Page(rig).login("ann", key, **other_headers))[0] == 403
        foreign_headers = {"origin": "https://other.example", "sec-fetch-site": "same-origin"}
        assert (await page.send("GET", "/api/domains", **foreign_headers))[0] == 403

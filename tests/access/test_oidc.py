"""Sign-in at an OpenID provider: by code in a browser and by token at the API. Invalid tokens are refused."""

import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.to_thread
import httpx2
import oidc_provider_mock  # type: ignore[import-untyped]
import pytest
from joserfc.jwk import RSAKey
from sqlalchemy import Connection, text

from agentic_rag.access.oidc.claims import Expected, check_claims
from agentic_rag.access.oidc.mapping import GroupGrants
from agentic_rag.access.oidc.tokens import OidcProvider, ProviderClient
from agentic_rag.access.users import LOCAL
from agentic_rag.base.errors import ProviderUnavailable, Unauthenticated
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.server.routes.oidc import BEGUN_AT_ONCE
from agentic_rag.store import logins
from agentic_rag.store.logins import BegunRecord
from tests.access.issuer import CLIENT, Claims, Issuer, issuing
from tests.access.tenants import as_operator, audited, bearer, socket
from tests.access.test_logins import PROOF, Page
from tests.server.rig import Json, Rig
from tests.waiting import pause
from tests.ws.serving import serving

pytestmark = pytest.mark.attack(kind="web")

MAPPING = """
[[grants]]
groups = "legal*"
domain = "{domain}"
grant = "member"
[[grants]]
groups = "legal-authors"
domain = "{domain}"
grant = "author"
[[grants]]
groups = "operators"
operator = true
"""


@asynccontextmanager
async def make_rig(folder: Path, issuer: str, **settings: Any) -> AsyncIterator[tuple[Rig, str]]:
    """Run a server with sign-in at an issuer, and a domain that the group ``legal`` may use."""
    file = folder / "grants.toml"
    file.write_text(MAPPING.format(domain="nowhere"))
    options = {"oidc_issuer": issuer, "oidc_client_id": CLIENT, "oidc_grants": file, **settings}
    async with Rig(folder, **options) as rig:
        as_operator(rig)
        domain = await rig.domain()
        file.write_text(MAPPING.format(domain=domain))
        yield rig, domain


async def begin(page: Page, path: str = "/") -> dict[str, str]:
    """Begin a sign-in; return the query that the provider receives."""
    response = await page.ask("GET", f"/api/auth/oidc/begin?returnTo={path}")
    assert response.status_code == 303, response.text
    return {name: values[0] for name, values in parse_qs(urlsplit(response.headers["location"]).query).items()}


async def finish_sign_in(page: Page, issuer: Issuer, **claims: Any) -> httpx2.Response:
    """Sign in as ann at an issuer that the test controls."""
    parameters = await begin(page)
    issuer.answer = issuer.sign(issuer.claims(**{"nonce": parameters["nonce"], **claims}))
    return await page.ask("GET", f"/api/auth/oidc/callback?state={parameters['state']}&code=c")


async def list_domains(rig: Rig, token: str) -> tuple[int, Json]:
    """Send a token to the API."""
    response = await rig.http.get("/api/domains", headers=bearer(token))
    return response.status_code, response.json()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # issued by the provider's own libraries
async def test_people_sign_in_with_a_real_provider_and_out_again(tmp_path: Path) -> None:
    claims = {"groups": ["legal"], "preferred_username": "ann", "name": "Ann Example"}
    ann = oidc_provider_mock.User(sub="a-1", claims=claims)
    with oidc_provider_mock.run_server_in_thread(user_claims=[ann], require_nonce=True) as server:
        url = f"http://localhost:{server.server_port}"
        async with make_rig(tmp_path, url, oidc_client_secret="s3cret") as (rig, domain):
            page = Page(rig)
            assert (await page.send("GET", "/api/domains"))[0] == 401
            assert (await page.send("GET", "/api/auth"))[1]["provider"] is True
            response = await page.ask("GET", "/api/auth/oidc/begin?returnTo=/chat%3Fx=1")
            go = response.headers["location"]

            def sign_in_there() -> str:
                return str(httpx2.post(go, data={"sub": "a-1"}).headers["location"])

            location = urlsplit(await anyio.to_thread.run_sync(sign_in_there))
            callback = await page.ask("GET", f"{location.path}?{location.query}")
            assert callback.status_code == 200, callback.text
            assert 'url=/chat?x=1"' in callback.text
            assert "SameSite=Strict" in next(
                header for header in callback.headers.get_list("set-cookie") if header.startswith("agentic-rag=")
            )
            assert list(page.jar) == ["agentic-rag"]
            domains = (await page.send("GET", "/api/domains"))[1]["items"]
            assert [domain["id"] for domain in domains] == [domain]
            as_operator(rig)
            user = await rig.ok("GET", "/api/users/ann")
            assert (user["origin"], user["displayName"], user["grants"]) == ("oidc", "Ann Example", {domain: "member"})
            assert (
                await page.ask("GET", f"{location.path}?{location.query}")
            ).status_code == 401  # a state is valid once
            logout_url = (await page.send("POST", "/api/auth/sign-out", **PROOF))[1]["logoutUrl"]
            assert logout_url.startswith(f"{url}/oauth2/end_session?client_id=rag")
            assert (await page.send("GET", "/api/domains"))[0] == 401
            actions = [row["action"] for row in await audited(rig, actor="ann", outcome="done")]
            assert actions == ["login.end", "login.begin", "user.provided"]


async def test_the_code_is_bound_to_this_sign_in_by_pkce_and_to_this_browser_by_a_cookie(tmp_path: Path) -> None:
    async with issuing() as issuer, make_rig(tmp_path, issuer.url) as (rig, _):
        page, other_page = Page(rig), Page(rig)
        parameters = await begin(page)
        assert (parameters["response_type"], parameters["client_id"], parameters["code_challenge_method"]) == (
            "code",
            CLIENT,
            "S256",
        )
        assert parameters["redirect_uri"] == "http://127.0.0.1/api/auth/oidc/callback"
        issuer.answer = issuer.sign(issuer.claims(nonce=parameters["nonce"]))
        path = f"/api/auth/oidc/callback?state={parameters['state']}&code=c"
        await begin(other_page)
        for wrong_page in (other_page, Page(rig)):
            assert (await wrong_page.ask("GET", path)).status_code == 401
        assert (await page.ask("GET", "/api/auth/oidc/callback?state=guess&code=c")).status_code == 401
        assert "/token" not in issuer.asked
        assert (await page.ask("GET", path + "&iss=http://evil.example")).status_code == 401
        assert "/token" not in issuer.asked
        assert (await finish_sign_in(page, issuer)).status_code == 200
        verifier = issuer.form["code_verifier"]
        second_parameters = await begin(Page(rig))
        digest = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        assert (len(verifier) >= 43, digest != second_parameters["code_challenge"]) == (True, True)
        assert issuer.form["client_id"] == CLIENT


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"aud": "another"}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"aud": [CLIENT, "another"]}, "another client"),
        ({"aud": [CLIENT, "another"], "azp": "another"}, "another client"),
        ({"azp": "another"}, "another client"),
        ({"iss": "http://evil.example"}, "another issuer"),
        ({"exp": 1}, "expired"),
        ({"exp": None}, "expired"),
        ({"exp": True}, "no time"),
        ({"exp": 10**400}, "no time"),
        ({"exp": "9999999999"}, "no time"),
        ({"nbf": 9_999_999_999}, "not valid yet"),
        ({"nonce": "of-another-sign-in"}, "another sign-in"),
        ({"nonce": None}, "another sign-in"),
        ({"sub": ""}, "names no user"),
        ({"sub": 7}, "names no user"),
    ],
)
def test_a_token_with_another_audience_or_expired_is_refused(claims: Claims, message: str) -> None:
    now = 1_800_000_000.0
    valid_claims = {
        "iss": "https://login.example",
        "sub": "a-1",
        "aud": CLIENT,
        "exp": now + 60,
        "iat": now,
        "nonce": "n",
    }
    expected = Expected("https://login.example", CLIENT, frozenset({CLIENT}), "n")
    check_claims(valid_claims, expected, now)
    with pytest.raises(Unauthenticated, match=message):
        check_claims({**valid_claims, **claims}, expected, now)


@pytest.mark.parametrize(
    ("claims", "message"), [({"aud": "another"}, "another audience"), ({"nonce": "x"}, "another sign-in")]
)
async def test_a_sign_in_is_ended_only_by_its_own_token(tmp_path: Path, claims: Claims, message: str) -> None:
    async with issuing() as issuer, make_rig(tmp_path, issuer.url) as (rig, _):
        page = Page(rig)
        response = await finish_sign_in(page, issuer, **claims)
        assert (response.status_code, response.json()["error"]["code"]) == (401, "UNAUTHENTICATED")
        assert message in response.json()["error"]["message"]
        assert "agentic-rag" not in page.jar
        assert (await rig.ok("GET", "/api/users"))["items"] == []


async def test_an_api_client_sends_a_token_and_invalid_tokens_are_refused(tmp_path: Path) -> None:
    async with issuing() as issuer, make_rig(tmp_path, issuer.url, oidc_clients="cli") as (rig, domain):
        status, domains = await list_domains(rig, issuer.sign(issuer.claims()))
        assert (status, [domain["id"] for domain in domains["items"]]) == (200, [domain])
        assert (await list_domains(rig, issuer.sign(issuer.claims(azp="cli"), typ="at+jwt")))[0] == 200
        foreign_key = RSAKey.generate_key(2048, {"kid": "first"})
        valid_claims = issuer.claims()
        valid_token = issuer.sign(valid_claims)
        head, body, signature = valid_token.split(".")
        other_body = issuer.sign(issuer.claims(groups=["operators"])).split(".")[1]
        for token in (
            issuer.make_unsigned(valid_claims),
            issuer.make_unsigned(valid_claims, "None"),
            issuer.make_unsigned(valid_claims, "RS256"),
            f"{head}.{body}.",
            f"{head}.{other_body}.{signature}",
            issuer.sign_with_public_key(valid_claims),
            issuer.sign(valid_claims, foreign_key),
            issuer.sign(valid_claims, typ="logout+jwt"),
            issuer.sign(issuer.claims(azp="another")),
            issuer.sign(issuer.claims(aud="another")),
            issuer.sign(issuer.claims(iss=issuer.url + "/")),
            issuer.sign(issuer.claims(exp=1)),
            "a.b.c",
            "..",
            "e30.e30.e30",
        ):
            status, answer = await list_domains(rig, token)
            assert (status, answer["error"]["code"]) == (401, "UNAUTHENTICATED"), token
        assert len((await rig.ok("GET", "/api/users"))["items"]) == 1


async def test_a_new_signing_key_is_fetched_once_and_a_withdrawn_one_is_refused(tmp_path: Path) -> None:
    async with issuing() as issuer, make_rig(tmp_path, issuer.url) as (rig, _):
        unknown_key = RSAKey.generate_key(2048, {"kid": "unknown"})
        for _ in range(3):
            assert (await list_domains(rig, issuer.sign(issuer.claims(), unknown_key)))[0] == 401
        assert issuer.asked.count("/keys") == 1  # invented key names cause no request to the provider
        assert (await list_domains(rig, issuer.sign(issuer.claims())))[0] == 200
        assert issuer.asked.count("/keys") == 1
    async with issuing() as issuer, make_rig(tmp_path, issuer.url) as (rig, _):
        issuer.keys = [issuer.second]
        assert (await list_domains(rig, issuer.sign(issuer.claims(sub="b"), issuer.second, "ES256")))[0] == 200
        assert (await list_domains(rig, issuer.sign(issuer.claims(sub="b"))))[0] == 401


async def test_groups_decide_and_are_read_again_each_time(tmp_path: Path) -> None:
    async with (
        issuing() as issuer,
        make_rig(tmp_path, issuer.url) as (rig, domain),
        serving(rig.application.app) as address,
    ):
        page = Page(rig)
        assert (await finish_sign_in(page, issuer, groups=["legal-authors", "choir"])).status_code == 200
        as_operator(rig)
        assert (await rig.ok("GET", "/api/users/ann"))["grants"] == {domain: "author"}
        ticket = (await page.send("POST", "/api/ws-tickets", **PROOF))[1]["subprotocol"]
        async with socket(address, "agentic-rag.native", ticket) as client:
            assert (await list_domains(rig, issuer.sign(issuer.claims(groups=["legal"]))))[0] == 200
            assert await client.close_code() == 1008  # the open session had more rights
        assert (await page.send("GET", "/api/domains"))[0] == 401
        assert (await list_domains(rig, issuer.sign(issuer.claims(groups=["choir"]))))[0] == 403
        assert (await rig.ok("GET", "/api/users/ann"))["grants"] == {}
        assert (await finish_sign_in(page, issuer, groups=[])).status_code == 403
        assert (await list_domains(rig, issuer.sign(issuer.claims(groups="operators"))))[0] == 200
        assert (await rig.ok("GET", "/api/users/ann"))["operator"] is True
        (tmp_path / "grants.toml").write_text("[[grants]]\ngroups = ")
        status, answer = await list_domains(rig, issuer.sign(issuer.claims(groups=["operators"])))
        assert (status, answer["error"]["code"]) == (503, "OIDC_UNAVAILABLE")
        assert str(tmp_path) not in answer["error"]["message"]


async def test_a_provider_that_hangs_delays_only_tokens_whose_key_is_not_cached() -> None:
    now = 0.0
    async with issuing() as issuer, aclosing(OidcProvider(ProviderClient(issuer.url, CLIENT), lambda: now)) as provider:
        known_token = issuer.sign(issuer.claims())
        unknown_token = issuer.sign(issuer.claims(), issuer.second, "ES256")
        expected = provider.client.expectations()
        assert (await provider.read(known_token, expected))["sub"] == "a-1"
        now += 11
        errors: list[type[Exception]] = []

        async def show_unknown() -> None:
            try:
                await provider.read(unknown_token, expected)
            except (ProviderUnavailable, Unauthenticated) as exc:
                errors.append(type(exc))

        issuer.hang, issuer.status = anyio.Event(), 500
        async with anyio.create_task_group() as strangers:
            for _ in range(6):
                strangers.start_soon(show_unknown)
            with anyio.fail_after(120):  # the provider never answers
                while issuer.asked.count("/keys") < 2:
                    await pause()
                assert (await provider.read(known_token, expected))["sub"] == "a-1"
            assert errors == []
            issuer.hang.set()
        assert errors == [ProviderUnavailable] * 6
        assert issuer.asked.count("/keys") == 2
        issuer.hang, issuer.status = None, 200
        issuer.keys.append(issuer.second)
        await show_unknown()
        assert issuer.asked.count("/keys") == 2
        now += 11
        assert (await provider.read(unknown_token, expected))["sub"] == "a-1"


async def test_disabled_people_and_people_without_groups_are_refused(tmp_path: Path) -> None:
    async with issuing() as issuer, make_rig(tmp_path, issuer.url) as (rig, domain):
        assert (await list_domains(rig, issuer.sign(issuer.claims(sub="b", groups=["choir"]))))[0] == 403
        assert (await rig.ok("GET", "/api/users"))["items"] == []
        token = issuer.sign(issuer.claims())
        assert (await list_domains(rig, token))[0] == 200
        as_operator(rig)
        assert (await rig.refused("PATCH", "/api/users/ann", {"operator": True}))[:2] == (422, "VALIDATION_ERROR")
        assert (await rig.refused("POST", "/api/keys", {"user": "ann", "role": "operator"}))[0] == 422
        key = (await rig.ok("POST", "/api/keys", {"user": "ann"}))["key"]
        await rig.ok("POST", "/api/users/ann/disable")
        assert (await list_domains(rig, token))[0] == 403
        assert (await list_domains(rig, key))[0] == 401
        await rig.ok("POST", "/api/users/ann/enable")
        assert (await list_domains(rig, token))[0] == 200
        assert (await rig.ok("GET", "/api/users/ann"))["grants"] == {domain: "member"}


async def test_a_used_name_cannot_be_taken(tmp_path: Path) -> None:
    async with issuing() as issuer, make_rig(tmp_path, issuer.url) as (rig, _):
        await rig.ok("POST", "/api/users", {"name": "root", "operator": True})
        for number, name in enumerate(("root", LOCAL.id, "system", "../x", "", "root")):
            token = issuer.sign(issuer.claims(sub=str(number), preferred_username=name))
            assert (await list_domains(rig, token))[0] == 200
            assert (await rig.http.get("/api/keys", headers=bearer(token))).status_code == 403
        names = [user["name"] for user in (await rig.ok("GET", "/api/users"))["items"]]
        assert (len(names), len([name for name in names if name.startswith("oidc_")])) == (7, 6)


def test_only_operators_use_patterns_and_group_names_are_compared_exactly(tmp_path: Path) -> None:
    file = tmp_path / "grants.toml"
    file.write_text(MAPPING.format(domain="dom_1") + '[[grants]]\ngroups = "a.b[c]?*z"\ndomain="dom_2"\ngrant="admin"')
    grants = GroupGrants(file)
    for group in ("*", "l*", "oper*", "operators\n", "Operators", "operators*", "", "LEGAL", "xlegal", ".*", "[a-z]*"):
        assert grants.rights_of([group]).none, group
    assert grants.rights_of(["legal*", "legal\n"]).grants == {"dom_1": "member"}
    assert grants.rights_of(["a.b[c]?--z"]).grants == {"dom_2": "admin"}
    assert grants.rights_of(["axb[c]?z", "a.bcz"]).none
    assert grants.rights_of(["legal-authors", "legal"]).grants == {"dom_1": "author"}
    assert grants.rights_of(["legal", "operators"]).operator


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "grants"),
        ("grants = 7", "grants"),
        ('[[grants]]\ngroups = "x"', "grants.0"),
        ('[[grants]]\ngroups = "x"\ndomain = "d"', "grants.0"),
        ('[[grants]]\ngroups = "x"\ndomain = "d"\ngrant = "root"', "grants.0.grant"),
        ('[[grants]]\ngroups = "x"\noperator = true\ndomain = "d"\ngrant = "admin"', "grants.0"),
        ('[[grants]]\ngroup = "x"\noperator = true', "grants.0"),
        ("[[grants]\n", "line 1"),
    ],
)
def test_an_error_in_the_file_names_its_place(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "grants.toml"
    file.write_text(text)
    with pytest.raises(BadConfiguration, match="AGENTIC_RAG_OIDC_GRANTS") as error:
        GroupGrants(file).rights_of(["x"])
    assert message in str(error.value)


async def test_another_issuer_or_one_in_the_private_network_is_refused() -> None:
    async with issuing() as issuer, issuing() as inner:
        token = issuer.sign(issuer.claims())
        for configuration in (
            {"issuer": "http://evil.example"},
            {"jwks_uri": f"{inner.url}/keys"},
            {"jwks_uri": "http://169.254.169.254/keys"},
            {"jwks_uri": "file:///etc/passwd"},
            {"jwks_uri": None},
            {},
        ):
            issuer.described = configuration
            client = ProviderClient(issuer.url, CLIENT)
            async with aclosing(OidcProvider(client)) as provider:
                if not configuration:
                    assert (await provider.read(token, client.expectations()))["sub"] == "a-1"
                    continue
                with pytest.raises(ProviderUnavailable) as error:
                    await provider.read(token, client.expectations())
                assert "127.0.0.1" not in error.value.plain
        assert inner.asked == []


async def test_endless_sign_in_attempts_are_rate_limited_and_bounded(tmp_path: Path) -> None:
    async with issuing() as issuer, make_rig(tmp_path, issuer.url) as (rig, _):
        page = Page(rig)
        for path in ("//evil.example", "/%5Cevil.example", "https://evil.example", "x", "/%0d%0ax"):
            assert (await page.ask("GET", f"/api/auth/oidc/begin?returnTo={path}")).status_code == 422, path
        answers = [(await page.ask("GET", "/api/auth/oidc/begin")).status_code for _ in range(int(BEGUN_AT_ONCE))]
        assert (answers[0], answers[-1]) == (303, 429)

        def begin_five(conn: Connection) -> list[str]:
            conn.execute(text("UPDATE logins_begun SET expires_at = '1'"))
            for number in range(5):
                row = BegunRecord(
                    id=str(number), browser_sha256="", nonce="", verifier="", return_to="/", expires_at=f"3{number}"
                )
                logins.begin(conn, row, "2", at_most=3)
            return list(conn.execute(text("SELECT id FROM logins_begun ORDER BY id")).scalars())

        assert await rig.application.database.write(begin_five) == ["2", "3", "4"]

"""The whole sign-in with the real server: refused, signed in by a browser, allowed; what is stored, and what is not."""

import json
from pathlib import Path
from typing import Any

import anyio
from joserfc.jwk import ECKey

from agentic_rag.store import secrets
from agentic_rag.testing.authorization_server import Habits
from tests.access.tenants import audited, bearer, make_key
from tests.server.rig import Json, Rig, types_of
from tests.server.test_mcp_servers import accept_waiting, calling
from tests.server.test_waits import open_wait
from tests.sign_in.support import CALLBACK, make_rig, serve_places, sign_in, try_entry, visit


async def restart(rig: Rig, domain: str, **options: Any) -> dict[str, Any]:
    state: dict[str, Any] = await rig.ok("POST", f"/api/domains/{domain}/mcp-servers/web/restart", **options)
    return state


async def test_an_admin_saves_an_entry_signs_in_and_its_tools_are_listed(tmp_path: Path) -> None:
    async with serve_places() as places, make_rig(tmp_path) as rig:
        domain = await rig.domain(mcpServers={"web": {"url": places.url}})
        state = await try_entry(rig, domain, {"url": places.url})
        assert state["state"] == "needs_auth", state
        sign_in_state = state["signIn"]
        assert sign_in_state["address"].startswith(f"{places.granting.issuer}/authorize?")
        assert sign_in_state["begin"].endswith(f"/api/oauth/begin/{sign_in_state['id']}")
        assert (sign_in_state["who"], sign_in_state["host"]) == ("admin", "127.0.0.1")
        page = await sign_in(rig, sign_in_state)
        assert page.status_code == 200
        assert "anna@example.com" in page.text
        assert page.headers["referrer-policy"] == "no-referrer"
        state = await try_entry(rig, domain, {"url": places.url})
        assert state["state"] == "ready"
        assert {tool["name"] for tool in state["tools"]} >= {"echo", "fail", "slow"}
        sign_ins = await rig.ok("GET", f"/api/domains/{domain}/mcp-servers/web/sign-ins")
        assert [(item["user"], item["account"], item["by"]) for item in sign_ins["items"]] == [
            ("", "anna@example.com", "local")
        ]
        assert sign_ins["items"][0]["until"] > sign_ins["items"][0]["since"]
        assert (await audited(rig, action="mcp.sign-in"))[0]["target"] == f"{domain}/web"


async def test_a_turn_calls_with_the_token_which_no_event_log_or_prompt_contains(tmp_path: Path) -> None:
    async with serve_places() as places, make_rig(tmp_path, *[calling("web__echo", text="hi")] * 2) as rig:
        domain = await rig.domain(mcpServers={"web": {"url": places.url}}, toolPolicy={"web__*": "allow"})
        await sign_in(rig, (await restart(rig, domain))["signIn"])
        assert (await restart(rig, domain))["state"] == "ready"
        token = next(iter(places.granting.live))
        events = await rig.say(await rig.conversation(domain), "Go")
        assert types_of(events)[-1] == "done"
        assert "hi" in str(events)
        assert set(places.guarded.tokens) == {"", token}
        redact = rig.application.parts.vault.redact.of(domain)
        for token_or_secret in (
            *places.granting.live,
            *places.granting.refresh,
            places.granting.habits.clients["client-1"],
        ):
            assert redact(f"x {token_or_secret} y") == "x [secret web.oauth] y"
        rows = await rig.application.database.read(secrets.list_all)
        assert rows
        assert not any(token.encode() in row.sealed for row in rows)
        secrets_listed = await rig.ok("GET", f"/api/domains/{domain}/secrets")
        assert secrets_listed["items"] == []


async def test_each_user_of_a_per_user_entry_signs_in_separately(tmp_path: Path) -> None:
    async with serve_places() as places, make_rig(tmp_path) as rig:
        domain = await rig.domain(mcpServers={"web": {"url": places.url, "identity": "user"}})
        admins = {name: bearer(await make_key(rig, name, "admin", domain)) for name in ("anna", "ben")}
        rig.http.headers.pop("authorization", None)
        sign_in_state = (await restart(rig, domain, headers=admins["anna"]))["signIn"]
        assert sign_in_state["who"] == "owner"
        path = f"/api/domains/{domain}/mcp-servers/web/sign-ins"
        for name, count in (("anna", 1), ("ben", 0)):
            assert len((await rig.ok("GET", f"{path}/open", headers=admins[name]))["items"]) == count
        begin = f"/api/oauth/begin/{sign_in_state['id']}"
        assert (await rig.refused("GET", begin, headers=admins["ben"]))[0] == 404
        answer = await visit(sign_in_state["address"])
        for options in ({}, {"headers": admins["ben"]}):
            page = await rig.http.get(CALLBACK, params=answer, **options)  # type: ignore[arg-type]
            assert page.status_code == 400
            assert "another user or another browser started it" in page.text
        assert not places.granting.find("/token")
        redirect = await rig.http.get(begin, headers=admins["anna"])
        assert redirect.headers["location"] == sign_in_state["address"]
        cookie = redirect.headers["set-cookie"]
        assert all(word in cookie for word in ("HttpOnly", "SameSite=lax", f"Path={CALLBACK}", "Max-Age=600"))
        stranger = await rig.http.get(CALLBACK, params=answer, headers={"cookie": "agentic-rag-sign-in=guessed"})
        assert stranger.status_code == 400
        page = await rig.http.get(CALLBACK, params=answer, headers={"cookie": cookie.partition(";")[0]})
        assert page.status_code == 200, page.text
        assert (await restart(rig, domain, headers=admins["anna"]))["state"] == "ready"
        assert (await restart(rig, domain, headers=admins["ben"]))["state"] == "needs_auth"
        sign_ins = await rig.ok("GET", path, headers=admins["anna"])
        assert [(item["user"], item["by"]) for item in sign_ins["items"]] == [("anna", "anna")]


async def test_a_revoked_sign_in_is_deleted_here_and_revoked_at_the_provider(tmp_path: Path) -> None:
    async with serve_places() as places, make_rig(tmp_path) as rig:
        domain = await rig.domain(mcpServers={"web": {"url": places.url}})
        await sign_in(rig, (await restart(rig, domain))["signIn"])
        assert (await restart(rig, domain))["state"] == "ready"
        path = f"/api/domains/{domain}/mcp-servers/web/sign-ins"
        assert await rig.ok("DELETE", f"{path}/domain") == {"revoked": True}
        assert [request.form["token_type_hint"] for request in places.granting.find("/revoke")] == [
            "refresh_token",
            "access_token",
        ]
        assert not places.granting.live
        assert (await rig.ok("GET", path))["items"] == []
        assert (await restart(rig, domain))["state"] == "needs_auth"
        assert (await rig.refused("DELETE", f"{path}/domain"))[0] == 404


async def test_removing_a_server_removes_its_accounts(tmp_path: Path) -> None:
    async with serve_places() as places, make_rig(tmp_path) as rig:
        domain = await rig.domain(mcpServers={"web": {"url": places.url}})
        await sign_in(rig, (await restart(rig, domain))["signIn"])
        await try_entry(rig, domain, {"url": places.url + "?other"})
        path = f"/api/domains/{domain}"
        await rig.ok("PATCH", path, {"settings": {"mcpServers": {"web": None}}})
        names = [row.name for row in await rig.application.database.read(secrets.list_all)]
        assert not [name for name in names if "account" in name or "pending" in name]
        assert (await rig.ok("GET", f"{path}/mcp-servers/web/sign-ins"))["items"] == []


async def test_a_token_is_not_sent_to_the_entrys_new_address(tmp_path: Path) -> None:
    async with serve_places() as places, serve_places() as new_places, make_rig(tmp_path) as rig:
        domain = await rig.domain(mcpServers={"web": {"url": places.url}})
        await sign_in(rig, (await restart(rig, domain))["signIn"])
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"mcpServers": {"web": {"url": new_places.url}}}})
        assert (await restart(rig, domain))["state"] == "needs_auth"
        assert set(new_places.guarded.tokens) == {""}


async def test_a_client_with_client_credentials_needs_no_person(tmp_path: Path) -> None:
    key = ECKey.generate_key("P-256")
    for habits, credentials in (
        (Habits(clients={"robot": "robots-secret-1"}), {"clientSecret": "robots-secret-1"}),
        (Habits(clients={"robot": ""}, client_key=key), {"privateKey": key.as_pem(private=True).decode()}),
    ):
        async with (
            serve_places(habits) as places,
            make_rig(tmp_path / str(len(credentials["clientSecret"]) if "clientSecret" in credentials else 0)) as rig,
        ):
            oauth = {"clientId": "robot", "scopes": ["read"], "grant": "client_credentials", **credentials}
            domain = await rig.domain(mcpServers={"web": {"url": places.url, "oauth": oauth}})
            settings = await rig.ok("GET", f"/api/domains/{domain}")
            assert not any(text in json.dumps(settings) for text in credentials.values())
            assert (await restart(rig, domain))["state"] == "ready"
            assert [request.form["grant_type"] for request in places.granting.find("/token")] == ["client_credentials"]
            assert places.granting.find("/token")[0].form["scope"] == "read"
            places.granting.live.clear()  # it is refused, and no person can be asked
            assert (await restart(rig, domain))["state"] == "ready"
            assert len(places.granting.find("/token")) == 2
            places.granting.habits.token = {"access_token": "never-a-good-one"}
            places.granting.live.clear()
            assert "refuses the token that was just granted" in (await restart(rig, domain))["reason"]


async def test_a_registered_client_is_used_unchanged_and_keeps_its_secret(tmp_path: Path) -> None:
    methods = {"token_endpoint_auth_methods_supported": ["client_secret_post"], "registration_endpoint": None}
    habits = Habits(clients={"ours": "a-very-secret-word"}, metadata=methods)
    async with serve_places(habits) as places, make_rig(tmp_path) as rig:
        oauth = {"clientId": "ours", "clientSecret": "a-very-secret-word", "scopes": "read write"}
        domain = await rig.domain(mcpServers={"web": {"url": places.url, "oauth": oauth}})
        entry = (await rig.ok("GET", f"/api/domains/{domain}"))["settings"]["mcpServers"]["web"]
        assert entry["oauth"] == {
            "clientId": "ours",
            "clientSecret": {"set": True, "last4": "word"},
            "scopes": ["read", "write"],
        }
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"mcpServers": {"web": entry}}})
        await sign_in(rig, (await restart(rig, domain))["signIn"])
        assert (await restart(rig, domain))["state"] == "ready"
        assert places.granting.find("/token")[0].form["client_secret"] == "a-very-secret-word"
        assert places.granting.find("/authorize")[0].form["scope"] == "read write"


async def test_our_published_metadata_is_the_client_id_where_it_is_reachable(tmp_path: Path) -> None:
    habits = Habits(metadata={"client_id_metadata_document_supported": True})
    async with serve_places(habits) as places, make_rig(tmp_path, public_url="https://rag.example") as rig:
        domain = await rig.domain(mcpServers={"web": {"url": places.url}})
        sign_in_state = (await restart(rig, domain))["signIn"]
        assert sign_in_state["begin"].startswith("https://rag.example/api/oauth/begin/")
        await sign_in(rig, sign_in_state)
        assert (await restart(rig, domain))["state"] == "ready"
        document = await rig.ok("GET", "/client-metadata.json")
        assert document["client_id"] == "https://rag.example/client-metadata.json"
        assert document["redirect_uris"] == ["https://rag.example/api/oauth/callback"]
        assert places.granting.find("/authorize")[0].form["client_id"] == document["client_id"]
        assert not places.granting.find("/register")


async def test_a_server_that_needs_more_scopes_keeps_the_granted_ones(tmp_path: Path) -> None:
    habits = Habits(challenge_scope="read")
    async with serve_places(habits) as places, make_rig(tmp_path, *[calling("web__echo", text="hi")] * 4) as rig:
        domain = await rig.domain(mcpServers={"web": {"url": places.url}}, toolPolicy={"web__*": "allow"})
        await sign_in(rig, (await restart(rig, domain))["signIn"])
        assert (await restart(rig, domain))["state"] == "ready"
        places.guarded.scopes["tools/call"] = "write"
        conversation = await rig.conversation(domain)
        path = f"/api/domains/{domain}/mcp-servers/web/sign-ins/open"
        events: list[Json] = []

        async def say_go() -> None:
            events.extend(await rig.say(conversation, "Go"))

        with anyio.fail_after(240):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(say_go)
                wait = await open_wait(rig)
                assert (wait["kind"], wait["server"]) == ("url", "web")
                assert wait["url"].endswith((await rig.ok("GET", path))["items"][0]["id"])
                await sign_in(rig, (await rig.ok("GET", path))["items"][0])
        assert any(event["type"] == "tool_result" and event["status"] == "ok" for event in events), (
            "it went on by itself"
        )
        assert [request.form["scope"] for request in places.granting.find("/authorize")] == ["read", "read write"]
        events = await rig.say(conversation, "Go")
        assert any(event["type"] == "tool_result" and event["status"] == "ok" for event in events), events


async def test_endlessly_growing_scopes_are_requested_a_limited_number_of_times(tmp_path: Path) -> None:
    habits = Habits(challenge_scope="s0")
    async with serve_places(habits) as places, make_rig(tmp_path) as rig:
        domain = await rig.domain(mcpServers={"web": {"url": places.url}})
        count = 0
        state = await restart(rig, domain)
        while state["state"] == "needs_auth":
            await sign_in(rig, state["signIn"])
            count += 1
            places.guarded.scopes["tools/list"] = f"s{count}"
            state = await restart(rig, domain)
        assert "asks for more rights again and again" in state["reason"]
        assert count == 5  # the first attempt and four retries


async def test_a_sign_in_survives_a_server_restart_in_its_middle(tmp_path: Path) -> None:
    async with serve_places() as places:
        async with make_rig(tmp_path) as rig:
            domain = await rig.domain(mcpServers={"web": {"url": places.url}})
            sign_in_state = (await restart(rig, domain))["signIn"]
        async with make_rig(tmp_path) as rig:
            assert (await restart(rig, domain))["signIn"]["address"] == sign_in_state["address"]
            assert (await sign_in(rig, sign_in_state)).status_code == 200
            assert (await restart(rig, domain))["state"] == "ready"


async def test_an_accepted_tool_list_stays_accepted_after_a_sign_in(tmp_path: Path) -> None:
    async with serve_places() as places, make_rig(tmp_path, *[calling("web__echo", text="hi")] * 4) as rig:
        domain = await rig.domain(mcpServers={"web": {"url": places.url}}, toolPolicy={"web__*": "allow"})
        await sign_in(rig, (await restart(rig, domain))["signIn"])
        conversation = await rig.conversation(domain)
        await rig.say(conversation, "Go")
        await accept_waiting(rig, domain, "web")
        places.granting.live.clear()
        places.granting.refresh.clear()
        events: list[Json] = []

        async def say_go() -> None:
            events.extend(await rig.say(conversation, "Go"))

        with anyio.fail_after(240):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(say_go)
                wait = await open_wait(rig)
                await rig.ok("POST", f"/api/waits/{wait['id']}", {"action": "decline"})
        assert "was declined" in str(events)
        assert "/authorize" not in str(events)
        with anyio.fail_after(240):
            state = await restart(rig, domain)
        assert state["state"] == "needs_auth"

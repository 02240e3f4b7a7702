"""Tokens expire: concurrent requests renew them once, and a token that cannot be renewed requires a new sign-in."""

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from starlette.requests import Request
from starlette.responses import Response

from agentic_rag.access.users import LOCAL
from agentic_rag.base import failpoints
from agentic_rag.base.errors import ServerUnavailable
from agentic_rag.domains.sign_ins import SignIns
from agentic_rag.store import sign_ins
from agentic_rag.store.clock import later, now
from agentic_rag.testing.authorization_server import Habits
from agentic_rag.tools.entries.entry import HttpTarget, McpEntry
from agentic_rag.tools.launch.spec import LaunchSpec, spec_of
from agentic_rag.tools.oauth.errors import SignInNeeded
from tests.server.rig import Rig
from tests.sign_in.support import Places, make_rig, serve_places, sign_in, visit
from tests.sign_in.test_sign_in import restart


def spec_for(domain: str, places: Places) -> LaunchSpec:
    return spec_of(McpEntry("web", HttpTarget(places.url)), domain=domain)


async def complete_sign_in(rig: Rig, places: Places) -> tuple[SignIns, LaunchSpec]:
    """Return the sign-ins with the domain's account at a server, whose tokens expire as its settings say."""
    domain = await rig.domain(mcpServers={"web": {"url": places.url}})
    assert (await sign_in(rig, (await restart(rig, domain))["signIn"])).status_code == 200
    return await rig.application.parts.sign_ins.sign_ins(), spec_for(domain, places)


def count_refreshes(places: Places) -> int:
    return sum(request.form["grant_type"] == "refresh_token" for request in places.granting.find("/token"))


async def test_fifty_calls_at_once_renew_a_token_once_before_it_ends(tmp_path: Path) -> None:
    async with serve_places(Habits(seconds=50)) as places, make_rig(tmp_path) as rig:
        accounts, spec = await complete_sign_in(rig, places)
        places.granting.habits.seconds = 3600
        tokens: list[str | None] = []

        async def ask_for_token() -> None:
            tokens.append(await accounts.token(spec))

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(ask_for_token)
        assert count_refreshes(places) == 1
        assert len(set(tokens)) == 1
        assert tokens[0] in places.granting.live
        renewed = [
            request for request in places.granting.find("/token") if request.form["grant_type"] == "refresh_token"
        ]
        assert renewed[0].form["resource"] == places.url


async def test_fifty_calls_whose_token_is_refused_at_once_renew_it_once(tmp_path: Path) -> None:
    async with serve_places() as places, make_rig(tmp_path) as rig:
        accounts, spec = await complete_sign_in(rig, places)
        old_token = await accounts.token(spec)
        assert old_token is not None
        places.granting.live.clear()
        tokens: list[str | None] = []

        async def ask_for_token() -> None:
            tokens.append(await accounts.newer(spec, old_token))

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(ask_for_token)
        assert count_refreshes(places) == 1
        assert set(tokens) == set(places.granting.live)


async def test_a_process_waits_for_another_ones_renewal(tmp_path: Path) -> None:
    async with serve_places(Habits(seconds=50)) as places, make_rig(tmp_path) as rig:
        accounts, spec = await complete_sign_in(rig, places)
        places.granting.habits.seconds = 3600
        database = rig.application.database
        record = await database.read(lambda conn: sign_ins.account(conn, spec.domain, "web", ""))
        assert record is not None
        assert await database.write(lambda conn: sign_ins.claim(conn, record, now(), later(60)))
        assert not await database.write(lambda conn: sign_ins.claim(conn, record, now(), later(60)))
        tokens: list[str | None] = []

        async def ask_for_token() -> None:
            tokens.append(await accounts.token(spec))

        is_waiting = anyio.Event()

        def note_wait(name: str) -> None:
            if name == "sign_in.waits":
                is_waiting.set()

        with failpoints.heard_by(note_wait):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask_for_token)
                await is_waiting.wait()
                await database.write(lambda conn: sign_ins.release(conn, record))
        assert count_refreshes(places) == 0
        assert tokens[0] in places.granting.live  # it is valid for a while
        assert await accounts.token(spec) is not None
        assert count_refreshes(places) == 1


async def test_a_permanently_refused_renewal_opens_a_sign_in(tmp_path: Path) -> None:
    async with serve_places(Habits(seconds=50)) as places, make_rig(tmp_path) as rig:
        accounts, spec = await complete_sign_in(rig, places)
        places.granting.refresh.clear()
        assert await accounts.token(spec) is None
        state = await restart(rig, spec.domain)
        assert state["state"] == "needs_auth"
        with pytest.raises(SignInNeeded) as raised:
            await accounts.token(spec)
        assert raised.value.address == state["signIn"]["address"]
        assert (await rig.ok("GET", f"/api/domains/{spec.domain}/mcp-servers/web/sign-ins"))["items"] == []
        places.granting.habits.seconds = 3600
        assert (await sign_in(rig, state["signIn"])).status_code == 200
        assert (await restart(rig, spec.domain))["state"] == "ready"


async def test_an_unanswered_renewal_keeps_the_account_and_fails_only_its_calls(tmp_path: Path) -> None:
    async def answer_busy(request: Request) -> Response:
        return Response("<h1>busy</h1>", 503)

    async with serve_places(Habits(seconds=50)) as places, make_rig(tmp_path) as rig:
        accounts, spec = await complete_sign_in(rig, places)
        places.granting.habits.instead["/token"] = answer_busy
        assert await accounts.token(spec) in places.granting.live
        places.granting.habits.instead.clear()
        places.granting.habits.seconds = 0
        assert await accounts.token(spec) is not None
        places.granting.habits.instead["/token"] = answer_busy
        with pytest.raises(ServerUnavailable, match="gave no tokens now") as raised:
            await accounts.token(spec)
        assert not isinstance(raised.value, SignInNeeded)
        places.granting.habits.instead.clear()
        places.granting.habits.seconds = 3600
        assert await accounts.token(spec) in places.granting.live


async def test_a_token_renewal_completes_when_its_call_is_cancelled(tmp_path: Path) -> None:
    async with serve_places(Habits(seconds=50)) as places, make_rig(tmp_path) as rig:
        accounts, spec = await complete_sign_in(rig, places)
        places.granting.habits.seconds = 3600
        with anyio.CancelScope() as call_scope:

            def cancel(name: str) -> None:
                if name == "sign_in.renewed":
                    call_scope.cancel()

            with failpoints.heard_by(cancel):
                await accounts.token(spec)
                await anyio.lowlevel.checkpoint()
        assert call_scope.cancelled_caught
        assert await accounts.token(spec) in places.granting.live
        assert count_refreshes(places) == 1


class Listener:
    """Implements `SignInListener`."""

    def __init__(self) -> None:
        self.signed_in_accounts: list[tuple[str, str, str]] = []

    async def signed_in(self, domain_id: str, server: str, user_id: str) -> None:
        self.signed_in_accounts.append((domain_id, server, user_id))


async def test_waiting_calls_continue_when_the_sign_in_has_a_token(tmp_path: Path) -> None:

    async with serve_places() as places, make_rig(tmp_path) as rig:
        parts, listener = rig.application.parts, Listener()
        accounts = SignIns(parts.database, parts.vault, parts.policy, _Here(), listener)
        domain = await rig.domain(mcpServers={"web": {"url": places.url}})
        sign_in_state = (await restart(rig, domain))["signIn"]
        answer: dict[str, Any] = await visit(sign_in_state["address"])
        completed = await accounts.complete(answer, LOCAL, "")
        assert (completed.server, completed.account) == ("web", "anna@example.com")
        assert listener.signed_in_accounts == [(domain, "web", "")]
        assert await accounts.token(spec_for(domain, places)) in places.granting.live


class _Here:
    url = "http://127.0.0.1:8000"

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
from tests.sign_in.support import Places, entered, places, sign_in, visit
from tests.sign_in.test_sign_in import restart


def spec_for(domain: str, found: Places) -> LaunchSpec:
    return spec_of(McpEntry("web", HttpTarget(found.url)), domain=domain)


async def signed_in(rig: Rig, found: Places) -> tuple[SignIns, LaunchSpec]:
    """Return the sign-ins with the domain's account at a server, whose tokens expire as its settings say."""
    domain = await rig.domain(mcpServers={"web": {"url": found.url}})
    assert (await sign_in(rig, (await restart(rig, domain))["signIn"])).status_code == 200
    return await rig.application.machinery.sign_ins.sign_ins(), spec_for(domain, found)


def refreshes(found: Places) -> int:
    return sum(each.form["grant_type"] == "refresh_token" for each in found.granting.find("/token"))


async def test_fifty_calls_at_once_renew_a_token_once_before_it_ends(tmp_path: Path) -> None:
    async with places(Habits(seconds=50)) as found, entered(tmp_path) as rig:
        accounts, spec = await signed_in(rig, found)
        found.granting.habits.seconds = 3600
        tokens: list[str | None] = []

        async def ask() -> None:
            tokens.append(await accounts.token(spec))

        async with anyio.create_task_group() as asking:
            for _ in range(50):
                asking.start_soon(ask)
        assert refreshes(found) == 1
        assert len(set(tokens)) == 1
        assert tokens[0] in found.granting.live
        renewed = [each for each in found.granting.find("/token") if each.form["grant_type"] == "refresh_token"]
        assert renewed[0].form["resource"] == found.url


async def test_fifty_calls_whose_token_is_refused_at_once_renew_it_once(tmp_path: Path) -> None:
    async with places() as found, entered(tmp_path) as rig:
        accounts, spec = await signed_in(rig, found)
        old = await accounts.token(spec)
        assert old is not None
        found.granting.live.clear()
        tokens: list[str | None] = []

        async def ask() -> None:
            tokens.append(await accounts.newer(spec, old))

        async with anyio.create_task_group() as asking:
            for _ in range(50):
                asking.start_soon(ask)
        assert refreshes(found) == 1
        assert set(tokens) == set(found.granting.live)


async def test_a_process_waits_for_another_ones_renewal(tmp_path: Path) -> None:
    async with places(Habits(seconds=50)) as found, entered(tmp_path) as rig:
        accounts, spec = await signed_in(rig, found)
        found.granting.habits.seconds = 3600
        database = rig.application.database
        record = await database.read(lambda conn: sign_ins.account(conn, spec.domain, "web", ""))
        assert record is not None
        assert await database.write(lambda conn: sign_ins.claim(conn, record, now(), later(60)))
        assert not await database.write(lambda conn: sign_ins.claim(conn, record, now(), later(60)))
        got: list[str | None] = []

        async def ask() -> None:
            got.append(await accounts.token(spec))

        waits = anyio.Event()

        def note(name: str) -> None:
            if name == "sign_in.waits":
                waits.set()

        with failpoints.heard_by(note):
            async with anyio.create_task_group() as asking:
                asking.start_soon(ask)
                await waits.wait()
                await database.write(lambda conn: sign_ins.release(conn, record))
        assert refreshes(found) == 0
        assert got[0] in found.granting.live  # it is valid for a while
        assert await accounts.token(spec) is not None
        assert refreshes(found) == 1


async def test_a_permanently_refused_renewal_opens_a_sign_in(tmp_path: Path) -> None:
    async with places(Habits(seconds=50)) as found, entered(tmp_path) as rig:
        accounts, spec = await signed_in(rig, found)
        found.granting.refresh.clear()
        assert await accounts.token(spec) is None
        state = await restart(rig, spec.domain)
        assert state["state"] == "needs_auth"
        with pytest.raises(SignInNeeded) as needed:
            await accounts.token(spec)
        assert needed.value.address == state["signIn"]["address"]
        assert (await rig.ok("GET", f"/api/domains/{spec.domain}/mcp-servers/web/sign-ins"))["items"] == []
        found.granting.habits.seconds = 3600
        assert (await sign_in(rig, state["signIn"])).status_code == 200
        assert (await restart(rig, spec.domain))["state"] == "ready"


async def test_an_unanswered_renewal_keeps_the_account_and_fails_only_its_calls(tmp_path: Path) -> None:
    async def away(request: Request) -> Response:
        return Response("<h1>busy</h1>", 503)

    async with places(Habits(seconds=50)) as found, entered(tmp_path) as rig:
        accounts, spec = await signed_in(rig, found)
        found.granting.habits.instead["/token"] = away
        assert await accounts.token(spec) in found.granting.live
        found.granting.habits.instead.clear()
        found.granting.habits.seconds = 0
        assert await accounts.token(spec) is not None
        found.granting.habits.instead["/token"] = away
        with pytest.raises(ServerUnavailable, match="gave no tokens now") as failed:
            await accounts.token(spec)
        assert not isinstance(failed.value, SignInNeeded)
        found.granting.habits.instead.clear()
        found.granting.habits.seconds = 3600
        assert await accounts.token(spec) in found.granting.live


async def test_a_token_renewal_completes_when_its_call_is_cancelled(tmp_path: Path) -> None:
    async with places(Habits(seconds=50)) as found, entered(tmp_path) as rig:
        accounts, spec = await signed_in(rig, found)
        found.granting.habits.seconds = 3600
        with anyio.CancelScope() as calling:

            def cancel(name: str) -> None:
                if name == "sign_in.renewed":
                    calling.cancel()

            with failpoints.heard_by(cancel):
                await accounts.token(spec)
                await anyio.lowlevel.checkpoint()
        assert calling.cancelled_caught
        assert await accounts.token(spec) in found.granting.live
        assert refreshes(found) == 1


class Heard:
    """Implements `SignInListener`."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []

    async def signed_in(self, domain_id: str, server: str, user_id: str) -> None:
        self.told.append((domain_id, server, user_id))


async def test_waiting_calls_continue_when_the_sign_in_has_a_token(tmp_path: Path) -> None:

    async with places() as found, entered(tmp_path) as rig:
        ground, heard = rig.application.ground, Heard()
        policy = rig.application.machinery.policy
        accounts = SignIns(ground.database, ground.vault, policy, _Here(), heard)
        domain = await rig.domain(mcpServers={"web": {"url": found.url}})
        asked = (await restart(rig, domain))["signIn"]
        back: dict[str, Any] = await visit(asked["address"])
        done = await accounts.complete(back, LOCAL, "")
        assert (done.server, done.account) == ("web", "anna@example.com")
        assert heard.told == [(domain, "web", "")]
        assert await accounts.token(spec_for(domain, found)) in found.granting.live


class _Here:
    url = "http://127.0.0.1:8000"

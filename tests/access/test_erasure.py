"""Erasing a person is final, also after a kill and a second attempt.

A domain deletes conversations after its retention.
"""

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy import Connection, inspect, text

from agentic_rag.base import failpoints
from agentic_rag.base.events import WaitKind
from agentic_rag.base.ids import ConversationId, SessionId, TurnId, WaitId
from agentic_rag.domains.sign_in_secrets import account_name, pending_name
from agentic_rag.operations.maintenance import Retention
from agentic_rag.store import secrets
from agentic_rag.store.clock import now
from agentic_rag.store.secrets import SecretRecord
from agentic_rag.store.sign_ins import AccountRecord, SignInRecord
from agentic_rag.store.waits import WaitRecord
from agentic_rag.testing.scripted import Stalled
from agentic_rag.testing.steps import say
from tests.access.tenants import as_operator, audited, bearer, make_key
from tests.server.rig import Json, Rig

ENGRAM = {"strength": 0.8, "type": "ATOMIC", "createdAt": 1_700_000_000_000}
ZANNE = "zanne"
"""A name that is part of no other word."""


class Killed(BaseException):
    """Simulates the end of the process at a place."""


async def settle(rig: Rig, name: str, domain: str) -> dict[str, str]:
    """Give a user a key, a conversation with a turn, and a memory; return the header that shows the key."""
    credentials = bearer(await make_key(rig, name, "admin", domain))
    rig.http.headers.update(credentials)
    conversation = await rig.conversation(domain, title=f"{name}s words")
    await rig.say(conversation, f"{name}s question")
    path = f"/api/domains/{domain}/memories/import?role=assistant"
    engram = {**ENGRAM, "id": f"1_{len(name)}", "content": f"{name} likes tea.", "cues": [f"{name}s", "tea"]}
    assert (await rig.ok("POST", path, {"engrams": [engram]}))["added"] == 1
    as_operator(rig)
    return credentials


def leave_traces(conn: Connection, domain: str) -> None:
    """Sign zanne in at a server, with a second sign-in pending, and let zanne answer a wait of ben."""
    own = AccountRecord(
        domain_id=domain,
        server="mail",
        user_id=ZANNE,
        url="https://mail.example",
        issuer="https://login.example",
        account=f"{ZANNE}@mail.example",
        scope="",
        signed_in_by=ZANNE,
        signed_in_at=now(),
        expires_at=None,
        generation=1,
        renewing_until=None,
        step_ups=0,
        stepped_at=None,
    )
    sign_in = SignInRecord(
        id="signin_1",
        domain_id=domain,
        server="files",
        user_id="",
        url="https://files.example",
        state_hash="x",
        browser_hash="",
        begun_by=ZANNE,
        scope="",
        step_up=False,
        expires_at=now(),
    )
    wait = WaitRecord(
        id=WaitId("wait_1"),
        turn_id=TurnId("turn_1"),
        root_turn_id=TurnId("turn_1"),
        session_id=SessionId("sess_1"),
        conversation_id=ConversationId("conv_1"),
        domain_id=domain,
        user_id="ben",
        tool_call_id="c1",
        kind=WaitKind.APPROVAL,
        request={},
        answered_by=ZANNE,
        opened_at=now(),
        expires_at=now(),
    )
    own.insert(conn)
    own.replace(server="files", user_id="", account="all").insert(conn)
    sign_in.insert(conn)
    wait.insert(conn)
    for name in (account_name(own.issuer, "mail", ZANNE), pending_name("signin_1")):
        secrets.put(conn, SecretRecord(domain_id=domain, name=name, sealed=f"for {ZANNE}".encode(), updated_at=now()))


def make_reader_of_everything(rig: Rig) -> Any:
    """Return a function that reads all rows but the audit's, and all files, as one text."""
    skipped_tables = {"audit", "audit_head", "alembic_version"}

    def read(conn: Connection) -> str:
        names = inspect(conn).get_table_names()
        rows = [
            str(conn.execute(text(f'SELECT * FROM "{name}"')).all()) for name in names if name not in skipped_tables
        ]
        folder = rig.settings.workspaces
        files = [f"{path}{path.read_bytes()!r}" for path in folder.rglob("*") if path.is_file()]
        return "".join(rows + files)

    return read


PLACES = ("erase.shut", "erase.conversation", "erase.memories")


@pytest.mark.parametrize(("place", "scope"), [("", "domain"), *((place, "user") for place in PLACES)])
async def test_an_erased_person_leaves_only_a_number(tmp_path: Path, place: str, scope: str) -> None:
    async with Rig(tmp_path, *[say("Yes.") for _ in range(2)]) as rig:
        domain = await rig.domain(memoryScope=scope)
        zanne, ben = await settle(rig, ZANNE, domain), await settle(rig, "ben", domain)
        await rig.application.database.write(partial(leave_traces, domain=domain))
        erasure = rig.application.services.erasure
        read_database = make_reader_of_everything(rig)
        assert ZANNE in await rig.application.database.read(read_database)
        if place:

            def kill(reached: str) -> None:
                if reached == place:
                    raise Killed

            with failpoints.heard_by(kill), pytest.raises(Killed):
                await erasure.erase(ZANNE)
            assert (await rig.http.get("/api/domains", headers=zanne)).status_code == 401
            assert (await rig.refused("POST", f"/api/users/{ZANNE}/enable"))[1] == "USER_ERASING"
        number = (await rig.ok("DELETE", f"/api/users/{ZANNE}"))["number"]
        remaining = await rig.application.database.read(read_database)
        assert ZANNE not in remaining
        assert "bens question" in remaining
        assert "ben likes tea" in remaining
        assert (await rig.http.get("/api/domains", headers=zanne)).status_code == 401
        assert (await rig.http.get("/api/conversations", headers=ben)).json()["total"] == 1
        totals = (await rig.ok("GET", "/api/usage?groupBy=user"))["items"]
        assert {total["userId"]: total["calls"] for total in totals} == {f"#{number}": 1, "ben": 1}
        assert [user["name"] for user in (await rig.ok("GET", "/api/users"))["items"]] == ["ben"]
        assert (await rig.refused("DELETE", f"/api/users/{ZANNE}"))[:2] == (404, "USER_NOT_FOUND")
        assert [row["target"] for row in await audited(rig, action="user.erase", outcome="done")] == [ZANNE]
        await make_key(rig, ZANNE, "member", domain)
        numbers = await rig.application.database.read(lambda conn: conn.execute(text("SELECT number FROM users")).all())
        assert len(set(numbers)) == len(numbers) == 3


async def test_a_person_is_erased_during_an_answer(tmp_path: Path) -> None:
    stalled = Stalled(say("One. Two."), after=2)
    async with Rig(tmp_path, stalled) as rig:
        domain = await rig.domain()
        ann = bearer(await make_key(rig, "ann", "member", domain))
        response = await rig.http.post("/api/conversations", json={"domainId": domain}, headers=ann)
        path = f"/api/conversations/{response.json()['id']}/messages"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: rig.http.post(path, json={"content": "Hi"}, headers=ann))
            with anyio.fail_after(240):
                await stalled.reached.wait()
                as_operator(rig)
                await rig.ok("DELETE", "/api/users/ann")
        assert "ann" not in await rig.application.database.read(lambda conn: str(conn.execute(OWNERS).all()))


OWNERS = text("SELECT owner_id FROM conversations")


def titles(page: Json) -> set[str]:
    return {conversation["title"] for conversation in page["items"]}


async def test_conversations_expire_by_their_domains_retention_unless_running(tmp_path: Path) -> None:
    stalled = Stalled(say("One. Two."), after=2)
    async with Rig(tmp_path, say("Yes."), say("Yes."), stalled) as rig:
        keeps, forgets = await rig.domain(), await rig.domain(keepConversationsDays=30)
        await rig.say(await rig.conversation(keeps, title="kept"), "Hi")
        await rig.say(await rig.conversation(forgets, title="old"), "Hi")
        await rig.conversation(forgets, title="empty")
        running = await rig.conversation(forgets, title="running")
        application = rig.application
        retention = Retention(application.database, application.parts.directory, application.services.deletion)
        today = datetime.now(UTC)
        async with anyio.create_task_group() as tasks:
            path = f"/api/conversations/{running}/messages"
            tasks.start_soon(lambda: rig.http.post(path, json={"content": "Hi"}))
            with anyio.fail_after(240):
                await stalled.reached.wait()
            assert await retention.sweep(today + timedelta(days=29)) == 0
            assert await retention.sweep(today + timedelta(days=31)) == 2
            assert titles(await rig.ok("GET", "/api/conversations")) == {"kept", "running"}
            assert (await rig.ok("GET", f"/api/conversations/{running}"))["status"] == "active"
            await rig.ok("POST", f"/api/conversations/{running}/interrupt", {})
        assert await retention.sweep(today + timedelta(days=31)) == 1
        assert titles(await rig.ok("GET", "/api/conversations")) == {"kept"}
        rows = await audited(rig, action="conversation.delete", actor="system")
        assert [row["details"]["because"] for row in rows] == ["keepConversationsDays"] * 3
        for days in (0, -1, "x", 40_000):
            assert (
                await rig.refused("PATCH", f"/api/domains/{forgets}", {"settings": {"keepConversationsDays": days}})
            )[0] == 422


async def test_a_conversation_marked_for_removal_refuses_messages_and_is_deleted_by_the_next_sweep(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path, say("Yes.")) as rig:
        forgets = await rig.domain(keepConversationsDays=1)
        conversation = await rig.conversation(forgets)
        await rig.say(conversation, "Hi")
        application = rig.application
        await application.database.write(lambda conn: conn.execute(text(TAKEN_UP)))
        path = f"/api/conversations/{conversation}/messages"
        assert (await rig.refused("POST", path, {"content": "Hi"}))[1] == "CONVERSATION_ARCHIVED"
        retention = Retention(application.database, application.parts.directory, application.services.deletion)
        assert await retention.sweep(datetime.now(UTC) + timedelta(days=2)) == 1


TAKEN_UP = "UPDATE conversations SET status = 'archived'"

"""API keys: shown once, stored as a hash, and revoked immediately."""

from pathlib import Path

import anyio
import pytest
from sqlalchemy import Connection, text
from websockets.exceptions import InvalidStatus

from agentic_rag.access.keys import KEYLESS, PREFIX, Access
from agentic_rag.access.users import LOCAL
from agentic_rag.base.errors import NotFound
from agentic_rag.base.ids import ConversationId
from agentic_rag.store import keys
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.keys import KeyRole
from agentic_rag.testing.scripted import Stalled
from agentic_rag.testing.steps import say
from tests.access.tenants import as_operator, audited, bearer, make_key, socket
from tests.databases import database_at
from tests.server.rig import Rig
from tests.ws.serving import serving


async def test_a_key_is_shown_once_and_stored_as_its_hash(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with Rig(tmp_path) as rig:
        key = await make_key(rig, "ann", "operator")
        assert key.startswith(PREFIX)
        assert len(key) == len(PREFIX) + 43
        assert (await rig.ok("GET", "/api/domains", headers=bearer(key))) == {"items": []}
        assert key not in str(await rig.ok("GET", "/api/keys"))
        assert key not in str(await audited(rig))
        await rig.refused("GET", "/api/domains", headers=bearer(key + "x"))

        def dump(conn: Connection) -> str:
            return str(conn.execute(text("SELECT * FROM keys")).all())

        assert key not in await rig.application.database.read(dump)
    assert key not in caplog.text
    assert not any(key.encode() in path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())


async def test_keyless_access_ends_with_the_first_key(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        assert (await rig.http.get("/api/domains")).status_code == 200
        await make_key(rig, "ann", "operator")
        del rig.http.headers["authorization"]
        assert (await rig.refused("GET", "/api/domains"))[:2] == (401, "UNAUTHENTICATED")
        assert (await rig.http.get("/api/ready")).status_code == 200


async def test_revoking_the_last_key_does_not_enable_keyless_access(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        key = await make_key(rig, "ann", "operator")
        (key_row,) = (await rig.ok("GET", "/api/keys"))["items"]
        await rig.ok("DELETE", f"/api/keys/{key_row['id']}")
        assert (await rig.refused("DELETE", f"/api/keys/{key_row['id']}"))[1] == "KEY_NOT_FOUND"
        for headers in ({"authorization": ""}, bearer(key)):
            assert (await rig.refused("GET", "/api/domains", headers=headers))[0] == 401
        assert [row["action"] for row in await audited(rig, outcome="done")][:2] == ["key.revoke", "key.create"]


async def test_an_unknown_key_is_ignored_without_keys_and_refused_with_one(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig, serving(rig.application.app) as address:
        for headers in (bearer("sk-unused"), bearer("arag_revoked"), bearer("a.b.c"), {"authorization": "Basic eDp5"}):
            assert (await rig.http.get("/api/domains", headers=headers)).status_code == 200
        with pytest.raises(InvalidStatus):
            async with socket(address, "agentic-rag.native", "ticket.wrong"):
                pass
        await make_key(rig, "ann", "operator")
        assert (await rig.refused("GET", "/api/domains", headers=bearer("sk-unused")))[0] == 401


async def test_the_first_key_is_named_as_such(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        first = await rig.ok("POST", "/api/keys", {"user": "ann", "role": "operator"})
        second = await rig.ok("POST", "/api/keys", {"user": "ben", "role": "operator"}, headers=bearer(first["key"]))
        assert (first["first"], second["first"]) == (True, False)


INVALID_KEYS: list[tuple[dict[str, object], str]] = [
    ({"user": "", "role": "operator"}, "user"),
    ({"user": "../ann", "role": "operator"}, "user"),
    ({"user": "system", "role": "operator"}, "user"),
    ({"user": "ann", "role": "root"}, "role"),
    ({"user": "ann", "role": "operator", "domains": ["demo"]}, "domains"),
    ({"user": "ann", "role": "member"}, "domains"),
    ({"user": "ann", "role": "admin", "domains": ["nope"]}, "domains.0"),
]


async def test_a_key_with_invalid_fields_is_not_created(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        for body, path in INVALID_KEYS:
            status, code, message = await rig.refused("POST", "/api/keys", body)
            assert (body, status, code, message.split(":")[0]) == (body, 422, "VALIDATION_ERROR", path)
            assert (await rig.ok("GET", "/api/keys"))["items"] == []


async def test_revoking_a_key_closes_exactly_its_sockets_and_streams(tmp_path: Path) -> None:
    stalled = Stalled(say("One. Two."), after=2)
    async with Rig(tmp_path, stalled) as rig, serving(rig.application.app) as address:
        domain = await rig.domain()
        first, second = [await make_key(rig, "ann", "member", domain) for _ in range(2)]
        revoked = (await rig.ok("GET", "/api/keys"))["items"][0]["id"]
        async with socket(address, key=first) as ends, socket(address, key=second) as stays:
            rig.http.headers.update(bearer(first))
            conversation = (await rig.ok("POST", "/api/conversations", {"domainId": domain}))["id"]
            path = f"/api/conversations/{conversation}/messages"
            async with anyio.create_task_group() as tasks:
                responses: list[str] = []

                async def stream() -> None:
                    async with rig.http.stream("POST", path, json={"content": "Hi"}, headers=bearer(first)) as response:
                        responses.append((await response.aread()).decode())

                tasks.start_soon(stream)
                with anyio.fail_after(240):
                    await stalled.reached.wait()
                as_operator(rig)
                await rig.ok("DELETE", f"/api/keys/{revoked}")
            assert "turn_started" in responses[0]
            assert "event: done" not in responses[0]
            assert await ends.close_code() == 1008
            assert ends.connection.close_reason == "The key was revoked."
            assert await stays.ask("ping") == {"type": "pong"}


class EndedKeys:
    """Collects the keys whose connections must be closed."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def end(self, key_id: str) -> None:
        self.keys.append(key_id)


async def test_a_key_revoked_by_another_process_is_refused_after_a_refresh(tmp_path: Path) -> None:
    database = await Database.open(database_at(tmp_path / "store.db"))
    try:
        ended = EndedKeys()
        access = Access(database, use=ended)
        await access.open()
        before = access.required
        other_access = Access(database)
        record, secret = await other_access.create("ann", KeyRole.OPERATOR)
        assert access.entrant(secret) is None
        await access.refresh()
        assert (before, access.required) == (False, True)
        entrant = access.entrant(secret)
        assert entrant is not None
        assert entrant.user.operator
        await database.write(lambda conn: keys.revoke(conn, record.id, now()))
        await access.refresh()
        assert access.entrant(secret) is None
        assert ended.keys == [KEYLESS, record.id]
        assert access.required
        with pytest.raises(NotFound):
            await access.revoke(record.id)
    finally:
        await database.aclose()


async def test_with_a_key_memories_are_per_user_and_effects_need_approval(tmp_path: Path) -> None:
    async with Rig(tmp_path, any_command=True) as rig:
        domain = await rig.domain()
        assert (await rig.ok("GET", "/api/health"))["anyCommand"] is True
        definitions, conversations = rig.application.services.definitions, rig.application.services.conversations
        local = await conversations.get(LOCAL, ConversationId(await rig.conversation(domain)))
        keyless_definition, _ = await definitions.definition(LOCAL, local)
        await make_key(rig, "ann", "operator")
        keyed_definition, _ = await definitions.definition(LOCAL, local)
        assert (keyless_definition.binding.scope, keyed_definition.binding.scope) == ("domain", "user")
        assert (keyless_definition.effects_allowed_by_default, keyed_definition.effects_allowed_by_default) == (
            True,
            False,
        )
        assert (await rig.ok("GET", "/api/health"))["anyCommand"] is False

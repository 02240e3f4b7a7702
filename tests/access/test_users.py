"""Users, who own keys: a right that is taken away ends immediately."""

from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from agentic_rag.access.rights import user_of
from agentic_rag.store.clock import now
from agentic_rag.store.keys import KeyRecord, KeyRole
from agentic_rag.store.users import Grant, UserRecord
from tests.access.tenants import as_operator, audited, bearer, make_key, socket
from tests.server.rig import Json, Rig
from tests.ws.serving import serving

LEAVE = "<role><personality>Answers about leave.</personality></role>"
ROLE = {"files": [{"kind": "role", "id": "clerk", "content": LEAVE}]}

pytestmark = pytest.mark.attack(kind="web")


async def key_for(rig: Rig, name: str, **rights: object) -> dict[str, str]:
    """Create a user with a key that permits everything the user may do; return its header."""
    as_operator(rig)
    await rig.ok("POST", "/api/users", {"name": name, **rights})
    created = await rig.ok("POST", "/api/keys", {"user": name})
    return bearer(created["key"])


def record(**fields: object) -> UserRecord:
    columns = {"id": "ann", "number": 1, "created_at": now(), "updated_at": now(), **fields}
    return UserRecord(**columns)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("role", "operator", "grant", "sees", "writes", "administers"),
    [
        (None, False, Grant.AUTHOR, True, True, False),
        (None, True, None, True, True, True),
        (KeyRole.ADMIN, False, Grant.AUTHOR, True, True, False),
        (KeyRole.MEMBER, False, Grant.ADMIN, True, False, False),
        (KeyRole.MEMBER, True, None, True, False, False),
        (KeyRole.ADMIN, True, None, True, True, True),
        (KeyRole.ADMIN, False, None, False, False, False),
        (KeyRole.OPERATOR, False, Grant.MEMBER, True, False, False),
        (KeyRole.OPERATOR, False, None, False, False, False),
    ],
)
def test_a_key_permits_at_most_its_users_rights(
    role: KeyRole | None, operator: bool, grant: Grant | None, sees: bool, writes: bool, administers: bool
) -> None:
    domains = () if role in (None, KeyRole.OPERATOR) else ("dom_1",)
    key = KeyRecord(id="key_1", user_id="ann", role=role, domains=domains, sha256="", created_at=now())
    user = user_of(record(operator=operator, grants={"dom_1": grant} if grant else {}), key)
    assert (user.sees("dom_1"), user.writes("dom_1"), user.administers("dom_1")) == (sees, writes, administers)
    assert user.operator is (operator and role is None)


async def test_an_author_writes_roles_and_nothing_else_of_a_domain(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        domain, other_domain = await rig.domain(), await rig.domain()
        author = await key_for(rig, "ann", grants={domain: "author"})
        path = f"/api/domains/{domain}"
        rig.http.headers.update(author)
        assert (await rig.ok("PUT", f"{path}/roles/clerk", ROLE))["id"] == "clerk"
        assert "clerk" in str(await rig.ok("GET", f"{path}/roles"))
        assert (await rig.ok("GET", f"{path}/role-findings"))["items"] == []
        assert (await rig.refused("PUT", f"/api/domains/{other_domain}/roles/clerk", ROLE))[:2] == (
            404,
            "DOMAIN_NOT_FOUND",
        )
        for method, place, body in [
            ("PATCH", "", {"settings": {"tone": "formal"}}),
            ("PUT", "/secrets/X", {"value": "swordfish"}),
            ("GET", "/secrets", None),
            ("GET", "/mcp-servers", None),
            ("POST", "/mcp-servers/test", {}),
            ("POST", "/documents/rescan", None),
            ("GET", "/quotas", None),
        ]:
            assert (await rig.refused(method, path + place, body))[:2] == (403, "FORBIDDEN"), place
        assert (await rig.ok("GET", path))["settings"] == {}
        await rig.ok("DELETE", f"{path}/roles/clerk")
        rig.http.headers.update(author)
        await rig.ok("PUT", f"{path}/prompt-components/tone.md", {"content": "Answer in verse."})
        (component,) = (await rig.ok("GET", f"{path}/prompt-components"))["items"]
        assert (component["name"], component["content"]) == ("tone.md", "Answer in verse.")
        assert "Answer in verse." in str(await rig.ok("GET", f"{path}/effective-prompt"))
        for name in ("../x.md", "x.txt", ".x.md", "a b.md"):
            quoted = name.replace("/", "%2F").replace(" ", "%20")
            response = await rig.http.put(f"{path}/prompt-components/{quoted}", json={"content": "x"})
            assert response.status_code in (404, 422), name
        await rig.ok("DELETE", f"{path}/prompt-components/tone.md")
        assert (await rig.refused("DELETE", f"{path}/prompt-components/tone.md"))[1] == "COMPONENT_NOT_FOUND"
        assert [row["action"] for row in await audited(rig, actor="ann", outcome="done")] == [
            "prompt.delete",
            "prompt.write",
            "role.delete",
            "role.write",
        ]


async def test_a_key_for_a_new_name_creates_its_user_and_one_with_more_rights_raises_them(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        first, second = await rig.domain(), await rig.domain()
        await make_key(rig, "ann", "member", first)
        await make_key(rig, "ann", "admin", second)
        account = await rig.ok("GET", "/api/users/ann")
        assert (account["grants"], account["operator"], account["state"]) == (
            {first: "member", second: "admin"},
            False,
            "active",
        )
        assert len(account["keys"]) == 2
        assert (await rig.refused("POST", "/api/keys", {"user": "ben"}))[:2] == (404, "USER_NOT_FOUND")
        actions = [row["action"] for row in await audited(rig, outcome="done") if row["target"] == "ann"]
        assert actions == ["user.update", "user.create"]


async def test_rights_taken_from_a_user_end_in_keys_and_open_connections(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig, serving(rig.application.app) as address:
        domain, other_domain = await rig.domain(), await rig.domain()
        ann = await key_for(rig, "ann", grants={domain: "admin"})
        ben = await make_key(rig, "ben", "member", domain)
        async with socket(address, **ann) as open_socket, socket(address, key=ben) as bens:
            await rig.ok("PATCH", "/api/users/ann", {"grants": {domain: "admin", other_domain: "member"}})
            assert await open_socket.ask("ping") == {"type": "pong"}  # additional rights end nothing
            assert (await rig.http.get(f"/api/domains/{other_domain}", headers=ann)).status_code == 200
            await rig.ok("PATCH", "/api/users/ann", {"grants": {domain: "member", other_domain: "member"}})
            assert await open_socket.close_code() == 1008
            assert await bens.ask("ping") == {"type": "pong"}
        patched = await rig.http.patch(f"/api/domains/{domain}", json={"settings": {}}, headers=ann)
        assert patched.status_code == 403
        assert (await rig.http.get(f"/api/domains/{domain}", headers=ann)).status_code == 200


async def test_a_disabled_user_is_refused_at_once_until_enabled(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig, serving(rig.application.app) as address:
        domain = await rig.domain()
        ann = await key_for(rig, "ann", grants={domain: "member"})
        ticket = (await rig.ok("POST", "/api/ws-tickets", headers=ann))["subprotocol"]
        async with socket(address, **ann) as open_socket:
            assert (await rig.ok("POST", "/api/users/ann/disable"))["state"] == "disabled"
            assert await open_socket.close_code() == 1008
        assert (await rig.refused("GET", "/api/domains", headers=ann))[0] == 401
        assert not await ticket_opens(address, ticket)
        assert (await rig.refused("POST", "/api/keys", {"user": "ann"}))[:2] == (422, "VALIDATION_ERROR")
        await rig.ok("POST", "/api/users/ann/enable")
        assert (await rig.http.get("/api/domains", headers=ann)).status_code == 200
        actions = [row["action"] for row in await audited(rig, target="ann", outcome="done")]
        assert actions == ["user.enable", "user.disable", "user.create"]


async def ticket_opens(address: str, ticket: str) -> bool:
    """Return whether a ticket opens a socket. A refused ticket must be refused as unknown."""
    try:
        async with socket(address, "agentic-rag.native", ticket):
            return True
    except InvalidStatus as exc:
        return exc.response.status_code != 401


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"name": "../ann"}, "name"),
        ({"name": "system"}, "name"),
        ({"name": "ann", "grants": {"nope": "member"}}, "grants.nope"),
        ({"name": "ann", "grants": {"nope": "root"}}, "grants.nope"),
        ({"name": "ann", "displayName": "x\u0000y"}, "displayName"),
        ({"name": "taken"}, "name"),
    ],
)
async def test_a_user_with_invalid_fields_is_not_created(tmp_path: Path, body: Json, path: str) -> None:
    async with Rig(tmp_path) as rig:
        await rig.ok("POST", "/api/users", {"name": "taken"})
        status, code, message = await rig.refused("POST", "/api/users", body)
        assert (status, code, message.split(":")[0]) == (422, "VALIDATION_ERROR", path)
        assert [user["name"] for user in (await rig.ok("GET", "/api/users"))["items"]] == ["taken"]

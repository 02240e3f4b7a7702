"""Every route and every tool of ours that changes something writes an audit row."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentic_rag.server import http
from agentic_rag.server.doors import legacy as older_routes
from agentic_rag.server.routes import backups as backup_routes
from agentic_rag.server.routes import conversations as conversation_routes
from agentic_rag.server.routes import documents as document_routes
from agentic_rag.server.routes import domains as domain_routes
from agentic_rag.server.routes import keys as key_routes
from agentic_rag.server.routes import launch_requests as launch_routes
from agentic_rag.server.routes import logins as login_routes
from agentic_rag.server.routes import roles as role_routes
from agentic_rag.server.routes import servers as server_routes
from agentic_rag.server.routes import usage as usage_routes
from agentic_rag.server.routes import users as user_routes
from agentic_rag.server.routing import Declaration, declarations_of
from agentic_rag.testing.steps import Step, Use, say
from agentic_rag.tools.system import SYSTEM_TOOLS
from tests.access.tenants import audited
from tests.server.rig import Json, Rig

OWN = "what an owner does in a conversation of his own; its messages say so themselves"
READS = "it changes nothing"
NOT_AUDITED = {
    "POST /api/conversations": OWN,
    "PATCH /api/conversations/{conversation}": OWN,
    "POST /api/conversations/{conversation}/messages": OWN,
    "POST /api/conversations/{conversation}/messages/{message}/retry": OWN,
    "POST /api/conversations/{conversation}/messages/{message}/edit": OWN,
    "POST /api/conversations/{conversation}/interrupt": OWN,
    "POST /api/conversations/{conversation}/compact": OWN,
    "POST /api/conversation": OWN,
    "POST /api/conversation/{conversation}/message": OWN,
    "POST /api/v1/chat": OWN,
    "POST /api/domains/{domain}/documents/search": READS,
    "POST /api/domains/{domain}/effective-prompt": READS,
    "POST /api/domains/{domain}/roles/{role}/check": READS,
    "POST /api/auth/ticket": "the layer below tells it as the user's who signs in",
    "POST /api/auth/sign-in": "the layer below tells it as the user's who signs in",
    "POST /api/auth/renew": "a browser stays signed in",
    "POST /api/auth/sign-out": "the layer below tells it",
    "POST /api/ws-tickets": "a ticket opens one socket with the rights of the key that asked, within 30 seconds",
}
MODULES = (
    backup_routes,
    launch_routes,
    conversation_routes,
    document_routes,
    domain_routes,
    http,
    key_routes,
    older_routes,
    role_routes,
    server_routes,
    login_routes,
    usage_routes,
    user_routes,
)

LEAVE = "<role><personality>Answers about leave.</personality></role>"
CALLS: dict[str, tuple[Json, str, str]] = {
    "role_write": (
        {"role": "clerk", "files": [{"kind": "role", "id": "clerk", "content": LEAVE}]},
        "role.write",
        "clerk",
    ),
    "promptx_remember": (
        {"engrams": [{"content": "Ann likes tea.", "schema": "Ann tea", "strength": 0.8, "type": "ATOMIC"}]},
        "memory.add",
        "nuwa",
    ),
    "promptx_forget": ({"id": "1_a"}, "memory.delete", "nuwa"),
}
"""Each tool of ours that changes something: arguments, the action of its row, the owner of its role or memory."""


def changing_routes() -> Iterator[Declaration]:
    for module in MODULES:
        for kind in vars(module).values():
            if isinstance(kind, type) and kind.__module__ == module.__name__:
                yield from (declaration for declaration in declarations_of(kind) if declaration.method != "GET")


def test_every_changing_route_is_audited() -> None:
    silent = {
        f"{declaration.method} {declaration.path}" for declaration in changing_routes() if not declaration.rule.audited
    }
    assert silent <= set(NOT_AUDITED)


def test_the_changing_built_in_tools_are_listed() -> None:
    assert {tool.name for tool in SYSTEM_TOOLS if tool.effects or tool.shared_effects} == set(CALLS)


@pytest.mark.parametrize("name", sorted(CALLS))
async def test_changes_by_a_model_are_audited_for_its_user(tmp_path: Path, name: str) -> None:
    arguments, action, target = CALLS[name]
    async with Rig(tmp_path, Step((Use(name, arguments),)), say("Done.")) as rig:
        domain = await rig.domain(primaryRoleId="nuwa", toolPolicy={name: "allow"})
        engram = {"id": "1_a", "content": "Oolong", "cues": ["a", "b"], "type": "ATOMIC", "strength": 1, "createdAt": 1}
        await rig.ok("POST", f"/api/domains/{domain}/memories/import?role=nuwa", {"engrams": [engram]})
        events = await rig.say(await rig.conversation(domain), "Do it")
        (status,) = [event["status"] for event in events if event["type"] == "tool_result"]
        assert status == "ok"
        (row,) = [row for row in await audited(rig, outcome="done") if row["action"] == action]
        assert (row["actor"], row["target"]) == ("local", f"{domain}/{target}")
        assert row["details"]["turnId"] == events[0]["turnId"]
        assert row["details"]["status"] == "ok"
        assert "Oolong" not in str(row)


async def test_a_deleted_conversation_leaves_an_audit_row(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        conversation = await rig.conversation()
        await rig.ok("DELETE", f"/api/conversations/{conversation}")
        rows = await audited(rig, outcome="done")
        assert (rows[0]["action"], rows[0]["target"]) == ("conversation.delete", conversation)

"""A data folder with content of every kind and its backup open completely.

An upgrade is rehearsed, run and reverted.
"""

import json
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentic_rag.backup.restoring import Plan, restore
from agentic_rag.backup.upgrading import back_up_before, go_back, look_back, rehearse
from agentic_rag.base.settings import Settings
from agentic_rag.commands.doctor import examine
from agentic_rag.store.database import Database, find_revision
from agentic_rag.store.migrations import Revisions
from agentic_rag.testing.scripted import ScriptedModel
from tests.access.tenants import as_operator, bearer
from tests.server.rig import Json, Rig, settings_for
from tests.waiting import pause

from .every_kind import BRANCHED, FOLDER, NOTED, REMEMBERED, SUMMARY, answer
from .later import NEXT, make_later
from .making import ANSWER, SECRET, read_rows
from .releases import ABOUT, lay_out, make_fixture

QUERY = {"query": "pump", "threshold": 0}
NEVER_FILLED = frozenset(
    {"alembic_version", "budget_reservations", "imports", "leases", "replicas", "signals", "tickets"}
    | {"memories", "engrams", "engram_cues"}
)
"""Tables without a row from `tests.backup.every_kind`.

They have rows only during a call or an import, or if several servers share a store.
"""


async def check(folder: Path, facts: Json) -> None:
    """Check everything in a data folder below ``folder`` that `tests.backup.every_kind` created."""
    async with Rig(folder, instead=ScriptedModel(then=answer)) as rig:
        rig.application.begin()
        as_operator(rig)
        await _check_as_operator(rig, facts)
        rig.http.headers.update(bearer(facts["key"]))
        await _check_as_user(rig, facts)
    assert await examine(settings_for(folder), False) == []


async def _check_as_operator(rig: Rig, facts: Json) -> None:
    assert (await rig.ok("GET", "/api/audit/verify"))["intact"]
    assert await rig.application.parts.vault.values(facts["domain"]) == {"TOKEN": SECRET}
    assert [user["name"] for user in (await rig.ok("GET", "/api/users"))["items"]] == [facts["user"]]
    assert [key["userId"] for key in (await rig.ok("GET", "/api/keys"))["items"]] == [facts["user"]]
    (request,) = (await rig.ok("GET", "/api/launch-requests"))["items"]
    assert (request["state"], request["command"]) == ("open", "python3")
    (second_domain,) = [
        domain_row["id"]
        for domain_row in (await rig.ok("GET", "/api/domains"))["items"]
        if domain_row["id"] != facts["domain"]
    ]
    (account,) = (await rig.ok("GET", f"/api/domains/{second_domain}/mcp-servers/web/sign-ins"))["items"]
    assert account["account"] == "anna@example.com"


async def _check_as_user(rig: Rig, facts: Json) -> None:
    domain, conversation = f"/api/domains/{facts['domain']}", f"/api/conversations/{facts['talk']}"
    with anyio.fail_after(240):  # the archive has no index, so it is rebuilt
        checks = count()
        while "pump.md" not in str(await rig.ok("POST", f"{domain}/documents/search", QUERY)):
            await pause(next(checks))
    assert [document["name"] for document in (await rig.ok("GET", f"{domain}/documents"))["items"]] == ["pump.md"]
    assert "law" in [role["id"] for role in (await rig.ok("GET", f"{domain}/roles"))["items"]]
    assert (await rig.ok("GET", conversation))["folder"] == FOLDER
    items = (await rig.ok("GET", f"{conversation}/messages"))["items"]
    assert [message["content"] for message in items[-2:]] == [BRANCHED, ANSWER]
    assert len((await rig.ok("GET", f"{conversation}/branches"))["items"]) == 2
    (archive,) = (await rig.ok("GET", f"{conversation}/archives"))["items"]
    assert SUMMARY in archive["summary"]
    calls = (await rig.ok("GET", f"{conversation}/tool-calls"))["items"]
    assert {call["toolName"] for call in calls} == {"search_documents", "promptx_remember", "delegate"}
    (ref,) = [block["source"]["ref"] for item in items for block in item["blocks"] if block["type"] == "image"]
    assert (await rig.http.get(f"/api/payloads/{ref}")).content.startswith(b"\x89PNG")
    await _check_memories_and_wait(rig, facts, domain)
    assert (await rig.say(facts["talk"], "And now?"))[-1]["type"] == "done"


async def _check_memories_and_wait(rig: Rig, facts: Json, domain: str) -> None:
    """The memories exist. The waiting turn continues with the answer, and saves more memories."""
    assert [memory["content"] for memory in await _memories(rig, domain)] == [REMEMBERED]
    (wait,) = (await rig.ok("GET", "/api/waits?state=open"))["items"]
    assert wait["conversationId"] == facts["waiting"]
    await rig.ok("POST", f"/api/waits/{wait['id']}", {"action": "accept"})
    with anyio.fail_after(240):
        checks = count()
        while (await rig.ok("GET", f"/api/turns/{wait['turnId']}"))["status"] != "done":
            await pause(next(checks))
    assert {memory["content"] for memory in await _memories(rig, domain)} == {REMEMBERED, NOTED}


async def _memories(rig: Rig, domain: str) -> list[Any]:
    return list((await rig.ok("GET", f"{domain}/memories"))["items"])


def lay_out_all(fixture: Path, folder: Path) -> Json:
    """Unpack a fixture and return its description."""
    lay_out(fixture, folder)
    facts: Json = json.loads((folder / ABOUT).read_text())
    return facts


async def open_release(fixture: Path, folder: Path) -> None:
    facts = lay_out_all(fixture, folder)
    await check(folder, facts)
    copy = folder / "copy" / "data"
    await restore(Plan(folder / "backup.tar.zst", copy, copy / "agentic-rag.db"))
    await check(folder / "copy", facts)


def rows_of(settings: Settings) -> dict[str, list[tuple[object, ...]]]:
    """Return the records, without the time of the last write check of the store."""
    rows = read_rows(settings.data / "agentic-rag.db")
    del rows["probe"]
    return rows


async def upgrade_and_take_back(fixture: Path, folder: Path, later_revisions: Revisions) -> None:
    """Rehearse the migrations to a later version, run them, and restore the earlier tables."""
    lay_out_all(fixture, folder)
    settings = settings_for(folder)
    release, rows = await find_revision(settings.database), rows_of(settings)
    rehearsal = await rehearse(settings, later_revisions)
    assert (rehearsal.revision, rehearsal.steps[-1][0]) == (release, NEXT)
    assert rows_of(settings) == rows
    before = await back_up_before(settings, later_revisions)
    assert before is not None
    await (await Database.open(settings.database, later_revisions)).aclose()
    assert await find_revision(settings.database) == NEXT
    await go_back(settings, await look_back(settings, before, later_revisions), later_revisions)
    assert await find_revision(settings.database) == release
    assert rows_of(settings) == rows


@pytest.mark.sqlite("leaves a file")
async def test_a_folder_with_every_kind_of_record_opens_and_its_upgrade_is_reverted(tmp_path: Path) -> None:
    fixture = tmp_path / "now.tar.zst"
    await make_fixture(tmp_path / "made", fixture)
    rows = read_rows(tmp_path / "made" / "data" / "agentic-rag.db")
    empty = {name for name, table_rows in rows.items() if not table_rows} - NEVER_FILLED
    assert not empty, f"tests/backup/every_kind.py puts nothing into {sorted(empty)}"
    await open_release(fixture, tmp_path / "opened")
    await upgrade_and_take_back(fixture, tmp_path / "upgraded", make_later(tmp_path / "migrations"))

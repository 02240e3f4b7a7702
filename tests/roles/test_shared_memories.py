"""Memories of servers that share a database: saved at one, recalled at the other; deleted, erased, moved."""

import json
from pathlib import Path

import pytest
from sqlalchemy import func, select

from agentic_rag.access.users import User
from agentic_rag.backup.contents import BackupOptions
from agentic_rag.backup.making import make_backup
from agentic_rag.backup.restoring import Plan, restore
from agentic_rag.roles.memories import Export
from agentic_rag.roles.memory_moves import take_all_over
from agentic_rag.store.memories import ENGRAM_CUES, ENGRAMS, MEMORIES
from agentic_rag.testing.scripted import ScriptedModel
from agentic_rag.testing.steps import say
from mcp_servers.promptx.memory import Memory, memory_folder
from mcp_servers.promptx.new_engrams import NewEngram
from tests.backup.making import fill
from tests.server.rig import Rig
from tests.store.conftest import needs_postgresql, postgresql_url
from tests.store.test_database_moves import fresh_url, private_files
from tests.store.test_leases import store
from tests.store.test_several_servers import open_servers

from .test_memories import browse, recall, remember, turn

__all__ = ["fresh_url", "postgresql_url", "private_files", "store"]
pytestmark = [needs_postgresql, pytest.mark.xdist_group("postgresql_url")]


async def count_rows(rig: Rig) -> list[int]:
    """Return the number of memory rows in each table."""
    tables = [MEMORIES, ENGRAMS, ENGRAM_CUES]
    return await rig.application.database.read(
        lambda conn: [conn.execute(select(func.count()).select_from(table)).scalar_one() for table in tables]
    )


def files_below(folder: Path) -> list[str]:
    """The memories that are stored in files."""
    return sorted(str(each.relative_to(folder)).partition("/.promptx/")[2] for each in folder.rglob("engrams.db"))


async def test_memories_of_one_server_are_recalled_forgotten_and_erased_on_another(tmp_path: Path, store: str) -> None:
    steps = [remember("Anna likes sencha."), say("1"), recall(), say("2"), remember("Ben likes tea."), say("3")]
    async with open_servers(tmp_path, store, *steps) as (a, b):
        domain = await a.domain(memoryScope="user")
        anna, ben = (User(name, domains=frozenset({domain})) for name in ("anna", "ben"))
        await turn(a, anna, domain)
        there = b.application.business.memories
        page = await there.browse(anna, domain, role=None, q="", offset=0, limit=10)
        assert [(name, engram.content) for name, engram in page.items] == [("assistant", "Anna likes sencha.")]
        found = await there.recall(anna, domain, "assistant", "tea", "balanced")
        assert [each.content for each in found.engrams] == ["Anna likes sencha."]
        assert files_below(tmp_path) == []
        await there.erase(a.settings.workspaces / domain, "anna")
        assert await count_rows(a) == [0, 0, 0]
        assert "sencha" not in await turn(a, anna, domain)
        await turn(a, ben, domain)
        [(_, told)] = (await there.browse(ben, domain, role=None, q="", offset=0, limit=10)).items
        assert (await count_rows(a))[1:] == [1, 2]
        await there.delete(ben, domain, told.id)
        assert (await count_rows(a))[1:] == [0, 0]
        here = a.application.business.memories
        assert (await here.browse(ben, domain, role=None, q="", offset=0, limit=9)).total == 0
        await b.ok("DELETE", f"/api/domains/{domain}")
        assert await count_rows(a) == [0, 0, 0]


async def exports(rig: Rig) -> list[tuple[str, Export]]:
    """Return the local user's export of the roles of all domains."""
    found = []
    for domain in (await rig.ok("GET", "/api/domains"))["items"]:
        for role in (await browse(rig, domain["id"]))["roles"]:
            params = {"role": role}
            found.append((role, await rig.ok("GET", f"/api/domains/{domain['id']}/memories/export", params=params)))
    return found


def lay_memory(data: Path) -> None:
    """Let the domain save memories, one of which was replaced."""
    [note] = data.glob("workspaces/*/files/notes ü.txt")
    workspace = note.parents[1]
    memory = Memory(memory_folder(workspace, "domain", None, "law"))
    [old] = memory.remember([NewEngram("The pump holds 5 l.", "pump litres", 0.5, "LINK")], 10).saved
    memory.remember([NewEngram("The pump holds 7 l.", "pump litres", 0.5, "LINK", old.id)], 20, author="local")
    memory.recall("pump", "focused", 30)
    memory.save()
    memory.close()


@pytest.mark.sqlite("begins with a file")
@pytest.mark.nightly("backup/test_commands.py restores memories every time")
async def test_a_backup_brings_memories_from_files_into_the_database_and_back(tmp_path: Path, fresh_url: str) -> None:
    data = await fill(tmp_path / "one")
    lay_memory(data)
    first, second = tmp_path / "first.tar.zst", tmp_path / "second.tar.zst"
    async with Rig(tmp_path / "one", instead=ScriptedModel()) as rig:
        told = await exports(rig)
    assert "7 l" in json.dumps(told)
    await make_backup(data / "agentic-rag.db", data, first, BackupOptions(with_key=True))
    moved = tmp_path / "two" / "data"
    await restore(Plan(first, moved, fresh_url))
    async with Rig(tmp_path / "two", instead=ScriptedModel(), database_url=fresh_url) as rig:
        assert await exports(rig) == told
        assert files_below(moved) == ["cognition.user/local/law/engrams.db"], "nobody has asked for it yet"
        assert await take_all_over(rig.application.database) == 1
        assert files_below(moved) == []
        assert (await count_rows(rig))[0] == 2
    await make_backup(fresh_url, moved, second, BackupOptions(with_key=True))
    back = tmp_path / "three" / "data"
    await restore(Plan(second, back, back / "agentic-rag.db"))
    async with Rig(tmp_path / "three", instead=ScriptedModel()) as rig:
        assert await exports(rig) == told
        assert await count_rows(rig) == [0, 0, 0]
        assert files_below(back) == files_below(data)

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
from agentic_rag.roles.memory_store import take_all_over
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

from .test_memories import browse, recall_tea, remember, run_turn

__all__ = ["fresh_url", "postgresql_url", "private_files", "store"]
pytestmark = [needs_postgresql, pytest.mark.xdist_group("postgresql_url")]


async def count_rows(rig: Rig) -> list[int]:
    """Return the number of memory rows in each table."""
    tables = [MEMORIES, ENGRAMS, ENGRAM_CUES]
    return await rig.application.database.read(
        lambda conn: [conn.execute(select(func.count()).select_from(table)).scalar_one() for table in tables]
    )


def list_memory_files(folder: Path) -> list[str]:
    """The memories that are stored in files."""
    return sorted(str(path.relative_to(folder)).partition("/.promptx/")[2] for path in folder.rglob("engrams.db"))


async def test_memories_of_one_server_are_recalled_forgotten_and_erased_on_another(tmp_path: Path, store: str) -> None:
    steps = [remember("Anna likes sencha."), say("1"), recall_tea(), say("2"), remember("Ben likes tea."), say("3")]
    async with open_servers(tmp_path, store, *steps) as (a, b):
        domain = await a.domain(memoryScope="user")
        anna, ben = (User(name, domains=frozenset({domain})) for name in ("anna", "ben"))
        await run_turn(a, anna, domain)
        memories_of_b = b.application.services.memories
        page = await memories_of_b.browse(anna, domain, role=None, q="", offset=0, limit=10)
        assert [(name, engram.content) for name, engram in page.items] == [("assistant", "Anna likes sencha.")]
        recollection = await memories_of_b.recall(anna, domain, "assistant", "tea", "balanced")
        assert [engram.content for engram in recollection.engrams] == ["Anna likes sencha."]
        assert list_memory_files(tmp_path) == []
        await memories_of_b.erase(a.settings.workspaces / domain, "anna")
        assert await count_rows(a) == [0, 0, 0]
        assert "sencha" not in await run_turn(a, anna, domain)
        await run_turn(a, ben, domain)
        [(_, ben_engram)] = (await memories_of_b.browse(ben, domain, role=None, q="", offset=0, limit=10)).items
        assert (await count_rows(a))[1:] == [1, 2]
        await memories_of_b.delete(ben, domain, ben_engram.id)
        assert (await count_rows(a))[1:] == [0, 0]
        memories_of_a = a.application.services.memories
        assert (await memories_of_a.browse(ben, domain, role=None, q="", offset=0, limit=9)).total == 0
        await b.ok("DELETE", f"/api/domains/{domain}")
        assert await count_rows(a) == [0, 0, 0]


async def read_exports(rig: Rig) -> list[tuple[str, Export]]:
    """Return the local user's export of the roles of all domains."""
    role_exports = []
    for domain in (await rig.ok("GET", "/api/domains"))["items"]:
        for role in (await browse(rig, domain["id"]))["roles"]:
            params = {"role": role}
            role_exports.append(
                (role, await rig.ok("GET", f"/api/domains/{domain['id']}/memories/export", params=params))
            )
    return role_exports


def lay_memory(data: Path) -> None:
    """Let the domain save memories, one of which was replaced."""
    [note] = data.glob("workspaces/*/files/notes ü.txt")
    workspace = note.parents[1]
    memory = Memory(memory_folder(workspace, "domain", None, "law"))
    [first_engram] = memory.remember([NewEngram("The pump holds 5 l.", "pump litres", 0.5, "LINK")], 10).saved
    memory.remember([NewEngram("The pump holds 7 l.", "pump litres", 0.5, "LINK", first_engram.id)], 20, author="local")
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
        exports_before = await read_exports(rig)
    assert "7 l" in json.dumps(exports_before)
    await make_backup(data / "agentic-rag.db", data, first, BackupOptions(with_key=True))
    restored_data = tmp_path / "two" / "data"
    await restore(Plan(first, restored_data, fresh_url))
    async with Rig(tmp_path / "two", instead=ScriptedModel(), database_url=fresh_url) as rig:
        assert await read_exports(rig) == exports_before
        assert list_memory_files(restored_data) == ["cognition.user/local/law/engrams.db"], (
            "nobody has asked for it yet"
        )
        assert await take_all_over(rig.application.database) == 1
        assert list_memory_files(restored_data) == []
        assert (await count_rows(rig))[0] == 2
    await make_backup(fresh_url, restored_data, second, BackupOptions(with_key=True))
    final_data = tmp_path / "three" / "data"
    await restore(Plan(second, final_data, final_data / "agentic-rag.db"))
    async with Rig(tmp_path / "three", instead=ScriptedModel()) as rig:
        assert await read_exports(rig) == exports_before
        assert await count_rows(rig) == [0, 0, 0]
        assert list_memory_files(final_data) == list_memory_files(data)

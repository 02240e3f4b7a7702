"""Repeated content in a memory: replaced, forgotten, or already stored."""

import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_types import CallToolResult

from mcp_servers.promptx.errors import BadEngram, MemoryFull, UnknownMemory, UnknownReplaced
from mcp_servers.promptx.memory import Memory
from mcp_servers.promptx.new_engrams import NewEngram
from mcp_servers.promptx.server import PromptXConfig, create_server
from mcp_servers.safe_files import Folder

from .conftest import ROLE
from .test_server import bound, files_in, text

NOW = 1_795_300_000_000


def new(content: str, schema: str = "home city", replaces: str = "") -> NewEngram:
    return NewEngram(content, schema, 0.5, "ATOMIC", replaces)


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(Folder(tmp_path / ROLE))


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client(create_server(PromptXConfig(bound_by_meta=True))) as connected:
        yield connected


def save(memory: Memory, engram: NewEngram, now: int = NOW) -> str:
    [saved] = memory.remember([engram], now).saved
    return saved.id


def shown(memory: Memory, query: str | None) -> list[str]:
    found = memory.recall(query, "balanced", NOW)
    return [each.content for each in (*found.engrams, *found.answer, *found.overview)]


@pytest.mark.parametrize("query", ["home", "city", "Berlin", "LIVES", None])
@pytest.mark.parametrize("again", ["the same process", "another process", "after a restart"])
def test_a_replaced_memory_is_not_recalled_and_stays_in_the_ledger(
    memory: Memory, query: str | None, again: str
) -> None:
    old = save(memory, new("lives in Berlin"))
    reader = Memory(memory.folder) if again == "another process" else memory
    assert "lives in Berlin" in shown(reader, query)
    reader.recall("LIVES", "balanced", NOW)
    newest = save(memory, new("lives in Paris", replaces=old), NOW + 1)
    if again == "after a restart":
        memory.close()
    assert set(shown(reader, query)) <= {"lives in Paris"}
    assert [engram.content for engram in memory.browse().engrams] == ["lives in Paris"]
    [kept] = memory.browse(which="replaced").engrams
    assert (kept.id, kept.content, kept.replaced_by) == (old, "lives in Berlin", newest)


def test_a_memory_with_replaced_engrams_keeps_promptxs_format(memory: Memory) -> None:
    old = save(memory, new("lives in Berlin"))
    newest = save(memory, new("lives in Paris", replaces=old), NOW + 1)
    memory.close()
    with sqlite3.connect(memory.folder.path / "engrams.db") as connection:
        by_cue = connection.execute("SELECT DISTINCT engram_id FROM cue_index WHERE word='home'").fetchall()
        rows = connection.execute("SELECT id, json_valid(schema), json_valid(metadata) FROM engrams").fetchall()
    connection.close()
    assert by_cue == [(newest,)]  # joined as in PromptX's own recall
    assert sorted(rows) == sorted([(old, 1, 1), (newest, 1, 1)])
    network = json.loads((memory.folder.path / "network.json").read_text("utf-8"))
    assert network["cues"]["home"]["memories"] == [newest]


def test_bad_replacements_name_their_index_and_change_nothing(memory: Memory) -> None:
    old = save(memory, new("lives in Berlin"))
    with pytest.raises(UnknownReplaced, match=r"engrams\[1\]: replaces: there is no memory '1_no' here"):
        memory.remember([new("a"), new("b", replaces="1_no")], NOW)
    with pytest.raises(BadEngram, match="was replaced before"):
        memory.remember([new("a", replaces=old), new("b", replaces=old)], NOW)
    newest = save(memory, new("lives in Paris", replaces=old), NOW + 1)
    with pytest.raises(BadEngram, match=f"was replaced before, by {newest}"):
        memory.remember([new("c", replaces=old)], NOW)
    with pytest.raises(MemoryFull):
        memory.remember([new("c", replaces=newest)], NOW, limit=2)
    assert [engram.content for engram in memory.browse(which="all").engrams] == ["lives in Paris", "lives in Berlin"]


def test_forgetting_also_removes_replaced_versions_and_their_bytes(memory: Memory) -> None:
    old = save(memory, new("lives in Berlin"))
    newer = save(memory, new("lives in Paris", replaces=old), NOW + 1)
    newest = save(memory, new("lives in Rome", replaces=newer), NOW + 2)
    other = save(memory, new("likes tea", "tea green"), NOW + 3)
    assert memory.forget(newest).content == "lives in Rome"
    assert [each.id for each in memory.export()] == [other]
    memory.close()
    left = b"".join(path.read_bytes() for path in memory.folder.path.iterdir())
    assert not any(city in left for city in (b"Berlin", b"Paris", b"Rome"))
    with pytest.raises(UnknownMemory):
        memory.forget(newest)


def test_an_imported_memory_keeps_replaced_engrams_and_does_not_recall_them(memory: Memory, tmp_path: Path) -> None:
    old = save(memory, new("lives in Berlin"))
    save(memory, new("lives in Paris", replaces=old), NOW + 1)
    memory.close()
    copy = Memory(Folder(tmp_path / "copy" / ROLE))
    assert copy.add(memory.export(), memory.frequencies()) == 2
    assert shown(copy, "home") == ["lives in Paris"] * 2
    exported = [each.to_json() for each in memory.export()]
    again = Memory(Folder(tmp_path / "again" / ROLE))
    again.add([type(memory.export()[0]).from_json(each) for each in exported], {})
    assert shown(again, "home") == ["lives in Paris"] * 2


def test_identical_memories_are_not_duplicated_and_similar_ones_are_named(memory: Memory) -> None:
    old = save(memory, new("The user lives in Berlin"))
    again = memory.remember([new("the user  LIVES in berlin", "HOME city"), new("likes tea", "tea green")], NOW + 1)
    assert [each.content for each in again.saved] == ["likes tea"]
    assert [duplicate.id for duplicate in again.duplicates] == [old]
    moved = memory.remember([new("The user lives in Paris")], NOW + 2)
    assert [(near.engram.content, [each.id for each in near.similar]) for near in moved.near] == [
        ("The user lives in Paris", [old])
    ]
    assert (
        memory.remember([new("The user lives in Rome", replaces=moved.saved[0].id)], NOW + 3).near[0].similar[0].id
        == old
    )
    assert memory.remember([new("A pump holds nine litres", "pump litres")], NOW + 4).near == ()


@pytest.mark.parametrize(
    ("first", "second"),
    [("用户喜欢喝绿茶", "用户现在喜欢喝红茶"), ("Ana wants invoices as PDF", "Ana wants her invoices as XML files")],
)
def test_a_near_duplicate_is_found_under_other_keywords_and_behind_many_newer_ones(
    memory: Memory, first: str, second: str
) -> None:
    old = save(memory, new(first, "绿茶 PDF"))
    for number in range(2):
        batch = [new(f"filler {number} {n}", f"f{number}{n} g{number}{n}") for n in range(100)]
        memory.remember(batch, NOW + 1)
    done = memory.remember([new(second, "喝绿茶 invoices PDF")], NOW + 2)
    assert [each.id for near in done.near for each in near.similar] == [old]


async def call(client: Client, tool: str, meta: Any, **arguments: Any) -> CallToolResult:
    result: CallToolResult = await client.call_tool(tool, arguments, meta=meta)
    return result


def item(content: str, **more: str) -> dict[str, Any]:
    return {"content": content, "schema": "home city", "strength": 0.5, "type": "ATOMIC", **more}


async def test_the_model_learns_of_duplicates_and_replaces_and_forgets_by_id(client: Client, workspace: Path) -> None:
    meta = bound(workspace)
    first = await call(client, "promptx_remember", meta, engrams=[item("lives in Berlin")])
    old = first.structured_content["engrams"][0]["id"]
    assert text(await call(client, "promptx_remember", meta, engrams=[item("Lives in Berlin")])).startswith(
        "Known already, not saved again:\n- [ATOMIC 0.5 "
    )
    second = await call(client, "promptx_remember", meta, engrams=[item("lives in Paris")])
    assert "These are about the same" in text(second)
    assert f" {old}] lives in Berlin (home · city)" in text(second)
    third = await call(client, "promptx_remember", meta, engrams=[item("lives in Rome", replaces=old)])
    assert not third.is_error
    newest = third.structured_content["engrams"][0]["id"]
    gone = await call(client, "promptx_forget", meta, id=newest)
    assert (text(gone), gone.structured_content) == ("Forgotten: lives in Rome", {"forgotten": newest})
    found = await call(client, "promptx_recall", meta, query="home")
    assert [each["content"] for each in found.structured_content["found"]] == ["lives in Paris"]


@pytest.mark.parametrize("tool", ["promptx_forget", "promptx_remember"])
async def test_another_users_memory_is_not_found(client: Client, workspace: Path, tool: str) -> None:
    saved = await call(client, "promptx_remember", bound(workspace), engrams=[item("lives in Berlin")])
    theirs = saved.structured_content["engrams"][0]["id"]

    def arguments(key: str) -> dict[str, Any]:
        return {"id": key} if tool == "promptx_forget" else {"engrams": [item("x", replaces=key)]}

    for meta in (bound(workspace, "bob"), bound(workspace) | {"agentic_rag/role": "nuwa"}):
        refused = await call(client, tool, meta, **arguments(theirs))
        never = await call(client, tool, meta, **arguments("1_never"))
        assert refused.is_error
        assert text(refused) == text(never).replace("1_never", theirs)
    found = await call(client, "promptx_recall", bound(workspace), query="home")
    assert len(found.structured_content["found"]) == 1


@pytest.mark.parametrize("tool", ["promptx_forget", "promptx_remember"])
async def test_in_a_shared_memory_only_author_and_admin_can_change_an_engram(
    client: Client, workspace: Path, tool: str
) -> None:
    anna, ben, admin = (bound(workspace, name, "domain", admin=name == "olga") for name in ("anna", "ben", "olga"))
    for changer, allowed in ((anna, True), (ben, False), (admin, True)):
        content = f"lives in Berlin {allowed} {id(changer)}"
        saved = await call(client, "promptx_remember", anna, engrams=[item(content)])
        key = saved.structured_content["engrams"][0]["id"]
        arguments = {"id": key} if tool == "promptx_forget" else {"engrams": [item("moved", replaces=key)]}
        result = await call(client, tool, changer, **arguments)
        assert result.is_error is not allowed
        assert allowed or "is another user's" in text(result)


async def test_memories_of_others_are_marked_in_the_result_of_a_save(client: Client, workspace: Path) -> None:
    anna, ben = (bound(workspace, name, "domain") | {"agentic_rag/turn": "turn_1"} for name in ("anna", "ben"))
    first = await call(client, "promptx_remember", anna, engrams=[item("lives in Berlin")])
    assert "othersText" not in first.structured_content
    second = await call(client, "promptx_remember", ben, engrams=[item("lives in Paris")])
    assert second.structured_content["othersText"] is True


async def test_a_calls_role_is_used_if_the_host_allows_it_and_refused_by_name_otherwise(
    client: Client, workspace: Path
) -> None:
    meta = bound(workspace) | {"agentic_rag/memory_roles": ["nuwa", "assistant"]}
    saved = await call(client, "promptx_remember", meta, role="nuwa", engrams=[item("lives in Berlin")])
    assert saved.structured_content["role"] == "nuwa"
    assert text(saved).startswith("Saved 1 memory under the role nuwa.")
    own = await call(client, "promptx_remember", meta, engrams=[item("lives in Rome")])
    assert own.structured_content["role"] == "assistant"
    for role, content in (("nuwa", "lives in Berlin"), ("assistant", "lives in Rome"), ("", "lives in Rome")):
        found = await call(client, "promptx_recall", meta, role=role, query="home", user="bob")
        assert [engram["content"] for engram in found.structured_content["found"]] == [content]
    for role in ("../x", "researcher", "nobody", "Nuwa", "x" * 500):
        for tool, arguments in (
            ("promptx_remember", {"engrams": [item("lives in Oslo")]}),
            ("promptx_recall", {"query": "home"}),
            ("promptx_forget", {"id": saved.structured_content["engrams"][0]["id"]}),
        ):
            refused = await call(client, tool, meta, role=role, **arguments)
            assert refused.is_error
            assert role[:80] in text(refused)
            assert refused.structured_content["possible"] == ["assistant", "nuwa"]
    folders = {path.parent.name for path in files_in(workspace) if path.name == "engrams.db"}
    assert folders == {"assistant", "nuwa"}


async def test_a_recalled_memory_has_its_relevance(client: Client, workspace: Path) -> None:
    meta = bound(workspace)
    near = item("Ana wants invoices as PDF", schema="Ana invoices PDF")
    linked = item("PDF files go to the archive", schema="PDF archive")
    await call(client, "promptx_remember", meta, engrams=[near, linked])
    found = await call(client, "promptx_recall", meta, query="Ana invoices")
    relevance = {engram["content"]: engram["relevance"] for engram in found.structured_content["found"]}
    assert relevance["Ana wants invoices as PDF"] == 1.0
    assert 0 < relevance["PDF files go to the archive"] < 0.5

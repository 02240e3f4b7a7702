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
from .test_server import list_paths, make_meta, text_of

NOW = 1_795_300_000_000


def new_engram(content: str, schema: str = "home city", replaces: str = "") -> NewEngram:
    return NewEngram(content, schema, 0.5, "ATOMIC", replaces)


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(Folder(tmp_path / ROLE))


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client(create_server(PromptXConfig(bound_by_meta=True))) as connected:
        yield connected


def save_engram(memory: Memory, engram: NewEngram, now: int = NOW) -> str:
    [saved] = memory.remember([engram], now).saved
    return saved.id


def recalled_contents(memory: Memory, query: str | None) -> list[str]:
    recollection = memory.recall(query, "balanced", NOW)
    return [engram.content for engram in (*recollection.engrams, *recollection.answer, *recollection.overview)]


@pytest.mark.parametrize("query", ["home", "city", "Berlin", "LIVES", None])
@pytest.mark.parametrize("situation", ["the same process", "another process", "after a restart"])
def test_a_replaced_memory_is_not_recalled_and_stays_in_the_ledger(
    memory: Memory, query: str | None, situation: str
) -> None:
    old_id = save_engram(memory, new_engram("lives in Berlin"))
    reader = Memory(memory.folder) if situation == "another process" else memory
    assert "lives in Berlin" in recalled_contents(reader, query)
    reader.recall("LIVES", "balanced", NOW)
    newest_id = save_engram(memory, new_engram("lives in Paris", replaces=old_id), NOW + 1)
    if situation == "after a restart":
        memory.close()
    assert set(recalled_contents(reader, query)) <= {"lives in Paris"}
    assert [engram.content for engram in memory.browse().engrams] == ["lives in Paris"]
    [replaced_engram] = memory.browse(which="replaced").engrams
    assert (replaced_engram.id, replaced_engram.content, replaced_engram.replaced_by) == (
        old_id,
        "lives in Berlin",
        newest_id,
    )


def test_a_memory_with_replaced_engrams_keeps_promptxs_format(memory: Memory) -> None:
    old = save_engram(memory, new_engram("lives in Berlin"))
    newest = save_engram(memory, new_engram("lives in Paris", replaces=old), NOW + 1)
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
    old = save_engram(memory, new_engram("lives in Berlin"))
    with pytest.raises(UnknownReplaced, match=r"engrams\[1\]: replaces: there is no memory '1_no' here"):
        memory.remember([new_engram("a"), new_engram("b", replaces="1_no")], NOW)
    with pytest.raises(BadEngram, match="was replaced before"):
        memory.remember([new_engram("a", replaces=old), new_engram("b", replaces=old)], NOW)
    newest = save_engram(memory, new_engram("lives in Paris", replaces=old), NOW + 1)
    with pytest.raises(BadEngram, match=f"was replaced before, by {newest}"):
        memory.remember([new_engram("c", replaces=old)], NOW)
    with pytest.raises(MemoryFull):
        memory.remember([new_engram("c", replaces=newest)], NOW, limit=2)
    assert [engram.content for engram in memory.browse(which="all").engrams] == ["lives in Paris", "lives in Berlin"]


def test_forgetting_also_removes_replaced_versions_and_their_bytes(memory: Memory) -> None:
    old_id = save_engram(memory, new_engram("lives in Berlin"))
    newer_id = save_engram(memory, new_engram("lives in Paris", replaces=old_id), NOW + 1)
    newest_id = save_engram(memory, new_engram("lives in Rome", replaces=newer_id), NOW + 2)
    tea_id = save_engram(memory, new_engram("likes tea", "tea green"), NOW + 3)
    assert memory.forget(newest_id).content == "lives in Rome"
    assert [engram.id for engram in memory.export()] == [tea_id]
    memory.close()
    remaining_bytes = b"".join(path.read_bytes() for path in memory.folder.path.iterdir())
    assert not any(city in remaining_bytes for city in (b"Berlin", b"Paris", b"Rome"))
    with pytest.raises(UnknownMemory):
        memory.forget(newest_id)


def test_an_imported_memory_keeps_replaced_engrams_and_does_not_recall_them(memory: Memory, tmp_path: Path) -> None:
    old_id = save_engram(memory, new_engram("lives in Berlin"))
    save_engram(memory, new_engram("lives in Paris", replaces=old_id), NOW + 1)
    memory.close()
    copy = Memory(Folder(tmp_path / "copy" / ROLE))
    assert copy.add(memory.export(), memory.frequencies()) == 2
    assert recalled_contents(copy, "home") == ["lives in Paris"] * 2
    entries = [engram.to_json() for engram in memory.export()]
    second_copy = Memory(Folder(tmp_path / "again" / ROLE))
    second_copy.add([type(memory.export()[0]).from_json(entry) for entry in entries], {})
    assert recalled_contents(second_copy, "home") == ["lives in Paris"] * 2


def test_identical_memories_are_not_duplicated_and_similar_ones_are_named(memory: Memory) -> None:
    old_id = save_engram(memory, new_engram("The user lives in Berlin"))
    repeated = memory.remember(
        [new_engram("the user  LIVES in berlin", "HOME city"), new_engram("likes tea", "tea green")], NOW + 1
    )
    assert [engram.content for engram in repeated.saved] == ["likes tea"]
    assert [duplicate.id for duplicate in repeated.duplicates] == [old_id]
    contradiction = memory.remember([new_engram("The user lives in Paris")], NOW + 2)
    assert [(group.engram.content, [engram.id for engram in group.similar]) for group in contradiction.near] == [
        ("The user lives in Paris", [old_id])
    ]
    assert (
        memory.remember([new_engram("The user lives in Rome", replaces=contradiction.saved[0].id)], NOW + 3)
        .near[0]
        .similar[0]
        .id
        == old_id
    )
    assert memory.remember([new_engram("A pump holds nine litres", "pump litres")], NOW + 4).near == ()


@pytest.mark.parametrize(
    ("first", "second"),
    [("用户喜欢喝绿茶", "用户现在喜欢喝红茶"), ("Ana wants invoices as PDF", "Ana wants her invoices as XML files")],
)
def test_a_near_duplicate_is_found_under_other_keywords_and_behind_many_newer_ones(
    memory: Memory, first: str, second: str
) -> None:
    old_id = save_engram(memory, new_engram(first, "绿茶 PDF"))
    for number in range(2):
        batch = [new_engram(f"filler {number} {n}", f"f{number}{n} g{number}{n}") for n in range(100)]
        memory.remember(batch, NOW + 1)
    outcome = memory.remember([new_engram(second, "喝绿茶 invoices PDF")], NOW + 2)
    assert [engram.id for group in outcome.near for engram in group.similar] == [old_id]


async def call(client: Client, tool: str, meta: Any, **arguments: Any) -> CallToolResult:
    result: CallToolResult = await client.call_tool(tool, arguments, meta=meta)
    return result


def engram_item(content: str, **fields: str) -> dict[str, Any]:
    return {"content": content, "schema": "home city", "strength": 0.5, "type": "ATOMIC", **fields}


async def test_the_model_learns_of_duplicates_and_replaces_and_forgets_by_id(client: Client, workspace: Path) -> None:
    meta = make_meta(workspace)
    first = await call(client, "promptx_remember", meta, engrams=[engram_item("lives in Berlin")])
    old_id = first.structured_content["engrams"][0]["id"]
    assert text_of(await call(client, "promptx_remember", meta, engrams=[engram_item("Lives in Berlin")])).startswith(
        "Known already, not saved again:\n- [ATOMIC 0.5 "
    )
    second = await call(client, "promptx_remember", meta, engrams=[engram_item("lives in Paris")])
    assert "These are about the same" in text_of(second)
    assert f" {old_id}] lives in Berlin (home · city)" in text_of(second)
    third = await call(client, "promptx_remember", meta, engrams=[engram_item("lives in Rome", replaces=old_id)])
    assert not third.is_error
    newest_id = third.structured_content["engrams"][0]["id"]
    forgotten = await call(client, "promptx_forget", meta, id=newest_id)
    assert (text_of(forgotten), forgotten.structured_content) == ("Forgotten: lives in Rome", {"forgotten": newest_id})
    recall = await call(client, "promptx_recall", meta, query="home")
    assert [engram["content"] for engram in recall.structured_content["found"]] == ["lives in Paris"]


@pytest.mark.parametrize("tool", ["promptx_forget", "promptx_remember"])
async def test_another_users_memory_is_not_found(client: Client, workspace: Path, tool: str) -> None:
    result = await call(client, "promptx_remember", make_meta(workspace), engrams=[engram_item("lives in Berlin")])
    foreign_id = result.structured_content["engrams"][0]["id"]

    def arguments(key: str) -> dict[str, Any]:
        return {"id": key} if tool == "promptx_forget" else {"engrams": [engram_item("x", replaces=key)]}

    for meta in (make_meta(workspace, "bob"), make_meta(workspace) | {"agentic_rag/role": "nuwa"}):
        refusal = await call(client, tool, meta, **arguments(foreign_id))
        refusal_of_unknown = await call(client, tool, meta, **arguments("1_never"))
        assert refusal.is_error
        assert text_of(refusal) == text_of(refusal_of_unknown).replace("1_never", foreign_id)
    recall = await call(client, "promptx_recall", make_meta(workspace), query="home")
    assert len(recall.structured_content["found"]) == 1


@pytest.mark.parametrize("tool", ["promptx_forget", "promptx_remember"])
async def test_in_a_shared_memory_only_author_and_admin_can_change_an_engram(
    client: Client, workspace: Path, tool: str
) -> None:
    anna, ben, admin = (make_meta(workspace, name, "domain", admin=name == "olga") for name in ("anna", "ben", "olga"))
    for changer, is_allowed in ((anna, True), (ben, False), (admin, True)):
        content = f"lives in Berlin {is_allowed} {id(changer)}"
        save_result = await call(client, "promptx_remember", anna, engrams=[engram_item(content)])
        key = save_result.structured_content["engrams"][0]["id"]
        arguments = {"id": key} if tool == "promptx_forget" else {"engrams": [engram_item("moved", replaces=key)]}
        result = await call(client, tool, changer, **arguments)
        assert result.is_error is not is_allowed
        assert is_allowed or "is another user's" in text_of(result)


async def test_memories_of_others_are_marked_in_the_result_of_a_save(client: Client, workspace: Path) -> None:
    anna, ben = (make_meta(workspace, name, "domain") | {"agentic_rag/turn": "turn_1"} for name in ("anna", "ben"))
    first = await call(client, "promptx_remember", anna, engrams=[engram_item("lives in Berlin")])
    assert "othersText" not in first.structured_content
    second = await call(client, "promptx_remember", ben, engrams=[engram_item("lives in Paris")])
    assert second.structured_content["othersText"] is True


async def test_a_calls_role_is_used_if_the_host_allows_it_and_refused_by_name_otherwise(
    client: Client, workspace: Path
) -> None:
    meta = make_meta(workspace) | {"agentic_rag/memory_roles": ["nuwa", "assistant"]}
    save_result = await call(client, "promptx_remember", meta, role="nuwa", engrams=[engram_item("lives in Berlin")])
    assert save_result.structured_content["role"] == "nuwa"
    assert text_of(save_result).startswith("Saved 1 memory under the role nuwa.")
    default_role = await call(client, "promptx_remember", meta, engrams=[engram_item("lives in Rome")])
    assert default_role.structured_content["role"] == "assistant"
    for role, content in (("nuwa", "lives in Berlin"), ("assistant", "lives in Rome"), ("", "lives in Rome")):
        recall = await call(client, "promptx_recall", meta, role=role, query="home", user="bob")
        assert [engram["content"] for engram in recall.structured_content["found"]] == [content]
    for role in ("../x", "researcher", "nobody", "Nuwa", "x" * 500):
        for tool, arguments in (
            ("promptx_remember", {"engrams": [engram_item("lives in Oslo")]}),
            ("promptx_recall", {"query": "home"}),
            ("promptx_forget", {"id": save_result.structured_content["engrams"][0]["id"]}),
        ):
            refusal = await call(client, tool, meta, role=role, **arguments)
            assert refusal.is_error
            assert role[:80] in text_of(refusal)
            assert refusal.structured_content["possible"] == ["assistant", "nuwa"]
    folders = {path.parent.name for path in list_paths(workspace) if path.name == "engrams.db"}
    assert folders == {"assistant", "nuwa"}


async def test_a_recalled_memory_has_its_relevance(client: Client, workspace: Path) -> None:
    meta = make_meta(workspace)
    matching = engram_item("Ana wants invoices as PDF", schema="Ana invoices PDF")
    related = engram_item("PDF files go to the archive", schema="PDF archive")
    await call(client, "promptx_remember", meta, engrams=[matching, related])
    recall = await call(client, "promptx_recall", meta, query="Ana invoices")
    relevance = {engram["content"]: engram["relevance"] for engram in recall.structured_content["found"]}
    assert relevance["Ana wants invoices as PDF"] == 1.0
    assert 0 < relevance["PDF files go to the archive"] < 0.5

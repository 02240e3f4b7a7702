"""The MCP server in process: arguments bound by its host, in both protocol eras."""

import json
import os
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_types import CallToolResult, TextContent

from mcp_servers.promptx.new_engrams import read_batch
from mcp_servers.promptx.server import PromptXConfig, create_server

ENGRAM = {"content": "two months' notice", "schema": "contract notice period", "strength": 0.6, "type": "ATOMIC"}


@pytest.fixture(params=["auto", "legacy"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with Client(create_server(PromptXConfig(bound_by_meta=True)), mode=request.param) as connected:
        yield connected


def make_meta(workspace: Path, user: str = "alice", scope: str = "user", admin: bool = False) -> Any:
    return {
        "agentic_rag/workspace": str(workspace),
        "agentic_rag/user": user,
        "agentic_rag/scope": scope,
        "agentic_rag/admin": admin,
        "agentic_rag/role": "assistant",
    }


def list_paths(folder: Path) -> list[Path]:
    return list(folder.rglob("*"))


def text_of(result: CallToolResult) -> str:
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text


async def test_our_tools_have_correct_hints_and_no_tenant_arguments(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    read_only_names = {name for name, tool in tools.items() if tool.annotations and tool.annotations.read_only_hint}
    assert list(tools) == [
        *("promptx_action", "promptx_recall", "promptx_remember", "promptx_forget", "promptx_discover"),
        *("read_skill_file", "role_write", "role_check"),
    ]
    assert read_only_names == {"promptx_action", "promptx_recall", "promptx_discover", "read_skill_file", "role_check"}
    remember = tools["promptx_remember"].annotations
    assert remember is not None
    assert remember.idempotent_hint is False
    schemas = json.dumps([tool.input_schema for tool in tools.values()])
    assert not any(word in schemas for word in ("workspace", "user", "scope", "admin"))
    assert not any(
        "role" in tools[f"promptx_{name}"].input_schema["properties"] for name in ("recall", "remember", "forget")
    )
    example = re.search(r"\{.*\}", tools["promptx_remember"].description or "")
    assert example is not None
    assert read_batch([json.loads(example[0])])[0].schema
    assert all(len(tool.description or "") < 400 for tool in tools.values())


@pytest.mark.parametrize(("scope", "reader", "is_marked"), [("user", "alice", False), ("domain", "alice", True)])
async def test_a_recall_marks_memories_that_others_may_have_written(
    client: Client, workspace: Path, scope: str, reader: str, is_marked: bool
) -> None:
    meta = make_meta(workspace, reader, scope) | {"agentic_rag/turn": "turn_1"}
    arguments = {"query": "contract"}
    empty_recall = await client.call_tool("promptx_recall", arguments, meta=meta)
    assert "othersText" not in empty_recall.structured_content  # an empty text has no author
    await client.call_tool("promptx_remember", {"role": "assistant", "engrams": [ENGRAM]}, meta=meta)
    recall = await client.call_tool("promptx_recall", arguments, meta=meta)
    assert (recall.structured_content or {}).get("othersText", False) is is_marked


async def test_a_role_is_activated_with_its_hash_and_notes(client: Client, workspace: Path, resources: Path) -> None:
    (resources / "x.role.md").write_text("<role><personality>p @!thought://no</personality></role>")
    result = await client.call_tool("promptx_action", {"role": "x"}, meta=make_meta(workspace))
    content = result.structured_content
    assert (content["role"], len(content["hash"]), len(content["notes"])) == ("x", 64, 1)
    assert text_of(result).startswith("> .promptx/resource/x.role.md:1:22: error missing-reference")
    assert "# personality\n\np \n\n> Not available: thought://no" in text_of(result)
    part = await client.call_tool(
        "promptx_action", {"role": "x", "roleResources": "knowledge"}, meta=make_meta(workspace)
    )
    assert "# personality" not in text_of(part)


async def test_a_memory_is_recalled_only_by_its_user(client: Client, workspace: Path) -> None:
    meta = make_meta(workspace)
    save_result = await client.call_tool("promptx_remember", {"engrams": [ENGRAM]}, meta=meta)
    assert text_of(save_result) == "Saved 1 memory under the role assistant. Cues: contract · notice · period"
    recall = await client.call_tool("promptx_recall", {"query": "contract"}, meta=meta)
    content = recall.structured_content
    engram_id = content["engrams"][0]["id"]
    today = datetime.fromtimestamp(int(engram_id.split("_")[0]) / 1000, UTC).date()
    line = f"- [ATOMIC 0.6 {today} {engram_id}] two months' notice (contract · notice · period)"
    assert line in text_of(recall)
    assert content["activated"] == ["mind", "contract", "notice", "period"]
    assert (content["center"], content["mode"], content["fallback"]) == ("contract", "balanced", None)
    [engram] = content["engrams"]
    assert list(engram) == ["id", "content", "type", "strength", "createdAt", "cues"]
    for other_meta in (
        make_meta(workspace, user="bob"),
        make_meta(workspace, scope="domain"),
        make_meta(workspace, user="Alice"),
    ):
        empty_recall = await client.call_tool("promptx_recall", {"role": "assistant"}, meta=other_meta)
        assert text_of(empty_recall) == "This role has no memories yet."


async def test_an_overview_follows_the_map_without_a_query(client: Client, workspace: Path) -> None:
    meta = make_meta(workspace)
    await client.call_tool("promptx_remember", {"role": "assistant", "engrams": [ENGRAM]}, meta=meta)
    for arguments in ({}, {"query": None}, {"query": ""}):
        recall = await client.call_tool("promptx_recall", {"role": "assistant", **arguments}, meta=meta)
        assert text_of(recall).startswith("mindmap\n  root((mind))\n    contract")
        assert re.search(r"Strongest memories:\n- \[ATOMIC 0\.6 \S+ \S+\] two months' notice", text_of(recall))
        assert recall.structured_content["engrams"] == []
        assert len(recall.structured_content["overview"]) == 1
    miss = await client.call_tool("promptx_recall", {"role": "assistant", "query": "weather"}, meta=meta)
    assert text_of(miss).startswith("No memory matches the words of the query.")


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("promptx_action", {"role": "nobody"}, "Unknown role 'nobody'. Known roles: assistant, nuwa, researcher."),
        ("promptx_action", {"role": "../x"}, "role '../x' is not a valid id"),
        ("promptx_action", {"role": "a\0"}, "role 'a\\x00' is not a valid id"),
        ("promptx_action", {}, "role"),
        ("promptx_action", {"role": "nuwa", "roleResources": "everything"}, "roleResources"),
        ("promptx_recall", {"mode": "wild"}, "mode"),
        ("promptx_recall", {"query": 5}, "query must be text, a list of cues, or null"),
        ("promptx_recall", {"query": "a\0"}, "query: contains NUL"),
        ("promptx_remember", {"engrams": []}, "the batch is empty"),
        ("promptx_remember", {"engrams": "x"}, "engrams"),
        ("promptx_remember", {"engrams": [ENGRAM, {}]}, "engrams[1]: content must be text"),
        ("promptx_remember", {"engrams": [ENGRAM | {"content": "a\0"}]}, "engrams[0]: content or schema contains NUL"),
        ("promptx_remember", {"engrams": [ENGRAM | {"replaces": "1_x"}]}, "engrams[0]: replaces: there is no memory"),
        ("promptx_remember", {"engrams": [ENGRAM | {"replaces": 5}]}, "engrams[0]: replaces must be the id"),
        ("promptx_remember", {"engrams": [ENGRAM | {"replaces": "\0"}]}, "engrams[0]: replaces must be the id"),
        ("role_write", {"role": "x", "files": [{"kind": "x"}]}, "files[0] must be an object with kind"),
        ("role_write", {"role": "x", "files": [{"kind": "role", "id": "x", "content": "x"}]}, "no-tag"),
        ("role_check", {"role": "nobody"}, "Known roles"),
        ("promptx_forget", {}, "id"),
        ("promptx_forget", {"id": "1_x"}, "There is no memory '1_x' here."),
        ("promptx_forget", {"id": "a\0"}, "There is no memory 'a\\x00' here."),
        ("promptx_forget", {"id": "x" * 100_000}, "There is no memory 'xxx"),
    ],
)
async def test_bad_arguments_return_results_that_name_the_problem(
    client: Client, workspace: Path, tool: str, arguments: dict[str, Any], expected: str
) -> None:
    result = await client.call_tool(tool, arguments, meta=make_meta(workspace, admin=True))
    assert result.is_error
    assert expected in text_of(result)
    assert list_paths(workspace) == []


async def test_errors_are_structured_for_machines(client: Client, workspace: Path) -> None:
    unknown_role = await client.call_tool("promptx_action", {"role": "nobody"}, meta=make_meta(workspace))
    assert unknown_role.structured_content["error"] == "UnknownRole"
    assert unknown_role.structured_content["known"] == ["assistant", "nuwa", "researcher"]
    engrams = [ENGRAM, ENGRAM | {"strength": 2}]
    refusal = await client.call_tool("promptx_remember", {"engrams": engrams}, meta=make_meta(workspace))
    assert (refusal.structured_content["error"], refusal.structured_content["index"]) == ("BadEngram", 1)


@pytest.mark.parametrize(
    "change",
    [
        {"agentic_rag/workspace": None},
        {"agentic_rag/workspace": "relative"},
        {"agentic_rag/scope": None},
        {"agentic_rag/scope": "../x"},
        {"agentic_rag/user": ""},
        {"agentic_rag/user": "../bob"},
        {"agentic_rag/user": 5},
        {"agentic_rag/role": None},
    ],
)
async def test_a_call_without_a_binding_is_refused(client: Client, workspace: Path, change: dict[str, Any]) -> None:
    meta = make_meta(workspace) | change
    result = await client.call_tool("promptx_recall", {"role": "assistant"}, meta=meta)
    assert result.is_error
    assert result.structured_content["error"] in ("NotBound", "BadScope")


async def test_without_meta_calls_are_refused(client: Client) -> None:
    result = await client.call_tool("promptx_discover", {})
    assert text_of(result) == (
        "This server is bound to its host: _meta['agentic_rag/workspace'] must be the absolute path of the workspace."
    )


@pytest.mark.parametrize("admin", [False, "yes", 1, None])
async def test_only_administrators_write_and_check_roles(client: Client, workspace: Path, admin: object) -> None:
    files = [{"kind": "role", "id": "x", "content": "<role><personality>p</personality></role>"}]
    for tool, arguments in (("role_write", {"role": "x", "files": files}), ("role_check", {})):
        meta = make_meta(workspace) | {"agentic_rag/admin": admin}
        result = await client.call_tool(tool, arguments, meta=meta)
        assert result.is_error
        assert text_of(result).startswith(f"{tool} is only for administrators")
    assert list_paths(workspace) == []


async def test_a_role_written_by_an_administrator_is_live_for_everyone(client: Client, workspace: Path) -> None:
    files = [
        {"kind": "role", "id": "客服", "content": "<role><personality>我是客服。@!thought://耐心</personality></role>"},
        {"kind": "thought", "id": "耐心", "content": "<thought>先听后答 <b></thought>"},
    ]
    outcome = await client.call_tool(
        "role_write", {"role": "客服", "files": files}, meta=make_meta(workspace, admin=True)
    )
    assert outcome.structured_content["paths"][-1] == ".promptx/resource/role/客服/客服.role.md"
    assert [finding["code"] for finding in outcome.structured_content["findings"]] == ["unknown-tag"]
    activation = await client.call_tool("promptx_action", {"role": "客服"}, meta=make_meta(workspace, user="bob"))
    assert "先听后答" in text_of(activation)
    listing = await client.call_tool("promptx_discover", {}, meta=make_meta(workspace))
    assert "- 客服: 我是客服。" in text_of(listing)
    check = await client.call_tool("role_check", {"role": "客服"}, meta=make_meta(workspace, admin=True))
    assert "unknown-tag" in text_of(check)


async def test_a_copied_promptx_memory_opens_without_a_role_file(recorded_folder: Path, workspace: Path) -> None:
    os.rename(recorded_folder, workspace / ".promptx" / "cognition" / "luban")
    async with Client(create_server(PromptXConfig(workspace))) as client:
        recall = await client.call_tool("recall", {"role": "luban", "query": "w00"})
    assert len(recall.structured_content["engrams"]) == 50


async def test_a_standalone_server_ignores_meta_and_has_no_author_tools(workspace: Path, tmp_path: Path) -> None:
    meta = make_meta(tmp_path / "elsewhere", admin=True)
    async with Client(create_server(PromptXConfig(workspace))) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        await client.call_tool("remember", {"role": "assistant", "engrams": [ENGRAM]}, meta=meta)
    bare = {"action", "recall", "remember", "forget", "discover"}
    assert names == bare | {f"promptx_{name}" for name in bare}
    assert (workspace / ".promptx" / "cognition" / "assistant" / "engrams.db").exists()
    assert not (tmp_path / "elsewhere").exists()


async def test_the_end_of_a_session_leaves_a_network_file_with_every_cue(workspace: Path) -> None:
    async with Client(create_server(PromptXConfig(workspace))) as client:
        for number in range(12):
            engram = ENGRAM | {"schema": f"a{number} b{number}"}
            await client.call_tool("promptx_remember", {"role": "assistant", "engrams": [engram]})
    network = json.loads((workspace / ".promptx" / "cognition" / "assistant" / "network.json").read_text("utf-8"))
    assert len(network["cues"]) == 24

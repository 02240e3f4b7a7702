"""The 24 recalls recorded from PromptX itself, and the files from which it recorded them."""

import json
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from mcp_servers.promptx.memory import Memory
from mcp_servers.promptx.server import PromptXConfig, create_server
from mcp_servers.safe_files import Folder

from .conftest import DATA, ROLE

CASES: list[dict[str, Any]] = json.loads((DATA / "cases.json").read_text("utf-8"))
NETWORK: dict[str, Any] = json.loads((DATA / "network.json").read_text("utf-8"))


def case_name(case: dict[str, Any]) -> str:
    return f"{case['query']}-{case['mode']}"


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_a_recorded_recall_is_reproduced(recorded_folder: Path, case: dict[str, Any]) -> None:
    recollection = Memory(Folder(recorded_folder)).recall(case["query"], case["mode"] or "balanced", case["now_ms"])
    assert recollection.mind.activated == case["activated_cues"]
    assert [[edge.source, edge.target, edge.weight] for edge in recollection.edges] == case["connections"]
    assert [engram.content for engram in recollection.engrams] == case["engrams_in_order"]
    assert list(recollection.mindmap) == case["mindmap"]


@pytest.mark.parametrize("case", CASES, ids=case_name)
async def test_a_recorded_recall_is_reproduced_by_the_tool(
    recorded_folder: Path, workspace: Path, case: dict[str, Any]
) -> None:
    arguments = {"role": ROLE, "query": case["query"], "mode": case["mode"] or "balanced"}
    async with Client(create_server(PromptXConfig(workspace))) as client:
        result = (await client.call_tool("promptx_recall", arguments)).structured_content
    assert result["activated"] == case["activated_cues"]
    assert [[edge["from"], edge["to"], edge["weight"]] for edge in result["edges"]] == case["connections"]
    assert result["mindmap"] == case["mindmap"]
    # The tool's clock differs from the recording's, so engrams with nearly equal scores may change places.
    assert len(result["engrams"]) == len(case["engrams_in_order"])


def test_the_network_built_from_the_engrams_equals_the_recorded_one(recorded_folder: Path) -> None:
    Memory(Folder(recorded_folder)).save()
    network = json.loads((recorded_folder / "network.json").read_text("utf-8"))
    assert list(network["cues"]) == list(NETWORK["cues"])
    assert network["cues"] == NETWORK["cues"]


def test_the_network_file_has_promptxs_format(recorded_folder: Path) -> None:
    Memory(Folder(recorded_folder)).save()
    lines = (recorded_folder / "network.json").read_text("utf-8").splitlines()
    original = (DATA / "network.json").read_text("utf-8").splitlines()
    assert lines[1] == original[1]
    assert lines[3].startswith('  "newestEngram": "1795293794848_')
    assert lines[4:] == original[3:]


def test_an_activation_is_written_to_the_state_file(recorded_folder: Path) -> None:
    case = next(case for case in CASES if case["query"] == "w03" and case["mode"] == "focused")
    Memory(Folder(recorded_folder)).recall("w03", "focused", case["now_ms"])
    state = json.loads((recorded_folder / "state.json").read_text("utf-8"))
    assert list(state) == ["centerWord", "timestamp", "roleId", "activatedCues", "connections", "metadata"]
    assert (state["centerWord"], state["timestamp"], state["roleId"]) == ("w03", case["now_ms"], ROLE)
    assert state["activatedCues"] == case["activated_cues"]
    assert [[edge["from"], edge["to"], edge["weight"]] for edge in state["connections"]] == case["connections"]
    assert state["metadata"] == {
        "nodeCount": len(case["activated_cues"]),
        "connectionCount": len(case["connections"]),
        "anchorVersion": "1.0.0",
    }


def test_a_network_rebuilt_from_engrams_recalls_the_same_without_frequencies(recorded_folder: Path) -> None:
    (recorded_folder / "network.json").unlink()
    recollection = Memory(Folder(recorded_folder)).recall("w00", "balanced", 1_795_293_822_917)
    assert recollection.mind.activated[:2] == ["mind", "w00"]
    assert len(recollection.engrams) == 50

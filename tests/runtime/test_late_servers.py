"""Calls of tools whose server has not listed them when the turn begins."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentic_rag.models.base import Model
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.testing.scripted import ScriptedModel
from agentic_rag.testing.steps import say, use
from agentic_rag.tools.base import CallOutcome, CallRequest
from tests.runtime.harness import MemoryToolset, Services, bench, info, ok


async def read_file(request: CallRequest) -> CallOutcome:
    return ok("Thirty days.")


READ_TOOL = "files__read"
LISTED_TOOLS = {READ_TOOL: (info(READ_TOOL, read_only=True), read_file)}


@dataclass
class Starting(Services):
    """Services whose toolset differs at each opening; the last one stays."""

    toolsets: Sequence[MemoryToolset] = ()
    opened_toolsets: list[MemoryToolset] = field(default_factory=list)

    async def open_toolset(self, definition: Definition) -> MemoryToolset:
        self.opened_toolsets.append(self.toolsets[min(len(self.opened_toolsets), len(self.toolsets) - 1)])
        return self.opened_toolsets[-1]


def make_starting_services(model: Model, *toolsets: MemoryToolset) -> Starting:
    return Starting(model, toolsets[0], toolsets=toolsets)


def result_in(request: Any) -> str:
    return str(request.messages[-1]["content"][0]["content"])


async def test_a_tool_of_a_starting_server_is_called_once_the_server_has_listed_it(
    tmp_path: Path,
) -> None:
    early, late = MemoryToolset({}, missing={"files": True}), MemoryToolset(LISTED_TOOLS)
    async with ScriptedModel(use(READ_TOOL, query="x"), say("Thirty.")) as model:
        services = make_starting_services(model, early, late)
        async with bench(tmp_path, model, services=services) as b:
            await b.say("How many?")
        assert "Thirty days." in result_in(model.requests[-1])
        assert model.requests[0].tools == model.requests[1].tools
        assert len(late.requests) == 1


@pytest.mark.parametrize(
    ("starts", "open_count", "phrase"),
    [(True, 2, "'files' is still starting"), (False, 1, "'files' is not available now")],
)
async def test_a_tool_of_a_server_without_a_list_gets_the_servers_state_instead_of_an_unknown_tool(
    tmp_path: Path, starts: bool, open_count: int, phrase: str
) -> None:
    missing_tools = MemoryToolset({}, missing={"files": starts, "fil": starts})
    async with ScriptedModel(use(READ_TOOL, query="x"), say("Sorry.")) as model:
        services = make_starting_services(model, missing_tools)
        async with bench(tmp_path, model, services=services) as b:
            await b.say("How many?")
        assert phrase in result_in(model.requests[-1])
        assert len(services.opened_toolsets) == open_count


async def test_a_name_of_no_server_is_unknown(tmp_path: Path) -> None:
    down = MemoryToolset(LISTED_TOOLS, missing={"mail": True})
    async with ScriptedModel(use("filesread", query="x"), say("Sorry.")) as model:
        async with bench(tmp_path, model, services=make_starting_services(model, down)) as b:
            await b.say("How many?")
        assert "There is no tool 'filesread'" in result_in(model.requests[-1])

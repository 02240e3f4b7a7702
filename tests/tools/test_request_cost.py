"""The cost of a request without messages, by the number of tools of the domain's servers.

Recorded in ``many_tools.json`` by ``scripts/count_tokens --record``, which asks Claude's tokenizer.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentic_rag.base.messages import ToolSpec
from agentic_rag.runtime.core.deferred_tools import find_tools, shown_tools
from agentic_rag.runtime.core.definition import Definition, Persona
from agentic_rag.runtime.core.request import begin_prompt_state, prompt_of, tool_specs
from agentic_rag.runtime.payload_reader import with_own_tools
from agentic_rag.tools.base import ToolInfo
from agentic_rag.tools.system import BY_NAME
from tests.tools.many import many_tools
from tests.tools.test_own_texts import NEWER, own_tools

RECORD = Path(__file__).parent / "many_tools.json"
COUNTS = (10, 30, 100, 300)
GOAL, GOAL_COUNT = 10_000, 100
MODELS = {"deferred by the service": "claude-sonnet-5-5", "called by call_tool": "local-model"}
QUERY = "create an event in the calendar"


async def requests() -> dict[str, str]:
    """Return the request before its messages, and the additions of one search for tools, by number and method."""
    our_tools = tuple(tool for tool in await own_tools() if not (BY_NAME[tool.name].authors_only or needs_skills(tool)))
    texts: dict[str, str] = {}
    for count in COUNTS:
        tools = (*(tool for tool in our_tools if tool.server != "agent"), *many_tools(count))
        texts[f"{count} tools, all shown"] = _dump(tool_specs(_definition("local-model"), (*our_tools[:1], *tools)))
        for label, model in MODELS.items():
            texts[f"{count} tools, {label}"] = _request(model, tools)
    return texts


def needs_skills(tool: ToolInfo) -> bool:
    """Return whether a tool is offered only in a domain with skills."""
    return BY_NAME[tool.name].needs_skills


def _request(model: str, tools: tuple[ToolInfo, ...]) -> str:
    definition = _definition(model)
    by_service = model == MODELS["deferred by the service"]
    all_tools = with_own_tools(definition, tools)
    prompt_state = begin_prompt_state(definition, prompt_of(definition, all_tools, "2026-11-25"), all_tools)
    sent_tools = shown_tools(prompt_state.first.tools, prompt_state.late, by_service=by_service)
    texts = [block["text"] for block in prompt_state.first.system]
    outcome = find_tools(all_tools, prompt_state.late, {"query": QUERY}, model=model) if prompt_state.late else None
    for block in outcome.content if outcome else ():
        if block["type"] == "text":
            texts.append(block["text"])
        else:  # the service puts the definition there
            texts.append(_dump([tool for tool in prompt_state.late if tool["name"] == block["tool_name"]]))
    return "\n".join([*texts, _dump([tool for tool in sent_tools if not tool.get("defer_loading")])])


def _definition(model: str) -> Definition:
    return Definition("dom_1", Persona("HR desk", "assistant"), model, 4_096)


def _dump(tools: Sequence[ToolSpec]) -> str:
    return json.dumps(tools, ensure_ascii=False, separators=(",", ":"))


async def test_no_request_exceeds_its_counted_tokens() -> None:
    record = json.loads(RECORD.read_text())
    texts = await requests()
    assert texts.keys() == record.keys()
    grown = {name: len(text.encode()) for name, text in texts.items() if len(text.encode()) > record[name]["bytes"]}
    assert not grown, "count again: scripts/count_tokens --record"


@pytest.mark.parametrize("way", MODELS)
def test_a_hundred_deferred_tools_keep_the_token_budget_and_so_do_three_hundred(way: str) -> None:
    record = json.loads(RECORD.read_text())
    cost = {count: record[f"{count} tools, {way}"]["tokens"] * NEWER for count in COUNTS}
    assert cost[GOAL_COUNT] <= GOAL
    assert cost[300] <= cost[100] * 1.3
    assert cost[100] < record["100 tools, all shown"]["tokens"] * NEWER / 3

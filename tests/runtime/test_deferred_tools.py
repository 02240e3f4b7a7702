"""Too many tools are searched instead of listed: deferred if the service supports it, else called by ``call_tool``."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentic_rag.base.json_form import Json
from agentic_rag.runtime.core.deferred_tools import MANY_TOOLS, list_deferred
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.testing.steps import Say, Step, Think, Use
from agentic_rag.tools.base import CallOutcome, CallRequest, ToolInfo
from tests.runtime.harness import (
    SESSION,
    Bench,
    MemoryToolset,
    Services,
    bench,
    definition,
    kinds,
    ok,
    text_of,
    toolset,
)
from tests.runtime.strict_model import NAME, StrictModel
from tests.runtime.test_append_only import bare, first_tools, system_texts
from tests.tools.many import many_tools

LOCAL = "local-model"
"""A model of a service without deferred tools."""
TICKET_TOOL = "helpdesk__get_ticket"


async def answer(request: CallRequest) -> CallOutcome:
    return ok(f"{request.tool.name} with {sorted(request.arguments.items())}")


def tools_of(count: int) -> MemoryToolset:
    base_tools = toolset(search_documents=answer)
    functions = {tool.name: (tool, answer) for tool in many_tools(count)}
    return replace(base_tools, functions={**base_tools.functions, **functions})


def body_texts(body: Json) -> str:
    return str(body["system"]) + str(body["messages"])


def answer_in_order(*steps: Step) -> Callable[[Json], Step]:
    """Return a brain that takes one step after the other, and then answers briefly."""
    remaining = list(steps)
    return lambda body: remaining.pop(0) if remaining else Step((Think("So."), Say("Done.")))


async def run(
    folder: Path, model: StrictModel, tools: MemoryToolset, settings: Definition, *questions: str
) -> list[list[Any]]:
    async with bench(folder, model, services=Services(model, tools)) as b:
        return [await b.say(question, definition=settings) for question in questions]


def results_of(events: list[Any]) -> list[tuple[str, str, str]]:
    """Return name, status and text of each result."""
    results = [event.fields() for event in events if event.type == "tool_result"]
    return [(result["toolName"], result["status"], result["content"]) for result in results]


def find_and_call(model: str, arguments: Json | None = None) -> tuple[Step, Step]:
    call_arguments = {"id": "T-1"} if arguments is None else arguments
    call = (
        Use(TICKET_TOOL, call_arguments)
        if model == NAME
        else Use("call_tool", {"name": TICKET_TOOL, "arguments": call_arguments})
    )
    return Step((Think("Find."), Use("find_tools", {"query": "get a ticket"}))), Step((Think("Call."), call))


def test_more_than_thirty_tools_are_deferred_and_no_fewer() -> None:
    short_tools = [
        replace(tool, description="x", input_schema={"type": "object"}) for tool in many_tools(MANY_TOOLS + 1)
    ]
    assert list_deferred(short_tools[:-1]) == ()
    assert list_deferred(short_tools) == tuple(short_tools)


def test_a_few_tools_with_long_definitions_are_deferred() -> None:
    (tool,) = many_tools(1)
    assert list_deferred([replace(tool, description="word " * 1_000)]) == ()
    assert list_deferred([replace(tool, description="word " * 3_000)]) != ()


@pytest.mark.parametrize("model", [NAME, LOCAL])
async def test_a_hundred_tools_are_found_and_called(tmp_path: Path, model: str) -> None:
    strict = StrictModel(answer_in_order(*find_and_call(model)))
    (events,) = await run(tmp_path, strict, tools_of(100), definition(model=model), "What of T-1?")
    assert strict.refused == []
    assert text_of(events) == "Done."
    first_request = strict.requests[0]
    assert len(str(first_tools(first_request))) < 4_000
    assert [tool["name"] for tool in first_tools(first_request)][-1] == "search_documents"
    deferred_tools = [tool for tool in first_request["tools"] if tool.get("defer_loading")]
    assert len(deferred_tools) == (100 if model == NAME else 0)
    assert "- helpdesk (10): " in body_texts(first_request)
    find_result, call_result = results_of(events)
    assert (find_result[0], find_result[1]) == ("find_tools", "ok")
    assert TICKET_TOOL in find_result[2]
    assert call_result == (TICKET_TOOL, "ok", f"{TICKET_TOOL} with [('id', 'T-1')]")
    steps = ("tool_call_started", "tool_call", "tool_result")
    called_names = [event.fields()["toolName"] for event in events if event.type in steps]
    assert called_names == ["find_tools"] * 3 + [TICKET_TOOL] * 3
    streamed_arguments = "".join(event.fields()["delta"] for event in events if event.type == "tool_arguments")
    assert model == NAME or streamed_arguments.endswith('{"id":"T-1"}')


@pytest.mark.parametrize("model", [NAME, LOCAL])
async def test_requests_with_many_tools_only_grow(tmp_path: Path, model: str) -> None:
    strict = StrictModel(
        answer_in_order(*find_and_call(model), Step((Think("So."), Say("One."))), *find_and_call(model))
    )
    await run(tmp_path, strict, tools_of(100), definition(model=model), "One?", "Two?")
    assert strict.refused == []
    for earlier, later in zip(strict.requests, strict.requests[1:], strict=False):
        assert (later["system"], bare(later["tools"])) == (earlier["system"], bare(earlier["tools"]))
        assert bare(later["messages"])[: len(earlier["messages"])] == bare(earlier["messages"])


@pytest.mark.parametrize("model", [NAME, LOCAL])
@pytest.mark.parametrize(
    ("policy", "change", "arguments", "status", "phrase"),
    [
        ({TICKET_TOOL: "deny"}, {}, {"id": "T-1"}, "denied", "toolPolicy"),
        ({"helpdesk__*": "deny"}, {}, {"id": "T-1"}, "denied", "toolPolicy"),
        ({}, {"changed": True}, {"id": "T-1"}, "denied", "has changed since its server was accepted"),
        ({}, {}, {"id": 7}, "error", "do not fit the tool"),
        ({}, {}, {}, "error", "do not fit the tool"),
        ({}, {}, {"id": "T-1", "x": 1}, "error", "do not fit the tool"),
    ],
)
async def test_a_loaded_tool_is_subject_to_the_policy(
    tmp_path: Path, model: str, policy: Any, change: Any, arguments: Json, status: str, phrase: str
) -> None:
    tools = tools_of(40)
    changed_info = replace(tools.functions[TICKET_TOOL][0], **change)
    tools = replace(tools, functions={**tools.functions, TICKET_TOOL: (changed_info, answer)})
    strict = StrictModel(answer_in_order(*find_and_call(model, arguments)))
    settings = definition(model=model, tool_policy=policy)
    (events,) = await run(tmp_path, strict, tools, settings, "What of T-1?")
    name, result_status, text = results_of(events)[1]
    assert (name, result_status) == (TICKET_TOOL, status)
    assert phrase in text
    assert tools.requests == [], "it ran"


@pytest.mark.parametrize(
    ("call_input", "phrase"),
    [
        ({"name": "nothing", "arguments": {}}, "There is no tool 'nothing'"),
        ({"name": "call_tool", "arguments": {"name": TICKET_TOOL, "arguments": {"id": "1"}}}, "There is no"),
        ({"name": TICKET_TOOL}, "do not fit the tool"),
        ({"arguments": {}}, "do not fit the tool"),
        ({"name": 7, "arguments": {}}, "do not fit the tool"),
        ({"name": TICKET_TOOL, "arguments": "{"}, "do not fit the tool"),
        ({"name": TICKET_TOOL, "arguments": "[" * 9_000}, "do not fit the tool"),
        ({"name": TICKET_TOOL, "arguments": [1]}, "do not fit the tool"),
        ({"name": TICKET_TOOL, "arguments": '{"id": "T-1"}'}, f"{TICKET_TOOL} with"),
        ({"name": "search_documents", "arguments": {"query": "x"}}, "search_documents with"),
    ],
)
async def test_a_call_by_name_runs_the_named_tool(tmp_path: Path, call_input: Json, phrase: str) -> None:
    strict = StrictModel(answer_in_order(Step((Think("Call."), Use("call_tool", call_input)))))
    (events,) = await run(tmp_path, strict, tools_of(40), definition(model=LOCAL), "Go")
    ((_, _, text),) = results_of(events)
    assert phrase in text
    assert kinds(events)[-1] == "done"


async def test_adding_a_server_with_many_tools_defers_them_and_keeps_thinking_valid(tmp_path: Path) -> None:
    strict = StrictModel(answer_in_order(Step((Think("Hm."), Say("Hello."))), *find_and_call(NAME)))
    async with bench(tmp_path, strict, services=Services(strict, tools_of(0))) as b:
        await b.say("Hello", definition=definition(model=NAME))
        b.services.tools = tools_of(60)
        events = await b.say("What of T-1?", definition=definition(model=NAME))
        await b.say("Bye", definition=definition(model=NAME))
    assert strict.refused == []
    assert results_of(events)[1][:2] == (TICKET_TOOL, "ok")
    first_request, last_request = strict.requests[0], strict.requests[-1]
    assert (last_request["system"], bare(first_tools(last_request))) == (
        first_request["system"],
        bare(first_tools(first_request)),
    )
    assert "- helpdesk (10): " in system_texts(last_request)
    assert len(system_texts(last_request)) < 2_500, "each tool is told of"


async def test_removing_a_server_with_many_tools_is_announced_and_hides_its_tools(tmp_path: Path) -> None:
    strict = StrictModel(answer_in_order(Step((Think("Hm."), Say("Hello."))), *find_and_call(NAME)))
    async with bench(tmp_path, strict, services=Services(strict, tools_of(60))) as b:
        await b.say("Hello", definition=definition(model=NAME))
        b.services.tools = tools_of(0)
        events = await b.say("What of T-1?", definition=definition(model=NAME))
    assert strict.refused == []
    assert "These tools are gone" in system_texts(strict.requests[-1])
    assert [status for _, status, _ in results_of(events)] == ["error", "error"]


async def test_without_deferred_tools_a_conversation_with_added_tools_gets_call_by_name(tmp_path: Path) -> None:
    strict = StrictModel(answer_in_order(Step((Say("Hello."),)), *find_and_call(LOCAL)))
    async with bench(tmp_path, strict, services=Services(strict, tools_of(2))) as b:
        await b.say("Hello", definition=definition(model=LOCAL))
        b.services.tools = tools_of(60)
        events = await b.say("What of T-1?", definition=definition(model=LOCAL))
        await b.say("Bye", definition=definition(model=LOCAL))
    assert results_of(events)[1][:2] == (TICKET_TOOL, "ok")
    names = [tool["name"] for tool in strict.requests[-1]["tools"]]
    assert names[: len(strict.requests[0]["tools"])] == [tool["name"] for tool in strict.requests[0]["tools"]]
    assert names[-2:] == ["find_tools", "call_tool"]


async def test_a_call_by_name_that_a_stop_interrupted_continues_as_that_tool(tmp_path: Path) -> None:
    async def stop(request: CallRequest) -> CallOutcome:
        assert bench_of
        await (await bench_of[0].runtime.session(SESSION)).interrupt()
        return await answer(request)

    bench_of: list[Bench] = []
    tools = tools_of(40)
    info: ToolInfo = tools.functions[TICKET_TOOL][0]
    tools = replace(tools, functions={**tools.functions, TICKET_TOOL: (info, stop)})
    strict = StrictModel(answer_in_order(*find_and_call(LOCAL)))
    async with bench(tmp_path, strict, services=Services(strict, tools)) as b:
        bench_of.append(b)
        events = await b.say("What of T-1?", definition=definition(model=LOCAL))
        later_events = await b.say("Go on", definition=definition(model=LOCAL))
    assert results_of(events)[-1][0] == TICKET_TOOL
    assert kinds(events)[-1] == "interrupted"
    assert text_of(later_events) == "Done."
    assert strict.refused == []

"""A runtime in which ``delegate`` runs children, as the in-process server does."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from agentic_rag.base.events import AgentEvent, ToolStatus
from agentic_rag.base.ids import TurnId
from agentic_rag.base.messages import plain_text
from agentic_rag.models.base import Model, ModelRequest
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.delegates import Delegations
from agentic_rag.store import sessions
from agentic_rag.store.sessions import SessionRecord
from agentic_rag.testing.scripted import Plain, Scripted, ScriptedModel
from agentic_rag.testing.steps import Step, Use
from agentic_rag.tools.base import Binding, CallOutcome, CallRequest, SystemServer, ToolInfo
from agentic_rag.tools.content import to_blocks
from mcp_servers.delegate.server import ChildRequest, result_of
from tests.runtime.harness import Bench, MemoryToolset, Services, bench, definition, info

SCHEMA = {"type": "object", "properties": {"role": {"type": "string"}, "task": {"type": "string"}}}
DELEGATE = ToolInfo("delegate", "delegate", "delegate", "system", "Hand over a task.", SCHEMA)


def define_leader(**changes: Any) -> Definition:
    """Return a definition with three roles to delegate to."""
    values: dict[str, Any] = {
        "system": (SystemServer("delegate", "system"),),
        "binding": Binding(sub_roles=("digger", "writer")),
    }
    return definition(**(values | changes))


class Crew:
    """A script that depends on the asking agent's user message, because parallel agents ask in any order."""

    def __init__(self, **steps: tuple[Scripted, ...]) -> None:
        self.remaining = {task: list(of_task) for task, of_task in steps.items()}

    def __call__(self, request: ModelRequest) -> Plain:
        step = self.remaining[plain_text(request.messages[0]["content"]).split()[0]].pop(0)
        return step(request) if callable(step) else step

    def model(self) -> ScriptedModel:
        steps: list[Scripted] = [self] * sum(map(len, self.remaining.values()))
        return ScriptedModel(*steps)


def delegate_to(*tasks: tuple[str, str]) -> Step:
    """Return a step that delegates each (role, task)."""
    return Step(tuple(Use("delegate", {"role": role, "task": task}) for role, task in tasks))


@asynccontextmanager
async def open_crew(
    folder: Path, script: Crew, wrap: Callable[[Model], Model] = lambda model: model, **functions: Any
) -> AsyncIterator[Bench]:
    """Open a bench in which ``delegate`` runs children. ``wrap`` wraps the model; ``functions`` are further tools."""

    async def delegate(request: CallRequest) -> CallOutcome:
        task = ChildRequest(request.turn_id, request.id, request.arguments["role"], request.arguments["task"])
        result = result_of(await delegations.run(task))
        status = ToolStatus.ERROR if result.is_error else ToolStatus.OK
        return CallOutcome(status, to_blocks(result.content), result.structured_content)

    builtin_tools = {"search_documents": info("search_documents", origin="builtin", read_only=True)}
    offered_tools = {name: (builtin_tools.get(name) or info(name), function) for name, function in functions.items()}

    class Delegating(Services):
        async def open_toolset(self, definition: Definition) -> MemoryToolset:
            offered = any(entry.name == "delegate" for entry in definition.system)
            return MemoryToolset({**({"delegate": (DELEGATE, delegate)} if offered else {}), **offered_tools})

    delegations = Delegations()
    async with (
        script.model() as model,
        bench(folder, model, services=Delegating(wrap(model), MemoryToolset({})), delegations=delegations) as b,
    ):
        yield b


async def children_of(b: Bench, turn_id: str) -> list[SessionRecord]:
    return await b.database.read(lambda conn: sessions.list_delegated(conn, TurnId(turn_id)))


async def read_events(b: Bench, turn_id: str) -> list[AgentEvent]:
    with anyio.fail_after(240):
        return [event async for event in b.runtime.follow(TurnId(turn_id))]


def agents_of(events: list[AgentEvent]) -> set[str]:
    return {event.fields().get("agent", "") for event in events}


def calls_of(events: list[AgentEvent]) -> dict[str, str]:
    """Return the ids of the ``delegate`` calls by their tasks."""
    calls = [event.fields() for event in events if event.type == "tool_call"]
    return {call["arguments"]["task"]: call["toolCallId"] for call in calls if call["toolName"] == "delegate"}


def results_of(events: list[AgentEvent], agent: str = "") -> list[tuple[str, str]]:
    """Return status and content of an agent's calls."""
    results = [event.fields() for event in events if event.type == "tool_result"]
    return [(result["status"], result["content"]) for result in results if result.get("agent", "") == agent]

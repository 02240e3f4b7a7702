"""The `delegate` tool: a role and a task in, the child's answer out.

Owns the tool's words, its arguments' checks and the form of its result. Knows no agent: the host hands over a
`ChildRunner`, and says in the call's ``meta`` whose turn asks and which roles may be asked, so that a model can
name neither another turn nor a role that the domain did not list.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field

from mcp_servers import __version__

MAX_TASK = 10_000
"""Characters of a task."""

DESCRIPTION = (
    "Hand a self-contained task to another role: it works with a context of its own and sees only the task. Several "
    "calls in one message run at the same time."
)


@dataclass(frozen=True, slots=True)
class ChildRequest:
    """One task of a running turn. ``call_id`` tells a call that goes on after a restart from a new one."""

    turn_id: str
    call_id: str
    role: str
    task: str


class ChildAnswer(Protocol):
    """What a child brought: its text, or why there is none (``failed``).

    ``others_text``: the child has read text of others than the user; the result says so as ``othersText``.
    ``evidence``: the passages that its answer rests on, as blocks of the host's, handed on as they are;
    ``retrievals``: ids of the searches it made.
    """

    @property
    def text(self) -> str: ...
    @property
    def failed(self) -> bool: ...
    @property
    def others_text(self) -> bool: ...
    @property
    def evidence(self) -> Sequence[object]: ...
    @property
    def retrievals(self) -> Sequence[str]: ...


class ChildRunner(Protocol):
    """What does the tasks; the host has one."""

    async def run(self, request: ChildRequest) -> ChildAnswer:
        """Run a child to its end. Cancelling it interrupts the child."""
        ...


def create_server(children: ChildRunner) -> MCPServer[Any]:
    """Build the server. Each call's ``meta`` binds ``agentic_rag/turn``, ``/call`` and ``/sub_roles`` (ids)."""
    server: MCPServer[Any] = MCPServer("delegate", version=__version__)

    @server.tool(
        name="delegate",
        description=DESCRIPTION,
        annotations=ToolAnnotations(read_only_hint=False, idempotent_hint=False),
    )
    async def delegate(
        role: Annotated[str, Field(description="Id of one of the roles you were told you may delegate to.")],
        task: Annotated[str, Field(description="The whole task, with everything the role needs to know.")],
        ctx: Context[Any, Any],
    ) -> CallToolResult:
        meta = dict(ctx.request_context.meta or {})
        bound = meta.get("agentic_rag/sub_roles")
        allowed = [str(ident) for ident in bound] if isinstance(bound, list | tuple) else []
        if role not in allowed:
            return _result(f"There is no role {role!r} to delegate to. The roles are: {', '.join(allowed)}.", True)
        if not task.strip() or len(task) > MAX_TASK:
            return _result(f"task: give the task in 1 to {MAX_TASK} characters.", True)
        request = ChildRequest(str(meta["agentic_rag/turn"]), str(meta["agentic_rag/call"]), role, task)
        answer = await children.run(request)
        return result_of(answer)

    return server


def result_of(answer: ChildAnswer) -> CallToolResult:
    """Return an answer as the tool's result: its text, and for the host what it rests on."""
    structured = {
        "othersText": answer.others_text,
        "evidence": list(answer.evidence),
        "retrievals": list(answer.retrievals),
    }
    return _result(answer.text, answer.failed, structured if any(structured.values()) else None)


def _result(text: str, failed: bool, structured: dict[str, object] | None = None) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=structured, is_error=failed)

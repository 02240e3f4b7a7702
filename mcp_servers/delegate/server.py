"""The `delegate` tool, which hands a task to a role and returns the child's answer.

Owns the tool's texts, the checks of its arguments and the form of its result. Knows no agent: the host supplies a
`ChildRunner`. The host also binds the calling turn and the permitted roles in the call's ``meta``, so that a model can
name neither another turn nor a role that the domain does not list.
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
"""Maximum characters of a task."""

DESCRIPTION = (
    "Hand a self-contained task to another role: it works with a context of its own and sees only the task. Several "
    "calls in one message run at the same time."
)


@dataclass(frozen=True, slots=True)
class ChildRequest:
    """One task of a running turn. ``call_id`` distinguishes a call that resumes after a restart from a new one."""

    turn_id: str
    call_id: str
    role: str
    task: str


class TaskAnswer(Protocol):
    """The answer of a child: its text, or the reason for a failure (``failed``).

    ``others_text``: whether the child has read text that the user did not write. The result has it as ``othersText``.
    ``evidence``: the passages that support the answer, as blocks of the host, passed on unchanged.
    ``retrievals``: ids of the child's searches.
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
    """The host's runner of delegated tasks."""

    async def run(self, request: ChildRequest) -> TaskAnswer:
        """Run a child to its end. Cancelling it interrupts the child."""
        ...


def create_server(children: ChildRunner) -> MCPServer[Any]:
    """Return the MCP server.

    The ``meta`` of each call must have ``agentic_rag/turn``, ``agentic_rag/call`` and ``agentic_rag/sub_roles`` (ids).
    """
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


def result_of(answer: TaskAnswer) -> CallToolResult:
    """Return the tool result of an answer: the text for the model, and evidence and searches for the host."""
    structured = {
        "othersText": answer.others_text,
        "evidence": list(answer.evidence),
        "retrievals": list(answer.retrievals),
    }
    return _result(answer.text, answer.failed, structured if any(structured.values()) else None)


def _result(text: str, failed: bool, structured: dict[str, object] | None = None) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=structured, is_error=failed)

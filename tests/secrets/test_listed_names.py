"""Secrets in the names that a server gives its tools and their arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentic_rag.base.events import ToolStatus
from agentic_rag.base.redaction import Redaction
from agentic_rag.domains.guarded_tools import GuardedTools
from agentic_rag.tools.base import Ask, CallOutcome, CallRequest, ProgressSink, ToolInfo

SECRET = "sk-planted-0123456789"


@dataclass(frozen=True)
class _Listed:
    """The tools of one server; a `Toolset`."""

    tools: tuple[ToolInfo, ...]
    notices: tuple[tuple[str, str], ...] = ()
    missing: Mapping[str, bool] = field(default_factory=dict)
    fresh: bool = True

    async def call(
        self, request: CallRequest, timeout: float, progress: ProgressSink | None = None, ask: Ask | None = None
    ) -> CallOutcome:
        return CallOutcome(ToolStatus.OK, ())

    async def cancel_task(self, server: str, task: str) -> None:
        pass


def _tool(name: str) -> ToolInfo:
    schema = {"type": "object", "properties": {SECRET: {"type": "string"}}, "required": [SECRET]}
    return ToolInfo(f"theirs__{name}", name, "theirs", "user", "Does something.", schema)


def test_a_tool_or_argument_named_like_a_secret_is_hidden() -> None:
    redact = Redaction()
    redact.add("API_TOKEN", SECRET)
    tools = GuardedTools(_Listed((_tool("fetch"), _tool(SECRET))), redact).tools
    assert [tool.remote_name for tool in tools] == ["fetch"]
    assert list(tools[0].input_schema["properties"]) == ["[secret API_TOKEN]"]
    assert SECRET not in str(tools)

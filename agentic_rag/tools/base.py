"""What a tool is to the runtime: its description, a call, and the outcome of a call.

Owns values only. Knows neither MCP nor the model.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from agentic_rag.events import ToolStatus
from agentic_rag.messages import Block

Origin = Literal["system", "builtin", "user"]

META_PREFIX = "agentic_rag/"
"""Of the members of a call's ``_meta`` that are ours."""

ProgressSink = Callable[[float, float | None, str | None], Awaitable[None]]
"""Takes progress, total (None: unknown) and a message of a running call."""


@dataclass(frozen=True, slots=True)
class SystemServer:
    """One of the project's own servers, which run in this process. ``tools``: those that are offered; None: all."""

    name: str
    origin: Literal["system", "builtin"]
    tools: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ToolInfo:
    """A tool as one agent has it.

    ``name`` is what the model sees (``^[a-zA-Z0-9_-]{1,64}$``), ``remote_name`` what its server calls it.
    ``read_only`` and ``idempotent`` are set only where that is trusted (our own servers, or the catalogue's
    word); a call in flight is run again after a crash only if one of them holds. ``changed``: the admin has not
    accepted it as it is now; it must not run.
    """

    name: str
    remote_name: str
    server: str
    origin: Origin
    description: str
    input_schema: Mapping[str, Any]
    read_only: bool = False
    idempotent: bool = False
    changed: bool = False


@dataclass(frozen=True, slots=True)
class Binding:
    """What is bound to our own servers' calls on our side: a model can neither see nor choose it.

    ``collection`` is where the domain's chunks are, ``documents`` those that a search sees (None: all), ``top_k`` and
    ``threshold`` the domain's settings for it. ``user`` and ``scope`` (``domain`` | ``user``) decide whose memory it
    is, ``admin`` whether the user may write the domain's roles, ``sub_roles`` whom a task may be handed to.
    """

    workspace: str = ""
    collection: str = ""
    documents: tuple[str, ...] | None = None
    top_k: int | None = None
    threshold: float | None = None
    user: str = ""
    scope: str = ""
    admin: bool = False
    sub_roles: tuple[str, ...] = ()

    def to_meta(self, turn_id: str, call_id: str) -> dict[str, Any]:
        """Return the members of a call's ``_meta`` that our servers read."""
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        values |= {"turn": turn_id, "call": call_id}
        return {
            META_PREFIX + name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
        }


@dataclass(frozen=True, slots=True)
class CallRequest:
    """One call the model asked for, already checked against the tool's schema and the policy.

    ``binding`` is sent to in-process servers only, with the ids of the turn and the call.
    """

    id: str
    tool: ToolInfo
    arguments: Mapping[str, Any]
    turn_id: str = ""
    binding: Binding = field(default_factory=Binding)


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What came of a call.

    ``content``: text and image blocks as the Messages API takes them in a ``tool_result``, never empty.
    ``structured``: the server's structured content, or None.
    """

    status: ToolStatus
    content: tuple[Block, ...]
    structured: Any = None
    duration_ms: int = 0


class Toolset(Protocol):
    """What one agent sees: a fixed list of tools for a turn, and a way to call them."""

    @property
    def tools(self) -> tuple[ToolInfo, ...]:
        """All tools in stable order; a server that is down keeps its place in the list."""
        ...

    @property
    def notices(self) -> tuple[tuple[str, str], ...]:
        """``(server, reason)`` of what is missing at the start of this turn, in words for an admin: with command
        lines, paths and addresses."""
        ...

    @property
    def missing(self) -> Mapping[str, bool]:
        """Servers that cannot be called at the start of this turn, by name; True: it is still starting."""
        ...

    async def call(self, request: CallRequest, timeout: float, progress: ProgressSink | None = None) -> CallOutcome:
        """Run one call. ``timeout``: seconds without progress before it is given up.

        Never raises for what a server did: failures are outcomes with status ``error``. Cancelling the caller
        cancels the call (the server is told) and raises the cancellation.
        """
        ...

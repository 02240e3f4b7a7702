"""What a tool is to the runtime: its description, a call, and the outcome of a call.

Owns values only, and how a server takes a question back. Knows neither MCP nor the model.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import anyio

from agentic_rag.base.events import Answerer, Option, ToolStatus, WaitAction, WaitKind
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import Block

Origin = Literal["system", "builtin", "user"]

Verdict = Literal["allow", "ask", "ask-admin", "deny"]
"""What a domain's ``toolPolicy`` says of a tool: ``ask`` the conversation's owner, or an admin of the domain."""

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

    ``name`` is what the model sees (``^[a-zA-Z0-9_-]{1,64}$``), ``remote_name`` what its server calls it, ``title``
    the name for people.
    ``read_only`` and ``idempotent`` are set only where that is trusted (our own servers, or the catalogue's
    word); a call in flight is run again after a crash only if one of them holds. ``changed``: the admin has not
    accepted it as it is now; it must not run. ``claims_read_only``: a user's server says that it has no effects, which
    counts only where a single user has the server for themselves.
    """

    name: str
    remote_name: str
    server: str
    origin: Origin
    description: str
    input_schema: Mapping[str, Any]
    title: str = ""
    read_only: bool = False
    idempotent: bool = False
    changed: bool = False
    claims_read_only: bool = False


@dataclass(frozen=True, slots=True)
class DraftFile:
    """A file of a role that its author tries before it is written."""

    kind: str
    id: str
    content: str


@dataclass(frozen=True, slots=True)
class RoleDraft:
    """The draft of a role: its files, and the hash of the text that they make. Without files: there is none."""

    files: tuple[DraftFile, ...] = ()
    hash: str = ""


@dataclass(frozen=True, slots=True)
class Binding:
    """What is bound to our own servers' calls on our side: a model can neither see nor choose it.

    ``collection`` is where the domain's chunks are, ``documents`` those that a search sees (None: all), ``top_k`` and
    ``threshold`` the domain's settings for it. ``user`` and ``scope`` (``domain`` | ``user``) decide whose memory it
    is, ``role`` which role's if the call names none, ``memory_roles`` which others it may name, ``admin`` whether the
    user may write the domain's roles, ``sub_roles`` whom a task may be handed to. ``draft``: files of that role which
    count as if they had been written.
    """

    workspace: str = ""
    collection: str = ""
    documents: tuple[str, ...] | None = None
    top_k: int | None = None
    threshold: float | None = None
    user: str = ""
    scope: str = ""
    role: str = ""
    admin: bool = False
    sub_roles: tuple[str, ...] = ()
    draft: RoleDraft = field(default_factory=RoleDraft)
    memory_roles: tuple[str, ...] = ()

    def to_meta(self, turn_id: str, call_id: str) -> dict[str, Any]:
        """Return the members of a call's ``_meta`` that our servers read."""
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        values |= {"turn": turn_id, "call": call_id, "draft": [dataclasses.asdict(file) for file in self.draft.files]}
        return {
            META_PREFIX + name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
        }


class Withdrawal:
    """How a question may end without a person: its server tells that it is done, or wants no answer any more.

    It lasts as long as this process; after a restart the person answers.
    """

    def __init__(self) -> None:
        self._told = anyio.Event()
        self._action = WaitAction.CANCEL

    def tell(self, action: WaitAction) -> None:
        """End the question as if this had been answered; the first word counts."""
        if not self._told.is_set():
            self._action = action
            self._told.set()

    async def wait(self) -> WaitAction:
        """Wait until the server has ended it."""
        await self._told.wait()
        return self._action


SIGN_IN = "signIn"
"""In what is held of an `InputNeeded`: the id of the sign-in at an MCP server that it asks for."""


@dataclass(frozen=True, slots=True)
class InputNeeded:
    """What a call needs from a person before it can go on.

    ``held`` is what the server wants back with the answer; nobody is shown it. It is kept with the wait, so that the
    call can be made again after a restart. ``withdrawal``: by which the server may end the question itself. The rest
    is as in `agentic_rag.base.events.InputRequired`.
    """

    kind: WaitKind
    title: str
    message: str
    schema: Mapping[str, Any] | None = None
    url: str | None = None
    options: tuple[Option, ...] = ()
    multiple: bool = False
    warning: str | None = None
    held: Json | None = None
    answerer: Answerer = Answerer.OWNER
    withdrawal: Withdrawal | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class InputGiven:
    """What a person answered. ``content``: by the names of the schema; ``held``: see `InputNeeded`."""

    action: WaitAction
    content: Json = field(default_factory=dict)
    held: Json | None = None


Ask = Callable[[InputNeeded], Awaitable[InputGiven]]
"""Asks a person while the call is under way, and waits for the answer."""


@dataclass(frozen=True, slots=True)
class CallRequest:
    """One call the model asked for, already checked against the tool's schema and the policy.

    ``binding`` is sent to in-process servers only, with the ids of the turn and the call. ``given``: the person's
    answer to what the server asked for when the call was made before.
    """

    id: str
    tool: ToolInfo
    arguments: Mapping[str, Any]
    turn_id: str = ""
    binding: Binding = field(default_factory=Binding)
    given: InputGiven | None = None


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What came of a call.

    ``content``: text and image blocks as the Messages API takes them in a ``tool_result``, never empty.
    ``structured``: the server's structured content, or None.
    ``large``: too large to be redacted and encoded on the event loop.
    ``encoded``: ``structured`` as JSON, if it was encoded already.
    """

    status: ToolStatus
    content: tuple[Block, ...]
    structured: Any = None
    duration_ms: int = 0
    large: bool = False
    encoded: bytes | None = None


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

    @property
    def fresh(self) -> bool:
        """Whether the list is still what the servers say, and all of them are there."""
        ...

    async def call(
        self, request: CallRequest, timeout: float, progress: ProgressSink | None = None, ask: Ask | None = None
    ) -> CallOutcome | InputNeeded:
        """Run one call. ``timeout``: seconds without progress before it is given up, those in ``ask`` aside.

        An `InputNeeded` says that the server wants the call again, with what a person answers. ``ask`` is for servers
        that ask while the call runs; None: there is nobody to ask, and none is told that it may.

        Never raises for what a server did: failures are outcomes with status ``error``. Cancelling the caller
        cancels the call (the server is told) and raises the cancellation.
        """
        ...

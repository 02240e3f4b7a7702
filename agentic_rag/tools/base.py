"""Tools as the runtime knows them: their description, a call, and the outcome of a call.

Owns value types, and how a server withdraws a question. Knows neither MCP nor the model.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import anyio

from agentic_rag.base.events import Answerer, Option, ToolStatus, WaitAction, WaitKind
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import Block

Origin = Literal["system", "builtin", "user"]

Verdict = Literal["allow", "ask", "ask-admin", "deny"]
"""The answer of a domain's ``toolPolicy`` for a tool: ``ask`` the conversation's owner, or an admin of the domain."""

META_PREFIX = "agentic_rag/"
"""Prefix of the members of a call's ``_meta`` that belong to this project."""

ProgressSink = Callable[[float, float | None, str | None], Awaitable[None]]
"""Receives the progress, the total (None: unknown) and a message of a running call."""


@dataclass(frozen=True, slots=True)
class SystemServer:
    """One of the project's own servers, which run in this process.

    ``tools`` names the tools that are offered. None offers all of them.
    """

    name: str
    origin: Literal["system", "builtin"]
    tools: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ToolInfo:
    """A tool as one agent has it.

    ``name`` is the name that the model sees (``^[a-zA-Z0-9_-]{1,64}$``), ``remote_name`` the name on its server,
    ``title`` the name for people.

    ``read_only`` and ``idempotent`` are set only where the claim is trusted: for our own servers, or from the
    catalogue. After a crash, a call in flight is repeated only if one of them holds.

    ``changed``: the tool differs from the version the admin accepted, and must not run. ``claims_read_only``: a user's
    server declares that the tool has no effects. This counts only if a single user has the server to themselves.
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
    """A role file that its author tries out before saving it."""

    kind: str
    id: str
    content: str


@dataclass(frozen=True, slots=True)
class RoleDraft:
    """The draft of a role: its files, and the hash of their text. Without files there is no draft."""

    files: tuple[DraftFile, ...] = ()
    hash: str = ""


@dataclass(frozen=True, slots=True)
class Binding:
    """The values that our side attaches to calls of our own servers. A model can neither see nor choose them.

    ``collection`` holds the domain's chunks, ``documents`` are those that a search may see (None: all), ``top_k`` and
    ``threshold`` are the domain's search settings. ``user`` and ``key`` (the id of the presented API key) name the
    reader whose labels decide which documents a call sees; the labels are looked up at each call. ``trusted``: the
    reader sees all documents if there is no record of the user. ``user`` and ``scope`` (``domain`` | ``user``) select
    the memory.
    ``role`` is the role whose memory is used if the call names none, and ``memory_roles`` are the others it may name.
    ``admin``: whether the user may write the domain's roles.
    ``sub_roles``: the roles that a task may be delegated to.
    ``draft``: files of that role which count as if they had been saved.
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
    key: str = ""
    trusted: bool = False

    def to_meta(self, turn_id: str, call_id: str) -> dict[str, Any]:
        """Return the members of a call's ``_meta`` that our servers read."""
        # Every field travels under its own name, so that a new one needs no line here.
        values = {member.name: getattr(self, member.name) for member in dataclasses.fields(self)}
        values |= {"turn": turn_id, "call": call_id, "draft": [dataclasses.asdict(file) for file in self.draft.files]}
        return {
            META_PREFIX + name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
        }


class Withdrawal:
    """The way a server ends its own question without a person: the matter is done, or no answer is wanted any more.

    A withdrawal lives as long as this process. After a restart, the person answers.
    """

    def __init__(self) -> None:
        self._withdrawn = anyio.Event()
        self._action = WaitAction.CANCEL

    def end(self, action: WaitAction) -> None:
        """End the question as if a person had answered with this action. Only the first call counts."""
        if not self._withdrawn.is_set():
            self._action = action
            self._withdrawn.set()

    async def wait(self) -> WaitAction:
        """Wait until the server withdraws the question."""
        await self._withdrawn.wait()
        return self._action


SIGN_IN = "signIn"
"""Member of `InputNeeded.held` with the id of the sign-in at an MCP server that the question is about."""


@dataclass(frozen=True, slots=True)
class InputNeeded:
    """The input that a call needs from a person before it can resume.

    ``held`` is the data that the server wants back with the answer. It is shown to no person and stored with the wait,
    so that the call can be repeated after a restart. ``withdrawal`` lets the server end the question. The other fields
    are those of `agentic_rag.base.events.InputRequired`.
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
    """A person's answer. ``content`` is keyed by the names of the schema; for ``held`` see `InputNeeded`."""

    action: WaitAction
    content: Json = field(default_factory=dict)
    held: Json | None = None


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """A task that a server has begun for a call. ``cancel`` asks the server to stop it, and waits a moment for that."""

    id: str
    cancel: Callable[[], Coroutine[Any, Any, None]] = field(compare=False, repr=False)


NoteTask = Callable[[RemoteTask], Awaitable[None]]
"""Stores a task of a server before its result is awaited."""

Ask = Callable[[InputNeeded], Awaitable[InputGiven]]
"""Asks a person while the call is running, and waits for the answer."""


@dataclass(frozen=True, slots=True)
class CallRequest:
    """One call the model asked for, already checked against the tool's schema and the policy.

    ``binding`` is sent to in-process servers only, with the ids of the turn and the call. ``given`` is the person's
    answer to the input that the server asked for in an earlier attempt of this call. ``task`` is the server's task that
    an earlier attempt began: its result is fetched, and the call is not repeated. ``note_task`` stores a new one.
    """

    id: str
    tool: ToolInfo
    arguments: Mapping[str, Any]
    turn_id: str = ""
    binding: Binding = field(default_factory=Binding)
    given: InputGiven | None = None
    task: str = ""
    note_task: NoteTask | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of a call.

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
    """The tools of one agent: a list that is fixed for a turn, and a way to call them."""

    @property
    def tools(self) -> tuple[ToolInfo, ...]:
        """All tools in stable order; a server that is down keeps its place in the list."""
        ...

    @property
    def notices(self) -> tuple[tuple[str, str], ...]:
        """Pairs ``(server, reason)`` for the tools that are missing at the start of this turn.

        The reasons are for admins: they contain command lines, paths and addresses.
        """
        ...

    @property
    def missing(self) -> Mapping[str, bool]:
        """Servers that cannot be called at the start of this turn, by name. True: the server is still starting."""
        ...

    @property
    def fresh(self) -> bool:
        """Whether all servers are up and the list still equals the lists they give."""
        ...

    async def call(
        self, request: CallRequest, timeout: float, progress: ProgressSink | None = None, ask: Ask | None = None
    ) -> CallOutcome | InputNeeded:
        """Run one call. ``timeout``: seconds without progress before the call is abandoned, not counting ``ask``.

        An `InputNeeded` means that the server wants the call repeated with a person's answer. ``ask`` serves servers
        that ask while the call runs. Without ``ask`` there is no person to ask, and servers are not offered the
        feature.

        Never raises for a failure of a server: failures are outcomes with status ``error``. Cancelling the caller
        cancels the call (the server is notified) and raises the cancellation.
        """
        ...

    async def cancel_task(self, server: str, task: str) -> None:
        """Ask a server to stop a task that another process began. Failures are ignored."""
        ...

"""The states of a connection, its timeouts, and the status that admins see.

Owns value types only. Knows no server and no task.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from agentic_rag.base.json_form import Json, to_json
from agentic_rag.base.redaction import Redaction
from agentic_rag.tools.server_answers import DroppedTool

LISTED_TWICE = "the server lists this name more than once, so a call would be ambiguous"
"""The reason why no model sees such a tool."""


class State(StrEnum):
    """The state of a connection; see `Connection`. ``installing``: the server's package is being installed."""

    INSTALLING = "installing"
    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    FAILED = "failed"
    STOPPED = "stopped"
    NEEDS_AUTH = "needs_auth"
    """The server requires a person's sign-in. The next use tries again."""


@dataclass(frozen=True, slots=True)
class ConnectionTimeouts:
    """Timeouts of a connection in seconds. ``idle`` None: never stopped for lack of calls.

    ``probe``: for an answer to the newer era's first question, within ``initialize``. ``ping``: for any answer after a
    call timed out; without an answer the server is restarted. ``retired``: replaces ``idle`` when the entry is changed;
    a turn that began before may still use the connection.
    """

    initialize: float = 10.0
    probe: float = 3.0
    close: float = 6.0
    idle: float | None = 600.0
    retired: float = 30.0
    ping: float = 5.0
    backoff: float = 0.25
    failures: int = 3
    window: float = 60.0


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool as its server lists it, without invisible characters that could disguise it.

    ``called_as`` is its name for models and for the setting ``toolPolicy``. ``read_only``: the server declares that the
    tool has no effects.
    """

    name: str
    description: str
    input_schema: Json
    title: str = ""
    called_as: str = ""
    read_only: bool = False

    def redact(self, redaction: Redaction) -> "ListedTool":
        """Return the tool without the domain's secret values."""
        words = {
            "name": redaction(self.name),
            "description": redaction(self.description),
            "title": redaction(self.title),
        }
        return replace(self, **words, input_schema=redaction.json(self.input_schema))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class WaitingTool:
    """A tool that is new (``before`` None) or differs from its accepted form, in both forms.

    ``user`` belongs to an ``identity: user`` entry: the user whose server listed the tool.
    """

    name: str
    user: str
    before: ListedTool | None
    now: ListedTool


@dataclass(frozen=True, slots=True)
class PendingTools:
    """The tools of one server that wait for an admin.

    ``fingerprint`` is the hash of exactly these tools; accepting requires it. ``doubled``: names that were listed more
    than once, which excludes them.
    """

    tools: tuple[WaitingTool, ...] = ()
    doubled: tuple[str, ...] = ()
    fingerprint: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the waiting tools, sorted, each once."""
        return tuple(sorted({tool.name for tool in self.tools}))


@dataclass(frozen=True, slots=True)
class AwaitedSignIn:
    """A sign-in that a server waits for; see `SignInNeeded`. Only for the person who signs in."""

    id: str
    address: str
    begin: str
    who: str
    host: str
    expires_at: str


@dataclass(frozen=True, slots=True)
class ConnectionState:
    """The status of one connection. ``domain`` and ``user`` are its owners; empty means shared.

    ``notes``: hints for the admin although the connection works.

    ``tools``: the last list the server gave. ``log``: the last lines it wrote to stderr. ``sign_in``: the sign-in that
    the server waits for; `to_json` leaves it out, because it is for that user alone.
    """

    name: str
    state: State
    domain: str = ""
    user: str = ""
    reason: str = ""
    protocol: str = ""
    tools: tuple[ListedTool, ...] = ()
    log: tuple[str, ...] = ()
    sign_in: AwaitedSignIn | None = None
    dropped_tools: tuple[DroppedTool, ...] = ()
    """Tools of that list that no model sees."""
    notes: tuple[str, ...] = ()

    def to_json(self) -> Json:
        """Return the state for clients. Domain, user and sign-in are left out: they belong to the owner alone."""
        return {
            "name": self.name,
            "state": str(self.state),
            "reason": self.reason,
            "protocol": self.protocol,
            "tools": to_json(self.tools),
            "log": list(self.log),
            "droppedTools": to_json(self.dropped_tools),
            "notes": list(self.notes),
        }

    def redact(self, redaction: Redaction) -> "ConnectionState":
        """Return the state without the domain's secret values."""
        return replace(
            self,
            reason=redaction(self.reason),
            tools=tuple(tool.redact(redaction) for tool in self.tools),
            log=tuple(map(redaction, self.log)),
            dropped_tools=tuple(
                DroppedTool(redaction(tool.name), redaction(tool.reason)) for tool in self.dropped_tools
            ),
            notes=tuple(map(redaction, self.notes)),
        )


def describe_missing(server: str, *, starting: bool) -> str:
    """Return a text about an unavailable server that any reader may see."""
    if starting:
        return f"The MCP server {server!r} is still starting. Call it again in a moment, or go on without."
    return f"The MCP server {server!r} is not available now; an admin of the domain can see why. Go on without."

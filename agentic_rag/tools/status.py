"""The states of a connection, how long it waits for what, and what an admin is shown of it.

Owns values only. Knows no server and no task.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from agentic_rag.base.json_form import Json, to_json
from agentic_rag.base.redaction import Redaction
from agentic_rag.tools.server_answers import DroppedTool

LISTED_TWICE = "the server lists this name more than once, so a call would be ambiguous"
"""Why no model is shown such a tool."""


class State(StrEnum):
    """Where a connection is in its life; see `Connection`. ``installing``: before the first one, its package is."""

    INSTALLING = "installing"
    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    FAILED = "failed"
    STOPPED = "stopped"
    NEEDS_AUTH = "needs_auth"
    """Nobody is let in before a person has signed in; the next use tries again."""


@dataclass(frozen=True, slots=True)
class ConnectionTimeouts:
    """How long a connection waits for what; seconds. ``idle`` None: never stopped for want of calls.

    ``probe``: for an answer to the newer era's first question, within ``initialize``.
    ``ping``: for any answer after a call was not answered in time; without one the server is restarted.
    ``retired``: what ``idle`` becomes when its entry is changed; a turn that began before may still use it.
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
    """A tool as its server lists it, without characters that show it as something else.

    ``called_as``: its name for models and for the setting ``toolPolicy``. ``read_only``: its server says that it has no
    effects.
    """

    name: str
    description: str
    input_schema: Json
    title: str = ""
    called_as: str = ""
    read_only: bool = False

    def redact(self, redaction: Redaction) -> "ListedTool":
        """Return the tool without the values a domain keeps."""
        words = {
            "name": redaction(self.name),
            "description": redaction(self.description),
            "title": redaction(self.title),
        }
        return replace(self, **words, input_schema=redaction.json(self.input_schema))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class WaitingTool:
    """A tool that is new (``before`` None) or other than accepted, in both wordings.

    ``user``: of an ``identity: user`` entry, whose server listed it.
    """

    name: str
    user: str
    before: ListedTool | None
    now: ListedTool


@dataclass(frozen=True, slots=True)
class PendingTools:
    """What waits for an admin in the lists of one server. ``fingerprint``: of exactly that; `accept` wants it back.

    ``doubled``: names that were listed more than once, which drops them.
    """

    tools: tuple[WaitingTool, ...] = ()
    doubled: tuple[str, ...] = ()
    fingerprint: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools that wait, sorted, each once."""
        return tuple(sorted({tool.name for tool in self.tools}))


@dataclass(frozen=True, slots=True)
class OpenSignIn:
    """A sign-in that a server waits for; see `SignInNeeded`. Only for the person who signs in."""

    id: str
    address: str
    begin: str
    who: str
    host: str
    expires_at: str


@dataclass(frozen=True, slots=True)
class ConnectionState:
    """What an admin is shown of one connection. ``domain`` and ``user``: whose it is; an empty one: shared.

    ``notes``: what the admin should know although the connection works.

    ``tools``: the last list the server gave; ``log``: the last lines it wrote to stderr. ``sign_in``: what it waits
    for, which `to_json` leaves out: it is for that user alone.
    """

    name: str
    state: State
    domain: str = ""
    user: str = ""
    reason: str = ""
    protocol: str = ""
    tools: tuple[ListedTool, ...] = ()
    log: tuple[str, ...] = ()
    sign_in: OpenSignIn | None = None
    dropped_tools: tuple[DroppedTool, ...] = ()
    """Tools of that list that no model is shown."""
    notes: tuple[str, ...] = ()

    def to_json(self) -> Json:
        """Return the state as a client sees it: whose connection it is goes to nobody else."""
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
        """Return the state without the values a domain keeps."""
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

"""What turns need from outside, and what others store inside a turn's transactions.

Owns the two protocols that the composition root implements, each with one object, and the value in which one
`Runtime` hands its parts to its sessions, agents and compactions. Knows no agent.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import date
from typing import Protocol

import anyio
from anyio.abc import TaskGroup
from sqlalchemy import Connection

from agentic_rag.events import EventBody, Notice, Terminal, ToolStatus
from agentic_rag.ids import SessionId, TurnId, WaitId
from agentic_rag.models.base import Model
from agentic_rag.models.calls import ModelCalls
from agentic_rag.observer import Observer
from agentic_rag.redaction import Redactor
from agentic_rag.runtime.core.calls import PlannedCall
from agentic_rag.runtime.core.definition import Definition, Images
from agentic_rag.runtime.kept_transcripts import KeptTranscripts
from agentic_rag.runtime.log.runlog import Journal
from agentic_rag.runtime.refused_tools import RefusedTools
from agentic_rag.runtime.spending import Spending
from agentic_rag.store.database import Database
from agentic_rag.store.payloads import PayloadFiles
from agentic_rag.store.turns import TurnRecord
from agentic_rag.tools.base import Toolset

MAX_INTERRUPTS = 256


class AgentServices(Protocol):
    """What a turn needs from outside. Implemented by one object, which the composition root makes."""

    @property
    def opening_notices(self) -> Sequence[Notice]:
        """What the turn of a user begins with, such as that no language model is configured."""
        ...

    @property
    def alone(self) -> bool:
        """Whether nobody but the local user can come in, now."""
        ...

    @property
    def today(self) -> date:
        """The date where the server stands."""
        ...

    def documents_mark(self, domain_id: str) -> object:
        """Return what is the same object as long as no document of a domain is changed or deleted; None: unknown."""
        ...

    @property
    def model_calls(self) -> ModelCalls:
        """What remembers what became of the model's calls."""
        ...

    def model(self, domain_id: str) -> Model:
        """Return the model that answers in a domain."""
        ...

    async def open_toolset(self, definition: Definition) -> Toolset:
        """Return the tools of a turn; what cannot be started is named in its notices."""
        ...

    async def role_hash(self, domain_id: str, role: str) -> str | None:
        """Return the hash of a role's text as it is now, None when there is no such role."""
        ...

    async def missing_chunks(self, domain_id: str, chunk_ids: set[str]) -> AbstractSet[str]:
        """Return which of these chunks no longer exist: no answer may cite them."""
        ...


class TurnHooks(Protocol):
    """What others store inside a turn's transactions. What a hook raises undoes the transaction.

    Each runs in the thread that writes to the store: it must not wait and must not touch the event loop.
    """

    def turn_accepted(self, conn: Connection, turn: TurnRecord) -> Sequence[EventBody]:
        """Take notice of a user's message, before it is stored; return the events that follow ``turn_started``.

        What it raises refuses the message.
        """
        ...

    def turn_ended(self, conn: Connection, turn: TurnRecord, final: Terminal) -> None:
        """Take notice of the end of a user's turn, in its last transaction."""
        ...

    def session_branched(self, conn: Connection, session_id: SessionId) -> None:
        """Take notice that another branch of a session is the active one, before anything is added to it."""
        ...

    def session_compacted(self, conn: Connection, session_id: SessionId) -> None:
        """Take notice of a compaction, after it was stored."""
        ...

    def call_denied(self, conn: Connection, turn: TurnRecord, call: PlannedCall) -> None:
        """Take notice of a call that was denied, in the transaction of its result."""
        ...

    def call_made(self, conn: Connection, turn: TurnRecord, call: PlannedCall, status: ToolStatus) -> None:
        """Take notice of a call that was run, or may have been, in the transaction of its result."""
        ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a model and a person are waited for, in seconds."""

    model_idle: float = 60
    """Without any event of a call."""
    retry_budget: float = 60
    """What the waits between the tries of one step may come to."""
    wait_seconds: float = 86_400
    """For a person's answer; then it counts as declined."""
    memory_seconds: float = 60
    """How long a turn stays in memory of which nothing but a person's answer is missing."""


class Answers:
    """Wakes the calls of this process whose waits were answered."""

    def __init__(self) -> None:
        self._expected: dict[WaitId, anyio.Event] = {}
        self.news = anyio.Event()
        """Set when anything was answered; each time a new event."""

    def expect(self, wait_id: WaitId) -> anyio.Event:
        """Return what is set once the wait was answered; `forget` it in the end."""
        return self._expected.setdefault(wait_id, anyio.Event())

    def tell(self, wait_id: WaitId) -> None:
        """Say that the answer of a wait is stored."""
        if wait_id in self._expected:
            self._expected[wait_id].set()
        self.wake()

    def wake(self) -> None:
        """Have whoever waits for news look for it."""
        self.news.set()
        self.news = anyio.Event()

    def forget(self, wait_id: WaitId) -> None:
        """Undo `expect`."""
        self._expected.pop(wait_id, None)


class Interrupts:
    """Interrupts that came from other processes for turns that this one has not begun yet, but is about to."""

    def __init__(self) -> None:
        self._asked: dict[TurnId, None] = {}

    def note(self, turn_id: TurnId) -> None:
        """Keep one; of many the oldest are forgotten."""
        self._asked[turn_id] = None
        if len(self._asked) > MAX_INTERRUPTS:
            del self._asked[next(iter(self._asked))]

    def take(self, turn_id: TurnId) -> bool:
        """Whether one came for a turn."""
        return self._asked.pop(turn_id, turn_id) is None


class Load:
    """How many turns run in this process, and whether it takes one more. ``most``: 0 is any number."""

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self.running = 0

    @property
    def full(self) -> bool:
        return 0 < self.most <= self.running

    def begin(self) -> None:
        """Count a turn that runs."""
        self.running += 1

    def end(self) -> None:
        """Count one less."""
        self.running -= 1


@dataclass(frozen=True, slots=True)
class Resources:
    """What the sessions, agents and compactions of one `Runtime` share.

    ``owner`` names this process in leases. ``tasks``: the task group in which turns live. ``draining``: nothing new
    begins any more.
    """

    services: AgentServices
    hooks: TurnHooks
    database: Database
    payloads: PayloadFiles
    redactor: Redactor
    patience: Patience
    journal: Journal
    spending: Spending
    observer: Observer
    owner: str
    tasks: TaskGroup
    images: Images = field(default_factory=Images)
    answers: Answers = field(default_factory=Answers)
    draining: anyio.Event = field(default_factory=anyio.Event)
    interrupts: Interrupts = field(default_factory=Interrupts)
    load: Load = field(default_factory=Load)
    transcripts: KeptTranscripts = field(default_factory=KeptTranscripts)
    refused_tools: RefusedTools = field(default_factory=RefusedTools)

    @property
    def shared(self) -> bool:
        """Whether other processes have the store open, too."""
        return self.database.shared

    @property
    def full(self) -> bool:
        """Whether this process begins no turn now that another one may begin as well."""
        return self.draining.is_set() or self.load.full

    @property
    def stopping(self) -> bool:
        """Whether the process ends: turns stay where they are, to be resumed by the next one."""
        return self.tasks.cancel_scope.cancel_called

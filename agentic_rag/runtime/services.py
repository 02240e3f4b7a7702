"""The services and hooks that turns use, and the parts that a `Runtime` shares.

Owns the two protocols that the composition root implements, each with one object, and the value with which one
`Runtime` passes its parts to its sessions, agents and compactions. Knows no agent.
"""

from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Protocol

import anyio
from anyio.abc import TaskGroup
from sqlalchemy import Connection

from agentic_rag.base.events import EventBody, Terminal, ToolStatus
from agentic_rag.base.ids import SessionId, TurnId, WaitId
from agentic_rag.base.redaction import Redactor
from agentic_rag.base.telemetry import Observer
from agentic_rag.models.base import Model
from agentic_rag.models.calls import ModelCalls
from agentic_rag.runtime.core.calls import PlannedCall
from agentic_rag.runtime.core.definition import Definition, Images
from agentic_rag.runtime.log.fanout import Fanout
from agentic_rag.runtime.log.runlog import Journal
from agentic_rag.runtime.refused_images import RefusedImages
from agentic_rag.runtime.refused_tools import RefusedTools
from agentic_rag.runtime.spending import Spending
from agentic_rag.runtime.transcript_cache import TranscriptCache
from agentic_rag.store.clock import new_id
from agentic_rag.store.database import Database
from agentic_rag.store.payloads import PayloadFiles
from agentic_rag.store.turns import TurnRecord
from agentic_rag.tools.base import Toolset

if TYPE_CHECKING:  # imports PostgreSQL's driver
    from agentic_rag.store.signal_feed import SignalFeed

MAX_INTERRUPTS = 256


class AgentServices(Protocol):
    """The services that a turn uses. The composition root builds the one implementation."""

    @property
    def alone(self) -> bool:
        """Whether only the local user has access at present."""
        ...

    @property
    def today(self) -> date:
        """The current date in the server's time zone."""
        ...

    def documents_mark(self, domain_id: str) -> object:
        """Return an object that is replaced when a document of the domain is changed or deleted, or None if unknown."""
        ...

    @property
    def model_calls(self) -> ModelCalls:
        """The record of the outcomes of model calls."""
        ...

    def model(self, domain_id: str) -> Model:
        """Return the model that answers in a domain."""
        ...

    async def open_toolset(self, definition: Definition) -> Toolset:
        """Return the tools of a turn. Its notices name the servers that could not be started."""
        ...

    async def role_hash(self, domain_id: str, role: str) -> str | None:
        """Return the current hash of a role's text, or None if there is no such role."""
        ...

    async def missing_chunks(self, domain_id: str, chunk_ids: set[str]) -> AbstractSet[str]:
        """Return the chunks that no longer exist, which no answer may cite."""
        ...


HiddenDocuments = Callable[[Definition, AbstractSet[str]], Awaitable[AbstractSet[str]]]
"""A function that returns which of these documents the reader of a turn may not see at present."""


async def hide_nothing(definition: Definition, document_ids: AbstractSet[str]) -> AbstractSet[str]:
    """Return no document: every reader may see all of them."""
    return frozenset()


class TurnHooks(Protocol):
    """Hooks that write inside a turn's transactions. An exception in a hook rolls the transaction back.

    Each runs in the thread that writes to the store, so it must not wait and must not touch the event loop.
    """

    def turn_accepted(self, conn: Connection, turn: TurnRecord) -> Sequence[EventBody]:
        """Handle a user's message before it is stored. Return the events that follow ``turn_started``.

        An exception refuses the message.
        """
        ...

    def turn_ended(self, conn: Connection, turn: TurnRecord, final: Terminal) -> None:
        """Handle the end of a user's turn, in its last transaction."""
        ...

    def session_branched(self, conn: Connection, session_id: SessionId) -> None:
        """Handle the change to another branch of a session, before anything is added to the branch."""
        ...

    def session_compacted(self, conn: Connection, session_id: SessionId) -> None:
        """Handle a compaction, after it was stored."""
        ...

    def call_denied(self, conn: Connection, turn: TurnRecord, call: PlannedCall) -> None:
        """Handle a denied call, in the transaction of its result."""
        ...

    def call_made(self, conn: Connection, turn: TurnRecord, call: PlannedCall, status: ToolStatus) -> None:
        """Handle a call that ran, or may have run, in the transaction of its result."""
        ...


@dataclass(frozen=True, slots=True)
class TurnTimeouts:
    """Timeouts for models and people, in seconds."""

    model_idle: float = 60
    """Without any event of a call."""
    retry_budget: float = 60
    """For the delays between the attempts of one step, in total."""
    wait_seconds: float = 86_400
    """For a person's answer. After that the wait counts as declined."""
    memory_seconds: float = 60
    """Until a turn that only waits for a person's answer leaves memory."""


class Answers:
    """Wakes the calls of this process whose waits were answered."""

    def __init__(self) -> None:
        self._expected: dict[WaitId, anyio.Event] = {}
        self.news = anyio.Event()
        """Set when any wait was answered. Then replaced by a new event."""

    def expect(self, wait_id: WaitId) -> anyio.Event:
        """Return the event that is set once the wait was answered. Call `forget` afterwards."""
        return self._expected.setdefault(wait_id, anyio.Event())

    def notify(self, wait_id: WaitId) -> None:
        """Notify the call of a wait whose answer is stored."""
        if wait_id in self._expected:
            self._expected[wait_id].set()
        self.wake()

    def wake(self) -> None:
        """Wake the task that checks for new answers."""
        # A waiter that holds the old event is woken, and the next one waits for the new one.
        self.news.set()
        self.news = anyio.Event()

    def forget(self, wait_id: WaitId) -> None:
        """Undo `expect`."""
        self._expected.pop(wait_id, None)


class Interrupts:
    """Interrupts from other processes for turns that this process is about to begin."""

    def __init__(self) -> None:
        self._turn_ids: dict[TurnId, None] = {}

    def note(self, turn_id: TurnId) -> None:
        """Record an interrupt. Above `MAX_INTERRUPTS` the oldest is dropped."""
        self._turn_ids[turn_id] = None
        if len(self._turn_ids) > MAX_INTERRUPTS:
            del self._turn_ids[next(iter(self._turn_ids))]

    def take(self, turn_id: TurnId) -> bool:
        """Return whether a turn was interrupted, and drop the record."""
        # The values are None, so the default stands for a turn that is not in the dictionary.
        return self._turn_ids.pop(turn_id, turn_id) is None


class TurnLoad:
    """The number of turns that run in this process, with a limit. ``most``: 0 means no limit."""

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
        """Count a turn that has ended."""
        self.running -= 1


@dataclass(frozen=True, slots=True)
class Replica:
    """This process among the processes of a shared store.

    ``owner``: its name in leases; a new one by default. ``most_turns``: most turns that it runs at the same time, 0 for
    no limit; without other processes there is none either. ``feed``: the signals of the others; its owner runs it.
    ``fanout``: carries live events between them. Both are None if there are no others.
    """

    owner: str = field(default_factory=partial(new_id, "run"))
    most_turns: int = 0
    feed: "SignalFeed | None" = None
    fanout: Fanout | None = None


@dataclass(frozen=True, slots=True)
class Resources:
    """The parts that the sessions, agents and compactions of one `Runtime` share.

    ``hidden_documents``: names the documents that the reader may not see. Agents call it before each request that
    repeats passages. ``owner``: the name of this process in leases. ``tasks``: the task group of the turns.
    ``draining``: set when the server stops, so that no turn begins any more.
    """

    services: AgentServices
    hooks: TurnHooks
    database: Database
    payloads: PayloadFiles
    redactor: Redactor
    patience: TurnTimeouts
    journal: Journal
    spending: Spending
    observer: Observer
    owner: str
    tasks: TaskGroup
    hidden_documents: HiddenDocuments = hide_nothing
    images: Images = field(default_factory=Images)
    answers: Answers = field(default_factory=Answers)
    draining: anyio.Event = field(default_factory=anyio.Event)
    interrupts: Interrupts = field(default_factory=Interrupts)
    load: TurnLoad = field(default_factory=TurnLoad)
    transcripts: TranscriptCache = field(default_factory=TranscriptCache)
    refused_tools: RefusedTools = field(default_factory=RefusedTools)
    refused_images: RefusedImages = field(default_factory=RefusedImages)

    @property
    def shared(self) -> bool:
        """Whether other processes use the store too."""
        return self.database.shared

    @property
    def full(self) -> bool:
        """Whether this process begins no more turns, so that another process may begin them."""
        return self.draining.is_set() or self.load.full

    @property
    def stopping(self) -> bool:
        """Whether the process is ending. Running turns stop, and the next process resumes them."""
        return self.tasks.cancel_scope.cancel_called

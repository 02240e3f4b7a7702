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
from agentic_rag.models.base import Model
from agentic_rag.models.calls import ModelCalls
from agentic_rag.redaction import Redactor
from agentic_rag.runtime.core.calls import PlannedCall
from agentic_rag.runtime.core.definition import Definition, Images
from agentic_rag.runtime.log.runlog import Journal
from agentic_rag.store.database import Database
from agentic_rag.store.payloads import PayloadFiles
from agentic_rag.store.turns import TurnRecord
from agentic_rag.tools.base import Toolset


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

    def session_branched(self, conn: Connection, session_id: str) -> None:
        """Take notice that another branch of a session is the active one, before anything is added to it."""
        ...

    def session_compacted(self, conn: Connection, session_id: str) -> None:
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
    """How long a model is waited for, in seconds."""

    model_idle: float = 60
    """Without any event of a call."""
    retry_budget: float = 60
    """What the waits between the tries of one step may come to."""


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
    owner: str
    tasks: TaskGroup
    images: Images = field(default_factory=Images)
    draining: anyio.Event = field(default_factory=anyio.Event)

    @property
    def stopping(self) -> bool:
        """Whether the process ends: turns stay where they are, to be resumed by the next one."""
        return self.tasks.cancel_scope.cancel_called

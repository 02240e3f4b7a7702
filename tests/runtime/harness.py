"""A runtime with a real store, a scripted model and tools in memory."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from sqlalchemy import Connection, update

from agentic_rag.base.errors import StorageFull
from agentic_rag.base.events import AgentEvent, EventBody, Terminal, ToolStatus
from agentic_rag.base.ids import ConversationId, MessageId, SessionId, TurnId
from agentic_rag.base.messages import Message, text_block
from agentic_rag.base.redaction import Redactor
from agentic_rag.models.base import Model
from agentic_rag.models.calls import ModelCalls
from agentic_rag.runtime.acceptance import Accepted
from agentic_rag.runtime.core.calls import PlannedCall
from agentic_rag.runtime.core.definition import Definition, Limits, Persona
from agentic_rag.runtime.delegates import Delegations
from agentic_rag.runtime.log.fanout import Fanout, PostgresFanout
from agentic_rag.runtime.runtime import Runtime
from agentic_rag.runtime.services import Answers, Replica, TurnTimeouts
from agentic_rag.runtime.spending import Spending
from agentic_rag.runtime.transcript_cache import DEFAULT_BYTES
from agentic_rag.store import budgets, sessions, turns
from agentic_rag.store.budgets import BudgetRecord, Period, ReservationRecord, Unit
from agentic_rag.store.clock import now
from agentic_rag.store.compactions import CompactionRecord
from agentic_rag.store.database import Database
from agentic_rag.store.payloads import PayloadFiles
from agentic_rag.store.sessions import SessionLabels
from agentic_rag.store.signal_feed import SignalFeed
from agentic_rag.store.turns import TurnRecord
from agentic_rag.store.usage import Scope
from agentic_rag.tools.base import Ask, CallOutcome, CallRequest, InputNeeded, ProgressSink, ToolInfo
from tests.databases import POSTGRESQL, database_at
from tests.runtime.served import served

SESSION = SessionId("sess_test")
SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}

Tool = Callable[[CallRequest], Awaitable[CallOutcome | InputNeeded]]


def info(name: str, *, origin: Any = "user", read_only: bool = False, claims_read_only: bool = True) -> ToolInfo:
    """Return a tool that takes a query.

    On a single user's server it runs without approval if it claims to be read-only.
    """
    server = "retriever" if origin == "builtin" else "srv"
    return ToolInfo(
        name,
        name,
        server,
        origin,
        f"The tool {name}.",
        SCHEMA,
        read_only=read_only,
        claims_read_only=claims_read_only and origin == "user",
    )


def ok(text: str, structured: Any = None) -> CallOutcome:
    return CallOutcome(ToolStatus.OK, (text_block(text),), structured, 3)


def hits(*texts: str, document: str = "doc_1") -> dict[str, Any]:
    """Return the structured content of a search with one hit, whose sentences are ``texts``."""
    sentences = [{"chunk_id": f"{document}-c0", "text": text, "start": 0, "end": len(text)} for text in texts]
    hit = {
        "document_id": document,
        "document_name": f"{document}.md",
        "heading_path": ["Top"],
        "page": 2,
        "cells": None,
        "score": 1.0,
        "relevance_score": 0.8,
        "sentences": sentences,
    }
    return {"retrieval_id": "ret_1", "mode": "lexical", "hits": [hit]}


@dataclass
class MemoryToolset:
    """A toolset whose tools are functions. It records its requests."""

    functions: Mapping[str, tuple[ToolInfo, Tool]]
    notices: tuple[tuple[str, str], ...] = ()
    missing: Mapping[str, bool] = field(default_factory=dict)
    requests: list[CallRequest] = field(default_factory=list)
    is_current: Callable[[], bool] = lambda: True

    @property
    def tools(self) -> tuple[ToolInfo, ...]:
        return tuple(tool for tool, _ in self.functions.values())

    @property
    def fresh(self) -> bool:
        return not self.missing and self.is_current()

    async def call(
        self, request: CallRequest, timeout: float, progress: ProgressSink | None = None, ask: Ask | None = None
    ) -> CallOutcome | InputNeeded:
        self.requests.append(request)
        return await self.functions[request.tool.name][1](request)

    async def cancel_task(self, server: str, task: str) -> None:
        pass


def toolset(**functions: Tool) -> MemoryToolset:
    """Return a toolset. ``search_documents`` is built in and read-only; other tools are a user's."""
    return MemoryToolset(
        {
            name: (info(name, origin="builtin", read_only=True) if name == "search_documents" else info(name), function)
            for name, function in functions.items()
        }
    )


def definition(**changes: Any) -> Definition:
    values: dict[str, Any] = {
        "domain_id": "dom_test",
        "persona": Persona(name="Test", role="guide"),
        "model": "scripted-1",
        "max_tokens": 1000,
        "limits": Limits(max_steps=6),
        "effects_allowed_by_default": True,
    }
    return Definition(**(values | changes))


@dataclass
class Services:
    """The services that the turns of a bench need."""

    given_model: Model
    tools: MemoryToolset
    today: date = date(2026, 11, 22)
    alone: bool = True
    model_calls: ModelCalls = field(default_factory=lambda: ModelCalls("scripted"))

    def model(self, domain_id: str) -> Model:
        return self.given_model

    async def open_toolset(self, definition: Definition) -> MemoryToolset:
        toolset_now = self.tools
        return replace(toolset_now, is_current=lambda: self.tools is toolset_now)

    def documents_mark(self, domain_id: str) -> object:
        return None

    async def role_hash(self, domain_id: str, role: str) -> str | None:
        return None

    async def missing_chunks(self, domain_id: str, chunk_ids: set[str]) -> set[str]:
        return set()


@dataclass
class Hooks:
    """Records the calls of its methods."""

    ended_turns: list[tuple[TurnRecord, Terminal]] = field(default_factory=list)
    denied_calls: list[PlannedCall] = field(default_factory=list)
    branched_sessions: list[tuple[str, int]] = field(default_factory=list)
    """Retries, each with the number of messages at the start of its new branch."""
    compacted_sessions: list[tuple[str, tuple[int, int]]] = field(default_factory=list)
    """Compactions, each with the number of its messages, and the range of compacted ones."""

    def turn_accepted(self, conn: Connection, turn: TurnRecord) -> Sequence[EventBody]:
        return ()

    def turn_ended(self, conn: Connection, turn: TurnRecord, final: Terminal) -> None:
        self.ended_turns.append((turn, final))

    def session_branched(self, conn: Connection, session_id: str) -> None:
        self.branched_sessions.append((session_id, sessions.count_messages(conn, SessionId(session_id)).every))

    def session_compacted(self, conn: Connection, session_id: str) -> None:
        self.compacted_sessions.append((session_id, sessions.count_messages(conn, SessionId(session_id))))

    def call_denied(self, conn: Connection, turn: TurnRecord, call: PlannedCall) -> None:
        self.denied_calls.append(call)

    def call_made(self, conn: Connection, turn: TurnRecord, call: PlannedCall, status: ToolStatus) -> None:
        pass


@dataclass
class Bench:
    """The parts that a test uses."""

    database: Database
    runtime: Runtime
    services: Services
    hooks: Hooks
    delegations: Delegations

    @property
    def ended_turns(self) -> list[tuple[TurnRecord, Terminal]]:
        return self.hooks.ended_turns

    async def send(self, content: str, settings: Definition | None = None, **options: Any) -> Accepted:
        session = await self.runtime.session(SESSION)
        return await session.send(content, settings or definition(), **options)

    async def answer_again(self, message_id: str, content: str | None = None, **options: Any) -> Accepted:
        """Answer a user's message again, or a changed text of it."""
        session = await self.runtime.session(SESSION)
        return await session.branch(
            MessageId(message_id), content, options.pop("definition", None) or definition(), **options
        )

    async def compact(self, settings: Definition | None = None) -> CompactionRecord:
        return await (await self.runtime.session(SESSION)).compact(settings or definition())

    async def say(self, content: str, **options: Any) -> list[AgentEvent]:
        """Send a message and return all events of its turn."""
        accepted = await self.send(content, options.pop("definition", None), **options)
        with anyio.fail_after(240):
            return [event async for event in self.runtime.follow(accepted.turn_id)]

    async def transcript(self) -> list[Message]:
        rows = await self.database.read(lambda conn: sessions.transcript(conn, SESSION))
        return [{"role": row.role, "content": row.content} for row in rows]

    async def read_reservations(self) -> list[ReservationRecord]:
        """Return the reservations of calls against the domain's budget."""
        return await self.database.read(lambda conn: budgets.list_reserved(conn, Scope.DOMAIN, "dom_test"))

    async def turn(self, turn_id: str) -> TurnRecord:
        row = await self.database.read(lambda conn: turns.get(conn, TurnId(turn_id)))
        assert row is not None
        return row


class Disk(Database):
    """A real database whose disk is full at some write, for the number of writes in ``refusals``."""

    def __init__(self, inner: Database) -> None:
        self._inner = inner
        self.writes = 0
        self.full_at = 0
        self.refusals: float = 0
        self.refused = anyio.Event()
        self.durable: list[bool] = []

    def fill(self, refusals: float = float("inf"), at: int = 1) -> None:
        """Be full from the ``at``-th write on, until ``refusals`` writes were refused."""
        self.writes, self.full_at, self.refusals = 0, at, refusals

    def clear(self) -> None:
        self.refusals = 0

    @property
    def shared(self) -> bool:
        return self._inner.shared

    async def write(self, fn: Callable[[Connection], Any], *, durable: bool = False) -> Any:
        self.writes += 1
        if self.writes >= self.full_at and self.refusals > 0:
            self.refusals -= 1
            self.refused.set()
            raise StorageFull("no space left on device")
        result = await self._inner.write(fn, durable=durable)
        self.durable.append(durable)
        return result

    async def read(self, fn: Callable[[Connection], Any], *, single: bool = False) -> Any:
        return await self._inner.read(fn, single=single)

    async def aclose(self) -> None:
        await self._inner.aclose()


LONG_AGO = "2000-01-01T00:00:00.000Z"


@asynccontextmanager
async def bench(
    folder: Path,
    model: Model,
    tools: MemoryToolset | None = None,
    *,
    database: Database | None = None,
    store: str | None = None,
    services: Services | None = None,
    hooks: Hooks | None = None,
    redactor: Redactor | None = None,
    delegations: Delegations | None = None,
    model_idle: float = 60,
    wait_seconds: float = 60,
    answers: Answers | None = None,
    hard: str | None = None,
    hears: bool = False,
    fanout: Fanout | None = None,
    most_turns: int = 0,
    transcript_bytes: int = DEFAULT_BYTES,
) -> AsyncIterator[Bench]:
    """Open a runtime on a store in the folder. A second runtime on the same folder finds the data of the first.

    ``store`` is the address of a PostgreSQL database to use instead. ``database`` replaces the runtime's database.
    ``hard`` is the domain's limit of tokens per day. With ``hears`` the runtime gets the signals of others, and live
    events by PostgreSQL's notifications or by ``fanout``.
    """
    store_database = await Database.open(store or database_at(folder / "test.db"))
    feed = None
    if POSTGRESQL and store is None:  # its previous user is dead by now, as if its leases had expired
        expire_leases = update(turns.TURNS).where(turns.TURNS.c.lease_until.is_not(None)).values(lease_until=LONG_AGO)
        await store_database.write(lambda conn: conn.execute(expire_leases).close())
    if (hears or POSTGRESQL) and store_database.server is not None:
        feed, fanout = SignalFeed(store_database), fanout or PostgresFanout(store_database.server.notifications)
    services = services or Services(model, tools or toolset())
    hooks = hooks or Hooks()
    delegations = delegations or Delegations()

    def create(conn: Connection) -> None:
        if sessions.get(conn, SESSION) is None:
            sessions.create(conn, SESSION, SessionLabels(conversation_id=ConversationId("conv_test")), created_at=now())

    spending = Spending(database or store_database)
    try:
        await store_database.write(create)
        if hard is not None:
            await store_database.write(partial(_put_budget, hard=hard))
            await spending.refresh()
        async with (
            feed or nullcontext(),
            served(services.given_model, store_database, SESSION) as services.given_model,
            Runtime(
                services,
                hooks,
                database=database or store_database,
                payloads=PayloadFiles(folder / "payloads"),
                redactor=redactor or Redactor(),
                delegations=delegations,
                patience=TurnTimeouts(model_idle, retry_budget=5.0, wait_seconds=wait_seconds, memory_seconds=0),
                answers=answers,
                spending=spending,
                replica=Replica(most_turns=most_turns, feed=feed, fanout=fanout),
                transcript_bytes=transcript_bytes,
            ) as runtime,
        ):
            yield Bench(store_database, runtime, services, hooks, delegations)
    finally:
        with anyio.CancelScope(shield=True):
            await store_database.aclose()


def _put_budget(conn: Connection, hard: str) -> None:
    budget = BudgetRecord(
        id="bud_test",
        scope=Scope.DOMAIN,
        subject="dom_test",
        unit=Unit.TOKENS,
        period=Period.DAY,
        soft=None,
        hard=hard,
        created_at=now(),
        updated_at=now(),
    )
    budgets.put(conn, budget)


def kinds(events: Sequence[AgentEvent]) -> list[str]:
    return [event.type for event in events]


def text_of(events: Sequence[AgentEvent]) -> str:
    return "".join(event.fields()["text"] for event in events if event.type == "text")

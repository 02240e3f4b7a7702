"""A runtime with a real store, a scripted model and tools that live in memory."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from sqlalchemy import Connection

from agentic_rag.events import AgentEvent, Terminal
from agentic_rag.messages import Message, text_block
from agentic_rag.models.base import Model
from agentic_rag.runtime.agent import World
from agentic_rag.runtime.core.definition import Definition, Limits, Persona
from agentic_rag.runtime.runtime import Runtime
from agentic_rag.store import sessions, turns
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.payload_files import PayloadFiles
from agentic_rag.store.turns import TurnRecord
from agentic_rag.tools.base import CallOutcome, CallRequest, ProgressSink, ToolInfo

SESSION = "sess_test"
SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}

Tool = Callable[[CallRequest], Awaitable[CallOutcome]]


def info(name: str, *, origin: Any = "user", read_only: bool = False) -> ToolInfo:
    """Return a tool that takes a query."""
    return ToolInfo(
        name, name, "retriever" if origin == "builtin" else "srv", origin, f"The tool {name}.", SCHEMA, read_only
    )


def ok(text: str, structured: Any = None) -> CallOutcome:
    return CallOutcome("ok", (text_block(text),), structured, 3)


def hits(*texts: str, document: str = "doc_1") -> dict[str, Any]:
    """Return structured content of a search with one hit of these sentences."""
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
    """A toolset whose tools are functions; it keeps the requests it got."""

    functions: Mapping[str, tuple[ToolInfo, Tool]]
    notices: tuple[tuple[str, str], ...] = ()
    requests: list[CallRequest] = field(default_factory=list)

    @property
    def tools(self) -> tuple[ToolInfo, ...]:
        return tuple(tool for tool, _ in self.functions.values())

    async def call(self, request: CallRequest, timeout: float, progress: ProgressSink | None = None) -> CallOutcome:
        self.requests.append(request)
        return await self.functions[request.tool.name][1](request)


def toolset(**functions: Tool) -> MemoryToolset:
    """Return a toolset; ``search_documents`` is built in and read-only, others are a user's."""
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
        "servers": (),
        "limits": Limits(max_steps=6),
        "effects_allowed_by_default": True,
    }
    return Definition(**(values | changes))


@dataclass
class Bench:
    """What a test works with."""

    database: Database
    runtime: Runtime
    ended: list[tuple[TurnRecord, Terminal]]

    async def say(self, content: str, **options: Any) -> list[AgentEvent]:
        """Send a message and return all events of its turn."""
        settings = options.pop("definition", None) or definition()
        accepted = await self.runtime.send(SESSION, content, settings, **options)
        with anyio.fail_after(20):
            return [event async for event in self.runtime.follow(accepted.turn_id)]

    async def transcript(self) -> list[Message]:
        rows = await self.database.read(lambda conn: sessions.transcript(conn, SESSION))
        return [{"role": row.role, "content": row.content} for row in rows]  # type: ignore[typeddict-item]

    async def turn(self, turn_id: str) -> TurnRecord:
        row = await self.database.read(lambda conn: turns.get(conn, turn_id))
        assert row is not None
        return row


@asynccontextmanager
async def bench(folder: Path, model: Model, tools: MemoryToolset | None = None, **world: Any) -> AsyncIterator[Bench]:
    """Open a runtime on a store in the folder; a second one on the same folder finds what the first left."""
    database = await Database.open(folder / "test.db")
    ended: list[tuple[TurnRecord, Terminal]] = []
    present = tools or toolset()

    def on_end(conn: Connection, row: TurnRecord, final: Terminal) -> None:
        ended.append((row, final))

    async def open_toolset(_: Definition) -> MemoryToolset:
        return present

    async def role_hash(domain: str, role: str) -> str | None:
        return None

    async def missing(domain: str, chunk_ids: set[str]) -> set[str]:
        return set()

    def create(conn: Connection) -> None:
        if sessions.get(conn, SESSION) is None:
            sessions.create(conn, SESSION, {"conversation_id": "conv_test"}, created_at=now())

    values: dict[str, Any] = {
        "database": database,
        "model": lambda domain_id: model,
        "open_toolset": open_toolset,
        "role_hash": role_hash,
        "missing": missing,
        "on_end": on_end,
        "on_compact": lambda conn, session_id, labels: None,
        "payloads": PayloadFiles(folder / "payloads"),
        "retry_budget": 5.0,
    }
    try:
        await database.write(create)
        async with Runtime(World(**(values | world))) as runtime:
            yield Bench(database, runtime, ended)
    finally:
        with anyio.CancelScope(shield=True):
            await database.aclose()


def kinds(events: Sequence[AgentEvent]) -> list[str]:
    return [event.type for event in events]


def text_of(events: Sequence[AgentEvent]) -> str:
    return "".join(event.fields()["text"] for event in events if event.type == "text")

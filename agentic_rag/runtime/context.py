"""Keeping a session's requests within their limits: carries out what `window` decides.

Owns the moves of the window between turns and the results left out inside one, in memory and in the store
alike. Knows no model and no event.
"""

from collections.abc import Sequence

import anyio
from sqlalchemy import Connection

from agentic_rag.events import Usage
from agentic_rag.messages import Block
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.request import fixed_tokens
from agentic_rag.runtime.core.session import Entry, Measure, Session
from agentic_rag.runtime.core.window import (
    Sheddable,
    chosen_to_shed,
    message_tokens,
    moved_head,
    moved_start,
    shed_blocks,
    sheddable,
)
from agentic_rag.runtime.storing import hold
from agentic_rag.store import payloads, sessions
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.payload_files import PayloadFiles
from agentic_rag.store.payloads import PayloadRecord
from agentic_rag.store.turns import TurnRecord
from agentic_rag.tools.base import ToolInfo


class Context:
    """What one turn may send of its session."""

    def __init__(
        self, database: Database, files: PayloadFiles, session: Session, row: TurnRecord, definition: Definition
    ) -> None:
        self._database = database
        self._files = files
        self._session = session
        self._row = row
        self._definition = definition
        self._fixed = 0

    def offer(self, tools: Sequence[ToolInfo]) -> None:
        """Say which tools the turn has; before anything is counted."""
        self._fixed = fixed_tokens(self._definition, tools)

    @property
    def tokens(self) -> int:
        """About how many tokens the next request has."""
        return self._session.tokens(self._fixed)

    def measured(self, usage: Usage, before: int) -> None:
        """Take what a model reported of a request that held the messages before a place."""
        if usage.sent:
            self._session.measure = Measure(usage.sent, before)

    async def move_window(self) -> None:
        """Move the window if the turn that begins would pass the limits."""
        session, limits, tokens = self._session, self._definition.limits, self.tokens
        if limits.context_messages is None and tokens <= limits.context_tokens:
            return
        start = moved_start(session.turn_sizes(), tokens, self._fixed + session.head_tokens, limits)
        if start is None:
            return
        window = session.in_window()
        head = moved_head(
            session.head,
            [entry.message for entry in window if entry.seq < start],
            [entry.message for entry in window if entry.seq >= start],
        )

        def store(conn: Connection) -> None:
            hold(conn, self._row)
            sessions.set_window(conn, session.id, start, head or None)

        with anyio.CancelScope(shield=True):
            await self._database.write(store)
            session.set_window(start, head)

    async def fit(self) -> bool:
        """Leave out the running turn's oldest results if the next request would pass the limit.

        Returns whether it now fits.

        Raises:
            StorageFull: a result could not be kept.
        """
        excess = self.tokens - self._definition.limits.context_tokens
        if excess <= 0:
            return True
        chosen = chosen_to_shed(sheddable(self._session.of_turn(self._row.id)), excess)
        if chosen:
            await self._shed(chosen)
        return sum(result.saved for result in chosen) >= excess

    async def _shed(self, chosen: Sequence[Sheddable]) -> None:
        session = self._session
        refs: dict[str, Block] = {}
        fresh: list[PayloadRecord] = []
        for result in chosen:
            ref = result.ref or new_id("ref")
            refs[result.tool_use_id] = {"name": result.name, "ref": ref}
            if not result.ref:
                data = result.text.encode()
                await self._files.write(ref, data)
                fresh.append(
                    PayloadRecord(
                        ref=ref, session_id=session.id, media_type="text/plain", size=len(data), created_at=now()
                    )
                )
        changed: list[tuple[Entry, list[Block]]] = []
        for entry in session.entries:
            if entry.turn_id == self._row.id:
                content = shed_blocks(entry.message["content"], refs)
                if content != entry.message["content"]:
                    changed.append((entry, content))

        def store(conn: Connection) -> None:
            hold(conn, self._row)
            for payload in fresh:
                payloads.put(conn, payload)
            for entry, content in changed:
                sessions.set_content(conn, session.id, entry.seq, content)

        with anyio.CancelScope(shield=True):
            await self._database.write(store)
            for entry, content in changed:
                before = message_tokens(entry.message)
                entry.message["content"] = content
                if session.measure is not None and entry.seq < session.measure.until:
                    tokens = session.measure.tokens - before + message_tokens(entry.message)
                    session.measure = Measure(max(0, tokens), session.measure.until)

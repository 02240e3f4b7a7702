"""Keeping a session's requests within their limits: carries out what `Transcript` decides.

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
from agentic_rag.runtime.core.transcript import (
    Entry,
    Measure,
    Sheddable,
    Transcript,
    choose_to_shed,
    message_tokens,
    move_head,
    move_start,
    shed_results,
    without_bound,
)
from agentic_rag.runtime.services import Resources
from agentic_rag.store import payloads, sessions, turns
from agentic_rag.store.clock import new_id
from agentic_rag.store.payloads import PayloadRecord
from agentic_rag.tools.base import ToolInfo

SPARE = 0.5
"""Share of ``contextTokens`` that is freed beyond the need: each rewriting costs the cache behind it."""


def _rewrite(entries: Sequence[Entry]) -> list[tuple[Entry, list[Block]]]:
    """Return the answers among these as they go on when something before them was rewritten."""
    answers = [(entry, without_bound(entry.message["content"])) for entry in entries if _is_answer(entry)]
    return [(entry, content) for entry, content in answers if content != entry.message["content"]]


def _is_answer(entry: Entry) -> bool:
    return entry.message["role"] == "assistant"


class Context:
    """What one turn may send of its session."""

    def __init__(
        self, resources: Resources, transcript: Transcript, definition: Definition, turn_id: str, fence: int
    ) -> None:
        self._database = resources.database
        self._files = resources.payloads
        self._transcript = transcript
        self._definition = definition
        self._turn_id = turn_id
        self._fence = fence
        self._fixed = 0

    def offer(self, tools: Sequence[ToolInfo]) -> None:
        """Say which tools the turn has; before anything is counted."""
        self._fixed = fixed_tokens(self._definition, tools)

    @property
    def tokens(self) -> int:
        """About how many tokens the next request has."""
        return self._transcript.tokens(self._fixed)

    def take_measure(self, usage: Usage, before: int) -> None:
        """Take what a model reported of a request that held the messages before a place."""
        if usage.sent:
            self._transcript.measure = Measure(usage.sent, before)

    async def move_window(self) -> None:
        """Move the window if the turn that begins would pass the limits, even without old results.

        Raises:
            StorageFull: a result could not be kept.
        """
        await self.fit()
        transcript, limits, tokens = self._transcript, self._definition.limits, self.tokens
        if limits.context_messages is None and tokens <= limits.context_tokens:
            return
        least = max(1, transcript.unseen_turns())
        start = move_start(transcript.turn_sizes(), tokens, self._fixed + transcript.head_tokens, limits, least)
        if start is None:
            return
        window = transcript.in_window()
        kept = [entry for entry in window if entry.seq >= start]
        fallen = [entry.message for entry in window if entry.seq < start]
        head = move_head(transcript.head, fallen, [entry.message for entry in kept])
        changed = _rewrite(kept)

        def store(conn: Connection) -> None:
            turns.hold(conn, self._turn_id, self._fence)
            sessions.set_window(conn, transcript.session_id, start, head or None)
            for entry, content in changed:
                sessions.set_content(conn, transcript.session_id, entry.seq, content)

        with anyio.CancelScope(shield=True):
            await self._database.write(store)
            transcript.set_window(start, head)
            for entry, content in changed:
                entry.message["content"] = content

    async def fit(self) -> bool:
        """Leave out the oldest results, many at once, if the next request would pass the limit.

        Returns whether it now fits.

        Raises:
            StorageFull: a result could not be kept.
        """
        excess = self.tokens - self._definition.limits.context_tokens
        if excess <= 0:
            return True
        window = [entry.message for entry in self._transcript.in_window()]
        spare = round(self._definition.limits.context_tokens * SPARE)
        chosen = choose_to_shed(window, excess, spare)
        if chosen:
            await self._shed(chosen)
        return sum(result.saved for result in chosen) >= excess

    async def _shed(self, chosen: Sequence[Sheddable]) -> None:
        transcript = self._transcript
        refs: dict[str, Block] = {}
        fresh: list[PayloadRecord] = []
        for result in chosen:
            ref = result.ref or new_id("ref")
            refs[result.tool_use_id] = {"name": result.name, "ref": ref}
            if not result.ref:
                data = result.text.encode()
                await self._files.write(ref, data)
                fresh.append(payloads.record_of(ref, transcript.session_id, "text/plain", data))
        window = transcript.in_window()
        changed = [
            (entry, content)
            for entry in window
            if (content := shed_results(entry.message["content"], refs)) != entry.message["content"]
        ]
        first = min((entry.seq for entry, _ in changed), default=0)
        changed += _rewrite([entry for entry in window if entry.seq > first])

        def store(conn: Connection) -> None:
            turns.hold(conn, self._turn_id, self._fence)
            for payload in fresh:
                payloads.put(conn, payload)
            for entry, content in changed:
                sessions.set_content(conn, transcript.session_id, entry.seq, content)

        with anyio.CancelScope(shield=True):
            await self._database.write(store)
            for entry, content in changed:
                before = message_tokens(entry.message)
                entry.message["content"] = content
                if transcript.measure is not None and entry.seq < transcript.measure.until:
                    tokens = transcript.measure.tokens - before + message_tokens(entry.message)
                    transcript.measure = Measure(max(0, tokens), transcript.measure.until)

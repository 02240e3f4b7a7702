"""The size limits of a session's requests: carries out the decisions of `Transcript`.

Owns the token limit of a request, the moves of the window between turns, and the results that are left out during a
turn, in memory and in the store. To make room, old results are left out first, many together. If that is not enough, a
compaction is due, which other modules run. The remaining excess is handled here. Knows no model and no event.
"""

from collections.abc import Sequence
from dataclasses import replace

import anyio
from sqlalchemy import Connection

from agentic_rag.base.events import Usage
from agentic_rag.base.ids import TurnId
from agentic_rag.base.messages import Block
from agentic_rag.models.profiles import most_output, profile_of
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.request import fixed_tokens
from agentic_rag.runtime.core.transcript import Measure, Transcript, list_rewrites, move_head, move_start
from agentic_rag.runtime.core.window import Sheddable, choose_to_shed, largest_to_shed, shed_results
from agentic_rag.runtime.services import Resources
from agentic_rag.store import payloads, sessions, turns
from agentic_rag.store.clock import new_id
from agentic_rag.store.payloads import PayloadRecord
from agentic_rag.tools.base import ToolInfo

ROOM_SHARE = 0.7
"""Share of the limit above which room is made, by leaving out old results or by a compaction."""
WORTH_SHARE = 0.2
"""Share of the limit that a compaction, or leaving out old results, must save to be worth the rewriting."""
AGAIN_SHARE = 0.1
"""Share of the limit by which a session must grow before a failed compaction is retried."""
MARGIN = 1.05
"""Factor by which the model's count of a request may exceed ours."""
LEAST_ANSWER = 1_000
"""Fewest tokens for an answer, unless an eighth of the context window is less."""
SPARE = 0.5
"""Share of ``contextTokens`` freed beyond the need, because each rewriting invalidates the cache after it."""


class Context:
    """The size limits for the requests of one turn."""

    def __init__(
        self, resources: Resources, transcript: Transcript, definition: Definition, turn_id: TurnId, fence: int
    ) -> None:
        self._database = resources.database
        self._files = resources.payloads
        self._transcript = transcript
        self._definition = definition
        self._allowed = allowed_tokens(definition)
        self._turn_id = turn_id
        self._fence = fence
        self._fixed = 0
        self._most: int | None = None
        """The model's real limit, learned from a refusal, or None if unknown."""
        self._scale = 1.0
        """Our tokens per token of the model, for use without a report of the model."""

    def ask(self, definition: Definition) -> None:
        """Set the definition with another model for the following requests."""
        self._definition, self._allowed = definition, allowed_tokens(definition)

    def offer(self, tools: Sequence[ToolInfo]) -> None:
        """Set the tools of the turn. Must be called before tokens are counted."""
        self._fixed = fixed_tokens(self._definition, tools)

    @property
    def limit(self) -> int:
        """Most tokens of a request: ``contextTokens``, or the model's limit if that is lower."""
        if self._most is None:
            return self._allowed
        # A tenth less than the model said, because our count of the next request is an estimate.
        limit = min(self._allowed, round(self._most * 0.9))
        return round(limit * self._scale) if self._transcript.measure is None else limit

    def answer_room(self, max_tokens: int) -> int:
        """Return the most tokens of an answer: fewer than wanted if the request leaves less of the context window."""
        window = profile_of(self._definition.model).context_window
        if window is None:
            return max_tokens
        free_tokens = window - round(self.tokens * MARGIN)
        return min(max_tokens, max(free_tokens, min(LEAST_ANSWER, window // 8)))

    @property
    def roomy(self) -> bool:
        """Whether the next request is far below all limits, so that nothing must be left out (the usual case)."""
        counted = self._definition.limits.context_messages is not None
        return not counted and self.tokens <= round(self.limit * ROOM_SHARE) and not self._transcript.pictures_to_shed()

    def is_due(self, *, over: bool = False) -> bool:
        """Return whether a compaction must make room, because leaving out old results is not enough.

        ``over``: the turn has ended, so none of its messages must stay.
        """
        tokens, limit = self.tokens, self.limit
        excess = tokens - round(limit * ROOM_SHARE)
        if excess <= 0 or tokens < self._transcript.compact_past or self._transcript.saved_by_old() >= excess:
            return False
        replaced = self._transcript.tokens_to_archive(None if over else self._turn_id, limit)
        # ``tokens`` may be the model's own count, ``replaced`` is ours: scale ours up where the model counts more.
        counted = self._fixed + self._transcript.head_tokens + sum(t.tokens for t in self._transcript.turn_sizes())
        return bool(replaced * max(1.0, tokens / max(1, counted)) >= limit * WORTH_SHARE)

    def note_failure(self) -> None:
        """Note a failed compaction. The next one is tried after the session has grown."""
        self._transcript.compact_past = self.tokens + self.limit * AGAIN_SHARE

    def learn_limit(self, sizes: tuple[int, int] | None) -> None:
        """Note that the model refused the next request as too long.

        ``sizes``: its tokens and the model's limit, if known.
        """
        # The last report was of a request that was accepted, and would make this one look shorter than it is.
        self._transcript.measure = None
        # Without the model's own numbers, a request somewhat smaller than the refused one is tried.
        needed, self._most = sizes or (self.tokens, round(min(self.limit, self.tokens) * ROOM_SHARE))
        self._scale = self.tokens / max(1, needed)
        self._transcript.compact_past = 0.0

    @property
    def tokens(self) -> int:
        """The approximate tokens of the next request."""
        return self._transcript.tokens(self._fixed)

    def take_measure(self, usage: Usage, before: int) -> None:
        """Set the usage that a model reported for a request with the messages before number ``before``."""
        if usage.sent:
            self._transcript.measure = Measure(usage.sent, before)

    async def move_window(self) -> None:
        """Move the window if the new turn would exceed the limits even without old results.

        Raises:
            StorageFull: a result could not be stored.
        """
        await self.fit()
        transcript, tokens = self._transcript, self.tokens
        limits = replace(self._definition.limits, context_tokens=self.limit)
        if limits.context_messages is None and tokens <= limits.context_tokens:
            return
        # Turns that no request has contained yet must stay: the model has not read them.
        least = max(1, transcript.unseen_turns())
        # Whole turns only: a call without its result would be refused.
        start = move_start(transcript.turn_sizes(), tokens, self._fixed + transcript.head_tokens, limits, least)
        if start is None:
            return
        window = transcript.in_window()
        remaining = [entry for entry in window if entry.seq >= start]
        fallen = [entry.message for entry in window if entry.seq < start]
        head = move_head(transcript.head, fallen, [entry.message for entry in remaining])
        changed = list_rewrites(remaining)

        def store(conn: Connection) -> None:
            turns.hold(conn, self._turn_id, self._fence)
            sessions.set_window(conn, transcript.session_id, start, head or None)
            for entry, content in changed:
                sessions.set_content(conn, transcript.session_id, entry.seq, content)

        with anyio.CancelScope(shield=True):
            await self._database.write(store)
            transcript.set_window(start, head)
            for entry, content in changed:
                transcript.rewrite(entry, content)

    async def leave_out_old(self) -> None:
        """Leave out the oldest results, many together, if that makes enough room and is worth the rewriting.

        Raises:
            StorageFull: a result could not be stored.
        """
        excess = self.tokens - round(self.limit * ROOM_SHARE)
        if excess > 0 and self._transcript.saved_by_old() >= max(excess, round(self.limit * WORTH_SHARE)):
            window = [entry.message for entry in self._transcript.in_window()]
            await self._shed(choose_to_shed(window, excess, round(self.limit * SPARE), old_only=True))

    async def fit(self) -> bool:
        """Leave out results if the next request would exceed the limit. Return whether the request now fits.

        Raises:
            StorageFull: a result could not be stored.
        """
        if crowding := self._transcript.pictures_to_shed():
            await self._shed(crowding)
        while (excess := self.tokens - self.limit) > 0:
            window = [entry.message for entry in self._transcript.in_window()]
            chosen = choose_to_shed(window, excess, round(self.limit * SPARE))
            if not chosen:
                return False
            await self._shed(chosen)  # may save less: a later result then shows the passages in full
        return True

    async def withhold(self) -> None:
        """Leave out the largest results, seen or not, after the model refused a request. The last resort.

        Raises:
            StorageFull: a result could not be stored.
        """
        window = [entry.message for entry in self._transcript.in_window()]
        await self._shed(largest_to_shed(window, self.tokens - self.limit))

    async def _shed(self, chosen: Sequence[Sheddable]) -> None:
        """Replace results by references to their stored texts, in the store and in memory.

        Texts that are not stored yet are written first. Without their records, files do no harm.
        """
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
        # Thinking and citations in an answer are bound to the exact messages before it, so the answers after the first
        # change lose both.
        first = min((entry.seq for entry, _ in changed), default=0)
        changed += list_rewrites([entry for entry in window if entry.seq > first])

        def store(conn: Connection) -> None:
            turns.hold(conn, self._turn_id, self._fence)
            for payload in fresh:
                payloads.put(conn, payload)
            for entry, content in changed:
                sessions.set_content(conn, transcript.session_id, entry.seq, content)

        with anyio.CancelScope(shield=True):
            await self._database.write(store)
            measure = transcript.measure
            before = transcript.sent_tokens(end=measure.until) if measure is not None else 0
            for entry, content in changed:
                transcript.rewrite(entry, content)
            if measure is not None:  # the model counted the old results: correct its count by the difference in ours
                tokens = measure.tokens - before + transcript.sent_tokens(end=measure.until)
                transcript.measure = Measure(max(0, tokens), measure.until)


def allowed_tokens(definition: Definition) -> int:
    """Return the most tokens of a request.

    This is ``contextTokens``, or the model's context window minus room for the answer if that is less.
    """
    profile, limit = profile_of(definition.model), definition.limits.context_tokens
    if profile.context_window is None:
        return limit
    thinks = profile.thinking or profile.thinks
    room = definition.max_tokens + (profile.room(definition.effort) if thinks else 0)
    return min(limit, profile.context_window - min(room, most_output(definition.max_tokens, profile)))

"""Values that conversations return besides messages: pages, stored tool results and turn states."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from agentic_rag.store import waits
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.turns import TurnRecord, TurnStatus


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list. ``total`` counts the matches on all pages."""

    items: list[ConversationRecord]
    total: int
    page: int
    page_size: int


@dataclass(frozen=True, slots=True)
class KeptPayload:
    """A stored tool result, and the domain whose secrets must be redacted from it."""

    domain_id: str
    media_type: str
    data: bytes


def with_waiting(conn: Connection, records: Sequence[TurnRecord]) -> list[TurnRecord]:
    """Return turns as people see them: a running turn that waits for a person has the status ``WAITING``."""
    running = [turn.id for turn in records if turn.status is TurnStatus.RUNNING]
    waiting = waits.waiting(conn, running) if running else set()
    return [turn.replace(status=TurnStatus.WAITING) if turn.id in waiting else turn for turn in records]

"""What conversations show of themselves besides messages: pages of records, kept results, and how turns stand.

Owns the values, and that a turn which waits for a person is shown as waiting.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from agentic_rag.store import waits
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.turns import TurnRecord, TurnStatus


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list; ``total`` counts what matches on all pages."""

    items: list[ConversationRecord]
    total: int
    page: int
    page_size: int


@dataclass(frozen=True, slots=True)
class KeptPayload:
    """A tool result that is kept whole, with the domain whose secrets it may not show."""

    domain_id: str
    media_type: str
    data: bytes


def with_waiting(conn: Connection, found: Sequence[TurnRecord]) -> list[TurnRecord]:
    """Return turns as people see them: one that runs but waits for a person is waiting, whether in memory or not."""
    running = [turn.id for turn in found if turn.status is TurnStatus.RUNNING]
    waiting = waits.waiting(conn, running) if running else set()
    return [replace(turn, status=TurnStatus.WAITING) if turn.id in waiting else turn for turn in found]

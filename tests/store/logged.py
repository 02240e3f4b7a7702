"""Events of run logs in the form that tests use: single events of any turns."""

from collections.abc import Iterable
from itertools import groupby

from agentic_rag.base.ids import ConversationId, TurnId
from agentic_rag.store.run_events import EventBatch, batches_of

Logged = tuple[str, int, bytes]
"""Turn id, number, payload."""


def batches(*events: Logged) -> list[EventBatch]:
    """Return events as batches, those of a turn in order."""

    def batches_of_turn(turn_id: str, turn_events: Iterable[Logged]) -> Iterable[EventBatch]:
        no_conversation = ConversationId("")  # none of them is in the short form
        return batches_of(TurnId(turn_id), [(seq, payload) for _, seq, payload in turn_events], no_conversation)

    return [
        batch
        for turn_id, turn_events in groupby(events, lambda event: event[0])
        for batch in batches_of_turn(turn_id, turn_events)
    ]

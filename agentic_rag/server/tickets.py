"""Tickets: how a browser, which can set no header on a WebSocket, shows who it is. Pure: time is an argument.

Owns single use, the time a ticket counts, and the bound on those not used. Of a ticket only its hash is kept. They
live in the process that gave them: the socket has to come to the same one.
"""

import hashlib
import secrets
from dataclasses import dataclass

from agentic_rag.access.keys import Entrant

TICKET_SECONDS = 30.0
MAX_TICKETS = 50
"""Unused ones of one key; the oldest gives way."""


@dataclass(frozen=True, slots=True)
class _Ticket:
    entrant: Entrant
    ends: float


class Tickets:
    """The tickets that were given and not yet used."""

    def __init__(self) -> None:
        self._tickets: dict[bytes, _Ticket] = {}

    def issue(self, now: float, entrant: Entrant) -> str:
        """Return a new ticket. ``now``: seconds of a clock that does not go back."""
        self._tickets = {hashed: ticket for hashed, ticket in self._tickets.items() if ticket.ends > now}
        own = [hashed for hashed, ticket in self._tickets.items() if ticket.entrant.key_id == entrant.key_id]
        for hashed in own[: max(0, len(own) - MAX_TICKETS + 1)]:
            del self._tickets[hashed]
        value = secrets.token_urlsafe(32)
        self._tickets[_hash(value)] = _Ticket(entrant, now + TICKET_SECONDS)
        return value

    def redeem(self, now: float, value: str) -> Entrant | None:
        """Use a ticket up and return whom it stands for; None when it is not known, used, or too old."""
        ticket = self._tickets.pop(_hash(value), None)
        return ticket.entrant if ticket is not None and ticket.ends > now else None

    def revoke(self, key_id: str) -> None:
        """Drop the tickets given for a key."""
        self._tickets = {h: ticket for h, ticket in self._tickets.items() if ticket.entrant.key_id != key_id}


def _hash(value: str) -> bytes:
    return hashlib.sha256(value.encode(errors="replace")).digest()

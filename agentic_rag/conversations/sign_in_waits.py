"""Turns that wait until somebody has signed in at an MCP server: they go on by themselves once that is done.

Owns which waits a sign-in answers. Made before the runtime, which it reaches by `Answers`.
"""

from sqlalchemy import Connection

from agentic_rag.runtime.services import Answers
from agentic_rag.store import turns, waits
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.waits import WaitRecord, WaitState
from agentic_rag.tools.base import SIGN_IN


class SignInWaits:
    """Implements `agentic_rag.domains.sign_in_secrets.SignInListener`."""

    def __init__(self, database: Database, answers: Answers) -> None:
        self._db = database
        self._answers = answers

    async def signed_in(self, domain_id: str, server: str, user_id: str) -> None:
        """Let go on what waited for a sign-in at this server. ``user_id`` empty: one account serves everybody."""
        at = now()

        def store(conn: Connection) -> list[WaitRecord]:
            waiting = [each for each in waits.list_open_urls(conn, domain_id) if _waits_for(each, server, user_id)]
            for each in waiting:
                waits.finish(conn, each.id, WaitState.ACCEPTED, answer=None, by=user_id or each.user_id, at=at)
                turns.wake(conn, each.root_turn_id)
            return waiting

        for each in await self._db.write(store, durable=True):
            self._answers.tell(each.id)


def _waits_for(wait: WaitRecord, server: str, user_id: str) -> bool:
    """Whether a wait is for a sign-in at this server, of this user or (empty) of anybody."""
    return SIGN_IN in (wait.held or {}) and wait.request.get("server") == server and user_id in ("", wait.user_id)

"""Resume turns that wait for a sign-in at an MCP server, once the sign-in is done.

Created before the runtime, which it reaches through `Answers`.
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
        """Resume the turns that wait for a sign-in at this server.

        An empty ``user_id`` means that one account serves all users.
        """
        at = now()

        def store(conn: Connection) -> list[WaitRecord]:
            waiting = [wait for wait in waits.list_open_urls(conn, domain_id) if _waits_for(wait, server, user_id)]
            for wait in waiting:
                waits.finish(conn, wait.id, WaitState.ACCEPTED, answer=None, by=user_id or wait.user_id, at=at)
                turns.wake(conn, wait.root_turn_id)
            return waiting

        for wait in await self._db.write(store, durable=True):
            self._answers.notify(wait.id)


def _waits_for(wait: WaitRecord, server: str, user_id: str) -> bool:
    """Return whether a wait is for a sign-in at this server by this user. An empty ``user_id`` matches all users."""
    return SIGN_IN in (wait.held or {}) and wait.request.get("server") == server and user_id in ("", wait.user_id)

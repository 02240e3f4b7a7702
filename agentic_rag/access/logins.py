"""Browser logins: created with a name and a key or by an OpenID provider, renewed, and ended.

This module owns their duration and number. Only the response that sets the cookie contains the token.
"""

import hmac
import secrets
from dataclasses import dataclass
from functools import partial
from typing import Final

from sqlalchemy import Connection

from agentic_rag.access.auditing import audit
from agentic_rag.access.keys import KEYLESS, Access, Entrant, sha256_of
from agentic_rag.access.users import LOCAL
from agentic_rag.base.errors import Unauthenticated
from agentic_rag.store import logins
from agentic_rag.store.audit import Entry
from agentic_rag.store.clock import later, new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.logins import LoginRecord

TOKEN_BYTES: Final = 32
MAX_LOGINS: Final = 50
"""Maximum number of logins per user; beyond that the oldest is ended."""
WRONG: Final = "The name and the key do not belong together, or the key was revoked."


@dataclass(frozen=True, slots=True)
class LoginTimes:
    """The duration of a login: ``seconds`` without a renewal, and at most ``most_seconds`` in total."""

    seconds: float = 30 * 60
    most_seconds: float = 12 * 3600


class Logins:
    """The logins of a database. ``access``: the accepted credentials."""

    def __init__(self, database: Database, access: Access, times: LoginTimes | None = None) -> None:
        self._db = database
        self._access = access
        self._times = times or LoginTimes()

    async def begin(self, name: str, key: str) -> tuple[LoginRecord, str]:
        """Sign a browser in with a user's name and key; return the record and the token of its cookie.

        Raises:
            Unauthenticated: name and key do not belong together. The error does not say which is wrong.
        """
        entrant = self._access.entrant(key)
        is_person = entrant is not None and bool(entrant.key_id)  # the command line's own key belongs to no person
        same = hmac.compare_digest((entrant.user.id if entrant else "").encode(), name.encode(errors="replace"))
        # One error for all reasons: it must not reveal which names exist.
        if entrant is None or not (is_person and same):
            raise Unauthenticated(WRONG)
        return await self._store(name, str(entrant.key_id))

    async def begin_provided(self, user_id: str) -> tuple[LoginRecord, str]:
        """Sign a browser in for a user named by an OpenID provider."""
        return await self._store(user_id, "")

    async def begin_with(self, entrant: Entrant) -> tuple[LoginRecord, str]:
        """Sign a browser in for the holder of a ticket that was issued to a key or to the local user.

        Raises:
            Unauthenticated: the ticket was issued to a credential that expires, which the login would outlive.
        """
        if entrant.user.id == LOCAL.id and entrant.key_id in (None, KEYLESS):
            return await self._store(LOCAL.id, self._access.local_name)
        if not entrant.user.key_id or entrant.key_id != entrant.user.key_id:
            raise Unauthenticated("This ticket was not got with a key.")
        return await self._store(entrant.user.id, entrant.user.key_id)

    async def renew(self, login: LoginRecord) -> LoginRecord:
        """Extend a login, but not beyond its end.

        Raises:
            Unauthenticated: the login has ended meanwhile.
        """
        until = min(later(self._times.seconds), login.ends_at)
        if not await self._db.write(partial(logins.renew, login_id=login.id, until=until), durable=True):
            raise Unauthenticated("The sign-in has ended.")
        renewed = login.replace(expires_at=until)
        self._access.put_login(renewed)
        return renewed

    async def end(self, login: LoginRecord) -> None:
        """Sign a browser out and close the open connections of its cookie."""
        entry = Entry(login.user_id, "login.end", login.id)

        def store(conn: Connection) -> None:
            logins.end(conn, login.id)
            audit(conn, entry)

        await self._db.write(store, durable=True)
        self._access.drop(login_ids=(login.id,))

    def _make(self, user_id: str, key_id: str) -> tuple[LoginRecord, str]:
        token, times = secrets.token_urlsafe(TOKEN_BYTES), self._times
        record = LoginRecord(
            id=new_id("login"),
            user_id=user_id,
            key_id=key_id,
            sha256=sha256_of(token),
            created_at=now(),
            expires_at=later(min(times.seconds, times.most_seconds)),
            ends_at=later(times.most_seconds),
        )
        return record, token

    async def _store(self, user_id: str, key_id: str) -> tuple[LoginRecord, str]:
        record, token = self._make(user_id, key_id)
        at, audit_row = record.created_at, _row_of(record)

        def store(conn: Connection) -> list[str]:
            # Expired logins must not count as the oldest ones below.
            logins.end_expired(conn, at)
            login_ids = [login.id for login in logins.active(conn, at) if login.user_id == user_id]
            over = login_ids[: max(0, len(login_ids) - MAX_LOGINS + 1)]
            for login_id in over:
                logins.end(conn, login_id)
            logins.insert(conn, record)
            audit(conn, audit_row)
            return over

        over = await self._db.write(store, durable=True)
        self._access.put_login(record)
        if over:
            self._access.drop(login_ids=over)
        return record, token


def _row_of(record: LoginRecord) -> Entry:
    return Entry(record.user_id, "login.begin", record.id, details={"keyId": record.key_id} if record.key_id else {})

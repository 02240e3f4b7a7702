"""Where what is secret of sign-ins lies among a domain's sealed values, and who is told when one is completed.

Owns the names: tokens are sealed under issuer, server and user, so that a row copied elsewhere does not open. Cheap to
import, unlike `sign_ins`.
"""

from collections.abc import Sequence
from typing import Protocol

from sqlalchemy import Connection

from agentic_rag.store import secrets, sign_ins
from agentic_rag.store.sign_ins import AccountRecord
from agentic_rag.tools.entries.entry import digest

ISSUER_CHARS = 16


class SignInListener(Protocol):
    """Hears of sign-ins that were completed."""

    async def signed_in(self, domain_id: str, server: str, user_id: str) -> None:
        """Take note that a server lets somebody in from now on. ``user_id`` empty: everybody in the domain."""
        ...


class OwnAddress(Protocol):
    """Where browsers reach this server."""

    @property
    def url(self) -> str | None:
        """The address without a path; None: nobody has said, and it cannot be known."""
        ...


def account_name(issuer: str, server: str, user_id: str) -> str:
    """Return the name under which an account's tokens are sealed."""
    return f"{secrets.OWN}account:{digest(issuer)[:ISSUER_CHARS]}:{server}:{user_id}"


def client_name(issuer: str, server: str, redirect: str) -> str:
    """Return the name under which the client is sealed that an issuer registered for a server."""
    return f"{secrets.OWN}client:{digest([issuer, redirect])[:ISSUER_CHARS]}:{server}"


def pending_name(ident: str) -> str:
    """Return the name under which is sealed what completes a sign-in."""
    return f"{secrets.OWN}pending:{ident}"


def forget_account(conn: Connection, account: AccountRecord) -> bool:
    """Remove an account and its tokens, if it still has this token; return whether it had."""
    place = account.domain_id, account.server, account.user_id
    if not sign_ins.delete_account(conn, *place, account.generation):
        return False
    secrets.delete(conn, account.domain_id, [account_name(account.issuer, account.server, account.user_id)])
    return True


def forget_servers(conn: Connection, domain_id: str, servers: Sequence[str]) -> None:
    """Remove all accounts and open sign-ins at servers that a domain has no longer."""
    if not servers:
        return
    for account in sign_ins.accounts_of(conn, domain_id):
        if account.server in servers:
            forget_account(conn, account)
    waiting = sign_ins.delete_sign_ins(conn, domain_id, servers)
    secrets.delete(conn, domain_id, [pending_name(ident) for ident in waiting])


def forget_user(conn: Connection, user_id: str, instead: str) -> None:
    """Remove a user's accounts, their tokens and the sign-ins that wait; ``instead``: who signed in for a domain."""
    for account in sign_ins.of_user(conn, user_id):
        forget_account(conn, account)
    for waiting in sign_ins.forget_user(conn, user_id, instead):
        secrets.delete(conn, waiting.domain_id, [pending_name(waiting.id)])

"""Names of sealed sign-in secrets, and listeners for completed sign-ins.

Tokens are sealed under issuer, server and user, so that a row copied elsewhere does not open. Cheap to import, unlike
`agentic_rag.domains.sign_ins`.
"""

from collections.abc import Sequence
from typing import Protocol

from sqlalchemy import Connection

from agentic_rag.store import secrets, sign_ins
from agentic_rag.store.sign_ins import AccountRecord
from agentic_rag.tools.entries.entry import digest

ISSUER_CHARS = 16


class SignInListener(Protocol):
    """Is notified of completed sign-ins."""

    async def signed_in(self, domain_id: str, server: str, user_id: str) -> None:
        """Handle a completed sign-in. An empty ``user_id`` means all users of the domain."""
        ...


class OwnAddress(Protocol):
    """The address where browsers reach this server."""

    @property
    def url(self) -> str | None:
        """The address without a path, or None if it is unknown."""
        ...


def account_name(issuer: str, server: str, user_id: str) -> str:
    """Return the name under which an account's tokens are sealed."""
    return f"{secrets.OWN}account:{digest(issuer)[:ISSUER_CHARS]}:{server}:{user_id}"


def client_name(issuer: str, server: str, redirect: str) -> str:
    """Return the name under which the client that an issuer registered for a server is sealed."""
    return f"{secrets.OWN}client:{digest([issuer, redirect])[:ISSUER_CHARS]}:{server}"


def pending_name(ident: str) -> str:
    """Return the name under which the data of a pending sign-in is sealed."""
    return f"{secrets.OWN}pending:{ident}"


def forget_account(conn: Connection, account: AccountRecord) -> bool:
    """Remove an account and its tokens if its generation is unchanged. Returns whether it was removed."""
    place = account.domain_id, account.server, account.user_id
    # A renewal may have stored newer tokens since the account was read.
    if not sign_ins.delete_account(conn, *place, account.generation):
        return False
    secrets.delete(conn, account.domain_id, [account_name(account.issuer, account.server, account.user_id)])
    return True


def forget_servers(conn: Connection, domain_id: str, servers: Sequence[str]) -> None:
    """Remove all accounts and pending sign-ins at servers that a domain has removed."""
    if not servers:
        return
    for account in sign_ins.accounts_of(conn, domain_id):
        if account.server in servers:
            forget_account(conn, account)
    waiting = sign_ins.delete_sign_ins(conn, domain_id, servers)
    secrets.delete(conn, domain_id, [pending_name(ident) for ident in waiting])


def forget_user(conn: Connection, user_id: str, instead: str) -> None:
    """Remove a user's accounts, tokens and pending sign-ins. ``instead`` replaces the user in sign-ins for a domain."""
    for account in sign_ins.of_user(conn, user_id):
        forget_account(conn, account)
    for waiting in sign_ins.forget_user(conn, user_id, instead):
        secrets.delete(conn, waiting.domain_id, [pending_name(waiting.id)])

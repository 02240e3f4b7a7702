"""Sign-ins at MCP servers: pending ones, and the accounts created by completed ones.

No secret is stored here: state, verifier and tokens are sealed among the secrets (`domains.sign_in_secrets`). Times are
text in the format of `clock.now`.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store import deliveries
from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.deliveries import Event
from agentic_rag.store.endpoints import EventKind
from agentic_rag.store.record import Record


class SignInRecord(Record, table=True):
    """A sign-in that a person has yet to complete. ``user_id`` is the account's owner; empty: the domain's account."""

    __tablename__ = "sign_ins"
    part_of = "domain"

    id: Key[str]
    domain_id: str
    server: str
    user_id: str
    url: str
    """The server's address; the sign-in is invalid for any other address."""
    state_hash: Indexed[str]
    browser_hash: str
    """Hash of the cookie of the browser that began the sign-in; empty until then."""
    begun_by: str
    """The user who began the sign-in in that browser; empty until then."""
    scope: str
    step_up: bool
    """Whether the account exists and this sign-in requests more rights."""
    expires_at: str


class AccountRecord(Record, table=True):
    """An account at an MCP server, whose token authorises calls. ``user_id`` empty: the domain's account."""

    __tablename__ = "mcp_accounts"
    part_of = "domain"

    domain_id: Key[str]
    server: Key[str]
    user_id: Key[str]
    url: str
    issuer: str
    account: str
    """The account's name according to the authorization server; empty if unknown."""
    scope: str
    signed_in_by: str
    signed_in_at: str
    expires_at: str | None
    """Expiry of the current token, which is renewed if possible."""
    generation: int
    """A number that changes with each token."""
    renewing_until: str | None
    """End of the renewal lock: until then only its holder requests a newer token."""
    step_ups: int
    """Number of requests for more rights since `stepped_at`; see `domains.sign_ins`."""
    stepped_at: str | None


SIGN_INS = SignInRecord.__table__
ACCOUNTS = AccountRecord.__table__
_sign_ins, _accounts = SIGN_INS.c, ACCOUNTS.c


def insert(conn: Connection, sign_in: SignInRecord) -> None:
    """Store a new sign-in and notify the domain's endpoints."""
    sign_in.insert(conn)
    facts = {
        "signInId": sign_in.id,
        "server": sign_in.server,
        "userId": sign_in.user_id,
        "moreRights": sign_in.step_up,
        "expiresAt": sign_in.expires_at,
    }
    deliveries.announce(conn, Event(EventKind.SIGN_IN_NEEDED, sign_in.domain_id, facts, user_id=sign_in.user_id))


def get(conn: Connection, ident: str) -> SignInRecord | None:
    """Return the sign-in, or None."""
    return SignInRecord.first(conn, sa.select(SIGN_INS).where(_sign_ins.id == ident))


def by_state(conn: Connection, state_hash: str) -> SignInRecord | None:
    """Return the sign-in with this state, or None."""
    return SignInRecord.first(conn, sa.select(SIGN_INS).where(_sign_ins.state_hash == state_hash))


def open_of(conn: Connection, domain_id: str, server: str, user_id: str, now: str) -> list[SignInRecord]:
    """Return the pending sign-ins for one account, newest first."""
    place = (_sign_ins.domain_id == domain_id, _sign_ins.server == server, _sign_ins.user_id == user_id)
    query = sa.select(SIGN_INS).where(*place, _sign_ins.expires_at > now).order_by(_sign_ins.id.desc())
    return SignInRecord.all(conn, query)


def list_ended(conn: Connection, now: str) -> list[SignInRecord]:
    """Return the sign-ins that have expired."""
    return SignInRecord.all(conn, sa.select(SIGN_INS).where(_sign_ins.expires_at <= now))


def bind_browser(conn: Connection, ident: str, browser_hash: str, user_id: str) -> None:
    """Bind a sign-in to the browser in which it begins; an earlier browser can no longer complete it."""
    values = {"browser_hash": browser_hash, "begun_by": user_id}
    conn.execute(sa.update(SIGN_INS).where(_sign_ins.id == ident).values(**values))


def take(conn: Connection, ident: str) -> bool:
    """Consume a sign-in; False if it was consumed before."""
    return conn.execute(sa.delete(SIGN_INS).where(_sign_ins.id == ident)).rowcount == 1


def put_account(conn: Connection, account: AccountRecord) -> None:
    """Store an account, replacing an earlier one."""
    delete_account(conn, account.domain_id, account.server, account.user_id)
    account.insert(conn)


def account(conn: Connection, domain_id: str, server: str, user_id: str) -> AccountRecord | None:
    """Return the account, or None."""
    return AccountRecord.first(conn, sa.select(ACCOUNTS).where(*_is(domain_id, server, user_id)))


def accounts_of(conn: Connection, domain_id: str, server: str | None = None) -> list[AccountRecord]:
    """Return the accounts of a domain, optionally of one server, in a fixed order."""
    query = sa.select(ACCOUNTS).where(_accounts.domain_id == domain_id).order_by(_accounts.server, _accounts.user_id)
    return AccountRecord.all(conn, query if server is None else query.where(_accounts.server == server))


def claim(conn: Connection, account: AccountRecord, now: str, until: str) -> bool:
    """Lock an account's renewal; False if another process is renewing it or has renewed it."""
    free = sa.or_(_accounts.renewing_until.is_(None), _accounts.renewing_until <= now)
    place = _is(account.domain_id, account.server, account.user_id)
    chosen = sa.update(ACCOUNTS).where(*place, _accounts.generation == account.generation, free)
    return conn.execute(chosen.values(renewing_until=until)).rowcount == 1


def release(conn: Connection, account: AccountRecord) -> None:
    """Unlock an account whose renewal failed."""
    place = _is(account.domain_id, account.server, account.user_id)
    chosen = sa.update(ACCOUNTS).where(*place, _accounts.generation == account.generation)
    conn.execute(chosen.values(renewing_until=None))


def delete_account(conn: Connection, domain_id: str, server: str, user_id: str, generation: int | None = None) -> bool:
    """Remove an account, if it still has this generation; return whether it was removed."""
    place = _is(domain_id, server, user_id)
    if generation is not None:
        place = (*place, _accounts.generation == generation)
    return conn.execute(sa.delete(ACCOUNTS).where(*place)).rowcount == 1


def delete_sign_ins(conn: Connection, domain_id: str, servers: Sequence[str]) -> list[str]:
    """Remove the pending sign-ins at some servers; return their ids."""
    place = (_sign_ins.domain_id == domain_id, _sign_ins.server.in_(servers))
    idents = [str(row[0]) for row in conn.execute(sa.select(_sign_ins.id).where(*place))]
    conn.execute(sa.delete(SIGN_INS).where(*place))
    return idents


def of_user(conn: Connection, user_id: str) -> list[AccountRecord]:
    """Return a user's own accounts."""
    return AccountRecord.all(conn, sa.select(ACCOUNTS).where(_accounts.user_id == user_id))


def forget_user(conn: Connection, user_id: str, instead: str) -> list[SignInRecord]:
    """Remove the sign-ins that belong to a user or that the user began, and return them.

    Accounts that the user signed in record ``instead`` as the person.
    """
    concern = sa.or_(_sign_ins.user_id == user_id, _sign_ins.begun_by == user_id)
    removed = SignInRecord.all(conn, sa.select(SIGN_INS).where(concern))
    conn.execute(sa.delete(SIGN_INS).where(concern))
    conn.execute(sa.update(ACCOUNTS).where(_accounts.signed_in_by == user_id).values(signed_in_by=instead))
    return removed


def _is(domain_id: str, server: str, user_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    return _accounts.domain_id == domain_id, _accounts.server == server, _accounts.user_id == user_id

"""Sign-ins at MCP servers: those that wait for a person, and the accounts that came of them.

Owns putting, claiming and removing. What is secret of them (state, verifier, tokens) is sealed beside, among the
secrets (`domains.sign_in_secrets`); nothing here is. Times are text as `clock.now` writes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store.records import RecordTable


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInRecord:
    """A sign-in that a person has yet to complete. ``user_id``: whose account it will be; empty: the domain's."""

    id: str
    domain_id: str
    server: str
    user_id: str
    url: str
    """The server's address: at another one the sign-in counts for nothing."""
    state_hash: str
    browser_hash: str
    """Of the cookie of the browser in which it was begun; empty until then."""
    begun_by: str
    """Who began it there; empty until then."""
    scope: str
    step_up: bool
    """Whether the account is there, and this asks for more rights."""
    expires_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRecord:
    """An account at an MCP server, by whose token calls are made. ``user_id`` empty: the domain's, for everybody."""

    domain_id: str
    server: str
    user_id: str
    url: str
    issuer: str
    account: str
    """As whom, in the authorization server's words; empty when it does not say."""
    scope: str
    signed_in_by: str
    signed_in_at: str
    expires_at: str | None
    """Of the present token, which is renewed where that is possible."""
    generation: int
    """Another one with each token."""
    renewing_until: str | None
    """Until then somebody is asking for a newer token, and nobody else does."""
    step_ups: int
    """How often more rights were asked for since `stepped_at`; see `domains.sign_ins`."""
    stepped_at: str | None


SIGN_INS = RecordTable(SignInRecord, "sign_ins", indexed=("state_hash",), part_of="domain")
ACCOUNTS = RecordTable(AccountRecord, "mcp_accounts", key=("domain_id", "server", "user_id"), part_of="domain")
_sign_ins, _accounts = SIGN_INS.c, ACCOUNTS.c


def insert(conn: Connection, sign_in: SignInRecord) -> None:
    """Store a new sign-in."""
    SIGN_INS.insert(conn, sign_in)


def get(conn: Connection, ident: str) -> SignInRecord | None:
    """Return a sign-in, None when there is none."""
    return SIGN_INS.first(conn, SIGN_INS.select.where(_sign_ins.id == ident))


def by_state(conn: Connection, state_hash: str) -> SignInRecord | None:
    """Return the sign-in with this state, None when there is none."""
    return SIGN_INS.first(conn, SIGN_INS.select.where(_sign_ins.state_hash == state_hash))


def open_of(conn: Connection, domain_id: str, server: str, user_id: str, now: str) -> list[SignInRecord]:
    """Return the sign-ins that wait for one account, the newest first."""
    place = (_sign_ins.domain_id == domain_id, _sign_ins.server == server, _sign_ins.user_id == user_id)
    query = SIGN_INS.select.where(*place, _sign_ins.expires_at > now).order_by(_sign_ins.id.desc())
    return SIGN_INS.all(conn, query)


def list_ended(conn: Connection, now: str) -> list[SignInRecord]:
    """Return the sign-ins that nobody completed in time."""
    return SIGN_INS.all(conn, SIGN_INS.select.where(_sign_ins.expires_at <= now))


def bind_browser(conn: Connection, ident: str, browser_hash: str, user_id: str) -> None:
    """Note the browser in which a sign-in is begun; an earlier one cannot complete it any more."""
    values = {"browser_hash": browser_hash, "begun_by": user_id}
    conn.execute(sa.update(SIGN_INS.table).where(_sign_ins.id == ident).values(**values))


def take(conn: Connection, ident: str) -> bool:
    """Use a sign-in up; False when somebody else did."""
    return conn.execute(sa.delete(SIGN_INS.table).where(_sign_ins.id == ident)).rowcount == 1


def put_account(conn: Connection, account: AccountRecord) -> None:
    """Store an account in place of an earlier one."""
    delete_account(conn, account.domain_id, account.server, account.user_id)
    ACCOUNTS.insert(conn, account)


def account(conn: Connection, domain_id: str, server: str, user_id: str) -> AccountRecord | None:
    """Return an account, None when there is none."""
    return ACCOUNTS.first(conn, ACCOUNTS.select.where(*_is(domain_id, server, user_id)))


def accounts_of(conn: Connection, domain_id: str, server: str | None = None) -> list[AccountRecord]:
    """Return the accounts of a domain, of one server if given, in a fixed order."""
    query = ACCOUNTS.select.where(_accounts.domain_id == domain_id).order_by(_accounts.server, _accounts.user_id)
    return ACCOUNTS.all(conn, query if server is None else query.where(_accounts.server == server))


def claim(conn: Connection, account: AccountRecord, now: str, until: str) -> bool:
    """Lock an account's renewal; False when somebody else renews it, or has."""
    free = sa.or_(_accounts.renewing_until.is_(None), _accounts.renewing_until <= now)
    place = _is(account.domain_id, account.server, account.user_id)
    chosen = sa.update(ACCOUNTS.table).where(*place, _accounts.generation == account.generation, free)
    return conn.execute(chosen.values(renewing_until=until)).rowcount == 1


def release(conn: Connection, account: AccountRecord) -> None:
    """Unlock an account's renewal that came to nothing."""
    place = _is(account.domain_id, account.server, account.user_id)
    chosen = sa.update(ACCOUNTS.table).where(*place, _accounts.generation == account.generation)
    conn.execute(chosen.values(renewing_until=None))


def delete_account(conn: Connection, domain_id: str, server: str, user_id: str, generation: int | None = None) -> bool:
    """Remove an account, if it still has this generation; return whether it was there."""
    place = _is(domain_id, server, user_id)
    if generation is not None:
        place = (*place, _accounts.generation == generation)
    return conn.execute(sa.delete(ACCOUNTS.table).where(*place)).rowcount == 1


def delete_sign_ins(conn: Connection, domain_id: str, servers: Sequence[str]) -> list[str]:
    """Remove the sign-ins that wait for some servers; return their ids."""
    place = (_sign_ins.domain_id == domain_id, _sign_ins.server.in_(servers))
    idents = [str(row[0]) for row in conn.execute(sa.select(_sign_ins.id).where(*place))]
    conn.execute(sa.delete(SIGN_INS.table).where(*place))
    return idents


def of_user(conn: Connection, user_id: str) -> list[AccountRecord]:
    """Return a user's own accounts."""
    return ACCOUNTS.all(conn, ACCOUNTS.select.where(_accounts.user_id == user_id))


def forget_user(conn: Connection, user_id: str, instead: str) -> list[SignInRecord]:
    """Remove the sign-ins that are a user's or were begun by one, and put ``instead`` where the user signed in for all.

    Returns the removed ones.
    """
    concern = sa.or_(_sign_ins.user_id == user_id, _sign_ins.begun_by == user_id)
    removed = SIGN_INS.all(conn, SIGN_INS.select.where(concern))
    conn.execute(sa.delete(SIGN_INS.table).where(concern))
    conn.execute(sa.update(ACCOUNTS.table).where(_accounts.signed_in_by == user_id).values(signed_in_by=instead))
    return removed


def _is(domain_id: str, server: str, user_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    return _accounts.domain_id == domain_id, _accounts.server == server, _accounts.user_id == user_id

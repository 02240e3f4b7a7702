"""Authorizations of programs at the MCP door: registered clients, pending requests, codes, tokens.

A person authorizes a client (an MCP host such as Claude) for one domain with some scopes. `AuthorizationRecord` is this
decision; its codes and tokens end with it. Only the SHA-256 of a code or a token is stored. ``access.authorizations``
makes the rows and decides the rules.
"""

from collections.abc import Sequence
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store import signals
from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.record import Record
from agentic_rag.store.signals import SignalKind


class TokenKind(StrEnum):
    """The use of a token at the door or at the token endpoint."""

    ACCESS = "access"
    REFRESH = "refresh"


class ClientRecord(Record, table=True):
    """A client that registered itself (RFC 7591). ``used_at`` is the time of its last authorization request."""

    __tablename__ = "oauth_clients"

    id: Key[str]
    name: str
    redirect_uris: tuple[str, ...]
    created_at: str
    used_at: Indexed[str]


class RequestRecord(Record, table=True):
    """A checked authorization request that waits for a person's decision. ``id`` is the SHA-256 of its secret name."""

    __tablename__ = "oauth_requests"
    part_of = "domain"

    id: Key[str]
    domain_id: Indexed[str]
    client_id: str
    client_name: str
    """The name that the client gives itself; untrusted."""
    redirect_uri: str
    issuer: str
    resource: str
    scopes: tuple[str, ...]
    state: str | None
    challenge: str
    expires_at: Indexed[str]


class AuthorizationRecord(Record, table=True):
    """A person's decision that a client may use one domain. ``key_id`` is the key of the login that decided.

    The authorization has that key's rights and ends with it; empty: it has the user's rights. ``expires_at`` is the
    latest expiry of its tokens.
    """

    __tablename__ = "oauth_authorizations"
    part_of = "domain"

    id: Key[str]
    user_id: Indexed[str]
    domain_id: Indexed[str]
    key_id: str
    client_id: str
    client_name: str
    redirect_uri: str
    resource: str
    scopes: tuple[str, ...]
    created_at: str
    used_at: str | None
    """The time of the last exchange of a code or a refresh token."""
    expires_at: Indexed[str]


class CodeRecord(Record, table=True):
    """An authorization code. ``id`` is its SHA-256. A used code is kept until it expires, so that reuse is noticed."""

    __tablename__ = "oauth_codes"
    part_of = "domain"

    id: Key[str]
    authorization_id: Indexed[str]
    domain_id: Indexed[str]
    challenge: str
    expires_at: Indexed[str]
    used: bool


class TokenRecord(Record, table=True):
    """A token. ``id`` is its SHA-256. A used refresh token is kept until it expires, so that reuse is noticed."""

    __tablename__ = "oauth_tokens"
    part_of = "domain"

    id: Key[str]
    authorization_id: Indexed[str]
    domain_id: Indexed[str]
    kind: TokenKind
    scopes: tuple[str, ...]
    expires_at: Indexed[str]
    used: bool


CLIENTS = ClientRecord.__table__
REQUESTS = RequestRecord.__table__
AUTHORIZATIONS = AuthorizationRecord.__table__
CODES = CodeRecord.__table__
TOKENS = TokenRecord.__table__
ALL = (CLIENTS, REQUESTS, AUTHORIZATIONS, CODES, TOKENS)
_clients, _requests, _authorizations, _codes, _tokens = (table.c for table in ALL)


def client(conn: Connection, client_id: str) -> ClientRecord | None:
    """Return a registered client, or None."""
    return ClientRecord.first(conn, sa.select(CLIENTS).where(_clients.id == client_id))


def register(conn: Connection, new: ClientRecord, at_most: int) -> None:
    """Store a client. Beyond ``at_most``, the clients that were unused for the longest time are deleted."""
    _keep_newest(conn, CLIENTS, _clients.used_at, at_most - 1)
    new.insert(conn)


def begin(conn: Connection, request: RequestRecord, now: str, at_most: int) -> None:
    """Store a pending request. Beyond ``at_most``, those that expire first are deleted."""
    conn.execute(sa.delete(REQUESTS).where(_requests.expires_at <= now))
    _keep_newest(conn, REQUESTS, _requests.expires_at, at_most - 1)
    conn.execute(sa.update(CLIENTS).where(_clients.id == request.client_id).values(used_at=now))
    request.insert(conn)


def request(conn: Connection, sha256: str) -> RequestRecord | None:
    """Return the pending request with this secret name, or None."""
    return RequestRecord.first(conn, sa.select(REQUESTS).where(_requests.id == sha256))


def take_request(conn: Connection, sha256: str) -> bool:
    """Delete a pending request; False if it was decided before."""
    return conn.execute(sa.delete(REQUESTS).where(_requests.id == sha256)).rowcount == 1


def insert(conn: Connection, authorization: AuthorizationRecord, code: CodeRecord) -> None:
    """Store an authorization with the code that its client exchanges."""
    authorization.insert(conn)
    code.insert(conn)
    signals.send(conn, SignalKind.ACCESS)


def get(conn: Connection, authorization_id: str) -> AuthorizationRecord | None:
    """Return an authorization, or None."""
    return AuthorizationRecord.first(conn, sa.select(AUTHORIZATIONS).where(_authorizations.id == authorization_id))


def active(conn: Connection, at: str, user_id: str | None = None) -> list[AuthorizationRecord]:
    """Return the authorizations that have not expired, oldest first, optionally those of one user."""
    query = sa.select(AUTHORIZATIONS).where(_authorizations.expires_at > at).order_by(_authorizations.id)
    return AuthorizationRecord.all(conn, query if user_id is None else query.where(_authorizations.user_id == user_id))


def code(conn: Connection, sha256: str) -> CodeRecord | None:
    """Return a code, also a used or an expired one, or None."""
    return CodeRecord.first(conn, sa.select(CODES).where(_codes.id == sha256))


def use_code(conn: Connection, sha256: str) -> bool:
    """Mark a code as used; False if it was used before."""
    chosen = sa.update(CODES).where(_codes.id == sha256, _codes.used.is_(False))
    return conn.execute(chosen.values(used=True)).rowcount == 1


def token(conn: Connection, sha256: str) -> TokenRecord | None:
    """Return a token, also a used or an expired one, or None."""
    return TokenRecord.first(conn, sa.select(TOKENS).where(_tokens.id == sha256))


def use_token(conn: Connection, sha256: str) -> bool:
    """Mark a refresh token as used; False if it was used before."""
    chosen = sa.update(TOKENS).where(_tokens.id == sha256, _tokens.used.is_(False))
    return conn.execute(chosen.values(used=True)).rowcount == 1


def issue(conn: Connection, authorization_id: str, tokens: Sequence[TokenRecord], at: str) -> None:
    """Store new tokens of an authorization, which then lasts as long as they do."""
    for token_record in tokens:
        token_record.insert(conn)
    until = max(token_record.expires_at for token_record in tokens)
    chosen = sa.update(AUTHORIZATIONS).where(_authorizations.id == authorization_id)
    conn.execute(chosen.values(used_at=at, expires_at=until))
    signals.send(conn, SignalKind.ACCESS)


def end(conn: Connection, authorization_id: str) -> bool:
    """Delete an authorization with its codes and tokens; False if there is none."""
    return _end(conn, _authorizations.id == authorization_id) > 0


def end_of_user(conn: Connection, user_id: str) -> None:
    """Delete the authorizations of a user."""
    _end(conn, _authorizations.user_id == user_id)


def end_of_key(conn: Connection, key_id: str) -> None:
    """Delete the authorizations that a login with this key made."""
    _end(conn, _authorizations.key_id == key_id)


def end_expired(conn: Connection, at: str, clients_before: str) -> None:
    """Delete everything that has expired, and registered clients unused since ``clients_before``."""
    _end(conn, _authorizations.expires_at <= at)
    for table, expires_at in ((REQUESTS, _requests), (CODES, _codes), (TOKENS, _tokens)):
        conn.execute(sa.delete(table).where(expires_at.expires_at <= at))
    used = sa.select(_authorizations.client_id)
    conn.execute(sa.delete(CLIENTS).where(_clients.used_at <= clients_before, _clients.id.not_in(used)))


def _end(conn: Connection, chosen: sa.ColumnElement[bool]) -> int:
    idents = sa.select(_authorizations.id).where(chosen)
    conn.execute(sa.delete(CODES).where(_codes.authorization_id.in_(idents)))
    conn.execute(sa.delete(TOKENS).where(_tokens.authorization_id.in_(idents)))
    count = conn.execute(sa.delete(AUTHORIZATIONS).where(chosen)).rowcount
    if count:
        signals.send(conn, SignalKind.ACCESS)
    return count


def _keep_newest(conn: Connection, table: sa.Table, age: sa.Column[str], count: int) -> None:
    if conn.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() <= count:
        return
    newest = sa.select(table.c.id).order_by(age.desc(), table.c.id.desc()).limit(count)
    conn.execute(sa.delete(table).where(table.c.id.not_in(newest)))

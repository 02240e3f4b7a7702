"""History of a domain's settings, servers, prompt components and roles: one row per change, with the new content.

Numbers count up within a domain. Beyond the limits, the oldest rows are removed first. The content is opaque to this
module.
"""

from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import Connection, Index

from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.domains import DOMAINS
from agentic_rag.store.record import Record

MAX_ROWS = 2_000
MAX_BYTES = 32 * 2**20
"""Total size of the contents kept per domain, in bytes."""


class HistoryKind(StrEnum):
    """The kind of thing that changed. ``settings``: name, description and all settings except the servers."""

    SETTINGS = "settings"
    SERVER = "server"
    PROMPT = "prompt"
    ROLE = "role"
    CASE = "case"


DISK = "disk"
"""The author of a file that an unknown person changed in the workspace."""


class HistoryRecord(Record, table=True):
    """One change of a thing.

    ``subject`` is the server's name, the file's path or the case's id, and empty for settings. ``content`` is the
    content after the change, or None if the thing was removed. ``author`` is empty if unknown. ``redacted``: the
    content held a secret, which is not stored.
    """

    __tablename__ = "history"
    __table_args__ = (Index("ix_history_subject", "domain_id", "kind", "subject"),)
    part_of = "domain"

    domain_id: Key[str]
    n: Key[int]
    kind: HistoryKind
    subject: str
    author: Indexed[str]
    at: str
    content: str | None
    size: int
    sha256: str
    redacted: bool = False


HISTORY = HistoryRecord.__table__
_rows = HISTORY.c


@dataclass(frozen=True, slots=True)
class VersionContent:
    """The content of a thing as stored; ``text`` is None if the thing is gone.

    ``sha256`` is the checksum of the full content, including redacted parts, and empty if the thing is gone.
    """

    text: str | None = None
    sha256: str = ""
    redacted: bool = False


GONE = VersionContent()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewHistory:
    """A change to be stored. ``before`` is the earlier content, for a thing without history."""

    kind: HistoryKind
    subject: str
    author: str
    after: VersionContent
    before: VersionContent = GONE
    before_at: str = ""


def append(conn: Connection, domain_id: str, changes: list[NewHistory], at: str) -> int:
    """Store changes, then remove the oldest beyond the limits; return the last number, or 0 if the domain is gone."""
    if not changes:
        return 0
    # PostgreSQL has several writers; the lock lets them number rows one after the other
    locked = sa.select(DOMAINS.c.id).where(DOMAINS.c.id == domain_id).with_for_update()
    if conn.execute(locked).first() is None:
        return 0
    newest = conn.execute(sa.select(sa.func.max(_rows.n)).where(_rows.domain_id == domain_id)).scalar()
    last: int = newest or 0
    for new in changes:
        versions = [(new.author, at, new.after)]
        if new.before is not GONE and not _is_known(conn, domain_id, new.kind, new.subject):
            versions.insert(0, ("", new.before_at or at, new.before))
        for author, when, content in versions:
            last += 1
            _record(domain_id, last, new, author, when, content).insert(conn)
    _prune(conn, domain_id)
    return last


def _record(domain_id: str, n: int, new: NewHistory, author: str, at: str, content: VersionContent) -> HistoryRecord:
    return HistoryRecord(
        domain_id=domain_id,
        n=n,
        kind=new.kind,
        subject=new.subject,
        author=author,
        at=at,
        content=content.text,
        size=len((content.text or "").encode("utf-8", "surrogatepass")),
        sha256=content.sha256,
        redacted=content.redacted,
    )


def _is_known(conn: Connection, domain_id: str, kind: HistoryKind, subject: str) -> bool:
    query = sa.select(_rows.n).where(_rows.domain_id == domain_id, _rows.kind == kind, _rows.subject == subject)
    return conn.execute(query.limit(1)).first() is not None


def _prune(conn: Connection, domain_id: str) -> None:
    """Remove the oldest rows beyond the limits of count and size; the newest row is always kept.

    Evaluation cases have limits of their own, so that an import of many leaves the other history alone.
    """
    for is_case in (_rows.kind == HistoryKind.CASE, _rows.kind != HistoryKind.CASE):
        of_domain = sa.and_(_rows.domain_id == domain_id, is_case)
        size = 0
        for count, (n, row_size) in enumerate(
            conn.execute(sa.select(_rows.n, _rows.size).where(of_domain).order_by(_rows.n.desc())).all(), 1
        ):
            size += row_size
            if count > 1 and (count > MAX_ROWS or size > MAX_BYTES):
                conn.execute(sa.delete(HISTORY).where(of_domain, _rows.n <= n))
                break


def get(conn: Connection, domain_id: str, n: int) -> HistoryRecord | None:
    """Return one change, or None if it does not exist (any more)."""
    return HistoryRecord.first(conn, sa.select(HISTORY).where(_rows.domain_id == domain_id, _rows.n == n))


def before(conn: Connection, record: HistoryRecord) -> HistoryRecord | None:
    """Return the previous change of the same thing, or None if there is none or it was removed."""
    query = sa.select(HISTORY).where(
        _rows.domain_id == record.domain_id,
        _rows.kind == record.kind,
        _rows.subject == record.subject,
        _rows.n < record.n,
    )
    return HistoryRecord.first(conn, query.order_by(_rows.n.desc()).limit(1))


def last_hashes(conn: Connection, domain_id: str) -> dict[tuple[HistoryKind, str], tuple[str, str]]:
    """Return the checksum and time of each thing's last change; the checksum is empty if the thing is gone."""
    newest = sa.select(sa.func.max(_rows.n)).where(_rows.domain_id == domain_id).group_by(_rows.kind, _rows.subject)
    query = sa.select(_rows.kind, _rows.subject, _rows.sha256, _rows.at).where(
        _rows.domain_id == domain_id, _rows.n.in_(newest)
    )
    return {(HistoryKind(kind), subject): (sha256, at) for kind, subject, sha256, at in conn.execute(query)}


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLine:
    """A change without its content."""

    n: int
    kind: HistoryKind
    subject: str
    author: str
    at: str
    gone: bool
    size: int
    redacted: bool


def page(
    conn: Connection,
    domain_id: str,
    limit: int,
    *,
    kinds: tuple[HistoryKind, ...],
    subject: str | None = None,
    below: int | None = None,
) -> list[HistoryLine]:
    """Return changes, newest first. ``below``: only those with a smaller number."""
    query = sa.select(
        _rows.n, _rows.kind, _rows.subject, _rows.author, _rows.at, _rows.content.is_(None), _rows.size, _rows.redacted
    ).where(_rows.domain_id == domain_id, _rows.kind.in_(kinds))
    if subject is not None:
        query = query.where(_rows.subject == subject)
    if below is not None:
        query = query.where(_rows.n < below)
    return [
        HistoryLine(
            n=n,
            kind=HistoryKind(kind),
            subject=name,
            author=author,
            at=at,
            gone=bool(is_gone),
            size=size,
            redacted=redacted,
        )
        for n, kind, name, author, at, is_gone, size, redacted in conn.execute(
            query.order_by(_rows.n.desc()).limit(limit)
        )
    ]


def rename_author(conn: Connection, user_id: str, instead: str) -> None:
    """Replace a user's name as author of all their changes."""
    conn.execute(sa.update(HISTORY).where(_rows.author == user_id).values(author=instead))

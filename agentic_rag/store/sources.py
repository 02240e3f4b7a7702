"""Document sources of domains, and the state of each item of a source.

A source is an MCP server, a folder or a website whose items become documents of its domain. An item's row says which
version of the item is stored in which document. The row is written after the document, so that a kill in between
repeats at most one item. Callers check permissions.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Index, UniqueConstraint

from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.database_time import DatabaseTime
from agentic_rag.store.record import Record

MAX_SOURCES = 50
"""Maximum sources of a domain."""


class SourceKind(StrEnum):
    """Where the items of a source are."""

    MCP = "mcp"
    FOLDER = "folder"
    WEBSITE = "website"


class SourceState(StrEnum):
    """What the server does with a source. ``deleting``: its documents are being removed, then the source itself."""

    IDLE = "idle"
    RUNNING = "running"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounts:
    """What a run did. ``fetched`` counts the items that were read, ``changed`` those whose bytes were new.

    ``missing`` counts items that the last complete list lacks, and whose documents are not removed yet.
    """

    listed: int = 0
    unchanged: int = 0
    fetched: int = 0
    changed: int = 0
    failed: int = 0
    missing: int = 0
    removed: int = 0


class SourceRecord(Record, table=True):
    """A source of a domain's documents, with the state of its last run."""

    __tablename__ = "sources"
    __table_args__ = (UniqueConstraint("domain_id", "name"), UniqueConstraint("domain_id", "folder"))
    part_of = "domain"

    id: Key[str]
    domain_id: Indexed[str]
    name: str
    kind: SourceKind
    config: dict[str, Any]
    """The part of the source's form for its kind."""
    folder: str
    """The folder of its files, relative to the documents folder. It stays when the source is renamed."""
    labels: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    """Patterns of addresses that are left out."""
    interval_minutes: int
    grace_hours: int
    max_items: int
    enabled: bool = True
    owner_id: str
    """The admin who saved the source last. MCP servers are called for this user."""
    state: SourceState = SourceState.IDLE
    requested: bool = False
    """Whether an admin has asked for a run that has not begun."""
    run_id: str = ""
    """The run that may write items. A change of the source takes this right from a run in progress."""
    next_at: Indexed[str | None] = None
    started_at: str | None = None
    ended_at: str | None = None
    problem_code: str = ""
    """The code of the error that ended the last run; empty if the run was complete."""
    problem: str = ""
    notes: tuple[str, ...] = ()
    """What the last run left out, in plain words."""
    counts: RunCounts = RunCounts()
    created_at: str
    updated_at: str


class SourceItemRecord(Record, table=True):
    """An item of a source, identified by its address."""

    __tablename__ = "source_items"
    __table_args__ = (Index("ix_source_items_document", "document_id"),)
    part_of = "domain"

    source_id: Key[str]
    uri: Key[str]
    domain_id: Indexed[str]
    name: str = ""
    version: str = ""
    """The version that the source names: time, etag or stamp. Empty: only the bytes tell versions apart."""
    sha256: str = ""
    document_id: str = ""
    """The document with the item's bytes; empty if the item has never been read."""
    error_code: str = ""
    error: str = ""
    seen_at: str
    missing_since: Indexed[str | None] = None
    """The time of the first complete list without this item."""


SOURCES = SourceRecord.__table__
ITEMS = SourceItemRecord.__table__
_sources = SOURCES.c
_items = ITEMS.c


def get(conn: Connection, source_id: str) -> SourceRecord | None:
    """Return the source, or None."""
    return SourceRecord.first(conn, sa.select(SOURCES).where(_sources.id == source_id))


def lock(conn: Connection, source_id: str) -> SourceRecord | None:
    """Return the source, or None. Until the transaction ends, no other transaction can change it."""
    return SourceRecord.first(conn, sa.select(SOURCES).where(_sources.id == source_id).with_for_update())


def of_domain(conn: Connection, domain_id: str) -> list[SourceRecord]:
    """Return the sources of a domain by name."""
    query = sa.select(SOURCES).where(_sources.domain_id == domain_id)
    return SourceRecord.all(conn, query.order_by(_sources.name))


def list_due(conn: Connection, most: int) -> list[SourceRecord]:
    """Return at most ``most`` sources that have work: due, requested, interrupted, or being deleted."""
    due = sa.and_(_sources.enabled.is_(True), _sources.next_at <= DatabaseTime())
    # A source that is still running belongs to a process that died, or is skipped because its lease is taken.
    open_ones = sa.or_(_sources.requested.is_(True), _sources.state != SourceState.IDLE, due)
    return SourceRecord.all(conn, sa.select(SOURCES).where(open_ones).order_by(_sources.next_at).limit(most))


def update(conn: Connection, source_id: str, **values: object) -> bool:
    """Change columns of a source. Returns False if it does not exist."""
    return conn.execute(sa.update(SOURCES).where(_sources.id == source_id).values(**values)).rowcount == 1


def update_run(conn: Connection, source_id: str, run_id: str, **values: object) -> bool:
    """Change columns of a source if this run may still write. Returns False otherwise."""
    statement = sa.update(SOURCES).where(_sources.id == source_id, _sources.run_id == run_id)
    return conn.execute(statement.values(**values)).rowcount == 1


def begin(conn: Connection, source_id: str, run_id: str, at: str) -> SourceRecord | None:
    """Start a run, which takes the right to write from any earlier one. None: the source is gone or being deleted."""
    there = sa.update(SOURCES).where(_sources.id == source_id, _sources.state != SourceState.DELETING)
    values = {"run_id": run_id, "state": SourceState.RUNNING, "requested": False, "started_at": at}
    return get(conn, source_id) if conn.execute(there.values(**values)).rowcount == 1 else None


def delete(conn: Connection, source_id: str) -> None:
    """Delete a source and its items."""
    conn.execute(sa.delete(ITEMS).where(_items.source_id == source_id))
    conn.execute(sa.delete(SOURCES).where(_sources.id == source_id))


def forget_owner(conn: Connection, user_id: str, instead: str) -> None:
    """Replace the name of a user who was erased. Sources that call MCP servers wait for another admin."""
    conn.execute(sa.update(SOURCES).where(_sources.owner_id == user_id).values(owner_id=instead))


# Items.


def items_of(conn: Connection, source_id: str) -> dict[str, SourceItemRecord]:
    """Return all items of a source by address."""
    query = sa.select(ITEMS).where(_items.source_id == source_id)
    return {item.uri: item for item in SourceItemRecord.all(conn, query)}


def list_items(
    conn: Connection, source_id: str, after: str, limit: int, *, failed: bool = False
) -> list[SourceItemRecord]:
    """Return items of a source by address, those after ``after``. ``failed``: only those with an error."""
    query = sa.select(ITEMS).where(_items.source_id == source_id, _items.uri > after)
    if failed:
        query = query.where(_items.error_code != "")
    return SourceItemRecord.all(conn, query.order_by(_items.uri).limit(limit))


def count_items(conn: Connection, domain_id: str) -> Mapping[str, tuple[int, int]]:
    """Return the number of items and of items with an error of each source of a domain."""
    failed = sa.func.sum(sa.case((_items.error_code != "", 1), else_=0))
    query = sa.select(_items.source_id, sa.func.count(), failed).where(_items.domain_id == domain_id)
    return {row[0]: (int(row[1]), int(row[2] or 0)) for row in conn.execute(query.group_by(_items.source_id))}


def put_item(conn: Connection, item: SourceItemRecord) -> None:
    """Insert an item, or replace the item with this address."""
    conn.execute(sa.delete(ITEMS).where(_items.source_id == item.source_id, _items.uri == item.uri))
    item.insert(conn)


def note_seen(conn: Connection, source_id: str, uris: Sequence[str], at: str) -> None:
    """Record that a list contained these items."""
    chosen = sa.update(ITEMS).where(_items.source_id == source_id, _items.uri.in_(uris))
    conn.execute(chosen.values(seen_at=at, missing_since=None))


def note_missing(conn: Connection, source_id: str, uris: Sequence[str], at: str) -> None:
    """Record that a complete list lacked these items, unless an earlier one lacked them as well."""
    chosen = sa.update(ITEMS).where(_items.source_id == source_id, _items.uri.in_(uris))
    # The first time counts: the grace period must not begin again with each list.
    conn.execute(chosen.where(_items.missing_since.is_(None)).values(missing_since=at))


def list_expired(conn: Connection, source_id: str, missing_before: str, most: int) -> list[SourceItemRecord]:
    """Return at most ``most`` items that have been missing since before a time."""
    query = sa.select(ITEMS).where(_items.source_id == source_id, _items.missing_since <= missing_before)
    return SourceItemRecord.all(conn, query.order_by(_items.uri).limit(most))


def delete_item(conn: Connection, source_id: str, uri: str) -> None:
    """Delete the row of an item."""
    conn.execute(sa.delete(ITEMS).where(_items.source_id == source_id, _items.uri == uri))


def sources_with(conn: Connection, document_id: str) -> list[tuple[str, str]]:
    """Return the source and the address of each item that a document holds."""
    query = sa.select(_items.source_id, _items.uri).where(_items.document_id == document_id)
    return [(row[0], row[1]) for row in conn.execute(query.order_by(_items.source_id, _items.uri))]


def documents_of(conn: Connection, source_id: str) -> set[str]:
    """Return the ids of the documents that hold items of a source."""
    query = sa.select(_items.document_id).where(_items.source_id == source_id, _items.document_id != "").distinct()
    return set(conn.execute(query).scalars())


def labels_of_others(conn: Connection, source_id: str, document_ids: Collection[str]) -> dict[str, set[str]]:
    """Return the labels that other sources give to documents, by document."""
    query = (
        sa.select(_items.document_id, _items.source_id)
        .where(_items.document_id.in_(document_ids), _items.source_id != source_id)
        .distinct()
    )
    rows = conn.execute(query).all()
    labels = {source.id: source.labels for source in SourceRecord.all(conn, sa.select(SOURCES))} if rows else {}
    by_document: dict[str, set[str]] = {}
    for document_id, other in rows:
        by_document.setdefault(document_id, set()).update(labels.get(other, ()))
    return by_document

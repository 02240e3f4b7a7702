"""Context lines: one line about each passage of a document, written by a model, and the requests for missing ones.

A row is a passage of a document and the model that is asked for its line. The passage is known by a digest of its
headings and text, so that a document with new bytes keeps the lines of its unchanged passages. A row with a line is
never asked for again. The rows stay while a domain has the setting off, and are deleted with their document.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.base.ids import DocumentId
from agentic_rag.store.clock import now
from agentic_rag.store.collections import COLLECTIONS, LinesUse
from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.record import Record

MAX_TRIES = 5
"""Failed requests after which a passage stays without a line, until the passage or the model changes."""


def imported_id(domain_id: str, sha256: str) -> str:
    """Return the ``document_id`` of lines that a bundle brought, until a document with these bytes adopts them."""
    return f"{domain_id}:{sha256}"


class ContextLineRecord(Record, table=True):
    """The line of a passage by one model; ``line`` is empty until there is one.

    ``failure``: why the last request brought no line. ``retry_at``: when to ask again. ``batch_id``: the service's id
    of the batch that asks for the line, submitted at ``batch_at``; empty while no batch does.
    """

    __tablename__ = "context_lines"
    part_of = "domain"

    document_id: Key[str]
    digest: Key[str]
    model: Key[str]
    domain_id: Indexed[str]
    line: str = ""
    failure: str = ""
    tries: int = 0
    retry_at: str = ""
    batch_id: Indexed[str] = ""
    batch_at: str = ""
    updated_at: str


LINES = ContextLineRecord.__table__
_lines = LINES.c
_MISSING = sa.and_(_lines.line == "", _lines.tries < MAX_TRIES)
_KEY = sa.and_(
    _lines.document_id == sa.bindparam("of_document"),
    _lines.digest == sa.bindparam("of_digest"),
    _lines.model == sa.bindparam("of_model"),
)


@dataclass(frozen=True, slots=True)
class LineCounts:
    """Passages of a document that have a line, and that lack one after a request; ``reason`` of the last failure."""

    made: int
    failed: int
    of: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LineBatch:
    """A batch at a model's service."""

    id: str
    model: str
    at: str


def of_document(conn: Connection, document_id: str) -> dict[str, str]:
    """Return the lines of a document by digest. If several models wrote one, the newest counts."""
    query = sa.select(_lines.digest, _lines.line).where(_lines.document_id == document_id, _lines.line != "")
    return {row.digest: row.line for row in conn.execute(query.order_by(_lines.updated_at))}


def in_use(conn: Connection, domain_id: str, document_id: str) -> dict[str, str]:
    """Return the lines of a document by digest; none if the live collection of its domain has no context lines."""
    use = conn.execute(sa.select(COLLECTIONS.c.lines).where(COLLECTIONS.c.domain_id == domain_id)).scalar()
    return of_document(conn, document_id) if use is LinesUse.LIVE else {}


def adopt(conn: Connection, domain_id: str, document_id: DocumentId, sha256: str) -> None:
    """Give a document the lines that a bundle brought for its bytes."""
    where = (_lines.document_id == imported_id(domain_id, sha256),)
    for row in ContextLineRecord.all(conn, sa.select(LINES).where(*where)):
        put(conn, [row.replace(document_id=document_id)])
    conn.execute(sa.delete(LINES).where(*where))


def plan(conn: Connection, domain_id: str, document_id: DocumentId, model: str, digests: Collection[str]) -> None:
    """Note which passages a document has: add rows for those without one, and delete the rows of other passages.

    The line of another model is deleted once ``model`` has written one.
    """
    query = sa.select(_lines.digest, _lines.model, _lines.line != "").where(_lines.document_id == document_id)
    rows = [(str(digest), str(of), bool(written)) for digest, of, written in conn.execute(query)]
    current = {digest: written for digest, of, written in rows if of == model}
    for digest in sorted(set(digests) - current.keys()):
        row = ContextLineRecord(
            document_id=document_id, digest=digest, model=model, domain_id=domain_id, updated_at=now()
        )
        row.insert(conn)
    _delete(
        conn,
        [
            _key(document_id, digest, of)
            for digest, of, _ in rows
            if digest not in digests or (of != model and current.get(digest))
        ],
    )


def documents_due(conn: Connection, domain_id: str, model: str, moment: str) -> list[str]:
    """Return the documents with passages whose line is to be asked for now."""
    query = sa.select(_lines.document_id).where(_lines.domain_id == domain_id, *_due(model, moment)).distinct()
    return sorted(conn.execute(query).scalars())


def due(conn: Connection, document_id: str, model: str, moment: str) -> dict[str, ContextLineRecord]:
    """Return the rows of a document whose line is to be asked for now, by digest."""
    query = sa.select(LINES).where(_lines.document_id == document_id, *_due(model, moment))
    return {row.digest: row for row in ContextLineRecord.all(conn, query)}


def _due(model: str, moment: str) -> tuple[sa.ColumnElement[bool], ...]:
    return _lines.model == model, _lines.batch_id == "", _lines.retry_at <= moment, _MISSING


def count_unasked(conn: Connection, domain_id: str, model: str) -> int:
    """Return the number of passages of a domain that were asked for never, or in a batch that has not ended."""
    where = (_lines.domain_id == domain_id, _lines.model == model, _lines.line == "", _lines.failure == "")
    return conn.execute(sa.select(sa.func.count()).where(*where)).scalar_one()


def with_other_model(conn: Connection, domain_id: str, model: str) -> set[str]:
    """Return the documents whose passages were planned for other models only."""
    of_domain = sa.select(_lines.document_id).where(_lines.domain_id == domain_id).distinct()
    planned = set(conn.execute(of_domain.where(_lines.model == model)).scalars())
    return set(conn.execute(of_domain.where(_lines.model != model)).scalars()) - planned


def put(conn: Connection, rows: Sequence[ContextLineRecord]) -> None:
    """Store rows, replacing those of the same passage and model."""
    for row in rows:
        row.put(conn, ("document_id", "digest", "model"))


def change(conn: Connection, row: ContextLineRecord) -> bool:
    """Store a row that was read before; returns False and stores nothing if it was deleted meanwhile."""
    values = {name: value for name, value in row.column_values().items() if name not in ("document_id", "digest")}
    key = (_lines.document_id == row.document_id, _lines.digest == row.digest, _lines.model == row.model)
    return conn.execute(sa.update(LINES).where(*key).values(**values)).rowcount == 1


def _key(document_id: str, digest: str, model: str) -> dict[str, str]:
    return {"of_document": document_id, "of_digest": digest, "of_model": model}


def _delete(conn: Connection, keys: Sequence[dict[str, str]]) -> None:
    if keys:
        conn.execute(sa.delete(LINES).where(_KEY), keys)


def batches(conn: Connection, domain_id: str) -> list[LineBatch]:
    """Return the batches that a domain's rows wait for."""
    query = sa.select(_lines.batch_id, _lines.model, _lines.batch_at).distinct()
    where = (_lines.domain_id == domain_id, _lines.batch_id != "")
    return [LineBatch(*row) for row in conn.execute(query.where(*where).order_by(_lines.batch_id))]


def waiting_domains(conn: Connection) -> list[str]:
    """Return the domains with rows that wait for a batch."""
    return list(conn.execute(sa.select(_lines.domain_id).where(_lines.batch_id != "").distinct()).scalars())


def of_batch(conn: Connection, domain_id: str, batch_id: str) -> list[ContextLineRecord]:
    """Return the rows that wait for a batch."""
    where = (_lines.domain_id == domain_id, _lines.batch_id == batch_id)
    return ContextLineRecord.all(conn, sa.select(LINES).where(*where))


def counts(conn: Connection, domain_id: str, model: str) -> dict[str, LineCounts]:
    """Return the progress of a domain's documents by id."""
    failed = sa.and_(_lines.line == "", _lines.failure != "")
    query = sa.select(
        _lines.document_id,
        sa.func.count(sa.case((_lines.line != "", 1))),
        sa.func.count(sa.case((failed, 1))),
        sa.func.count(),
        sa.func.max(sa.case((failed, _lines.failure), else_="")),
    ).where(_lines.domain_id == domain_id, _lines.model == model)
    rows = conn.execute(query.group_by(_lines.document_id))
    return {ident: LineCounts(made, lacking, of, reason or "") for ident, made, lacking, of, reason in rows}


def total(conn: Connection, domain_id: str) -> LineCounts:
    """Return the progress of a whole domain, whichever models were asked."""
    query = sa.select(_lines.document_id, _lines.digest, _lines.line != "", _lines.failure)
    where = (_lines.domain_id == domain_id, _lines.document_id.not_like("%:%"))  # imported lines have no document yet
    rows = conn.execute(query.where(*where)).all()
    written = {(document_id, digest) for document_id, digest, has_line, _ in rows if has_line}
    failed = {(row[0], row[1]): str(row[3]) for row in rows if row[3] and (row[0], row[1]) not in written}
    of = len({(row[0], row[1]) for row in rows})
    return LineCounts(len(written), len(failed), of, min(failed.values(), default=""))


def list_written(conn: Connection, document_id: str) -> list[ContextLineRecord]:
    """Return the rows of a document that have a line, in a stable order."""
    query = sa.select(LINES).where(_lines.document_id == document_id, _lines.line != "")
    return ContextLineRecord.all(conn, query.order_by(_lines.digest, _lines.model))


def delete(conn: Connection, document_id: str) -> None:
    """Delete all lines of a document."""
    conn.execute(sa.delete(LINES).where(_lines.document_id == document_id))

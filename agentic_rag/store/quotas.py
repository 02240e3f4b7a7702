"""Quotas of one domain, counted in the transaction that adds rows, so that two transactions cannot both pass a limit.

This module owns the limits, the counting and the error. Limits of memories are enforced in ``mcp_servers/promptx``, and
those of secrets in the vault.
"""

from dataclasses import dataclass, fields, replace

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.base.errors import QuotaExceeded
from agentic_rag.store.conversations import CONVERSATIONS
from agentic_rag.store.documents import DOCUMENTS
from agentic_rag.store.domains import DOMAINS
from agentic_rag.store.statements import Prepared, parameter

_LOCK = Prepared(sa.select(DOMAINS.c.id).where(DOMAINS.c.id == parameter(DOMAINS.c.id)).with_for_update(key_share=True))


@dataclass(frozen=True, slots=True)
class Holdings:
    """The amounts that a domain holds, or may hold at most. ``document_bytes``: total size of the documents' files."""

    documents: int = 20_000
    document_bytes: int = 20 * 1024**3
    conversations: int = 100_000


@dataclass(frozen=True, slots=True)
class Quotas:
    """The limits of each domain, set by the operator. Call the checks after the rows were added."""

    limits: Holdings = Holdings()

    def check_documents(self, conn: Connection, domain_id: str) -> None:
        """Check the number and total size of a domain's documents.

        Raises:
            QuotaExceeded: the domain has too many documents, or their files are too large together.
        """
        _wait_for_others(conn, domain_id)
        self.check_more_documents(conn, domain_id, 0, 0)

    def check_more_documents(self, conn: Connection, domain_id: str, more: int, more_bytes: int) -> None:
        """Check a domain's documents plus so many more before they are received. Concurrent uploads are not counted.

        Raises:
            QuotaExceeded: as `check_documents`.
        """
        totals = holdings(conn, domain_id, "documents", "document_bytes")
        totals = replace(totals, documents=totals.documents + more, document_bytes=totals.document_bytes + more_bytes)
        self._check(totals, "documents", "document_bytes")

    def check_conversations(self, conn: Connection, domain_id: str) -> None:
        """Check the number of a domain's conversations.

        Raises:
            QuotaExceeded: the domain has too many conversations.
        """
        _wait_for_others(conn, domain_id)
        self._check(holdings(conn, domain_id, "conversations"), "conversations")

    def _check(self, totals: Holdings, *nouns: str) -> None:
        for noun in nouns:
            limit: int = getattr(self.limits, noun)
            if getattr(totals, noun) > limit:
                raise QuotaExceeded(noun.replace("_", " "), limit, f"AGENTIC_RAG_QUOTA_{noun.upper()}")


def _wait_for_others(conn: Connection, domain_id: str) -> None:
    """Lock the domain, so that concurrent additions run one after the other and each counts the earlier ones.

    Writes to a SQLite file are serialised in any case.
    """
    if conn.dialect.name == "postgresql":
        _LOCK.first(conn, id=domain_id)


def holdings(conn: Connection, domain_id: str, *nouns: str) -> Holdings:
    """Return the amounts that a domain holds; nouns other than the named ones are 0 (none named: all are counted)."""
    chosen = nouns or tuple(field.name for field in fields(Holdings))
    return Holdings(**{field.name: _count(conn, domain_id, field.name, chosen) for field in fields(Holdings)})


def _count(conn: Connection, domain_id: str, noun: str, chosen: tuple[str, ...]) -> int:
    if noun not in chosen:
        return 0
    table = CONVERSATIONS if noun == "conversations" else DOCUMENTS
    amount = sa.func.coalesce(sa.func.sum(DOCUMENTS.c.size), 0) if noun == "document_bytes" else sa.func.count()
    result = conn.execute(sa.select(amount).select_from(table).where(table.c.domain_id == domain_id))
    return int(result.scalar_one())

"""Tool lists: the tools that users' servers listed, and those that the admin accepted."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.store import signals
from agentic_rag.store.columns import Key
from agentic_rag.store.record import Record
from agentic_rag.store.signals import SignalKind


class ToolListRecord(Record, table=True):
    """The tools that a user's server last listed, kept while the server is down, and the accepted ones."""

    __tablename__ = "tool_lists"
    part_of = "domain"

    domain_id: Key[str]
    server: Key[str]
    user_id: Key[str]
    """The user of an ``identity: user`` entry; empty if the domain shares the server."""
    entry_hash: str
    """Hash of the admin's entry; the list is ignored for any other entry."""
    tools: list[dict[str, Any]]
    """The tools as the server listed them (MCP ``Tool``)."""
    accepted: list[dict[str, Any]]
    """The tools that an admin accepted, as listed at that time; the model sees these."""
    updated_at: str


TOOL_LISTS = ToolListRecord.__table__
_lists = TOOL_LISTS.c


def put(conn: Connection, record: ToolListRecord) -> None:
    """Store a list, replacing the previous one."""
    conn.execute(sa.delete(TOOL_LISTS).where(*_is(record.domain_id, record.server, record.user_id)))
    record.insert(conn)
    signals.send(conn, SignalKind.TOOLS, record.domain_id)


def get(conn: Connection, domain_id: str, server: str, user_id: str = "") -> ToolListRecord | None:
    """Return the list, or None."""
    return ToolListRecord.first(conn, sa.select(TOOL_LISTS).where(*_is(domain_id, server, user_id)))


def of_domain(conn: Connection, domain_id: str) -> list[ToolListRecord]:
    """Return all lists of a domain, by server."""
    query = sa.select(TOOL_LISTS).where(_lists.domain_id == domain_id).order_by(_lists.server, _lists.user_id)
    return ToolListRecord.all(conn, query)


def delete_of_user(conn: Connection, user_id: str) -> None:
    """Delete the lists of servers that run for one user."""
    conn.execute(sa.delete(TOOL_LISTS).where(_lists.user_id == user_id))


def _is(domain_id: str, server: str, user_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    return (_lists.domain_id == domain_id, _lists.server == server, _lists.user_id == user_id)

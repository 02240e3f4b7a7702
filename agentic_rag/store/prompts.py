"""Prompts stored by sessions: the rendered ``system`` and ``tools`` of a request, under the hash of their content.

Each prompt is stored once and shared by all sessions that use it. Callers compute the hash. The prompt is opaque here.
"""

import sqlalchemy as sa
from sqlalchemy import Connection, select

from agentic_rag.base.json_form import Json
from agentic_rag.store.branches import CONTEXTS
from agentic_rag.store.columns import Key
from agentic_rag.store.record import Record
from agentic_rag.store.sessions import SESSIONS
from agentic_rag.store.statements import Prepared


class PromptRecord(Record, table=True):
    """The part of a request that precedes the messages."""

    __tablename__ = "prompts"

    id: Key[str]
    system: list[Json]
    tools: list[Json]
    created_at: str


PROMPTS = PromptRecord.__table__
_prompts = PROMPTS.c
_PUT = Prepared(
    sa.text(  # both databases support this clause; SQLAlchemy offers it only per dialect
        f"INSERT INTO prompts ({', '.join(PromptRecord.names)})"
        f" VALUES ({', '.join(f':{name}' for name in PromptRecord.names)})"
        " ON CONFLICT (id) DO NOTHING"
    ).bindparams(*(sa.bindparam(name, type_=_prompts[name].type) for name in PromptRecord.names))
)


def put(conn: Connection, prompt: PromptRecord) -> None:
    """Store a prompt under its hash, unless it exists or is inserted concurrently."""
    _PUT.run(conn, **{name: getattr(prompt, name) for name in PromptRecord.names})


def get(conn: Connection, prompt_id: str | None) -> PromptRecord | None:
    """Return the prompt, or None."""
    return PromptRecord.first(conn, select(PROMPTS).where(_prompts.id == prompt_id)) if prompt_id else None


def prune(conn: Connection, made_before: str) -> int:
    """Delete the prompts created before ``made_before`` that no session uses; return their number."""
    columns = (SESSIONS.c.prompt_id, SESSIONS.c.told_id, CONTEXTS.c.prompt_id, CONTEXTS.c.told_id)
    used_ids = sa.union(*(select(column).where(column.is_not(None)) for column in columns))
    old = (_prompts.created_at < made_before, _prompts.id.not_in(used_ids))
    return conn.execute(sa.delete(PROMPTS).where(*old)).rowcount

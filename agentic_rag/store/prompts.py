"""Prompts as sessions keep them: the rendered ``system`` and ``tools`` of a request, under the hash of their content.

Owns storing one once, shared by all sessions that were told the same. Knows neither how the hash is made nor what a
prompt says.
"""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection, select

from agentic_rag.json_form import Json
from agentic_rag.store.branches import CONTEXTS
from agentic_rag.store.records import Prepared, RecordTable
from agentic_rag.store.sessions import SESSIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRecord:
    """What a model is sent before the messages."""

    id: str
    system: list[Json]
    tools: list[Json]
    created_at: str


PROMPTS = RecordTable(PromptRecord, "prompts")
_prompts = PROMPTS.c
_PUT = Prepared(
    sa.text(  # both databases know this clause; SQLAlchemy has it per dialect only
        f"INSERT INTO prompts ({', '.join(PROMPTS.names)}) VALUES ({', '.join(f':{name}' for name in PROMPTS.names)})"
        " ON CONFLICT (id) DO NOTHING"
    ).bindparams(*(sa.bindparam(name, type_=_prompts[name].type) for name in PROMPTS.names))
)


def put(conn: Connection, prompt: PromptRecord) -> None:
    """Store a prompt under its hash; one that is there, or comes at the same moment, stays as it is."""
    _PUT.run(conn, **{name: getattr(prompt, name) for name in PROMPTS.names})


def get(conn: Connection, prompt_id: str | None) -> PromptRecord | None:
    """Return the prompt, None when there is none."""
    return PROMPTS.first(conn, PROMPTS.select.where(_prompts.id == prompt_id)) if prompt_id else None


def prune(conn: Connection, made_before: str) -> int:
    """Forget the prompts of before that no session was told; return how many went."""
    columns = (SESSIONS.c.prompt_id, SESSIONS.c.told_id, CONTEXTS.c.prompt_id, CONTEXTS.c.told_id)
    kept = sa.union(*(select(column).where(column.is_not(None)) for column in columns))
    old = (_prompts.created_at < made_before, _prompts.id.not_in(kept))
    return conn.execute(sa.delete(PROMPTS.table).where(*old)).rowcount

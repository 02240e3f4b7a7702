"""What the product keeps in its database: one module and one record class for each noun.

A record is a frozen dataclass, from which ``records`` makes its table; beside it stand the noun's queries, plain
functions of a `sqlalchemy.Connection` that `database.Database` runs in transactions. The nouns are imported here, so
that the metadata is whole, and a deletion takes all that belongs to a noun, whichever of them the program uses.
"""

from agentic_rag.store import (
    audit,
    collections,
    compactions,
    conversations,
    documents,
    domains,
    images,
    keys,
    payloads,
    probe,
    retrievals,
    run_events,
    secrets,
    sessions,
    tool_calls,
    tool_lists,
    turns,
    usage,
)

__all__ = [
    "audit",
    "collections",
    "compactions",
    "conversations",
    "documents",
    "domains",
    "images",
    "keys",
    "payloads",
    "probe",
    "retrievals",
    "run_events",
    "secrets",
    "sessions",
    "tool_calls",
    "tool_lists",
    "turns",
    "usage",
]

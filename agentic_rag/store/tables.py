"""The tables: one class per record, for SQLite and PostgreSQL alike.

Owns columns, keys and defaults. Knows no query. Times are UTC text, ISO-8601 with milliseconds and ``Z``
(`now` in ``clock``), so that both databases sort and print them alike. JSON columns hold exactly what the
named module defines; PostgreSQL keeps them as ``json``, not ``jsonb``: key order is part of a request's prefix.
Every column is named as its attribute, so that a record and its row convert by name alone.
"""

from typing import Any

from sqlalchemy import JSON, Column, Index, LargeBinary, Table, UniqueConstraint
from sqlmodel import Field, SQLModel


def _json(*, nullable: bool = False) -> Any:
    return Column(JSON(none_as_null=True), nullable=nullable)


def table(row: type[SQLModel]) -> Table:
    """Return the table of a row class, for Core statements."""
    return SQLModel.metadata.tables[str(row.__tablename__)]


class Domain(SQLModel, table=True):
    """A named knowledge area. ``settings``: what the admin set (`agentic_rag.directory.settings.DomainSettings`)."""

    __tablename__ = "domains"

    id: str = Field(primary_key=True)
    name: str
    description: str = ""
    settings: dict[str, Any] = Field(sa_column=_json())
    workspace: str
    """Absolute folder; made by the server."""
    version: int = 1
    created_at: str
    updated_at: str


class Conversation(SQLModel, table=True):
    """A business record; holds no messages."""

    __tablename__ = "conversations"

    id: str = Field(primary_key=True)
    domain_id: str = Field(index=True)
    owner_id: str = Field(index=True)
    session_id: str = Field(unique=True)
    title: str = ""
    title_source: str = "auto"
    """``auto`` | ``user``."""
    status: str = "active"
    """``active`` | ``archived``."""
    message_count: int = 0
    """As clients count: two a finished turn; archived ones not counted."""
    context_document_ids: list[str] = Field(sa_column=_json())
    meta: dict[str, Any] = Field(sa_column=_json())
    started_at: str
    updated_at: str
    last_message_at: str | None = None


class Document(SQLModel, table=True):
    """A file of a domain and where its ingestion stands."""

    __tablename__ = "documents"

    id: str = Field(primary_key=True)
    domain_id: str
    name: str
    media_type: str
    size: int
    sha256: str
    path: str
    """Relative to the workspace's ``documents`` folder."""
    status: str = "queued"
    """``queued`` | ``parsing`` | ``chunking`` | ``indexing`` | ``indexed`` | ``failed``."""
    dense_state: str = "none"
    """``none`` | ``pending`` | ``ready``."""
    progress: dict[str, Any] = Field(sa_column=_json())
    page_count: int | None = None
    chunk_count: int | None = None
    error_code: str | None = None
    error_message: str | None = None
    file_stamp: str = ""
    """Size and time of the file when its bytes were last looked at."""
    owner: str = ""
    """The process that ingests it, while ``lease_until`` lies ahead."""
    lease_until: str | None = None
    created_at: str
    updated_at: str

    # unique: the same bytes twice are one document, also when two uploads race
    __table_args__ = (Index("ix_documents_domain_sha", "domain_id", "sha256", unique=True),)


class Image(SQLModel, table=True):
    """A definition frozen under the hash of its content."""

    __tablename__ = "images"

    id: str = Field(primary_key=True)
    domain_id: str = Field(index=True)
    definition: dict[str, Any] = Field(sa_column=_json())
    created_at: str


class SessionRow(SQLModel, table=True):
    """An append-only transcript. ``labels``: conversation_id, domain_id, user_id, opaque to the runtime."""

    __tablename__ = "sessions"

    id: str = Field(primary_key=True)
    labels: dict[str, Any] = Field(sa_column=_json())
    parent_turn_id: str | None = None
    tool_call_id: str | None = None
    """For a delegate's session: the parent's call that runs on it."""
    last_seq: int = 0
    window_start: int = 0
    """Messages with a smaller seq are not sent to the model."""
    window_set_at: int = 0
    """``last_seq`` when the window was last set: what a model reported before says nothing of it."""
    head: list[dict[str, Any]] | None = Field(default=None, sa_column=_json(nullable=True))
    """Blocks that stand before the window: the summary, carried messages, the carried role."""
    compaction_id: str | None = None
    """The newest compaction, whose summary stands in ``head``."""
    created_at: str

    __table_args__ = (Index("ix_sessions_parent", "parent_turn_id", "tool_call_id"),)


class MessageRow(SQLModel, table=True):
    """One Messages-API message of a transcript. ``content`` is the list of blocks."""

    __tablename__ = "messages"

    session_id: str = Field(primary_key=True)
    seq: int = Field(primary_key=True)
    turn_id: str
    step: int
    role: str
    content: list[dict[str, Any]] = Field(sa_column=_json())
    message_id: str
    """The id clients know: the user's message, or the answer that all steps of a turn share."""
    parent_message_id: str | None = None
    model: str | None = None
    usage: dict[str, Any] | None = Field(default=None, sa_column=_json(nullable=True))
    partial: bool = False
    """An assistant message that was cut off."""
    archived_in: str | None = None
    created_at: str

    __table_args__ = (Index("ix_messages_message", "session_id", "message_id"),)


class Turn(SQLModel, table=True):
    """One user message to its end."""

    __tablename__ = "turns"

    id: str = Field(primary_key=True)
    session_id: str
    conversation_id: str = Field(index=True)
    client_message_id: str | None = None
    content: str
    """The user's text."""
    user_message_id: str
    message_id: str
    status: str = "running"
    """``queued`` | ``running`` | ``done`` | ``interrupted`` | ``failed``."""
    end_reason: str | None = None
    error: dict[str, Any] | None = Field(default=None, sa_column=_json(nullable=True))
    image_id: str
    role_hashes: dict[str, Any] = Field(sa_column=_json())
    owner: str = ""
    """The process that runs it; ``fence`` grows with each owner."""
    fence: int = 0
    lease_until: str | None = None
    resumes: int = 0
    steps: int = 0
    usage: dict[str, Any] = Field(sa_column=_json())
    references: list[dict[str, Any]] = Field(sa_column=_json())
    timings: dict[str, Any] = Field(sa_column=_json())
    started_at: str
    ended_at: str | None = None

    __table_args__ = (
        UniqueConstraint("session_id", "client_message_id"),  # its index serves look-ups by session too
        Index("ix_turns_status", "status"),
    )


class RunEvent(SQLModel, table=True):
    """Neighbours in a turn's run log, stored together; ``payload`` is packed by `run_events`."""

    __tablename__ = "run_events"

    turn_id: str = Field(primary_key=True)
    last_seq: int = Field(primary_key=True)
    first_seq: int
    payload: bytes = Field(sa_column=Column(LargeBinary, nullable=False))

    # the hottest table: with its rows in the key's own tree one costs one insertion, not two
    __table_args__ = {"sqlite_with_rowid": False}


class ToolCallRow(SQLModel, table=True):
    """One tool call. ``result`` is the Messages-API ``tool_result`` block once it is known."""

    __tablename__ = "tool_calls"

    turn_id: str = Field(primary_key=True)
    tool_call_id: str = Field(primary_key=True)
    session_id: str = Field(index=True)
    server: str
    tool_name: str
    arguments: dict[str, Any] = Field(sa_column=_json())
    status: str = "running"
    """``running`` | ``ok`` | ``error`` | ``denied`` | ``interrupted``."""
    result: dict[str, Any] | None = Field(default=None, sa_column=_json(nullable=True))
    started_at: str
    duration_ms: int | None = None
    size: int | None = None
    ref: str | None = None


class UsageRow(SQLModel, table=True):
    """The tokens of one model call, whatever became of it. ``input`` counts uncached input only."""

    __tablename__ = "usage"

    id: str = Field(primary_key=True)
    session_id: str = Field(index=True)
    turn_id: str | None = Field(default=None, index=True)
    """None: the call made a compaction's summary."""
    step: int = 0
    labels: dict[str, Any] = Field(sa_column=_json())
    """The session's: conversation_id, domain_id, user_id."""
    agent: str = ""
    """Path of delegates; empty for the main agent."""
    model: str
    input: int
    cache_read: int
    cache_write: int
    output: int
    created_at: str


class PayloadRow(SQLModel, table=True):
    """A result too large for the transcript; its bytes are a file of the data folder named ``ref``."""

    __tablename__ = "payloads"

    ref: str = Field(primary_key=True)
    session_id: str = Field(index=True)
    media_type: str
    size: int
    """Bytes."""
    created_at: str


class CompactionRow(SQLModel, table=True):
    """A summary that stands for the messages ``from_seq`` to ``to_seq`` (inclusive), which are kept as archive."""

    __tablename__ = "compactions"

    id: str = Field(primary_key=True)
    session_id: str = Field(index=True)
    summary: str
    from_seq: int
    to_seq: int
    message_count: int
    """As clients count."""
    created_by: str
    """``user`` | ``auto``."""
    created_at: str


class CollectionRow(SQLModel, table=True):
    """A domain's set of chunks: whether it is being rebuilt, and into what. No row: never rebuilt."""

    __tablename__ = "collections"

    domain_id: str = Field(primary_key=True)
    state: str = "ready"
    """``ready`` | ``rebuilding`` | ``failed`` | ``rolled_back``."""
    generation: int = 0
    """The newest one made beside the live one; documents are deleted in all up to it."""
    reason: str | None = None
    updated_at: str


class RetrievalRow(SQLModel, table=True):
    """Why these passages: a stored search with the candidates of each leg."""

    __tablename__ = "retrievals"

    id: str = Field(primary_key=True)
    domain_id: str = Field(index=True)
    query: str
    mode: str
    trace: dict[str, Any] = Field(sa_column=_json())
    created_at: str


class SecretRow(SQLModel, table=True):
    """A sealed secret of a domain. ``name``: an admin's, or ``{server}.env.{NAME}`` of an MCP entry's own value."""

    __tablename__ = "secrets"

    domain_id: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    sealed: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    """Opaque outside ``agentic_rag.domains.vault``."""
    updated_at: str


class ToolListRow(SQLModel, table=True):
    """The tools a user's server last listed, kept while it is down, and what the admin accepted of them."""

    __tablename__ = "tool_lists"

    domain_id: str = Field(primary_key=True)
    server: str = Field(primary_key=True)
    user_id: str = Field(primary_key=True)
    """Of an ``identity: user`` entry; empty when the domain shares the server."""
    entry_hash: str
    """Of what the admin wrote; under another one the list does not count."""
    tools: list[dict[str, Any]] = Field(sa_column=_json())
    """As the server gave them (MCP ``Tool``)."""
    accepted: dict[str, Any] = Field(sa_column=_json())
    """Name → fingerprint."""
    updated_at: str


class KeyRow(SQLModel, table=True):
    """An API key of a user, known by its SHA-256 only. Revoked ones stay: the audit log names them."""

    __tablename__ = "keys"

    id: str = Field(primary_key=True)
    user_id: str
    role: str
    """``operator`` | ``admin`` | ``member``."""
    domains: list[str] = Field(sa_column=_json())
    """Ids of the domains it is for; empty for an operator's."""
    sha256: str = Field(unique=True)
    created_at: str
    revoked_at: str | None = None


class AuditRow(SQLModel, table=True):
    """One entry of the audit log, chained to the one before by ``previous``; never updated, never deleted."""

    __tablename__ = "audit"

    seq: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    at: str
    actor: str
    action: str
    target: str
    outcome: str
    """``done`` | ``refused`` | ``denied``."""
    details: dict[str, Any] = Field(sa_column=_json())
    count: int
    """How many alike the row stands for."""
    previous: str
    """``hash`` of the row before; empty in the first one."""
    hash: str


class AuditHead(SQLModel, table=True):
    """The number and hash of the last audit row: one row."""

    __tablename__ = "audit_head"

    id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    seq: int
    hash: str

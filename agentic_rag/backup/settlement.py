"""Corrections to restored records that depend on the place and time of the original.

They concern the paths of workspaces, the contents of the index, the owners of work, and records of files that were
deleted during the backup. All functions take a connection to tables of the newest version.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.base.errors import WorkspaceRefused
from agentic_rag.base.events import Interrupted
from agentic_rag.base.ids import DocumentId, TurnId
from agentic_rag.conversations.bookkeeping import record_end
from agentic_rag.domains.workspaces import make_workspace
from agentic_rag.operations.doctor import MAX_UNSEEN
from agentic_rag.runtime.log.encoder import encode
from agentic_rag.runtime.turn_persistence import end_without_agent
from agentic_rag.store import authorizations, documents, origin, payloads, run_events, run_groups, sessions, turns
from agentic_rag.store.clock import now
from agentic_rag.store.collections import COLLECTIONS
from agentic_rag.store.documents import DOCUMENTS, DenseState, DocumentProgress, DocumentStatus
from agentic_rag.store.domains import DOMAINS
from agentic_rag.store.extractions import EXTRACTIONS
from agentic_rag.store.leases import LEASES
from agentic_rag.store.logins import BEGUN, LOGINS
from agentic_rag.store.replicas import REPLICAS
from agentic_rag.store.secrets import SECRETS
from agentic_rag.store.sign_ins import ACCOUNTS, SIGN_INS
from agentic_rag.store.signals import SIGNALS
from agentic_rag.store.turns import TURNS, TurnRecord, TurnStatus
from mcp_servers.retriever.errors import DocumentCode, DocumentError

MISSING: DocumentCode = "DOCUMENT_MISSING"
GONE_FILE = "the file is not in the backup, because it was deleted or moved before the backup was made"

_unfinished = TURNS.c.status.in_((TurnStatus.QUEUED, TurnStatus.RUNNING, TurnStatus.WAITING))


@dataclass(frozen=True, slots=True)
class Settlement:
    """The result of the corrections.

    It counts the unfinished turns (and whether they were ended), documents to be indexed again, documents and payloads
    without a file, and sealed secrets. ``store_id`` is the id of the restored store.
    """

    store_id: str
    turns: int
    ended: bool
    documents: int
    documents_gone: int
    payloads_gone: int
    secrets: int


def settle(conn: Connection, backup: str, data: Path, *, with_index: bool, end_turns: bool) -> Settlement:
    """Adapt restored records to the folder that holds their files.

    ``end_turns``: unfinished turns are interrupted instead of resumed, because the original may still run them.
    """
    run_groups.settle(conn)  # from the original's journal
    workspaces = (data / "workspaces").absolute()
    domains: list[str] = list(conn.execute(sa.select(DOMAINS.c.id)).scalars())
    for ident in domains:
        conn.execute(sa.update(DOMAINS).where(DOMAINS.c.id == ident).values(workspace=str(workspaces / ident)))
        with suppress(WorkspaceRefused):  # a later use of the workspace reports the obstacle
            make_workspace(workspaces / ident)  # backups contain no empty folders
    indexed, without_file = _settle_documents(conn, workspaces, with_index)
    refs = payloads.all_refs(conn)
    missing_refs = [ref for ref in refs if not (data / "payloads" / ref).is_file()]
    payloads.forget(conn, missing_refs)
    conn.execute(sa.update(EXTRACTIONS).values(claimed_until=""))
    conn.execute(sa.update(ACCOUNTS).values(renewing_until=None))
    # logins and authorizations that ended since the backup must not become valid again
    for begun in (LOGINS, BEGUN, SIGN_INS, *authorizations.ALL):
        conn.execute(sa.delete(begun))
    # written by processes of the original, with its database's times and transaction numbers
    for table in (LEASES, REPLICAS, SIGNALS):
        conn.execute(sa.delete(table))
    return Settlement(
        store_id=origin.set_restored(conn, backup),
        turns=_free_turns(conn, end_turns),
        ended=end_turns,
        documents=indexed,
        documents_gone=without_file,
        payloads_gone=len(missing_refs),
        secrets=conn.execute(sa.select(sa.func.count()).select_from(SECRETS)).scalar_one(),
    )


def _free_turns(conn: Connection, end: bool) -> int:
    """Release every turn from its owner, a process of the original store; return the number of unfinished turns.

    ``end``: the unfinished turns are ended, each with its terminal event.
    """
    owned = sa.or_(sa.and_(_unfinished, TURNS.c.owner != ""), TURNS.c.lease_until.is_not(None))
    for ident in list(conn.execute(sa.select(TURNS.c.id).where(owned)).scalars()):
        turns.release(conn, TurnId(ident))
    unfinished = TurnRecord.all(conn, sa.select(TURNS).where(_unfinished))
    for row in unfinished if end else ():
        seq = run_events.last_seq(conn, row.id) + MAX_UNSEEN + 1
        event = encode(Interrupted(), conversation_id=row.conversation_id, turn_id=row.id, seq=seq, ts=now())
        run_events.append(conn, [run_events.EventBatch(row.id, seq, [event.data])])
        end_without_agent(conn, row, Interrupted())
        session = sessions.get(conn, row.session_id)
        if session is not None and session.parent_turn_id is None:
            record_end(conn, row, Interrupted())
    return len(unfinished)


def _settle_documents(conn: Connection, workspaces: Path, with_index: bool) -> tuple[int, int]:
    """Queue documents that no index holds, and mark documents without a file as failed; return both numbers."""
    conn.execute(sa.update(DOCUMENTS).values(owner="", lease_until=None))
    if not with_index:
        conn.execute(sa.delete(COLLECTIONS))  # these describe generations of an index that was not restored
    columns = (DOCUMENTS.c.id, DOCUMENTS.c.domain_id, DOCUMENTS.c.path, DOCUMENTS.c.status, DOCUMENTS.c.name)
    queued = without_file = 0
    for ident, domain, path, status, name in conn.execute(sa.select(*columns)).all():
        if status in (DocumentStatus.FAILED, DocumentStatus.DELETING):
            continue
        if not (workspaces / domain / "documents" / path).is_file():
            without_file += 1
            documents.update(
                conn,
                DocumentId(ident),
                status=DocumentStatus.FAILED,
                error_code=MISSING,
                error_message=DocumentError(MISSING, GONE_FILE).sentence(name),
                dense_state=DenseState.NONE,
                chunk_count=None,
                updated_at=now(),
            )
        elif not with_index:
            queued += 1
            documents.update(
                conn,
                DocumentId(ident),
                status=DocumentStatus.QUEUED,
                progress=DocumentProgress(stage=DocumentStatus.QUEUED),
                dense_state=DenseState.NONE,
                chunk_count=None,
                updated_at=now(),
            )
    return queued, without_file

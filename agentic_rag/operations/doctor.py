"""The consistency check of a data folder and its repair.

This module checks records and index, quickly enough for every start of a server. `agentic_rag.operations.contents`
checks the bytes. A repair never removes data that a user wrote: a session without a conversation gets a new one, and
damaged documents are indexed again. Knows no HTTP and no model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
from sqlalchemy import Connection

from agentic_rag.base.errors import InternalError
from agentic_rag.base.events import Error
from agentic_rag.base.ids import ConversationId, DocumentId, SessionId, TurnId
from agentic_rag.conversations.titles import title_of
from agentic_rag.directory.collection import collection_of
from agentic_rag.operations.contents import Inconsistency
from agentic_rag.runtime.log.encoder import encode
from agentic_rag.store import conversations, documents, domains, integrity, payloads, run_events, sessions, turns
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.database import Database
from agentic_rag.store.documents import DocumentProgress, DocumentStatus
from agentic_rag.store.payloads import PayloadFiles
from agentic_rag.store.sessions import SessionLabels
from agentic_rag.store.turns import TurnStatus
from mcp_servers.retriever.errors import IndexDamaged
from mcp_servers.retriever.index import Index

MAX_UNSEEN = 64
"""Events that readers may have received but the log does not hold; see `agentic_rag.runtime.log.runlog`."""


class Doctor:
    """Examines the records of one data folder. A repair needs exclusive access: no server may run on the folder."""

    def __init__(self, database: Database, files: PayloadFiles, index: Index) -> None:
        self._db = database
        self._files = files
        self._index = index

    async def examine(self, *, repair: bool = False, sums: bool = False) -> list[Inconsistency]:
        """Return the findings in a stable order. ``repair`` also repairs them.

        ``sums`` skips the check of single documents in domains whose number of chunks matches the records.

        Raises:
            IndexFault: the index does not answer.
            StorageFull: a repair could not be stored.
        """
        findings = await examine_records(self._db, repair=repair)
        return [*findings, *await self._payloads(repair), *await self._documents(repair, sums)]

    async def _payloads(self, repair: bool) -> list[Inconsistency]:
        # Read the records first: a file written meanwhile is then listed without its record, never the reverse. The
        # second read of the records removes such files from the findings.
        known_refs = await self._db.read(payloads.all_refs)
        files = await anyio.to_thread.run_sync(self._files.list_refs)
        known_refs |= await self._db.read(payloads.all_refs)
        orphans, missing = sorted(files - known_refs), sorted(known_refs - files)
        if repair:
            await self._files.remove(orphans)
            await self._db.write(lambda conn: payloads.forget(conn, missing))
        return [
            *(
                Inconsistency("PAYLOAD_WITHOUT_RECORD", ref, "no session refers to the file", "is removed")
                for ref in orphans
            ),
            *(
                Inconsistency("PAYLOAD_WITHOUT_FILE", ref, "its file is gone", "its record is removed")
                for ref in missing
            ),
        ]

    async def _documents(self, repair: bool, sums: bool) -> list[Inconsistency]:
        findings = []
        recorded = await self._db.read(documents.count_chunks)
        for domain in await self._db.read(domains.list_all):
            collection = collection_of(domain.id)
            try:
                if await self._index.count(collection) == recorded.get(domain.id, 0) and sums:
                    continue
            except IndexDamaged as exc:  # now moved aside: its chunks are missing below
                findings.append(Inconsistency("INDEX_DAMAGED", domain.id, exc.reason, f"was moved to {exc.place}"))
            of_domain = await self._db.read(lambda conn, key=domain.id: documents.list_of(conn, key))  # type: ignore[misc]
            counted = 0
            for document in of_domain:
                count = await self._index.count(collection, document.id)
                counted += count
                if document.status is not DocumentStatus.INDEXED or count == document.chunk_count:
                    continue
                problem = f"{count} of its {document.chunk_count} chunks are in the index"
                findings.append(Inconsistency("DOCUMENT_NOT_AS_INDEXED", document.id, problem, "is indexed again"))
                if repair:
                    await self._db.write(lambda conn, key=document.id: _queue(conn, key), durable=True)  # type: ignore[misc]
            surplus = await self._index.count(collection) - counted
            if surplus > 0:
                problem = f"the index holds {surplus} chunks of documents that are gone"
                remedy = "the collection is dropped and its documents are indexed again"
                findings.append(Inconsistency("INDEX_WITHOUT_DOCUMENT", domain.id, problem, remedy))
                if repair:
                    await self._index.drop(collection)
                    for document in of_domain:
                        if document.status is DocumentStatus.INDEXED:
                            await self._db.write(lambda conn, key=document.id: _queue(conn, key), durable=True)  # type: ignore[misc]
        return findings


def _give_session(conn: Connection, conversation_id: ConversationId) -> None:
    conversation = conversations.get(conn, conversation_id)
    if conversation is not None:
        labels = SessionLabels(
            conversation_id=conversation.id, domain_id=conversation.domain_id, user_id=conversation.owner_id
        )
        sessions.create(conn, conversation.session_id, labels, created_at=now())
        conversations.update(conn, conversation_id, message_count=0, compacted_count=0)


def _give_conversation(conn: Connection, session_id: SessionId) -> None:
    session = sessions.get(conn, session_id)
    if session is None:  # deleted with its parent in the meantime
        return
    labels = session.labels
    labelled = all((labels.conversation_id, labels.domain_id, labels.user_id))
    beyond_repair = session.parent_turn_id is not None or not labelled
    if beyond_repair or domains.get(conn, labels.domain_id) is None or conversations.get(conn, labels.conversation_id):
        sessions.delete(conn, session_id)
        return
    session_turns, counts = turns.of_session(conn, session_id), sessions.count_messages(conn, session_id)
    conversations.insert(
        conn,
        ConversationRecord(
            id=labels.conversation_id,
            domain_id=labels.domain_id,
            owner_id=labels.user_id,
            session_id=session_id,
            title=title_of(session_turns[0].content) if session_turns else "",
            message_count=counts.every,
            compacted_count=counts.compacted,
            started_at=session.created_at,
            updated_at=now(),
            last_message_at=session_turns[-1].started_at if session_turns else None,
        ),
    )


def _end(conn: Connection, turn_id: TurnId) -> None:
    turn = turns.get(conn, turn_id)
    if turn is None:
        return
    error = InternalError(new_id("err"))
    final = Error(error.code, str(error), error.retryable)
    seq = run_events.last_seq(conn, turn_id) + MAX_UNSEEN + 1
    event = encode(final, conversation_id=turn.conversation_id, turn_id=turn_id, seq=seq, ts=now())
    run_events.append(conn, [run_events.EventBatch(turn_id, seq, [event.data])])
    end = turns.TurnEnd(
        status=TurnStatus.FAILED, end_reason="error", ended_at=now(), steps=turn.steps, usage=turn.usage, error=final
    )
    turns.finish(conn, turn_id, end)


def _queue(conn: Connection, document_id: DocumentId) -> None:
    documents.update(
        conn,
        document_id,
        status=DocumentStatus.QUEUED,
        progress=DocumentProgress(stage=DocumentStatus.QUEUED),
        updated_at=now(),
    )


@dataclass(frozen=True, slots=True)
class _Check:
    """A check of rows. ``find`` returns the ids of bad rows, ``mend`` repairs one."""

    code: str
    problem: str
    remedy: str
    find: Callable[[Connection], list[str]]
    mend: Callable[[Connection, Any], None]


_CHECKS = (
    _Check(
        "CONVERSATION_WITHOUT_SESSION",
        "its messages are gone",
        "gets an empty session",
        integrity.conversations_without_session,
        _give_session,
    ),
    _Check(
        "SESSION_WITHOUT_CONVERSATION",
        "its messages are unreachable",
        "gets a conversation again, or is deleted if its domain or its parent is gone",
        integrity.sessions_without_owner,
        _give_conversation,
    ),
    _Check(
        "TURN_WITHOUT_MESSAGE",
        "it runs and cannot be resumed",
        "is ended with an error",
        integrity.turns_without_message,
        _end,
    ),
    _Check(
        "STALE_LEASE",
        "its owner is gone",
        "is released; a turn that runs is resumed at the next start",
        lambda conn: integrity.stale_leases(conn, now()),
        turns.release,
    ),
)


async def examine_records(database: Database, *, repair: bool = False) -> list[Inconsistency]:
    """Return the findings among the records alone, in a stable order. ``repair`` also repairs them."""
    return [finding for check in _CHECKS for finding in await _examine(database, check, repair)]


async def _examine(database: Database, check: _Check, repair: bool) -> list[Inconsistency]:
    def work(conn: Connection) -> list[str]:
        subjects = sorted(check.find(conn))
        for subject in subjects if repair else ():
            check.mend(conn, subject)
        return subjects

    subjects = await (database.write(work, durable=True) if repair else database.read(work))
    return [Inconsistency(check.code, subject, check.problem, check.remedy) for subject in subjects]

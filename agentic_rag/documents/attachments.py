"""Files attached to a conversation: reading them, and the passages that the model searches and reads.

The files are read by the same capped processes as documents (`reading`), but never enter the domain's folder or index:
they are payloads of the conversation's session. A search ranks their passages in memory, by words. Knows no request.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import orjson
from sqlalchemy import Connection

from agentic_rag.base import failpoints
from agentic_rag.base.errors import (
    DocumentUnsupported,
    InvalidInput,
    NotFound,
    StorageUnavailable,
    UnreadableAttachment,
)
from agentic_rag.base.ids import ConversationId, DocumentId, TurnId
from agentic_rag.base.threads import DomainThreads
from agentic_rag.documents.disk_reserve import DiskReserve
from agentic_rag.documents.files import Incoming, Original, clean_name, split_name
from agentic_rag.documents.passages import cited_part, paragraph_after, paragraph_before, table_of, table_within
from agentic_rag.documents.places import CitationPlace
from agentic_rag.documents.reading import FileSummary, ReadingProcess
from agentic_rag.documents.text_positions import Range
from agentic_rag.store import attachments, conversations, payloads, sessions, turns
from agentic_rag.store.attachments import AttachmentRecord
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.database import Database
from agentic_rag.store.payloads import PayloadFiles
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.document import ParseLimits
from mcp_servers.retriever.errors import DocumentError, UnreadableRequest
from mcp_servers.retriever.formats import SAVE_INSTEAD, all_formats, suffixes
from mcp_servers.retriever.hits import Retrieval
from mcp_servers.retriever.lexical import Sparse
from mcp_servers.retriever.reading import DocumentFacts
from mcp_servers.retriever.retrieval import search_passages

MAX_BYTES: Final = 25 * 2**20
"""Maximum bytes of an attachment; the operator's limit for documents applies, too."""
MAX_CHARACTERS: Final = 4_000_000
"""Maximum characters of an attachment's text. Its passages are searched in memory."""
READERS: Final = 2
"""Attachments that are read at once."""
CACHED_BYTES: Final = 48 * 2**20
"""Bytes of stored passages that stay in memory, over all conversations."""
JSON_TYPE: Final = "application/json"


@dataclass(frozen=True, slots=True)
class _Passages:
    """The passages of an attachment in order, with their BM25 vectors."""

    chunks: tuple[Chunk, ...]
    vectors: tuple[Sparse, ...]
    size: int


class Attachments:
    """The attachments of all conversations.

    ``incoming`` is the folder in which uploads grow, ``files`` has the payloads, ``max_bytes`` is the operator's limit.
    """

    def __init__(
        self,
        database: Database,
        files: PayloadFiles,
        incoming: Path,
        reserve: DiskReserve,
        threads: DomainThreads,
        max_bytes: int,
    ) -> None:
        self.max_bytes = min(max_bytes, MAX_BYTES)
        self._db = database
        self._files = files
        self._incoming = incoming
        self._reserve = reserve
        self._threads = threads
        self._limits = ParseLimits(max_bytes=self.max_bytes, max_characters=MAX_CHARACTERS)
        self._free = anyio.Semaphore(READERS)
        self._readers: list[ReadingProcess] = []
        self._cache: OrderedDict[str, _Passages] = OrderedDict()

    async def aclose(self) -> None:
        """End the reading processes."""
        while self._readers:
            await self._readers.pop().aclose()

    async def receive(self, conversation: ConversationRecord, name: str) -> Incoming[AttachmentRecord]:
        """Begin an upload for a conversation. ``name`` is the client's file name; only its last component is kept.

        Raises:
            DocumentUnsupported: files of this kind cannot be read.
            StorageFull: the disk has no more room than its reserve.
        """
        cleaned = clean_name(name)
        ending = split_name(cleaned)[1].lower()
        if ending not in suffixes():
            raise DocumentUnsupported(cleaned, suffixes(), SAVE_INSTEAD.get(ending, ""))
        await self._reserve.check()
        return Incoming(
            _Taker(self, conversation),
            conversation.domain_id,
            cleaned,
            self._incoming / new_id("up"),
            self.max_bytes,
            self._reserve,
            self._threads,
            replace=False,
        )

    async def take(self, conversation: ConversationRecord, incoming: Incoming[AttachmentRecord]) -> AttachmentRecord:
        """Read a received file and store it with its passages.

        Raises:
            UnreadableAttachment: the file has no readable text.
            LimitReached: the conversation has as many attachments as possible.
            StorageFull: the files cannot be written.
            StorageUnavailable: the database does not answer. The attachment may be stored nevertheless.
        """
        ident = new_id("att")
        try:
            summary, passages = await self._read(ident, incoming)
        except DocumentError as exc:
            raise UnreadableAttachment(incoming.name, exc.code, exc.message) from exc
        data = await self._threads.run(conversation.domain_id, incoming.read_bytes)
        media_type = all_formats()[split_name(incoming.name)[1].lower()].media_type
        session = conversation.session_id
        # Two payloads: the file for downloads, and its passages, so that no search has to read the file again.
        rows = [
            payloads.record_of(new_id("ref"), session, media_type, data),
            payloads.record_of(new_id("ref"), session, JSON_TYPE, passages),
        ]
        record = AttachmentRecord(
            id=ident,
            session_id=session,
            name=incoming.name,
            media_type=media_type,
            size=len(data),
            sha256=incoming.sha256,
            ref=rows[0].ref,
            text_ref=rows[1].ref,
            pages=summary.pages,
            passages=summary.chunks,
            languages=summary.languages,
            outline=summary.outline,
            notes=summary.notes,
            created_at=now(),
        )
        may_be_stored = False
        try:
            for row, content in zip(rows, (data, passages), strict=True):
                await self._files.write(row.ref, content)
            failpoints.reached("attachment.placed")
            with anyio.CancelScope(shield=True):  # a stored record must keep its files
                may_be_stored = True
                await self._db.write(lambda conn: attachments.insert(conn, record, rows), durable=True)
        except BaseException as exc:
            # After a lost connection the record may exist. If not, the doctor finds its files.
            if not (may_be_stored and isinstance(exc, StorageUnavailable)):
                with anyio.CancelScope(shield=True):
                    await self._files.remove([row.ref for row in rows])
            raise
        return record

    async def _read(self, ident: str, incoming: Incoming[AttachmentRecord]) -> tuple[FileSummary, bytes]:
        """Return the facts about a file, and its passages in their stored form."""
        async with self._free:
            reader = self._readers.pop() if self._readers else ReadingProcess(self._limits)
            try:
                with await self._threads.run(incoming.domain_id, incoming.open) as file:
                    summary = await reader.begin(file, incoming.name, DocumentId(ident), incoming.sha256)
                stored: list[tuple[Mapping[str, Any], list[int], list[float]]] = []
                while batch := await reader.batch():
                    for chunk, vector in zip(batch.chunks, batch.lexical, strict=True):
                        # `is_attachment` recognises passages by this prefix, wherever a chunk id appears.
                        own = replace(chunk, chunk_id=f"{ident}.{chunk.ordinal}")
                        stored.append((own.to_json(), vector.indices, vector.values))
            finally:
                with anyio.CancelScope(shield=True):
                    await reader.reset()
                    self._readers.append(reader)
        if not stored:
            raise DocumentError("DOCUMENT_EMPTY", "the file has no text that can be read")
        # In a thread: up to `MAX_CHARACTERS` of text with vectors would stop the event loop.
        return summary, await anyio.to_thread.run_sync(orjson.dumps, stored)

    async def list_of(self, conversation: ConversationRecord) -> list[AttachmentRecord]:
        """Return the attachments of a conversation, sent or not, in the order of their upload."""
        return await self._db.read(lambda conn: attachments.of_session(conn, conversation.session_id))

    async def get(self, conversation: ConversationRecord, attachment_id: str) -> AttachmentRecord:
        """Return an attachment of a conversation.

        Raises:
            NotFound: the conversation has no such attachment.
        """
        record = await self._db.read(lambda conn: attachments.get(conn, attachment_id))
        if record is None or record.session_id != conversation.session_id:
            raise NotFound("attachment", attachment_id, hidden=record is not None)
        return record

    async def conversation_of(self, attachment_id: str) -> ConversationId | None:
        """Return the conversation of an attachment, or None if there is no such attachment."""

        def read(conn: Connection) -> ConversationId | None:
            record = attachments.get(conn, attachment_id)
            session = None if record is None else sessions.get(conn, record.session_id)
            return None if session is None else session.labels.conversation_id

        return await self._db.read(read)

    async def delete(self, conversation: ConversationRecord, attachment_id: str) -> None:
        """Delete an attachment that no message was sent with.

        Raises:
            NotFound: the conversation has no such attachment.
            InvalidInput: a message was sent with it.
        """
        record = await self.get(conversation, attachment_id)
        if not await self._db.write(lambda conn: attachments.delete(conn, record), durable=True):
            problem = "a message was sent with this file; it is deleted with the conversation."
            raise InvalidInput("attachment", problem)
        self._cache.pop(attachment_id, None)
        await self._files.remove([record.ref, record.text_ref])

    async def original(self, conversation: ConversationRecord, attachment_id: str) -> Original:
        """Return an attachment's open file.

        Raises:
            NotFound: the conversation has no such attachment, or its file is missing.
        """
        record = await self.get(conversation, attachment_id)
        file = await self._files.start_reading(record.ref)
        if file is None:
            raise NotFound("attachment", attachment_id)
        return Original(conversation.domain_id, record.name, record.media_type, record.size, file, self._threads)

    async def place(
        self,
        conversation: ConversationRecord,
        attachment_id: str,
        chunk_id: str,
        part: Range | None,
        text: str | None,
    ) -> CitationPlace:
        """Return the position of a cited passage: in its table, or between its neighbours.

        Raises:
            NotFound: the conversation has no such attachment, or the attachment no such passage.
            InvalidInput: the passage has no such part.
        """
        record = await self.get(conversation, attachment_id)
        chunks = (await self._passages(record)).chunks
        at = next((place for place, chunk in enumerate(chunks) if chunk.chunk_id == chunk_id), None)
        if at is None:
            raise NotFound("chunk", chunk_id)
        chunk = chunks[at]
        if part is not None and part.end > len(chunk.text):
            raise InvalidInput("end", f"the passage has {len(chunk.text)} characters.")
        cited = part or (cited_part(chunk, text) if text else None)
        before = paragraph_before(chunk, chunks[at - 1]) if at else None
        after = paragraph_after(chunk, chunks[at + 1]) if at + 1 < len(chunks) else None
        table = table_within(chunk, cited)
        if chunk.cells is not None:
            place = chunk.cells, chunk.heading_path
            table = table_of(chunk, [other for other in chunks if (other.cells, other.heading_path) == place], cited)
        return CitationPlace(record, chunk, "table" if table else "text", cited, before, after, table=table)

    async def of_call(self, bound: Mapping[str, Any]) -> "AttachedFiles | None":
        """Return the files that a tool call may read: those sent in the conversation of its turn, or None without any.

        ``bound`` has the members of the call's `Binding`, with the id of its turn.
        """
        turn_id = bound.get("turn")
        if not isinstance(turn_id, str):
            return None

        def read(conn: Connection) -> list[AttachmentRecord]:
            turn = turns.get(conn, TurnId(turn_id))
            conversation = None if turn is None else conversations.get(conn, turn.conversation_id)
            return [] if conversation is None else attachments.of_session(conn, conversation.session_id, sent=True)

        records = await self._db.read(read)
        return AttachedFiles(records, self) if records else None

    async def passages(self, record: AttachmentRecord) -> tuple[Sequence[Chunk], Sequence[Sparse]]:
        """Return the passages of an attachment in order, with their BM25 vectors.

        Raises:
            NotFound: the file with the passages is damaged.
        """
        passages = await self._passages(record)
        return passages.chunks, passages.vectors

    async def _passages(self, record: AttachmentRecord) -> _Passages:
        if (cached := self._cache.get(record.id)) is not None:
            self._cache.move_to_end(record.id)
            return cached
        hashes = await self._db.read(lambda conn: payloads.hashes_of(conn, [record.text_ref]))
        data = await self._files.read(record.text_ref, hashes.get(record.text_ref, ""))
        if data is None:
            raise NotFound("attachment", record.id)
        passages = await anyio.to_thread.run_sync(_parse, data)
        self._cache[record.id] = passages
        # The newest entry stays even if it alone is too large: its caller is about to search it.
        while len(self._cache) > 1 and sum(entry.size for entry in self._cache.values()) > CACHED_BYTES:
            self._cache.popitem(last=False)
        return passages


def _parse(data: bytes) -> _Passages:
    rows = orjson.loads(data)
    chunks = tuple(Chunk.from_json(chunk) for chunk, _, _ in rows)
    return _Passages(chunks, tuple(Sparse(indices, values) for _, indices, values in rows), len(data))


class _Taker:
    """Turns received files into attachments of one conversation. Implements `files.Taker`."""

    def __init__(self, owner: Attachments, conversation: ConversationRecord) -> None:
        self._owner = owner
        self._conversation = conversation

    async def take(self, incoming: Incoming[AttachmentRecord]) -> AttachmentRecord:
        """See `Taker.take`."""
        return await self._owner.take(self._conversation, incoming)


class AttachedFiles:
    """The files attached to one conversation, as the retriever's tools search and read them."""

    def __init__(self, records: Sequence[AttachmentRecord], owner: Attachments) -> None:
        self._records = {record.id: record for record in records}
        self._owner = owner

    async def documents(self, collection: str, document_ids: Sequence[str] | None = None) -> list[DocumentFacts]:
        """List the files as `Library.documents` does, in the order of their upload."""
        return [
            DocumentFacts(record.id, record.name, record.passages, None, record.languages, record.pages, record.outline)
            for record in self._records.values()
            if document_ids is None or record.id in document_ids
        ]

    async def chunks(self, collection: str, document_id: str, offset: int = 0, limit: int = 100) -> list[Chunk]:
        """Return passages as `Library.chunks` does."""
        record = self._records[document_id]
        try:
            chunks, _ = await self._owner.passages(record)
        except NotFound as exc:
            raise UnreadableRequest(
                f"The attached file {record.name} is damaged. Ask the user to attach it again."
            ) from exc
        return list(chunks[offset : offset + limit])

    async def search(
        self,
        collection: str,
        query: str,
        top_k: int,
        threshold: float = 0.0,
        document_ids: Sequence[str] | None = None,
        document: str | None = None,
        *,
        file_type: str | None = None,
        heading: str | None = None,
    ) -> Retrieval:
        """Search the passages of the files in ``document_ids`` (None: all) by words; see `Searcher.search`."""
        ending = None if file_type is None else f".{file_type}"
        passages: list[tuple[Chunk, Sparse]] = []
        for record in self._records.values():
            if document_ids is not None and record.id not in document_ids:
                continue
            if ending is None or record.name.lower().endswith(ending):
                with suppress(NotFound):  # a damaged file costs only itself, and reading it says so
                    passages += zip(*await self._owner.passages(record), strict=True)
        if heading is not None:
            passages = [passage for passage in passages if heading in passage[0].heading_path]
        return await anyio.to_thread.run_sync(search_passages, collection, passages, query, top_k, threshold)

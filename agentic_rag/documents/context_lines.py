"""Context lines at work: which passages are asked for, where the answers go, and when the index uses them.

A document is searchable without lines. `ContextLines.look` compares the passages of each document with the stored
lines, asks the domain's model for missing ones, and puts the lines that exist into the index. All state is in the
store, so the next look continues after a kill: the id of a batch is stored before the batch is read, and an answer is
stored together with its cost.

A domain whose evaluation cases guard its index first gets all lines, and then a rebuilt collection with them: the gate
compares it with the live one (`Reindexing`). Without such cases, the lines join the live collection one document after
the other.
"""

import hashlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import anyio
from sqlalchemy import Connection

from agentic_rag.base import failpoints
from agentic_rag.base.budget_errors import BudgetExceeded, BudgetUnpriced
from agentic_rag.base.errors import AgenticRagError, GenerationTimeout, NotFound, StorageError
from agentic_rag.base.events import Usage
from agentic_rag.base.ids import DocumentId
from agentic_rag.directory.collection import collection_of
from agentic_rag.documents.dense_vectors import DenseVectors
from agentic_rag.documents.document_services import DocumentServices
from agentic_rag.documents.line_writer import (
    AGENT,
    SUBMIT_SECONDS,
    LineWriter,
    digest_of,
    prefix_of,
    read_answer,
    request_of,
    sections_of,
    with_lines,
)
from agentic_rag.documents.reindexing import PAGE, Reindexing, SwapGate
from agentic_rag.models.base import ModelRequest
from agentic_rag.models.batches import MAX_REQUESTS, BatchAnswer
from agentic_rag.runtime.paid_calls import PaidAnswer
from agentic_rag.store import collections, context_lines, documents, domains, usage
from agentic_rag.store.clock import later, now
from agentic_rag.store.collections import CollectionRecord, CollectionState, LinesUse
from agentic_rag.store.context_lines import ContextLineRecord, LineBatch, LineCounts
from agentic_rag.store.documents import DocumentRecord, DocumentStatus
from agentic_rag.store.usage import UsageLabels
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.errors import EmbeddingError, IndexFault

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 30.0
"""Between two looks at all domains."""
RETRY_SECONDS: Final = (300.0, 1_800.0, 7_200.0, 21_600.0, 86_400.0)
"""Delays after the first and each further failure for a passage; there are `context_lines.MAX_TRIES` attempts."""
AT_ONCE: Final = 4
"""Single calls of a domain in parallel."""
SINGLES: Final = 200
"""Passages that are asked for one by one before another domain has its turn."""
BATCH_CHARACTERS: Final = 20_000_000
"""Characters of the requests in one batch; each contains a section of its document."""
TOLERATED: Final = 3
"""Failed single calls in a row after which a domain waits for the next look."""
NO_MODEL: Final = "context lines need a language model, and this server has none"
AGAIN: Final = timedelta(minutes=10)
"""How long a rebuild with lines that failed is left alone."""


class ContextLines:
    """The context lines of all domains. Call `look` repeatedly, in one process of a store at a time.

    ``writer`` is None in programs that only search. ``gate`` says which domains compare a rebuilt collection first.
    """

    def __init__(
        self,
        workshop: DocumentServices,
        dense: DenseVectors,
        reindexing: Reindexing,
        writer: LineWriter | None,
        gate: SwapGate | None,
    ) -> None:
        self._db = workshop.database
        self._index = workshop.index
        self._directory = workshop.directory
        self._dense = dense
        self._reindexing = reindexing
        self._writer = writer
        self._gate = gate
        self._looking = anyio.Lock()
        self._obstacles: dict[str, str] = {}
        """Why nothing can be asked for or joined now, by domain."""

    async def counts(self, domain_id: str) -> dict[DocumentId, LineCounts]:
        """Return the progress of a domain's documents; nothing while the domain has the setting off."""
        settings = await self._directory.settings(domain_id)
        if not settings.context_lines:
            return {}
        model = None if self._writer is None else self._writer.model_of(settings)
        stored = await self._db.read(lambda conn: context_lines.counts(conn, domain_id, model or ""))
        indexed = await self._db.read(lambda conn: documents.list_of(conn, domain_id, DocumentStatus.INDEXED))
        obstacle = NO_MODEL if model is None else self._obstacles.get(domain_id, "")
        progress: dict[DocumentId, LineCounts] = {}
        for document in indexed:
            counts = stored.get(document.id) or LineCounts(0, 0, document.chunk_count or 0)
            waits = counts.made < counts.of and not counts.reason
            progress[document.id] = LineCounts(
                counts.made, counts.failed, counts.of, obstacle if waits else counts.reason
            )
        return progress

    async def look(self) -> None:
        """Do for each domain what can be done now. A failure of one domain does not affect the others."""
        if self._writer is None:
            return
        async with self._looking:
            more = True
            while more:  # a domain with many passages gets several turns, and the others have theirs between
                more = False
                unfinished = await self._db.read(_busy_domains)
                for domain in await self._db.read(domains.list_all):
                    if domain.settings.get("contextLines") or domain.id in unfinished:
                        more |= await self._attempt(self._writer, domain.id)

    async def _attempt(self, writer: LineWriter, domain_id: str) -> bool:
        try:
            more = await self._advance(writer, domain_id)
        except NotFound:  # deleted meanwhile
            return False
        except (AgenticRagError, IndexFault, EmbeddingError) as exc:
            self._obstacles[domain_id] = writer.redact(domain_id, str(exc))[:300]
            log.warning("the context lines of %s are continued later: %s", domain_id, exc)
            return False
        self._obstacles.pop(domain_id, None)
        return more

    async def _advance(self, writer: LineWriter, domain_id: str) -> bool:
        """Take the next steps for a domain; return whether more can be done at once."""
        settings = await self._directory.settings(domain_id)
        # Before the settings are checked: ended batches are paid for, and running ones may need a cancellation.
        await self._collect(writer, domain_id, wanted=settings.context_lines)
        row = await self._reindexing.state(domain_id)
        if not settings.context_lines:
            # A running rebuild may still go live with lines; a later look then removes them.
            if row.lines is not LinesUse.NONE and row.state is not CollectionState.REBUILDING:
                await self._remove(domain_id)
            return False
        model = writer.model_of(settings)
        if model is None:
            return False
        if row.lines is LinesUse.NONE and not await self._is_compared(domain_id):
            await self._reindexing.use_lines(domain_id, LinesUse.LIVE)
            row = row.replace(lines=LinesUse.LIVE)
        # The domain has changed its model: unmarked documents are planned for the new model by `_join` below.
        other = await self._db.read(lambda conn: context_lines.with_other_model(conn, domain_id, model))
        if other:
            await self._db.write(lambda conn: documents.unmark_joined(conn, domain_id, other))
        for document in await self._documents(domain_id):
            if not document.lines_joined:
                await self._join(document, model, joins=row.lines is LinesUse.LIVE)
        has_asked = await self._ask(writer, domain_id, model)
        if not has_asked:
            await self._try_lines(domain_id, row, model)
        return has_asked

    async def _documents(self, domain_id: str) -> list[DocumentRecord]:
        return await self._db.read(lambda conn: documents.list_of(conn, domain_id, DocumentStatus.INDEXED))

    async def _is_compared(self, domain_id: str) -> bool:
        return self._gate is not None and await self._gate.compares(domain_id)

    async def _try_lines(self, domain_id: str, row: CollectionRecord, model: str) -> None:
        """Request the rebuild that the gate compares with the live collection, once each passage was asked for."""
        if row.state is CollectionState.REBUILDING or row.lines in (LinesUse.LIVE, LinesUse.HELD):
            return
        if row.lines is LinesUse.TRYING and datetime.fromisoformat(row.updated_at) > datetime.now(UTC) - AGAIN:
            return
        indexed = await self._documents(domain_id)
        counts = await self._db.read(lambda conn: context_lines.counts(conn, domain_id, model))
        unasked = await self._db.read(lambda conn: context_lines.count_unasked(conn, domain_id, model))
        if (
            unasked
            or not all(document.lines_joined for document in indexed)
            or not any(count.made for count in counts.values())
        ):
            return
        await self._reindexing.use_lines(domain_id, LinesUse.TRYING)
        await self._reindexing.request(domain_id)

    # Joining

    async def _chunks(self, document: DocumentRecord) -> AsyncIterator[list[Chunk]]:
        """Yield the passages of a document in the live index, some at a time."""
        offset = 0
        while chunks := await self._index.chunks(collection_of(document.domain_id), document.id, offset, PAGE):
            yield chunks
            offset += PAGE

    async def _join(self, document: DocumentRecord, model: str, *, joins: bool) -> None:
        """Plan the lines of a document, and put those that exist into the index if the live collection uses them."""

        def take(conn: Connection) -> dict[str, str]:
            context_lines.adopt(conn, document.domain_id, document.id, document.sha256)
            return context_lines.of_document(conn, document.id)

        lines = await self._db.write(take)
        digests: set[str] = set()
        count = 0
        async for chunks in self._chunks(document):
            count += len(chunks)
            digests |= {digest_of(chunk) for chunk in chunks}
            if joins:
                await self._replace(document.domain_id, chunks, lines)
        failpoints.reached("context.joined")
        if count != document.chunk_count:  # the index is being restored, or the document has changed
            return

        def store(conn: Connection) -> None:
            if documents.mark_joined(conn, document):
                context_lines.plan(conn, document.domain_id, document.id, model, digests)

        await self._db.write(store)

    async def _replace(self, domain_id: str, chunks: Sequence[Chunk], lines: Mapping[str, str]) -> None:
        """Index chunks again whose line differs from the stored one."""
        pairs = zip(chunks, with_lines(chunks, lines), strict=True)
        changed = [after for before, after in pairs if after is not before]
        if changed:
            await self._dense.replace(collection_of(domain_id), changed)

    async def _remove(self, domain_id: str) -> None:
        """Remove a domain's lines from the index. They stay in the store: turning them on again costs nothing."""
        for document in await self._documents(domain_id):
            async for chunks in self._chunks(document):
                await self._replace(domain_id, chunks, {})
        failpoints.reached("context.removed")
        await self._db.write(lambda conn: documents.unmark_joined(conn, domain_id))
        await self._reindexing.use_lines(domain_id, LinesUse.NONE)

    # Asking

    async def _ask(self, writer: LineWriter, domain_id: str, model: str) -> bool:
        """Ask for lines that are due; return whether any passage was asked for."""
        moment = now()
        waiting = set(await self._db.read(lambda conn: context_lines.documents_due(conn, domain_id, model, moment)))
        if not waiting:
            return False
        due = [
            document
            for document in await self._documents(domain_id)
            if document.id in waiting and document.lines_joined
        ]
        rows: dict[str, ContextLineRecord] = {}
        requests: dict[str, ModelRequest] = {}
        most, size = MAX_REQUESTS if writer.batches else SINGLES, 0
        for document in due:
            for row, request, characters in await self._requests(document, model, moment, most - len(requests)):
                if requests and size + characters > BATCH_CHARACTERS:
                    most = len(requests)
                    break
                ident = custom_id(row)
                rows[ident], requests[ident] = row, request
                size += characters
            if len(requests) >= most:
                break
        if not requests:
            return False
        if not await self._submit(writer, domain_id, model, rows, requests):
            return await self._ask_singly(writer, domain_id, rows, requests)
        return True

    async def _requests(
        self, document: DocumentRecord, model: str, moment: str, most: int
    ) -> list[tuple[ContextLineRecord, ModelRequest, int]]:
        """Return at most ``most`` due rows of a document with their requests and the characters of each."""
        requests: list[tuple[ContextLineRecord, ModelRequest, int]] = []
        due = await self._db.read(lambda conn: context_lines.due(conn, document.id, model, moment))
        chunks = [chunk async for some in self._chunks(document) for chunk in some]
        sections = sections_of(chunks)
        for section in sections:
            by_digest = {digest_of(chunk): chunk for chunk in section}
            if not by_digest.keys() & due.keys() or len(requests) >= most:
                continue
            outline = document.progress.outline or ()
            prefix = prefix_of(document.name, outline, section, whole=len(sections) == 1)
            characters = sum(len(chunk.text) for chunk in section)
            for digest, chunk in by_digest.items():
                if (row := due.pop(digest, None)) is not None:
                    requests.append((row, request_of(model, prefix, chunk), characters + len(chunk.text)))
        return requests[:most]

    async def _submit(
        self,
        writer: LineWriter,
        domain_id: str,
        model: str,
        rows: Mapping[str, ContextLineRecord],
        requests: Mapping[str, ModelRequest],
    ) -> bool:
        """Submit a batch and store its id; returns False if the service has no batches."""
        failpoints.reached("context.submitting")
        batch_id: str | None = None
        stored = True
        # Once the service has the batch, its id must be stored even if the server stops now.
        with anyio.move_on_after(SUBMIT_SECONDS, shield=True) as waited:
            batch_id = await writer.submit(domain_id, model, requests)
            if batch_id is not None:
                fields = {"batch_id": batch_id, "batch_at": now(), "failure": "", "updated_at": now()}
                waiting = [row.replace(**fields) for row in rows.values()]
                change = partial(_change_all, rows=waiting)
                stored = await self._db.write(change, durable=True)
        if waited.cancelled_caught:
            raise GenerationTimeout("Submitting the batch of context lines", SUBMIT_SECONDS)
        if batch_id and not stored:  # the documents were deleted meanwhile
            await writer.cancel(model, batch_id)
        failpoints.reached("context.submitted")
        return batch_id is not None

    async def _ask_singly(
        self,
        writer: LineWriter,
        domain_id: str,
        rows: Mapping[str, ContextLineRecord],
        requests: Mapping[str, ModelRequest],
    ) -> bool:
        """Ask for lines one by one. Each answer is stored at once; returns False if the model does not answer now."""
        failed = 0
        stopped: list[AgenticRagError] = []

        async def ask(ident: str) -> None:
            nonlocal failed
            row = rows[ident]
            try:
                try:
                    await writer.ask(domain_id, requests[ident], partial(_keep, writer, row))
                    failed = 0
                except (StorageError, BudgetExceeded, BudgetUnpriced):
                    raise  # not the fault of this passage, so that no attempt of the passage is counted
                except AgenticRagError as exc:
                    failed += 1
                    failure = _failed_row(row, writer.redact(domain_id, str(exc)))
                    await self._db.write(lambda conn: context_lines.change(conn, failure))
            except AgenticRagError as exc:
                stopped.append(exc)
            failpoints.reached("context.asked")

        cached = None
        todo = list(rows)[:SINGLES]
        while todo and not stopped and failed < TOLERATED:
            # The first call of a section fills the service's cache, which the others read.
            prefix = requests[todo[0]].messages[0]
            count = 1 if prefix is not cached else AT_ONCE
            some = [ident for ident in todo[:count] if requests[ident].messages[0] is prefix]
            cached, todo = prefix, todo[len(some) :]
            async with anyio.create_task_group() as tasks:
                for ident in some:
                    tasks.start_soon(ask, ident)
        if stopped:
            raise stopped[0]
        return failed < TOLERATED

    # Collecting

    async def _collect(self, writer: LineWriter, domain_id: str, *, wanted: bool) -> None:
        """Store the lines of ended batches with their cost. Batches of a domain that has lines off are cancelled."""
        for batch in await self._db.read(lambda conn: context_lines.batches(conn, domain_id)):
            outcome = await writer.collect(batch, wanted=wanted)
            if outcome is not None:
                await self._store(writer, domain_id, batch, *outcome, wanted=wanted)
                failpoints.reached("context.collected")

    async def _store(
        self,
        writer: LineWriter,
        domain_id: str,
        batch: LineBatch,
        answers: Mapping[str, BatchAnswer],
        missing: str,
        *,
        wanted: bool,
    ) -> None:
        labels = UsageLabels(domain_id=domain_id, agent=AGENT)
        costs = [
            usage.row_of(labels, answer.model or batch.model, answer.usage)
            for answer in answers.values()
            if answer.usage != Usage()
        ]
        absent = BatchAnswer(failure=missing)

        def result(row: ContextLineRecord) -> ContextLineRecord:
            answer = answers.get(custom_id(row), absent)
            line, failure = "", answer.failure
            if not failure:
                line, failure = read_answer(writer.redact(domain_id, answer.text))
            if not failure:
                return _made_row(row, line)
            ended = _failed_row(row, writer.redact(domain_id, failure))
            # A batch that the domain cancelled itself is no failed attempt of its passages.
            return ended if wanted else ended.replace(failure="", tries=row.tries, retry_at="")

        def store(conn: Connection) -> None:
            ended = [result(row) for row in context_lines.of_batch(conn, domain_id, batch.id)]
            for row in ended:
                context_lines.change(conn, row)
            documents.unmark_joined(conn, domain_id, {row.document_id for row in ended})
            usage.put(conn, costs)

        # Shielded: the answers are paid for, also if the server stops now.
        with anyio.CancelScope(shield=True):
            await self._db.write(store, durable=True)


def _busy_domains(conn: Connection) -> set[str]:
    """Return the domains with lines in the index or batches at a service, whatever their settings say."""
    return {*collections.with_lines(conn), *context_lines.waiting_domains(conn)}


def _change_all(conn: Connection, rows: Sequence[ContextLineRecord]) -> bool:
    """Store changed rows; returns False if all of them were deleted meanwhile."""
    return sum(context_lines.change(conn, row) for row in rows) > 0


def custom_id(row: ContextLineRecord) -> str:
    """Return the id of a row's request within a batch."""
    # The Messages API accepts ids of at most 64 characters, which document id and digest together may exceed.
    return hashlib.sha256(f"{row.document_id}\0{row.digest}".encode()).hexdigest()[:40]


def _keep(writer: LineWriter, row: ContextLineRecord, conn: Connection, answer: PaidAnswer) -> None:
    """Store a single answer. In the same transaction, its document is marked to get the line."""
    line, failure = read_answer(writer.redact(row.domain_id, answer.text), answer.stop_reason)
    context_lines.change(conn, _failed_row(row, failure) if failure else _made_row(row, line))
    documents.unmark_joined(conn, row.domain_id, [row.document_id])


def _made_row(row: ContextLineRecord, line: str) -> ContextLineRecord:
    return row.replace(line=line, failure="", retry_at="", batch_id="", updated_at=now())


def _failed_row(row: ContextLineRecord, failure: str) -> ContextLineRecord:
    delay = RETRY_SECONDS[min(row.tries, len(RETRY_SECONDS) - 1)]
    return row.replace(failure=failure[:300], tries=row.tries + 1, retry_at=later(delay), batch_id="", updated_at=now())

"""Exporting a domain as a bundle.

This module obtains the record, the documents' names and the user's memories. The ``contents`` module defines the
content and its form.
"""

import logging
import re
import unicodedata
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.users import User
from agentic_rag.base.json_form import Json
from agentic_rag.base.redaction import Redaction
from agentic_rag.base.threads import DomainThreads
from agentic_rag.bundles.contents import ContentChanged, Contents, collect
from agentic_rag.bundles.memory_files import memory_to_bytes
from agentic_rag.directory.directory import Directory
from agentic_rag.domains.case_records import form_of
from agentic_rag.domains.notification_records import write_notifications
from agentic_rag.domains.vault import Vault
from agentic_rag.roles.memories import Memories
from agentic_rag.store import context_lines, documents, endpoints, evaluation, schedules, sources
from agentic_rag.store.database import Database
from agentic_rag.store.documents import DocumentRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenBundle:
    """A bundle that is ready to be sent. ``name`` is the file name proposed to clients."""

    name: str
    domain_id: str
    contents: Contents
    threads: DomainThreads

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes in order. If a file changes meanwhile, the bytes end early and the bundle is invalid."""
        pieces = self.contents.pieces()
        try:
            while (piece := await self.threads.run(self.domain_id, next, pieces, None)) is not None:
                yield piece
        except ContentChanged as exc:
            log.warning("the bundle of %s is cut off: %s changed meanwhile", self.domain_id, exc)


class Exports:
    """Exports domains."""

    def __init__(
        self, database: Database, directory: Directory, memories: Memories, vault: Vault, threads: DomainThreads
    ) -> None:
        self._db = database
        self._directory = directory
        self._memories = memories
        self._vault = vault
        self._threads = threads

    async def prepare(self, user: User, domain_id: str, *, memories: bool) -> OpenBundle:
        """Return a domain's bundle. ``memories``: include those that the user may read, the domain's or their own.

        Raises:
            NotFound: there is no such domain.
            WorkspaceUnavailable, StorageFull: a file or a memory cannot be read now.
        """
        record = await self._directory.get(domain_id)
        listed = await self._db.read(lambda conn: documents.list_of(conn, domain_id))
        await self._vault.values(domain_id)  # loads the secrets for the redaction
        redaction = self._vault.redact.of(domain_id)
        memory_files = await self._read_memories(user, domain_id, redaction) if memories else None
        active = await self._db.read(
            lambda conn: evaluation.list_cases(conn, domain_id, state=evaluation.CaseState.ACTIVE)
        )
        cases = [form_of(case) for case in active]
        told_of = await self._db.read(
            lambda conn: (
                endpoints.of_domain(conn, domain_id),
                schedules.of_domain(conn, domain_id),
                sources.of_domain(conn, domain_id),
            )
        )
        notified = write_notifications(*told_of) if any(told_of) else None
        lines = await self._db.read(lambda conn: _lines_of(conn, listed))
        work = partial(collect, record, listed, memory_files, redaction, cases, notified, lines)
        contents = await self._threads.run(domain_id, work)
        for item in contents.left_out:
            log.warning("%s is not in the bundle of %s: %s", item.name, domain_id, item.reason)
        audit_entry = change("domain.export", domain_id, files=len(contents.members), memories=memories)
        await self._db.write(lambda conn: audit(conn, audit_entry), durable=True)
        return OpenBundle(f"{_plain(record.name) or domain_id}.zip", domain_id, contents, self._threads)

    async def _read_memories(self, user: User, domain_id: str, redaction: Redaction) -> dict[str, bytes]:
        page = await self._memories.browse(user, domain_id, role=None, q="", offset=0, limit=1)
        by_role: dict[str, bytes] = {}
        for role in page.roles:
            export = await self._memories.export(user, domain_id, role, unlabelled=True)
            by_role[role] = memory_to_bytes(export.engrams, export.frequencies, redaction)
        return by_role


def _lines_of(conn: Connection, listed: Sequence[DocumentRecord]) -> Json:
    """Return the context lines of documents: model and line by the passage's digest, by the hash of the bytes."""
    lines: Json = {}
    for document in listed:
        if rows := context_lines.list_written(conn, document.id):
            lines[document.sha256] = {row.digest: {"model": row.model, "line": row.line} for row in rows}
    return lines


def _plain(name: str) -> str:
    """Return a domain's name as a file name."""
    plain = "".join(char if unicodedata.category(char)[0] in "LNM" else "-" for char in name)
    return re.sub("-+", "-", plain).strip("-")[:80]

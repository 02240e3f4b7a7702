"""Consistency checks that read every byte: original files, stored tool results, secrets and memories.

A repair rebuilds derived data. For source data, the finding says how to restore it. These checks take as long as
reading all files, so only the `doctor` command runs them, not the start of a server.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio.to_thread
from pydantic import SecretStr

from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.domains.vault import find_unreadable
from agentic_rag.store import documents, domains, payloads, secrets
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.documents import DocumentRecord, DocumentStatus
from agentic_rag.store.payloads import PayloadFiles
from mcp_servers.promptx.role_checks import MemoryTrouble, examine_memories
from mcp_servers.safe_files import Folder

NAMED = 3
"""How many subjects of one kind a finding names; the others are counted."""


@dataclass(frozen=True, slots=True)
class Inconsistency:
    """One inconsistency. ``subject`` is its id or path. ``remedy`` says how a repair fixes it or has fixed it.

    ``by_hand`` means that no repair can restore the data; ``remedy`` then tells the owner how.
    """

    code: str
    subject: str
    problem: str
    remedy: str
    by_hand: bool = False

    def __str__(self) -> str:
        remedy = f"to do: {self.remedy}" if self.by_hand else f"({self.remedy})"
        return f"{self.code} {self.subject}: {self.problem} {remedy}"


def name_some(names: list[str]) -> str:
    """Return the first names of a list and the number of the others."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


async def examine_originals(database: Database, *, repair: bool) -> list[Inconsistency]:
    """Compare the file of every indexed document with its record. ``repair`` queues changed files for indexing."""
    findings = []
    for domain in await database.read(domains.list_all):
        folder = Folder(Path(domain.workspace), ("documents",), owned=False)
        indexed = await database.read(lambda conn, key=domain.id: documents.list_of(conn, key, DocumentStatus.INDEXED))  # type: ignore[misc]
        for document in indexed:
            finding = await anyio.to_thread.run_sync(_examine_original, folder, document)
            if finding is None:
                continue
            findings.append(finding)
            if repair and not finding.by_hand:
                # Without a stamp, the next scan of the folder reads the file, even if its size and time are unchanged.
                await database.write(
                    lambda conn, key=document.id: documents.update(conn, key, file_stamp="", updated_at=now()),  # type: ignore[misc]
                    durable=True,
                )
    return findings


def _examine_original(folder: Folder, document: DocumentRecord) -> Inconsistency | None:
    title = f"{document.name} of domain {document.domain_id}"
    try:
        size, digest = folder.hash(document.path)
    except OSError as exc:
        reason = "is gone" if isinstance(exc, FileNotFoundError) else f"cannot be read: {exc.strerror}"
        remedy = f"put it back from a backup as {folder.path / document.path}, or delete the document"
        return Inconsistency(
            "DOCUMENT_FILE_MISSING", document.id, f"the file of {title} {reason}", remedy, by_hand=True
        )
    if digest == document.sha256 or not document.file_stamp:  # without a stamp, the next scan reads it
        return None
    how = f"it has {size} bytes, not {document.size}" if size != document.size else "its bytes are others"
    remedy = "is indexed again at the next start; if it was damaged, restore it from a backup first"
    return Inconsistency(
        "DOCUMENT_FILE_CHANGED", document.id, f"the file of {title} differs from the indexed file: {how}", remedy
    )


async def examine_payloads(database: Database, files: PayloadFiles) -> list[Inconsistency]:
    """Compare every stored tool result with its recorded checksum. Records without a file are `Doctor`'s concern."""
    findings = []
    for ref, sha256 in sorted((await database.read(payloads.all_hashes)).items()):
        actual = await anyio.to_thread.run_sync(files.hash, ref)
        if actual not in (None, sha256):
            remedy = (
                f"put {files.path_of(ref)} back from a backup; or remove it and repair, and the model is told that it "
                "is gone"
            )
            problem = "it differs from the stored result of a tool"
            findings.append(Inconsistency("PAYLOAD_CHANGED", ref, problem, remedy, by_hand=True))
    return findings


async def examine_secrets(database: Database | None, folder: Path, setting: SecretStr | None) -> list[Inconsistency]:
    """Try the keys on every sealed secret. Without a database, check the keys only."""
    rows = [] if database is None else await database.read(secrets.list_all)
    try:
        unreadable = await anyio.to_thread.run_sync(find_unreadable, rows, folder, setting)
    except BadConfiguration as exc:
        remedy = "put the key back from a backup, readable by its owner only; nothing else opens the secrets"
        return [Inconsistency("SECRET_KEY_UNUSABLE", exc.setting, exc.problem, remedy, by_hand=True)]
    findings = []
    for domain_id in sorted({problem.domain_id for problem in unreadable}):
        names = [f"{secret.name} ({secret.reason})" for secret in unreadable if secret.domain_id == domain_id]
        count = sum(row.domain_id == domain_id for row in rows)
        remedy = "set them again (agentic-rag secrets set), or put back the key or the database they belong to"
        reason = f"{len(names)} of its {count} secrets do not open: {name_some(names)}"
        findings.append(Inconsistency("SECRETS_UNREADABLE", domain_id, reason, remedy, by_hand=True))
    return findings


async def examine_workspaces(workspaces: Path, *, repair: bool) -> list[Inconsistency]:
    """Check every memory below the workspaces. ``repair`` rebuilds the files that derive from its engrams."""
    return await anyio.to_thread.run_sync(partial(_examine_workspaces, workspaces, repair=repair))


def _examine_workspaces(workspaces: Path, *, repair: bool) -> list[Inconsistency]:
    try:
        # A workspace may be a symbolic link that the operator made.
        places = sorted(folder for folder in workspaces.iterdir() if folder.is_dir())
    except FileNotFoundError:
        return []
    troubles = [trouble for place in places for trouble in examine_memories(place, repair=repair)]
    return [_tell(trouble) for trouble in troubles]


def _tell(trouble: MemoryTrouble) -> Inconsistency:
    if trouble.derived:
        remedy = "is rebuilt from the memory's engrams"
        return Inconsistency("MEMORY_FILE_STALE", str(trouble.place), trouble.reason, remedy)
    remedy = "put the memory's folder back from a backup, or move it away; until then it is not opened"
    return Inconsistency("MEMORY_DAMAGED", str(trouble.place), trouble.reason, remedy, by_hand=True)

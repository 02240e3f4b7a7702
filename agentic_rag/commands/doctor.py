"""`agentic-rag doctor`: the consistency check of a data folder that no server uses.

Opens each component separately, so that a damaged one does not prevent the checks of the others. The rules of the
checks are elsewhere.
"""

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import anyio.to_thread

from agentic_rag.access.acts import act
from agentic_rag.backup.upgrading import open_database
from agentic_rag.base.errors import StorageError
from agentic_rag.base.settings import Settings
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.base.threads import DomainThreads
from agentic_rag.directory.directory import Directory
from agentic_rag.documents.knowledge import open_knowledge
from agentic_rag.operations.contents import (
    Inconsistency,
    examine_originals,
    examine_payloads,
    examine_secrets,
    examine_workspaces,
    name_some,
)
from agentic_rag.operations.data_folder import DataFolder, lent_files
from agentic_rag.operations.doctor import Doctor
from agentic_rag.store import context_lines, domains, run_groups
from agentic_rag.store.audit import append
from agentic_rag.store.database import Database
from agentic_rag.store.integrity import find_file_damage, find_server_damage
from agentic_rag.store.payloads import PayloadFiles
from mcp_servers.retriever.embedders import make_embedder
from mcp_servers.retriever.embedding import token_limit
from mcp_servers.retriever.errors import EmbeddingError, IndexFault, ModelMissing
from mcp_servers.retriever.wheel_embedder import WheelEmbedder, is_installed

DATABASE = "agentic-rag.db"
DATABASE_CODES = frozenset({"DATABASE_DAMAGED", "DATABASE_UNAVAILABLE"})
"""Codes of findings after which the records cannot be read."""
MADE_LATER = ("payloads", "index", "secret.key")
"""Entries that are created after the database; if one exists without the database, the database was lost."""

RESTORE = (
    "restore it from a backup, and remove agentic-rag.db-wal and -shm unless they belong to that backup; until "
    "then nothing that needs the records is looked at or repaired"
)


async def examine(settings: Settings, repair: bool) -> list[Inconsistency]:
    """Return the findings. ``repair`` repairs those that can be repaired.

    Raises:
        BadConfiguration: there is no data folder.
        DataFolderOwned: a server runs on the folder.
    """
    if not await anyio.Path(settings.data).is_dir():
        problem = f"there is no folder {settings.data}: name the server's data folder with --data"
        raise BadConfiguration("AGENTIC_RAG_DATA", problem)
    # This comes first, because taking the folder closes it to other users.
    lent = await anyio.to_thread.run_sync(partial(lent_files, settings.data, repair=repair))
    async with AsyncExitStack() as stack:
        folder = DataFolder.of(settings)
        stack.callback(folder.release)
        findings = [_lent(settings.data, lent)] if lent else []
        database, damage = await _open_database(stack, settings)
        findings += damage
        findings += await examine_secrets(database, settings.data, settings.secret_key)
        findings += await examine_workspaces(settings.workspaces, repair=repair)
        if database is not None:
            findings += await _examine_records(settings, database, repair)
        mended = sorted({finding.code for finding in findings if not finding.by_hand})
        if database is not None and repair and mended:
            await database.write(partial(append, entry=act("doctor.repair", codes=mended)), durable=True)
    return findings


async def describe_embedder(settings: Settings) -> str:
    """Describe the embedder that searches use, and the number of tokens it reads. Fetches no model."""
    name = limit = None
    try:
        embedder = make_embedder(settings.embedding, settings.model_cache.expanduser())
        if embedder is None:
            return "Searches use words only: no embedder is configured."
        name = embedder.name
        try:
            limit = await token_limit(embedder)
        except ModelMissing:
            if settings.embedding or not is_installed():
                return f"Searches use words only: the model {name} is not on this machine."
            name, limit = WheelEmbedder.name, await WheelEmbedder().token_limit()
    except (ValueError, EmbeddingError) as exc:
        return f"The embedder {name or settings.embedding} cannot be used: {exc}"
    windows = f", which reads {limit} tokens at once; longer passages are read in overlapping windows" if limit else ""
    return f"Searches use the embedder {name}{windows}."


async def describe_lines(settings: Settings) -> list[str]:
    """Describe the context lines of each domain that has them on. Call it after `examine` found the database sound."""
    try:
        database = await open_database(settings)
    except (BadConfiguration, StorageError):
        return []
    try:
        wanted = [each for each in await database.read(domains.list_all) if each.settings.get("contextLines")]
        said = []
        for domain in wanted:
            counts = await database.read(partial(context_lines.total, domain_id=domain.id))
            failed = f", {counts.failed} failed: {counts.reason}" if counts.failed else ""
            said.append(f"Context lines of {domain.id}: {counts.made} of {counts.of} passages{failed}.")
        return said
    finally:
        await database.aclose()


async def _open_database(stack: AsyncExitStack, settings: Settings) -> tuple[Database | None, list[Inconsistency]]:
    """Open the database if it is sound. Returns the findings otherwise."""
    path = settings.data / DATABASE
    if not settings.database_url and (damage := await anyio.to_thread.run_sync(_damage_of, path)):
        return None, [Inconsistency("DATABASE_DAMAGED", str(path), name_some(damage), RESTORE, by_hand=True)]
    try:
        database = await open_database(settings)
        stack.push_async_callback(database.aclose)
        damage = await database.read(find_server_damage)
    except (BadConfiguration, StorageError) as exc:
        remedy = "make it readable; nothing that needs the records was checked"
        return None, [Inconsistency("DATABASE_UNAVAILABLE", "database", str(exc), remedy, by_hand=True)]
    if damage:
        remedy = "restore it, or mend it with PostgreSQL's own tools (REINDEX, pg_amcheck)"
        return database, [Inconsistency("DATABASE_DAMAGED", "PostgreSQL", name_some(damage), remedy, by_hand=True)]
    return database, []


def _damage_of(path: Path) -> list[str]:
    if path.exists():
        return find_file_damage(path)
    if any((path.parent / name).exists() for name in MADE_LATER):
        return ["it is missing, although its companion files exist"]
    return []


async def _examine_records(settings: Settings, database: Database, repair: bool) -> list[Inconsistency]:
    files = PayloadFiles(settings.data / "payloads")
    if not database.shared:
        await database.write(run_groups.settle)  # complete the turns' events first, as a start would
    findings = await examine_payloads(database, files)
    findings += await examine_originals(database, repair=repair)
    try:
        async with open_knowledge(settings, database, Directory(database), DomainThreads()) as knowledge:
            await knowledge.intake.finish_removals()  # otherwise their leftovers would be reported
            findings += await Doctor(database, files, knowledge.index).examine(repair=repair)
    except (IndexFault, BadConfiguration) as exc:
        remedy = "fix the reported problem and run this again; records and index were not compared"
        findings.append(Inconsistency("INDEX_UNAVAILABLE", "index", str(exc), remedy, by_hand=True))
    return findings


def _lent(folder: Path, lent: list[str]) -> Inconsistency:
    problem = f"other users of this machine can get at {name_some([name or 'the folder itself' for name in lent])}"
    return Inconsistency("FILES_OPEN_TO_OTHERS", str(folder), problem, "are closed to them")

"""Restoring a backup into a folder and a database.

This module combines the steps of `restoration` with the database. A crash at any point leaves a folder that only
another restore can use, which starts from the beginning.
"""

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio.to_thread
from sqlalchemy import Connection

from agentic_rag.access.acts import act
from agentic_rag.backup.archive import Header, verify
from agentic_rag.backup.contents import Progress
from agentic_rag.backup.making import NO_PROGRESS
from agentic_rag.backup.restoration import (
    Target,
    extract_files,
    finish_folder,
    is_empty,
    load_records,
    prepare_folder,
    was_restored_from,
)
from agentic_rag.backup.settlement import Settled, settle
from agentic_rag.base import failpoints
from agentic_rag.base.errors import BackupNotWritten, BackupRefused, InvalidInput
from agentic_rag.operations.data_folder import DataFolder, find_owner
from agentic_rag.store.audit import append
from agentic_rag.store.database import Database, is_server
from agentic_rag.store.migrations import OWN, Revisions
from agentic_rag.tools.launch.allowed import LaunchCatalogue
from agentic_rag.tools.launch.requests import LOCAL


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore."""

    header: Header
    files: int
    settled: Settled


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of a restore. ``database`` is a PostgreSQL URL, or the path of a SQLite file in the folder.

    ``end_turns`` True: turns that ran when the backup was made are interrupted. False: the next start resumes them.
    None: the next start resumes them, but the restore refuses to run if the original server is alive on this machine.
    """

    backup: Path
    folder: Path
    database: str | Path
    end_turns: bool | None = None
    revisions: Revisions = OWN


async def restore(plan: Plan, progress: Progress = NO_PROGRESS) -> Restored:
    """Restore a backup into an empty folder and an empty database.

    Raises:
        BackupDamaged, BackupTooNew: nothing was changed.
        BackupRefused: the folder or the database is not empty, the original is alive, or the backup holds records only.
        DataFolderOwned: another process owns the folder.
        BackupNotWritten, StorageError: there is not enough space; the folder keeps its mark, and the next restore
            starts from the beginning.
    """
    header = await anyio.to_thread.run_sync(verify, plan.backup)
    if header.records_only:
        raise BackupRefused(f"{plan.backup} holds records only, as before an upgrade: agentic-rag downgrade uses it.")
    _ask_about_original(plan, header)
    folder = DataFolder.own(plan.folder, restoring=True)
    try:
        return await _restore(plan, header, progress)
    except OSError as exc:
        raise BackupNotWritten(exc.strerror or "unknown reason", str(plan.folder)) from exc
    finally:
        folder.release()


async def _restore(plan: Plan, header: Header, progress: Progress) -> Restored:
    target = Target(plan.folder, plan.backup)
    again = await anyio.to_thread.run_sync(prepare_folder, target, header)
    database = await Database.open(plan.database, plan.revisions)
    try:
        await _check_database(database, plan, header, again)
        files = await anyio.to_thread.run_sync(extract_files, target, progress)
        await anyio.to_thread.run_sync(_settle_programs, plan.folder)
        settled = await database.change_all(partial(_load, plan=plan, progress=progress))
    finally:
        await database.aclose()
    await anyio.to_thread.run_sync(finish_folder, target)
    return Restored(header, files, settled)


def _ask_about_original(plan: Plan, header: Header) -> None:
    """Refuse to run a living server's turns a second time, unless ``end_turns`` decides about them."""
    original = Path(header.folder)
    if plan.end_turns is not None or original == plan.folder.absolute():
        return
    if (owner := find_owner(original)) is not None:
        raise BackupRefused(
            f"{original}, of which this is a backup, is in use by {owner}: turns that ran there would run twice. Say "
            "--end-turns to have them interrupted in the copy, or --resume-turns if the original will not run any more."
        )


async def _check_database(database: Database, plan: Plan, header: Header, again: bool) -> None:
    if not is_server(plan.database) or await database.read(is_empty):
        return
    if not (again and await database.read(partial(was_restored_from, header=header))):
        raise BackupRefused("The database is not empty. Restore into a new, empty database.")


def _settle_programs(folder: Path) -> None:
    """Point the operator's permissions for own programs to the restored copies."""
    local = folder.absolute() / LOCAL
    if local.is_dir():
        with suppress(InvalidInput):  # an unreadable catalogue permits nothing, and each start reports that
            LaunchCatalogue(local.parent).move_programs(local)


def _load(conn: Connection, plan: Plan, progress: Progress) -> Settled:
    header = load_records(conn, plan.backup, progress, plan.revisions)
    settled = settle(conn, header.id, plan.folder, with_index=header.with_index, end_turns=plan.end_turns is True)
    failpoints.reached("restore.settled")
    append(conn, act("backup.restore", header.id, made=header.made_at))
    return settled

"""Open the data folder and the database at a start, and wait for them if they are not available yet.

This module retries, logs the reason, and runs the caller's substitute while it waits.
"""

import logging
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Final

import anyio
import anyio.to_thread

from agentic_rag.backup.upgrading import open_database
from agentic_rag.base.errors import StorageFull, StorageUnavailable
from agentic_rag.base.settings import Settings
from agentic_rag.operations.data_folder import DataFolder, check_database
from agentic_rag.store.database import Database
from agentic_rag.store.migrations import Revisions

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
"""Interval between attempts to open the store."""


async def open_store(
    stack: AsyncExitStack,
    settings: Settings,
    meanwhile: AbstractAsyncContextManager[None] | None,
    revisions: Revisions,
) -> tuple[DataFolder, Database]:
    """Lock the data folder and open the database as soon as they are available. ``stack`` closes both.

    ``meanwhile`` is entered while one of them is unavailable. With None, there is no waiting.

    Raises:
        DataFolderOwned, BadConfiguration, StorageError: waiting does not help, or ``meanwhile`` is None.
    """
    folder: DataFolder | None = None
    last_problem = ""
    gave_way = False
    async with AsyncExitStack() as waiting:
        while True:
            try:
                if folder is None:
                    folder = DataFolder.of(settings)
                    stack.callback(folder.release)
                if not settings.database_url:
                    check_database(settings.data / "agentic-rag.db")
                database = await open_database(settings, revisions)
                stack.push_async_callback(database.aclose)
                if gave_way:
                    database.outcomes.note_failure(time.time(), StorageFull.code, "the disk was full at the start")
                else:
                    await anyio.to_thread.run_sync(folder.keep_spare)
                return folder, database
            except (StorageUnavailable, StorageFull) as exc:
                if isinstance(exc, StorageFull) and folder is not None and folder.give_way():
                    gave_way = True
                    continue
                if meanwhile is None:
                    raise
                if not last_problem:
                    await waiting.enter_async_context(meanwhile)
                if last_problem != str(exc):
                    last_problem = str(exc)
                    log.warning("the store is waited for: %s", last_problem)
            await anyio.sleep(RETRY_SECONDS)

"""The data folder and the database of a start, which may come later than it.

Owns that they are waited for, and what is said and answered meanwhile.
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
"""Between two looks whether the store is there."""


async def open_store(
    stack: AsyncExitStack,
    settings: Settings,
    meanwhile: AbstractAsyncContextManager[None] | None,
    revisions: Revisions,
) -> tuple[DataFolder, Database]:
    """Take the data folder and open the database, as soon as they are there; ``stack`` gives both up.

    ``meanwhile``: entered where one of them is not there yet, left once they are; None: they are not waited for.

    Raises:
        DataFolderOwned, BadConfiguration, StorageError: it does not help to wait, or nobody does.
    """
    folder: DataFolder | None = None
    said = ""
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
                if not said:
                    await waiting.enter_async_context(meanwhile)
                if said != str(exc):
                    said = str(exc)
                    log.warning("the store is waited for: %s", said)
            await anyio.sleep(RETRY_SECONDS)

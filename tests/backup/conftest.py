"""Fixtures of the backup tests: a data folder with everything in it, created once, and its backup."""

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from agentic_rag.backup.contents import BackupOptions
from agentic_rag.backup.making import make_backup
from tests.databases import POSTGRESQL

from .making import closed_files, fill


@pytest.fixture(autouse=True)
def private_files() -> Iterator[None]:
    """Close the test's files to other users, as the server does."""
    with closed_files():
        yield


@pytest.fixture(scope="session")
def data_and_backup(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a filled data folder whose server has stopped, and its backup with the key. No test changes them."""
    if POSTGRESQL:
        pytest.skip("SQLite: the folder has a file")
    folder = tmp_path_factory.mktemp("ground")
    backup = folder / "b.tar.zst"

    async def make() -> Path:
        data = await fill(folder)
        await make_backup(data / "agentic-rag.db", data, backup, BackupOptions(with_key=True))
        return data

    with closed_files():
        return anyio.run(make), backup

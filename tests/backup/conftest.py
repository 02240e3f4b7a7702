"""A folder that everything is in, made once, and its backup."""

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from agentic_rag.backup.contents import Choice
from agentic_rag.backup.making import make_backup
from tests.databases import POSTGRESQL

from .making import closed_files, fill


@pytest.fixture(autouse=True)
def private_files() -> Iterator[None]:
    """What a test makes is as closed to others as what the server writes."""
    with closed_files():
        yield


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A filled folder whose server has ended, and its backup with the key; neither is changed by a test."""
    if POSTGRESQL:
        pytest.skip("SQLite: the folder has a file")
    folder = tmp_path_factory.mktemp("ground")
    backup = folder / "b.tar.zst"

    async def make() -> Path:
        data = await fill(folder)
        await make_backup(data / "agentic-rag.db", data, backup, Choice(with_key=True))
        return data

    with closed_files():
        return anyio.run(make), backup

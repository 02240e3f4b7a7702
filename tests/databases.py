"""Choose and prepare a test's database: a SQLite file, or with ``TEST_DATABASE=postgresql`` a PostgreSQL database.

Migrating an empty database costs about 0.25 s of CPU, and most tests open one. So each worker migrates a template and
copies it: a file for SQLite, ``CREATE DATABASE … TEMPLATE`` for PostgreSQL. Tests of the migrations themselves open
`Database` on an unprepared path.

Every pytest process imports this module, so it imports SQLAlchemy and the store (half a second) when they are needed.
"""

import atexit
import functools
import hashlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import anyio

POSTGRESQL = os.environ.get("TEST_DATABASE", "sqlite") == "postgresql"
"""Whether tests use PostgreSQL where they otherwise use a SQLite file."""
TEMPLATE = "made"
"""The database with all tables from which the others are copied."""
_made: set[str] = set()


def database_at(path: Path) -> str | Path:
    """Return the database for a path, with all tables: the prepared file, or the PostgreSQL database for this path."""
    if not POSTGRESQL:
        prepare_file(path)
        return path
    return postgresql_at(path)


def prepare_data(data: Path) -> None:
    """Give a new data folder the migrated file that its first start would make.

    A folder with anything but the mark of `without_demo` is left alone.
    """
    if not data.exists() or all(entry.name == "workspaces" for entry in data.iterdir()):
        prepare_file(data / "agentic-rag.db")


def without_demo(data: Path) -> None:
    """Mark the demo domain of a data folder as loaded. Loading it takes seconds of CPU, and it has its own tests."""
    workspaces = data / "workspaces"
    workspaces.mkdir(parents=True, exist_ok=True)
    (workspaces / ".demo-loaded").touch()


def prepare_file(path: Path) -> None:
    """Copy the migrated template to a path, unless something is there or its folder cannot be written.

    The code under test then reports the unusable folder itself.
    """
    if POSTGRESQL or path.exists():
        return
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(_template_file())
    except OSError:
        with suppress(OSError):
            path.unlink()


@functools.cache
def _template_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "template.db")
        _migrate(path)
        return path.read_bytes()


def postgresql_at(path: Path) -> str:
    """Return the address of the PostgreSQL database for a path, with all tables. The first call starts a server."""
    name = f"t{hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:24]}"
    if name not in _made:
        _ask(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        _made.add(name)
    return _address(name)


def database_url(data: Path) -> str:
    """Return the setting that gives a data folder its database; empty: the file in the folder."""
    return postgresql_at(data / "agentic-rag.db") if POSTGRESQL else ""


@contextmanager
def dropped_databases() -> Iterator[None]:
    """Drop the databases created in the block, even if clients are still connected."""
    before = frozenset(_made)
    yield
    for name in _made - before:
        _ask(f"DROP DATABASE {name} WITH (FORCE)")
        _made.remove(name)


@functools.cache
def _server() -> str:
    from tests.store.conftest import postgresql_server

    stack = ExitStack()
    url = stack.enter_context(postgresql_server()).url
    atexit.register(stack.close)
    _run_sql(url, f"CREATE DATABASE {TEMPLATE}")
    _migrate(_named(url, TEMPLATE))
    return url


def _migrate(place: str | Path) -> None:
    """Create all tables. Runs in a thread, because this thread may have an event loop."""
    thread = threading.Thread(target=anyio.run, args=(_open_once, place))
    thread.start()
    thread.join()


async def _open_once(place: str | Path) -> None:
    from agentic_rag.store.database import Database

    await (await Database.open(place)).aclose()


def _named(url: str, name: str) -> str:
    from sqlalchemy import make_url

    return make_url(url).set(database=name).render_as_string(hide_password=False)


def _address(name: str) -> str:
    return _named(_server(), name)


def _ask(statement: str) -> None:
    _run_sql(_server(), statement)


def _run_sql(url: str, statement: str) -> None:
    from tests.store.conftest import BINARIES

    command = [str(BINARIES[-1] / "psql"), "--no-psqlrc", "--quiet", url, "--command", statement]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr

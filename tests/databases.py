"""Where a test opens its database: the file it names, or by the PostgreSQL profile a database of that file's own.

Owns the choice, by ``TEST_DATABASE=postgresql``, and the profile's server, which every worker has for itself.
"""

import atexit
import functools
import hashlib
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
from sqlalchemy import make_url

from agentic_rag.store.database import Database

POSTGRESQL = os.environ.get("TEST_DATABASE", "sqlite") == "postgresql"
"""Whether what opens a SQLite file otherwise opens PostgreSQL."""
TEMPLATE = "made"
"""The database with all tables, of which the others are copies."""
_made: set[str] = set()


def database_at(path: Path) -> str | Path:
    """Return where to open what would be a SQLite file; by the profile the same database for the same path."""
    if not POSTGRESQL:
        return path
    name = f"t{hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:24]}"
    if name not in _made:
        _ask(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        _made.add(name)
    return _address(name)


def database_url(data: Path) -> str:
    """Return the setting that gives a data folder its database; empty: the file in the folder."""
    found = database_at(data / "agentic-rag.db")
    return found if isinstance(found, str) else ""


@contextmanager
def dropped_databases() -> Iterator[None]:
    """Drop the databases that were made inside, whoever is still connected."""
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
    making = threading.Thread(target=anyio.run, args=(_make, _named(url, TEMPLATE)))  # a loop may run in this one
    making.start()
    making.join()
    return url


async def _make(url: str) -> None:
    await (await Database.open(url)).aclose()


def _named(url: str, name: str) -> str:
    return make_url(url).set(database=name).render_as_string(hide_password=False)


def _address(name: str) -> str:
    return _named(_server(), name)


def _ask(statement: str) -> None:
    _run_sql(_server(), statement)


def _run_sql(url: str, statement: str) -> None:
    from tests.store.conftest import BINARIES

    command = [str(BINARIES[-1] / "psql"), "--no-psqlrc", "--quiet", url, "--command", statement]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

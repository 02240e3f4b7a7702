"""The migrations create exactly the tables of the record classes."""

import subprocess
import sys
from pathlib import Path

import anyio
import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from agentic_rag.base.errors import StorageDamaged, StorageFull, StorageUnavailable
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.store import migrations, probe
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.record import METADATA
from tests.backup.later import NEXT, make_later

from .conftest import needs_postgresql


def _differences(conn: Connection) -> list[object]:
    context = MigrationContext.configure(conn, opts={"compare_type": True, "include_name": migrations.is_compared})
    return list(compare_metadata(context, METADATA))


async def test_migrations_create_exactly_the_tables(database: Database) -> None:
    assert await database.write(_differences) == []


def test_importing_the_package_registers_every_table() -> None:
    """Code that lists, copies or deletes all tables must know them all."""
    program = (
        "import importlib, pkgutil\n"
        "import agentic_rag.store as store\n"
        "from agentic_rag.store.record import METADATA\n"
        "known = set(METADATA.tables)\n"
        "for each in pkgutil.iter_modules(store.__path__):\n"
        "    importlib.import_module(f'agentic_rag.store.{each.name}')\n"
        "print(sorted(set(METADATA.tables) - known))\n"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60, text=True)
    assert process.stdout.strip() == "[]"


def test_the_head_is_the_newest_revision() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrations.FOLDER))
    assert ScriptDirectory.from_config(config).get_heads() == [migrations.HEAD]


async def test_a_second_start_does_not_load_alembic(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from agentic_rag.store.database import Database\n"
        "async def main():\n"
        "    await (await Database.open(sys.argv[1])).aclose()\n"
        "asyncio.run(main())\n"
        "print('alembic' in sys.modules)\n"
    )
    await (await Database.open(tmp_path / "store.db")).aclose()
    command = [sys.executable, "-c", program, str(tmp_path / "store.db")]
    process = await anyio.run_process(command)
    assert process.stdout == b"False\n"


async def test_tables_of_a_newer_program_have_a_plain_error(url: str) -> None:
    database = await Database.open(url)
    try:
        await database.write(lambda conn: _set_version(conn, "9999"))
        with pytest.raises(BadConfiguration, match="version '9999'"):
            await Database.open(url)
    finally:
        await database.write(lambda conn: _set_version(conn, migrations.HEAD))
        await database.aclose()


async def test_tables_of_a_development_version_are_refused_with_the_remedy(url: str) -> None:
    database = await Database.open(url)
    try:
        await database.write(lambda conn: _set_version(conn, "0010"))
        with pytest.raises(BadConfiguration, match=r"version '0010', of a development version.*new data folder"):
            await Database.open(url)
        assert await database.read(migrations.version) == "0010", "nothing was changed"
    finally:
        await database.write(lambda conn: _set_version(conn, migrations.HEAD))
        await database.aclose()


@needs_postgresql
async def test_newer_compatible_tables_are_used(tmp_path: Path, postgresql_url: str) -> None:
    schema = "newer"
    server = await asyncpg.connect(postgresql_url)
    try:
        await server.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}")
        running = await Database.open(postgresql_url, schema=schema)
        newer_server = await Database.open(
            postgresql_url, make_later(tmp_path / "a", serves_before=True), schema=schema
        )
        restarted = await Database.open(postgresql_url, schema=schema)
        for database in (running, newer_server, restarted):
            await database.write(lambda conn: probe.touch(conn, now()))
            assert await database.read(migrations.version) == NEXT
            await database.aclose()
        await server.execute(f"DROP SCHEMA {schema} CASCADE; CREATE SCHEMA {schema}")
        await (await Database.open(postgresql_url, make_later(tmp_path / "b"), schema=schema)).aclose()
        with pytest.raises(BadConfiguration, match=f"version '{NEXT}'"):
            await Database.open(postgresql_url, schema=schema)
    finally:
        await server.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        await server.close()


def _set_version(conn: Connection, revision: str) -> None:
    conn.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})


async def test_a_missing_folder_has_a_plain_error(tmp_path: Path) -> None:
    with pytest.raises(StorageFull, match="unable to open database file"):
        await Database.open(tmp_path / "missing" / "store.db")


async def test_a_file_that_is_not_a_database_has_a_plain_error(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"not a database, but long enough to have a header " * 100)
    with pytest.raises(StorageDamaged, match="file is not a database"):
        await Database.open(path)


async def test_another_kind_of_url_is_refused() -> None:
    with pytest.raises(BadConfiguration, match="only postgresql://"):
        await Database.open("mysql://rag:swordfish@127.0.0.1/rag")


async def test_an_unreachable_database_server_is_reported_without_the_password() -> None:
    with pytest.raises(StorageUnavailable) as failure:
        await Database.open("postgresql://rag:swordfish@127.0.0.1:1/rag")
    assert "swordfish" not in str(failure.value)


async def test_an_invalid_address_is_refused_without_its_password() -> None:
    with pytest.raises(BadConfiguration, match="AGENTIC_RAG_DATABASE_URL") as refusal:
        await Database.open("postgresql://rag:swordfish@127.0.0.1:port/rag")
    assert "swordfish" not in str(refusal.value)


@needs_postgresql
async def test_a_missing_database_has_a_plain_error(postgresql_url: str) -> None:
    with pytest.raises(BadConfiguration) as refusal:
        await Database.open(postgresql_url.removesuffix("postgres") + "missing")
    assert str(refusal.value).endswith('PostgreSQL cannot be used: database "missing" does not exist')


@needs_postgresql
async def test_libpqs_sslmode_in_the_url_is_understood(postgresql_url: str) -> None:
    await (await Database.open(postgresql_url + "?sslmode=disable")).aclose()
    with pytest.raises(BadConfiguration, match="SSL"):
        await Database.open(postgresql_url + "?sslmode=require")

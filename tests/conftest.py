"""Fixtures shared by all tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.databases import POSTGRESQL, dropped_databases

# No process that a test starts fetches a model from the network by itself; who tests that says where the hub is.
os.environ["HF_HUB_OFFLINE"] = "1"

# Timing is never asserted, and the machine that runs the tests may be busy.
settings.register_profile("patient", deadline=None)
# What CI says of a commit is the same each time: it tries the examples that follow from the tests, others try others.
settings.register_profile("ci", settings.get_profile("patient"), derandomize=True, database=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "patient"))


SHARED = {"made", "intact", "expected", "installed", "postgresql_url", "example_server"}
"""Fixtures that are expensive to make, which several tests share."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have tests that share what is expensive run in one worker: a fixture, or all sources read and parsed.

    All others go to whichever is free.
    """
    for item in items:
        assert isinstance(item, pytest.Function)
        for name in SHARED.intersection(item.fixturenames):
            item.add_marker(pytest.mark.xdist_group(name))
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.xdist_group("sources"))
        if POSTGRESQL and (sqlite := item.get_closest_marker("sqlite")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"SQLite: {sqlite.args[0]}"))


LONGEST_NAME = 80
"""Characters of a parameter in a test's id: some are megabytes, and each worker sends and keeps every id."""


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name what is long by its beginning, and long bytes, which may hold the time of day, by the argument alone.

    Every worker collects for itself, and all must come to the same ids.
    """
    if isinstance(val, (bytes, str)) and len(val) > LONGEST_NAME:
        return val[:LONGEST_NAME] if isinstance(val, str) else argname
    return None


@pytest.fixture(autouse=True)
def own_databases() -> Iterator[None]:
    """By the PostgreSQL profile a test's databases go with it."""
    with dropped_databases():
        yield


@pytest.fixture
def anyio_backend() -> str:
    """The product runs on asyncio alone (qdrant-edge, uvicorn, SQLAlchemy); so do its tests."""
    return "asyncio"

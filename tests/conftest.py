"""Fixtures shared by all tests."""

import pytest
from hypothesis import settings

# Timing is never asserted, and the machine that runs the tests may be busy.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture
def anyio_backend() -> str:
    """The product runs on asyncio alone (qdrant-edge, uvicorn, SQLAlchemy); so do its tests."""
    return "asyncio"

"""Fixtures shared by all tests."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The product runs on asyncio alone (qdrant-edge, uvicorn, SQLAlchemy); so do its tests."""
    return "asyncio"

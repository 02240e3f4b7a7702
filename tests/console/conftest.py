"""One browser for the tests of the console that a worker runs one after the other, which share an event loop."""

from collections.abc import AsyncIterator

import pytest

from tests.console.chromium import shared_browser


@pytest.fixture(scope="package")
def anyio_backend() -> str:
    """Run all tests of the console on one event loop, to which the browser's connection belongs."""
    return "asyncio"


@pytest.fixture(scope="package", autouse=True)
async def console_browser() -> AsyncIterator[None]:
    """Stop the browser, which the first test that needs it starts, after the last test of the console."""
    async with shared_browser():
        yield

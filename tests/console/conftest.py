"""One Playwright driver for the tests of a module, which therefore share an event loop."""

from collections.abc import AsyncIterator

import pytest

from tests.console.chromium import shared_driver


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Run all tests of a module on one event loop, to which the driver's connection belongs."""
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
async def playwright_driver() -> AsyncIterator[None]:
    """Stop the driver, which the first test that needs a browser starts, after the last test of the module."""
    async with shared_driver():
        yield

"""The browser of the console's tests: one Chromium for the tests that a worker runs one after the other.

Contexts share nothing, so tests are independent. The next test replaces a browser that has died.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from playwright.async_api import Browser, BrowserContext, Error, Playwright, async_playwright

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
"""The browser's program. The shell has no windows, so a page needs half the CPU time. It renders with the same code."""
DISABLED = (
    # The window's own pages and the process in reserve take more CPU time than a page of the console.
    "WebUIOmniboxAimPopup",
    "WebUIOmniboxFullPopup",
    "WebUIOmniboxPopup",
    # Chromium uses only the last list of disabled features, so this one repeats Playwright's.
    "AvoidCorsURLLoaderRestartOnRedirect",
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
)
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--disable-features={','.join(DISABLED)}")


class Chromium:
    """A browser and its driver, which belong to one event loop. Both are started on first use.

    Their start takes 1.5 s of CPU: 0.4 s for the driver, a Node.js program, and the rest for the browser.
    """

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._driver: Playwright | None = None
        self._browser: Browser | None = None

    async def new_context(self, **options: Any) -> BrowserContext:
        """Open a context in the running browser, or in a new one if it is gone."""
        if self._browser is not None and self._browser.is_connected():
            try:
                return await self._browser.new_context(**options)
            except Error:  # it has died, and the driver has not noticed it before
                await self._browser.close()
        if self._driver is None:
            self._driver = await self._stack.enter_async_context(async_playwright())
        self._browser = await self._driver.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
        return await self._browser.new_context(**options)

    async def aclose(self) -> None:
        """Stop the browser and the driver."""
        if self._browser is not None:
            await self._browser.close()
        await self._stack.aclose()


_shared: list[Chromium] = []
"""The browsers of the blocks of `shared_browser`; the last one is in use."""


@asynccontextmanager
async def shared_browser() -> AsyncIterator[None]:
    """Let all contexts opened in this block use one browser. The block belongs to one event loop."""
    chromium = Chromium()
    _shared.append(chromium)
    try:
        yield
    finally:
        _shared.remove(chromium)
        await chromium.aclose()


@asynccontextmanager
async def browser_context(**options: Any) -> AsyncIterator[BrowserContext]:
    """Open a context with Playwright's options, and close it with its pages at the end.

    Outside of a block of `shared_browser`, the context has a browser for itself.
    """
    async with AsyncExitStack() as stack:
        if not _shared:
            await stack.enter_async_context(shared_browser())
        context = await _shared[-1].new_context(**options)
        try:
            yield context
        finally:
            await context.close()

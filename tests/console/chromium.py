"""One Chromium for all tests of a process. Each test connects to it and closes its own pages with the connection.

Contexts share nothing, so tests are independent. The next test replaces a browser that has died.
"""

import atexit
import json
import select
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import playwright
from playwright.async_api import Browser, BrowserType, Error, Playwright, async_playwright

from tests.clients.test_browser import FLAGS

CHROMIUM = shutil.which("chromium")
DRIVER = Path(playwright.__file__).parent / "driver"
STARTING = 120.0
"""Time limit in seconds for the start of a browser."""

SERVE = """
const { chromium } = require(process.argv[1]);
(async () => {
  const server = await chromium.launchServer(JSON.parse(process.argv[2]));
  server.on("close", () => process.exit());
  process.stdin.on("end", () => server.kill().finally(() => process.exit())).resume();
  console.log(server.wsEndpoint());
})();
"""
"""Starts the browser, and ends it when the pipe from the starting process closes, even if that process is killed."""


class Chromium:
    """The browser of this process, started on first use."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._address = ""

    async def connect(self, kind: BrowserType) -> Browser:
        """Connect to the running browser, or to a new one if it is gone."""
        if self._process is not None and self._process.poll() is None:
            try:
                connected = await kind.connect(self._address)
                session = await connected.new_browser_cdp_session()
                await session.send("Browser.getVersion")  # a browser that is just dying accepts connections
                await session.detach()
                return connected
            except Error:
                self.end()
        self._start()
        return await kind.connect(self._address)

    def end(self) -> None:
        """Stop the browser, if it runs, and wait for it."""
        if self._process is None:
            return
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(STARTING)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process = None

    def _start(self) -> None:
        self.end()
        options = json.dumps({"executablePath": CHROMIUM, "args": [*FLAGS]})
        command = [str(DRIVER / "node"), "-e", SERVE, str(DRIVER / "package"), options]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], STARTING)
        assert ready, "chromium did not start"
        self._address = self._process.stdout.readline().strip()


shared = Chromium()
atexit.register(shared.end)


class Driver:
    """Playwright's driver, a Node.js program whose start takes 0.7 s of CPU. Started on first use in its block."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._started: Playwright | None = None

    async def start(self) -> Playwright:
        if self._started is None:
            self._started = await self._stack.enter_async_context(async_playwright())
        return self._started

    async def aclose(self) -> None:
        await self._stack.aclose()


_drivers: list[Driver] = []
"""The drivers of the blocks of `shared_driver`; the last one is in use."""


@asynccontextmanager
async def shared_driver() -> AsyncIterator[Driver]:
    """Let all browsers opened in this block use one driver. The block belongs to one event loop."""
    driver = Driver()
    _drivers.append(driver)
    try:
        yield driver
    finally:
        _drivers.remove(driver)
        await driver.aclose()


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Connect to this process's browser. Everything opened through the connection is closed at the end.

    Outside of a block of `shared_driver`, the connection has a driver for itself.
    """
    async with AsyncExitStack() as stack:
        driver = _drivers[-1] if _drivers else await stack.enter_async_context(shared_driver())
        connected = await shared.connect((await driver.start()).chromium)
        try:
            yield connected
        finally:
            await connected.close()

"""The console in a real browser: the application over real sockets with a scripted model, and a page that logs errors.

::

    async with console(tmp_path, say("Yes.")) as desk:
        await desk.goto("#/chat")
        await desk.page.get_by_role("textbox").fill("Hi")

At the end of the block the test fails if the page logged an error, threw an uncaught exception, or violated its policy.
A test that provokes such an error removes it from `Desk.heard`, or lists a part of its text in ``expected``.
"""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from playwright.async_api import ConsoleMessage, Page, expect

from agentic_rag.testing.scripted import Scripted
from tests.console.chromium import CHROMIUM, browser_context
from tests.server.rig import Rig
from tests.ws.serving import serving

HANG_SECONDS = 900.0
PATIENCE = 60_000
"""Milliseconds that a test waits for something to appear on the page."""
LOCALES = {"en": "en-GB", "zh": "zh-CN"}

EVERY = os.environ.get("CONSOLE_TESTS") == "every"
"""Whether tests walk each page in every language and shape. By default only in one, because a walk takes seconds."""
WIDE, NARROW = (False, (1280, 800)), (True, (360, 740))
in_shapes = pytest.mark.parametrize(("dark", "size"), [WIDE, NARROW] if EVERY else [NARROW])
"""Run in light and wide, and in dark and narrow."""


def in_languages(first: str) -> pytest.MarkDecorator:
    """Walk through a page in both languages, or in one."""
    return pytest.mark.parametrize("language", sorted(LOCALES) if EVERY else [first])


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

LISTEN = """
addEventListener("securitypolicyviolation", (event) => {
  console.error(`policy violated: ${event.violatedDirective} by ${event.blockedURI || event.sample}`);
});
"""
EXPECTED = ("Failed to load resource",)
"""Chromium's own message for every unsuccessful answer."""


class Desk:
    """A page of the console and its application. ``rig`` is None if the server is another process."""

    def __init__(self, page: Page, url: str, rig: Rig | None, expected: tuple[str, ...]) -> None:
        self.page = page
        self.url = url
        self._rig = rig
        self.heard: list[str] = []
        self._expected = (*EXPECTED, *expected)
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.heard.append(f"uncaught: {error}"))

    @property
    def rig(self) -> Rig:
        """The application in this process."""
        assert self._rig is not None
        return self._rig

    async def goto(self, place: str = "#/") -> None:
        """Load the page at one of its addresses, such as ``#/chat``, also if it is open already.

        A page of this server is reloaded in its process, which saves half of the CPU time of a load.
        """
        address = f"{self.url}/{place}"
        if self.page.url.startswith(f"{self.url}/"):
            await self.page.evaluate("(address) => history.replaceState(null, '', address)", address)
            await self.page.reload()
        else:
            await self.page.goto(address)

    async def follow(self, place: str) -> None:
        """Go to an address of the open page as a link does, without a load.

        The old content stays for a moment, so wait for a part that only the new one has.
        """
        await self.page.evaluate("(place) => (location.hash = place)", place)

    def check_silent(self) -> None:
        """Fail if the page logged an error, threw an exception, or violated its policy."""
        assert not self.heard, "\n".join(self.heard)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not any(error in message.text for error in self._expected):
            self.heard.append(f"{message.text} ({message.location.get('url')})")


@asynccontextmanager
async def desk_at(
    url: str,
    rig: Rig | None = None,
    *,
    language: str = "en",
    dark: bool = False,
    size: tuple[int, int] = (1280, 800),
    expected: tuple[str, ...] = (),
    **context: Any,
) -> AsyncIterator[Desk]:
    """Open a page at a server's address. ``expected`` lists parts of errors that the page may log."""
    expect.set_options(timeout=PATIENCE)
    async with browser_context(
        locale=LOCALES[language],
        color_scheme="dark" if dark else "light",
        viewport={"width": size[0], "height": size[1]},
        reduced_motion="reduce",
        **context,
    ) as browser_window:
        browser_window.set_default_timeout(PATIENCE)
        await browser_window.add_init_script(LISTEN)
        desk = Desk(await browser_window.new_page(), url, rig, expected)
        yield desk
        desk.check_silent()


@asynccontextmanager
async def console(
    folder: Path,
    *steps: Scripted,
    language: str = "en",
    dark: bool = False,
    size: tuple[int, int] = (1280, 800),
    expected: tuple[str, ...] = (),
    permissions: Sequence[str] = (),
    **settings: Any,
) -> AsyncGenerator[Desk]:
    """Serve the application with a scripted model, and open a page on it. ``settings`` are those of `Rig`.

    ``permissions`` are those of the page, such as reading the clipboard.
    """
    with anyio.fail_after(HANG_SECONDS):  # a test that waits for nothing would hang forever
        async with Rig(folder, *steps, **settings) as rig, serving(rig.application.app) as address:
            url = f"http://{address}"
            async with desk_at(
                url,
                rig,
                language=language,
                dark=dark,
                size=size,
                expected=expected,
                permissions=[*permissions],
            ) as desk:
                yield desk

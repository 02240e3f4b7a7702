"""The console in a real browser: the application over real sockets, only the model scripted; a page that hears all.

::

    async with console(tmp_path, say("Yes.")) as desk:
        await desk.goto("#/chat")
        await desk.page.get_by_role("textbox").fill("Hi")

Whatever the page writes as an error, every exception nobody caught, and every violation of its policy fails the test
when the block ends; what a test means to provoke it takes out of `Desk.heard` itself, or names in ``expected``.
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
from tests.console.chromium import CHROMIUM, browser
from tests.server.rig import Rig
from tests.ws.serving import serving

HANG_SECONDS = 900.0
PATIENCE = 120_000
"""Milliseconds that a test waits for what the page should show."""
LOCALES = {"en": "en-GB", "zh": "zh-CN"}

EVERY = os.environ.get("CONSOLE_TESTS") == "every"
"""Whether each page is walked in every language and shape; else in one, by turns: a walk takes seconds."""
WIDE, NARROW = (False, (1280, 800)), (True, (360, 740))
in_shapes = pytest.mark.parametrize(("dark", "size"), [WIDE, NARROW] if EVERY else [NARROW])
"""Light and wide, and dark and narrow."""


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
"""What chromium itself writes of any answer that is no success."""


class Desk:
    """A page of the console, and the application behind it. ``rig`` is None where the server is another process."""

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
        """The application, in this process."""
        assert self._rig is not None
        return self._rig

    async def goto(self, place: str = "#/") -> None:
        """Open an address of the page, such as ``#/chat``; the page is loaded anew."""
        await self.page.goto("about:blank")
        await self.page.goto(f"{self.url}/{place}")

    def check_silent(self) -> None:
        """Fail if the page wrote an error, threw one, or something broke its policy."""
        assert not self.heard, "\n".join(self.heard)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not any(each in message.text for each in self._expected):
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
    """Open a page at a server's address; ``expected``: parts of errors that the page may write."""
    expect.set_options(timeout=PATIENCE)
    async with browser() as started:
        opened = await started.new_context(
            locale=LOCALES[language],
            color_scheme="dark" if dark else "light",
            viewport={"width": size[0], "height": size[1]},
            reduced_motion="reduce",
            **context,
        )
        opened.set_default_timeout(PATIENCE)
        await opened.add_init_script(LISTEN)
        desk = Desk(await opened.new_page(), url, rig, expected)
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
    """Serve the application with a scripted model, and open a page on it. ``settings``: as `Rig` takes them.

    ``permissions``: what the browser lets the page do, such as reading the clipboard.
    """
    with anyio.fail_after(HANG_SECONDS):  # a test that waits for what does not come would hang for ever
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

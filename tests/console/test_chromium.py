"""The browser that all tests share: isolated contexts, and a new browser after a crash."""

import pytest
from playwright.async_api import Error

from tests.console.chromium import browser_context
from tests.console.rig import needs_browser

pytestmark = needs_browser


async def test_a_crashed_browser_is_replaced_and_a_test_leaves_nothing_in_it() -> None:
    async with browser_context() as first:
        await first.new_page()
        assert first.browser is not None
        devtools = await first.browser.new_browser_cdp_session()
        with pytest.raises(Error):
            await devtools.send("Browser.crash")
    async with browser_context() as second:
        page = await second.new_page()
        assert await page.evaluate("1 + 1") == 2
    async with browser_context() as third:
        assert third.browser is second.browser
        assert third.browser is not None
        assert third.browser.contexts == [third]

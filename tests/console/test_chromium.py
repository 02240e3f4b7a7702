"""The browser that all tests share: contexts that know nothing of each other, and a new browser where one died."""

import pytest
from playwright.async_api import Error

from tests.console.chromium import browser
from tests.console.rig import needs_browser

pytestmark = needs_browser


async def test_a_crashed_browser_is_replaced_and_a_test_leaves_nothing_in_it() -> None:
    async with browser() as first:
        await (await first.new_context()).new_page()
        devtools = await first.new_browser_cdp_session()
        with pytest.raises(Error):
            await devtools.send("Browser.crash")
    async with browser() as second:
        page = await (await second.new_context()).new_page()
        assert await page.evaluate("1 + 1") == 2
    async with browser() as third:
        assert third.contexts == []
        assert third.version == second.version

"""Check pages with axe-core for accessibility: screen readers, keyboards and low vision."""

from typing import Any

from playwright.async_api import Page

from tests.node import CLIENTS, node

SCRIPT = "node_modules/axe-core/axe.min.js"


async def check_accessible(page: Page, context: str = "") -> None:
    """Fail with axe's findings on the page in its current state.

    The browser's debugging protocol evaluates the script, because the page's policy forbids it.
    """
    node()  # installs the packages
    session = await page.context.new_cdp_session(page)
    loaded = await session.send("Runtime.evaluate", {"expression": "typeof axe"})
    if loaded["result"]["value"] == "undefined":
        script = (CLIENTS / SCRIPT).read_text(encoding="utf-8")
        await session.send("Runtime.evaluate", {"expression": script})
    run = "axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations)"
    answer = await session.send("Runtime.evaluate", {"expression": run, "awaitPromise": True, "returnByValue": True})
    violations: list[dict[str, Any]] = answer["result"]["value"]
    findings = [
        f"{violation['id']}: {violation['help']}: {[part['html'][:200] for part in violation['nodes'][:3]]}"
        for violation in violations
    ]
    assert not findings, f"{context}: " + "\n".join(findings)
    await session.detach()


async def check_fits(page: Page) -> None:
    """Fail if the page is wider than its window."""
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert await page.evaluate(wide) <= 0

"""Actions of people in the console: signing in with a key, and navigating by keyboard only."""

from playwright.async_api import Page, expect

from tests.access.tenants import make_key
from tests.console.rig import Desk

MOST_TABS = 80


async def sign_in(desk: Desk, name: str, role: str, *domains: str, at: str = "#/") -> str:
    """Create a key, open an address of the page and sign in. Return the key."""
    key = await make_key(desk.rig, name, role, *domains)
    await desk.goto(at)
    await fill_in(desk.page, name, key)
    await expect(desk.page.get_by_role("button", name=f"Account: {name}")).to_be_visible()
    return key


async def fill_in(page: Page, name: str, key: str) -> None:
    """Fill in and send the sign-in form."""
    await page.get_by_label("Name", exact=True).fill(name)
    await page.get_by_label("Key", exact=True).fill(key)
    await page.get_by_role("button", name="Sign in", exact=True).click()


async def tab_to(page: Page, name: str) -> None:
    """Press Tab until the element with this name has the focus."""
    for _ in range(MOST_TABS):
        await page.keyboard.press("Tab")
        if await page.evaluate(CALLED) == name:
            return
    raise AssertionError(f"{name!r} cannot be reached by Tab")


CALLED = """() => {
  const at = document.activeElement;
  return at.getAttribute("aria-label") ?? at.labels?.[0]?.textContent ?? at.textContent.trim();
}"""

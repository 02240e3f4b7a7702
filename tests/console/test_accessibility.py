"""axe finds nothing on the chat: empty, signed out, with an answer, a wait, a panel, a menu; in both themes, narrow."""

from pathlib import Path

from playwright.async_api import expect

from agentic_rag.testing.steps import Cite, Say, Step, Think, Use, use
from tests.access.tenants import make_key
from tests.console.axe import check_accessible, check_fits
from tests.console.rig import console, in_shapes, needs_browser

pytestmark = needs_browser

TABLE = (
    "\n\n# Head\n\n| kind | days |\n|---|---:|\n| paid | 25 |\n\n```\ncode that is rather long " + "x" * 200 + "\n```\n"
)
STEPS = (
    Step((Think("Look."), Say("I look it up. "), Use("search_documents", {"query": "leave"}))),
    Step((Say("**25** days", (Cite(0),)), Say(TABLE))),
    use("ask_user", question="Which site?", options=["North", "South"]),
)


@in_shapes
async def test_axe_finds_no_accessibility_problem(tmp_path: Path, dark: bool, size: tuple[int, int]) -> None:
    async with console(tmp_path, *STEPS, dark=dark, size=size) as desk:
        page = desk.page
        await desk.goto()
        await expect(page.get_by_role("heading", name="No domains yet")).to_be_visible()
        await check_accessible(page, "empty server")
        domain = await desk.rig.domain(askUser=True)
        await desk.rig.upload(domain, "leave.md", b"# Leave\n\nTwenty-five days of leave a year.")
        await desk.goto()
        await expect(page.get_by_role("heading", name="Law")).to_be_visible()
        await check_accessible(page, "start")
        for text in ("How many?", "Where?"):
            await page.get_by_label("Message", exact=True).fill(text)
            await page.keyboard.press("Enter")
            if text == "How many?":
                await expect(page.locator('.turn[data-status="done"] .answer-acts')).to_have_count(1)
        await expect(page.locator(".wait .option")).to_have_count(2)
        await page.locator("summary.steps-head").first.click()
        await page.locator(".call-head").first.click()
        await check_accessible(page, "answer and wait")
        await check_fits(page)
        await page.locator(".chat-head").get_by_role("button", name="More").click()
        await expect(page.get_by_role("menuitem", name="Rename")).to_be_visible()
        await check_accessible(page, "menu")
        await page.keyboard.press("Escape")
        await page.locator(".citation").first.click()
        await expect(page.locator(".source mark")).to_be_visible()
        await check_accessible(page, "source")
        await check_fits(page)
        await page.keyboard.press("Escape")
        if size[0] < 900:
            await page.get_by_role("button", name="Conversations").click()
            await expect(page.locator(".conversation-link").first).to_be_visible()
            await check_accessible(page, "list")
        await make_key(desk.rig, "ann", "operator")
        await desk.goto()
        await expect(page.get_by_role("heading", name="Sign in to Agentic RAG")).to_be_visible()
        await check_accessible(page, "sign-in")
        await check_fits(page)

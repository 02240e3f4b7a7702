"""Foreign texts never run in the console: in messages, titles, names, documents, calls, waits and errors."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from agentic_rag.base.errors import ModelError
from agentic_rag.testing.steps import Cite, Say, Step, Think, Use
from tests.console.rig import Desk, console, needs_browser
from tests.console.xss import CORPUS, LISTEN_FOR_HITS

pytestmark = [needs_browser, pytest.mark.attack(kind="web")]

ALL = "\n\n".join(CORPUS)


async def check_quiet(desk: Desk) -> None:
    """Fail if a text ran, loaded something, changed the page's shell, or left executable content."""
    page = desk.page
    assert await page.evaluate("window.hits") == []
    assert await page.locator("#app, main > main, base, meta[http-equiv=refresh]").count() == 0
    assert await page.evaluate("document.getElementById('toasts').className") == "toasts"
    forbidden = "script, iframe, object, embed, style, form:not(.composer), [onerror], [onload], [href^='javascript' i]"
    assert await page.locator(f"#main :is({forbidden})").count() == 0
    assert page.url.startswith(desk.url)


async def test_text_of_people_models_documents_and_tools_runs_no_script(tmp_path: Path) -> None:
    question = Step((Think(ALL), Say(ALL), Use("search_documents", {"query": "passage " + CORPUS[1]})))
    cited_step = Step((Say(f"So it is. {ALL}", (Cite(0),)),))
    unknown_tool = Step((Use("search_documents", {"query": CORPUS[0], "<img src=x onerror=hit()>": ALL}),))
    async with console(tmp_path, question, unknown_tool, cited_step) as desk:
        page = desk.page
        await page.add_init_script(LISTEN_FOR_HITS)
        domain = await desk.rig.domain()
        plain = " ".join(text for text in CORPUS if text.isprintable())
        await desk.rig.ok("PATCH", f"/api/domains/{domain}", {"name": CORPUS[1], "description": plain})
        text = "\n\n".join(f"passage {number} {text}" for number, text in enumerate(CORPUS))
        await desk.rig.upload(domain, "<img src=x onerror=hit()>.txt", text.encode())
        for title in CORPUS:
            await desk.rig.conversation(domain, title=title)
        await desk.goto()
        await page.get_by_label("Message", exact=True).fill(ALL)
        await page.keyboard.press("Enter")
        await expect(page.locator('.turn[data-status="done"] .answer-acts')).to_have_count(1)
        for _ in range(2):
            await page.locator("summary.steps-head").click()
            for summary in await page.locator(".steps-body summary").all():
                await summary.click()
            await check_quiet(desk)
            await page.locator(".citation").first.click()
            await expect(page.locator(".source .passage-main")).to_contain_text("passage")
            await check_quiet(desk)
            await page.keyboard.press("Escape")
            await page.get_by_role("button", name="More about this answer").click()
            await page.get_by_role("menuitem", name="2 searches").click()
            await expect(page.get_by_role("dialog").locator(".hit").first).to_be_visible()
            await check_quiet(desk)
            await page.keyboard.press("Escape")
            await page.reload()
            await expect(page.locator('.turn[data-status="done"] .answer-acts')).to_have_count(1)


async def test_waits_and_errors_run_no_script(tmp_path: Path) -> None:
    options = [CORPUS[0], CORPUS[1]]
    question = Step((Use("ask_user", {"question": ALL[:1500], "options": options}),))
    model_error = ModelError(ALL, retryable=False)
    async with console(tmp_path, question, model_error) as desk:
        page = desk.page
        await page.add_init_script(LISTEN_FOR_HITS)
        await desk.rig.domain(askUser=True)
        await desk.goto()
        await page.get_by_label("Message", exact=True).fill("Ask")
        await page.keyboard.press("Enter")
        await expect(page.locator(".wait .option")).to_have_count(2)
        await check_quiet(desk)
        await page.locator(".wait .option").last.click()
        await page.locator(".wait").get_by_role("button", name="Send").click()
        await expect(page.get_by_role("alert")).to_be_visible()
        await check_quiet(desk)

"""Documents attached in the chat: they go to the domain, say how far they are, and the message waits for them."""

from pathlib import Path

import anyio
from playwright.async_api import FilePayload, Route, expect

from agentic_rag.testing.steps import Cite, Say, Step, Use
from tests.access.tenants import as_operator
from tests.console.axe import check_accessible
from tests.console.people import sign_in
from tests.console.rig import console, needs_browser

pytestmark = needs_browser

LEAVE = FilePayload(name="leave.md", mimeType="text/markdown", buffer=b"# Leave\n\nTwenty-five days of leave a year.")
PROGRAM = FilePayload(name="run.exe", mimeType="application/octet-stream", buffer=b"MZ\0\0")
STEPS = (
    Step((Use("search_documents", {"query": "days of leave"}),)),
    Step((Say("**25** days", (Cite(0),)),)),
)


async def test_a_document_is_attached_read_and_cited_though_the_connection_was_lost(tmp_path: Path) -> None:
    release, cut = anyio.Event(), list[str]()

    async def lose_one_then_hold(route: Route) -> None:
        if route.request.method != "POST":
            await route.continue_()
        elif not cut:
            cut.append(route.request.url)
            await route.abort()
        else:
            await release.wait()
            await route.continue_()

    async with console(tmp_path, *STEPS) as desk:
        page = desk.page
        domain = await desk.rig.domain()
        await desk.goto(f"#/chat/{domain}")
        message, send = page.get_by_label("Message", exact=True), page.get_by_role("button", name="Send", exact=True)
        await page.route(f"**/api/domains/{domain}/documents*", lose_one_then_hold)
        await expect(page.get_by_role("button", name="Attach images or documents")).to_be_visible()
        await message.fill("How many days?")
        await page.locator(".composer input[type=file]").set_input_files([LEAVE])
        row = page.get_by_role("list", name="Attached documents").get_by_role("listitem")
        await expect(row.get_by_role("alert")).to_contain_text("connection broke")
        await expect(send).to_be_enabled()  # one may go on without it
        await row.get_by_role("button", name="Try again").click()
        await expect(row).to_contain_text("Uploading")
        await expect(send).to_be_disabled()
        await message.press("Enter")
        await expect(message).to_have_value("How many days?")
        await expect(page.get_by_text("You can send the message once they are read.")).to_be_visible()
        await check_accessible(page, "a document on its way")
        release.set()
        await expect(row.locator(".badge")).to_have_text("Ready")
        await expect(send).to_be_enabled()
        await message.press("Enter")
        await expect(page.locator('.turn[data-status="done"] .citation')).to_have_count(1)
        await expect(row).to_have_count(0)
        assert [each["name"] for each in (await desk.rig.ok("GET", f"/api/domains/{domain}/documents"))["items"]] == [
            "leave.md"
        ]


async def test_what_is_no_document_says_why_and_is_taken_off(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page = desk.page
        domain = await desk.rig.domain()
        await desk.goto(f"#/chat/{domain}")
        await page.locator(".composer input[type=file]").set_input_files([PROGRAM, LEAVE])
        rows = page.get_by_role("list", name="Attached documents").get_by_role("listitem")
        await expect(rows.first.get_by_role("alert")).to_contain_text("cannot be read")
        await expect(rows.first.get_by_role("button", name="Try again")).to_be_hidden()
        await expect(rows.last.locator(".badge")).to_have_text("Ready")
        await page.get_by_role("button", name="Remove run.exe from the message").click()
        await expect(rows).to_have_count(1)
        await page.get_by_role("button", name="New conversation").first.click()
        await expect(rows).to_have_count(1)  # the same domain's


async def test_who_may_not_add_documents_is_told_so(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, rig = desk.page, desk.rig
        as_operator(rig)
        domain = await rig.domain()
        await sign_in(desk, "ann", "member", domain, at=f"#/chat/{domain}")
        await expect(page.get_by_role("button", name="Attach images", exact=True)).to_be_visible()
        await page.locator(".composer input[type=file]").set_input_files([LEAVE])
        await expect(page.locator(".toast")).to_contain_text("Only an admin of this domain can add documents")
        assert (await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"] == []

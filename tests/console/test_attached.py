"""Files attached in the chat: read for one question, cited in its answer, kept over a reload, refused one by one."""

from pathlib import Path

import anyio
import pytest
from playwright.async_api import FilePayload, Route, expect

from agentic_rag.testing.steps import Cite, Say, Step, Use, use
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


async def test_a_member_attaches_a_file_that_is_read_cited_and_opened_though_the_connection_was_lost(
    tmp_path: Path,
) -> None:
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
        page, rig = desk.page, desk.rig
        as_operator(rig)
        domain = await rig.domain()
        await sign_in(desk, "ann", "member", domain, at=f"#/chat/{domain}")
        message, send = page.get_by_label("Message", exact=True), page.get_by_role("button", name="Send", exact=True)
        await page.route("**/attachments", lose_one_then_hold)
        await expect(page.get_by_role("button", name="Attach images or files")).to_be_visible()
        await message.fill("How many days?")
        await page.locator(".composer input[type=file]").set_input_files([LEAVE])
        row = page.get_by_role("list", name="Attached files").get_by_role("listitem")
        await expect(row.get_by_role("alert")).to_contain_text("connection broke")
        await expect(send).to_be_enabled()  # the question can be sent without the file
        await row.get_by_role("button", name="Try again").click()
        await expect(row.locator(".badge")).to_contain_text("Uploading")
        await expect(send).to_be_disabled()
        await message.press("Enter")
        await expect(message).to_have_value("How many days?")
        await expect(page.get_by_text("You can send the message once they are read.")).to_be_visible()
        await check_accessible(page, "a file on its way")
        release.set()
        await expect(row.locator(".badge")).to_have_text("Ready")
        await page.reload()  # the file and the words are shown again
        await expect(row.locator(".badge")).to_have_text("Ready")
        await expect(message).to_have_value("How many days?")
        await message.press("Enter")
        await expect(page.locator('.turn[data-status="done"] .citation')).to_have_count(1)
        await expect(row.locator(".badge")).to_have_count(0)
        await expect(page.locator(".question-file")).to_have_text("leave.md")
        await page.locator(".citation").click()
        await expect(page.locator(".source-quote")).to_contain_text("Twenty-five days of leave a year.")
        await check_accessible(page, "a cited attachment")
        async with page.expect_download() as saving:
            await page.locator(".source-head a[download]").click()
        assert (await saving.value).suggested_filename == "leave.md"
        await page.reload()
        await expect(page.locator(".question-file")).to_have_text("leave.md")
        assert (await rig.ok("GET", f"/api/domains/{domain}/documents"))["items"] == []


@pytest.mark.nightly("a file is attached, read and cited every time")
async def test_an_unreadable_attachment_has_a_chinese_reason_too_and_can_be_removed(tmp_path: Path) -> None:
    async with console(tmp_path, language="zh") as desk:
        page = desk.page
        domain = await desk.rig.domain()
        await desk.goto(f"#/chat/{domain}")
        await page.locator(".composer input[type=file]").set_input_files([PROGRAM, LEAVE])
        rows = page.get_by_role("list", name="附件").get_by_role("listitem")
        await expect(rows.first.get_by_role("alert")).to_have_text(
            "不支持此类文件。请另存为 PDF、Word（.docx）、Markdown 等格式后再上传。"
        )
        await expect(rows.first.get_by_role("button", name="重试")).to_be_hidden()
        await expect(rows.last.locator(".badge")).to_have_text("就绪")
        await page.get_by_role("button", name="从消息中移除 run.exe").click()
        await expect(rows).to_have_count(1)
        async with page.expect_response(
            lambda answer: answer.request.method == "DELETE" and "attachments" not in answer.url
        ):
            await page.get_by_role("button", name="从消息中移除 leave.md").click()
        await expect(rows).to_have_count(0)
        assert not list((desk.rig.settings.data / "payloads").iterdir())
        assert (await desk.rig.ok("GET", "/api/conversations"))["items"] == []


async def test_a_cited_row_stands_below_the_name_of_its_file_and_a_refusal_names_the_file_once(tmp_path: Path) -> None:
    steps = use("search_documents", query="rate of the Cormorant"), Step((Say("It is 45.", (Cite(0, 2),)),))
    async with console(tmp_path, *steps) as desk:
        page, domain = desk.page, await desk.rig.domain()
        await desk.rig.upload(domain, "rates.csv", b"boat,rate\nAlbatross,90\nCormorant,45\n")
        await desk.goto(f"#/chat/{domain}")
        await page.get_by_label("Message", exact=True).fill("What is the rate?")
        await page.keyboard.press("Enter")
        name, table = page.locator(".source-name"), page.locator(".source-tables")
        await expect(table).to_contain_text("45")
        name_box, table_box = await name.bounding_box(), await table.bounding_box()
        assert name_box is not None
        assert table_box is not None
        assert name_box["y"] + name_box["height"] <= table_box["y"], "the table stands beside the name"
        broken = FilePayload(name="broken.pdf", mimeType="application/pdf", buffer=b"no document")
        await page.locator(".composer input[type=file]").set_input_files([broken])
        reason = page.get_by_role("list", name="Attached files").get_by_role("alert")
        await expect(reason).to_contain_text("The file is not a readable PDF")
        await expect(reason).not_to_contain_text("broken.pdf")

"""A new user reaches six goals with the page alone: each step clicks something visible, without an address."""

import json
from pathlib import Path

import pytest
from playwright.async_api import FilePayload, expect

from agentic_rag.testing.steps import Cite, Say, Step, say, use
from tests.console.rig import console, needs_browser
from tests.tools.captives import needs_bubblewrap
from tests.tools.support import SERVERS

pytestmark = needs_browser

LEAVE = b"# Leave\n\nFull-time staff have 27 days of paid leave a year.\n"
DAYS = (use("search_documents", query="paid leave"), Step((Say("27 days.", (Cite(0),)),)))
GREETING = (use("notes__greet", name="Ann"), say("Ann was greeted."))
STEPS = (*DAYS, *DAYS, say("I am the clerk."), *GREETING)
SERVER = {"mcpServers": {"notes": {"command": "node", "args": ["./notes.js"]}}}


@needs_bubblewrap
@pytest.mark.nightly("each of its pages has a walk that runs every time")
async def test_a_new_user_reaches_six_goals_through_visible_controls(tmp_path: Path) -> None:
    async with console(tmp_path, *STEPS, share_links="anyone") as desk:
        page, rig = desk.page, desk.rig
        message = page.get_by_role("textbox", name="Message", exact=True)
        dialog = page.get_by_role("dialog")
        handbook = await rig.domain()
        await rig.upload(handbook, "leave.md", LEAVE)
        local = rig.settings.data / "mcp" / "local"  # the folder for an operator's own programs
        local.mkdir(parents=True)
        script = (SERVERS / "notes.js").read_text()
        (local / "notes.js").write_text(script.replace("readOnlyHint: true", "readOnlyHint: false"))

        # A cited answer
        await desk.goto("")
        await page.locator(".starter").first.click()
        await expect(page.locator('.turn[data-status="done"] .citation')).to_be_visible()

        # Answers from the user's documents
        await page.get_by_role("link", name="Domains").click()
        await page.get_by_role("button", name="New domain").click()
        await dialog.get_by_label("Name", exact=True).fill("People")
        await dialog.get_by_role("button", name="Create domain").click()
        async with page.expect_file_chooser() as choosing:
            await page.get_by_role("button", name="Choose files").first.click()
        await (await choosing.value).set_files([FilePayload(name="mine.md", mimeType="text/markdown", buffer=LEAVE)])
        await expect(page.locator(".document-row")).to_contain_text("Ready")
        await page.get_by_role("link", name="Open the chat").click()
        await message.fill("How many days of leave?")
        await page.keyboard.press("Enter")
        await expect(page.locator('.turn[data-status="done"] .citation')).to_be_visible()

        # A new role that answers
        await page.get_by_role("link", name="Domains").click()
        await page.get_by_role("link", name="People").click()
        await page.get_by_role("link", name="Roles").click()
        await page.get_by_role("button", name="New role").click()
        await dialog.get_by_label("Id").fill("clerk")
        await dialog.get_by_role("button", name="Start").click()
        source = page.get_by_label("Source of the role")
        await source.fill("<role>\n<personality>\nI am the clerk.\n</personality>\n</role>\n")
        await page.get_by_role("button", name="Save (applies from the next message)").click()
        await page.get_by_role("button", name="Use as primary role").click()
        await page.get_by_role("link", name="Open the chat").click()
        await message.fill("Who are you?")
        await page.keyboard.press("Enter")
        await expect(page.locator('.turn[data-status="done"]')).to_contain_text("I am the clerk.")

        # A new MCP server, allowed to start, and a call of its tool that the person approves
        await page.get_by_role("link", name="Domains").click()
        await page.get_by_role("link", name="People").click()
        await page.get_by_role("link", name="Servers").click()
        await page.get_by_role("button", name="Paste servers").click()
        await dialog.get_by_label("Server configuration").fill(json.dumps(SERVER))
        await dialog.get_by_role("button", name="Check").click()
        await dialog.get_by_role("button", name="Approve and continue").click()
        await dialog.get_by_role("button", name="Approve", exact=True).click()
        await expect(dialog.locator('[data-server="notes"] .badge')).to_have_text("Ready")
        await dialog.get_by_role("button", name="Save the selected servers").click()
        await expect(page.get_by_label("Servers", exact=True)).to_contain_text("notes")
        await page.get_by_role("link", name="Open the chat").click()
        await message.fill("Greet Ann.")
        await page.keyboard.press("Enter")
        card = page.locator(".wait")
        await expect(card).to_contain_text("greet")
        await card.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.locator('.turn[data-status="done"]')).to_contain_text("Ann was greeted.")
        assert "Hello Ann!" in str(rig.model.requests[-1].messages[-1])

        # A wrong answer becomes an evaluation case
        answer = page.locator('.turn[data-status="done"]')
        await answer.get_by_role("button", name="Bad answer").click()
        await dialog.get_by_role("button", name="Skip").click()
        await page.get_by_role("button", name="Make an evaluation case").click()
        await expect(dialog.get_by_label("Questions")).to_have_value("Greet Ann.")
        await dialog.get_by_label("The answer contains").fill("Hello")
        await dialog.get_by_role("button", name="Save").click()
        await expect(page.locator(".toast").last).to_contain_text("Evaluation case saved.")

        # A shared conversation
        await page.get_by_role("button", name="More", exact=True).click()
        await page.get_by_role("menuitem", name="Share or export").click()
        await dialog.get_by_role("button", name="Make a link").click()
        link = await dialog.get_by_label("Link to this conversation").input_value()
        await page.goto(link)
        await expect(page.locator("body")).to_contain_text("Ann was greeted.")

"""Apps of MCP servers on the page: what a stranger's page below a tool call gets, and what it can not reach."""

import sys
from pathlib import Path

from playwright.async_api import expect

from agentic_rag.testing.steps import say, use
from tests.console.rig import console, needs_browser
from tests.tools.support import SERVERS

pytestmark = [needs_browser]

POLICY_SAYS = ("Content Security Policy", "Content-Security-Policy", "policy violated", "Blocked a frame")


async def test_an_app_shows_a_result_and_reaches_nothing_else(tmp_path: Path) -> None:
    steps = [use("charts__chart", title="Sales"), say("There it is."), say("The next quarter.")]
    async with console(tmp_path, *steps, any_command=True, expected=POLICY_SAYS) as desk:
        page, rig = desk.page, desk.rig
        entry = {"command": sys.executable, "args": ["-I", "-S", str(SERVERS / "app.py")]}
        domain = await rig.domain(
            mcpServers={"charts": entry}, toolPolicy={"charts__*": "allow"}, mcpApps=["charts"], model="scripted-1"
        )
        assert (await rig.ok("POST", f"/api/domains/{domain}/mcp-servers/charts/restart"))["state"] == "ready"
        conversation = await rig.conversation(domain)
        assert (await rig.say(conversation, "Show the sales"))[-1]["type"] == "done"
        names = [tool["name"] for tool in rig.model.requests[0].tools]
        assert "charts__chart" in names
        assert "charts__refresh" not in names  # it is for the app alone
        await desk.goto(f"#/chat/{domain}/{conversation}")
        await page.locator("summary.steps-head").first.click()
        await page.locator(".call-head").first.click()
        await page.get_by_role("button", name="Open app").click()
        app = page.frame_locator("iframe.app-frame")
        await expect(app.locator("#input")).to_have_text("Sales")
        await expect(app.locator("#result")).to_contain_text("Chart of Sales")
        await expect(app.locator("#result")).to_contain_text('"points":[1,2]')
        await expect(app.locator("#reached")).to_have_text("parent storage network inline")
        await expect(app.locator("#data")).to_have_text("a,b")
        await expect(app.locator("#refused")).to_contain_text("offers no tool 'report' to its apps")
        card = page.locator(".app .wait")
        await expect(card).to_contain_text("The app of 'charts__chart' wants to call 'refresh' of the server 'charts'.")
        await expect(card).to_contain_text("charts__chart")
        await expect(app.locator("#tools")).to_have_text("")  # nothing runs before a person agrees
        await card.get_by_role("textbox", name="Arguments").fill('{"title": "Less"}')
        await card.get_by_role("button", name="Approve", exact=True).click()
        await expect(app.locator("#tools")).to_have_text("Chart of Less")
        await expect(card).to_have_count(0)
        await page.evaluate("document.documentElement.dataset.theme = 'dark'")
        await expect(app.locator("#theme")).to_have_text("dark")
        await expect(page.locator("iframe.app-frame")).to_have_css("height", "333px")

        await app.locator("#script").click()
        await expect(app.locator("#said")).to_have_text("only http and https links can be opened")
        await app.locator("#link").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("https://example.com/report")
        await dialog.get_by_role("button", name="Cancel").click()
        await expect(app.locator("#said")).to_have_text("the person declined")
        await app.locator("#message").click()
        await expect(dialog).to_contain_text("Show the <b>next</b> quarter")
        await dialog.get_by_role("button", name="Send message").click()
        await expect(page.get_by_text("The next quarter.", exact=True)).to_be_visible()
        await expect(app.locator("#said")).to_have_text("agreed")
        await page.get_by_role("button", name="Close app").click()
        await expect(page.locator("iframe.app-frame")).to_have_count(0)
        await page.get_by_role("button", name="Open app").first.click()  # it asks again, and leaves with the question
        await expect(card).to_contain_text("wants to call 'refresh'")
        await page.get_by_role("button", name="Close app").click()
        await expect(card).to_have_count(0)

"""Apps of MCP servers on the page: what a foreign page below a tool call receives, and what it cannot reach."""

import shutil
import sys
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import pytest
from playwright.async_api import expect

from agentic_rag.testing.steps import say, use
from tests.console.rig import console, needs_browser
from tests.node import node, npm
from tests.tools.support import SERVERS

pytestmark = [needs_browser]

OFFICIAL: Final = "@modelcontextprotocol/server-basic-vanillajs@2.0.3"
"""An example server of the package ``@modelcontextprotocol/ext-apps``.

Its program and its page have no dependencies.
"""
POLICY_SAYS = ("Content Security Policy", "Content-Security-Policy", "policy violated", "Blocked a frame")


async def test_an_app_shows_a_result_and_cannot_reach_anything_else(tmp_path: Path) -> None:
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
        assert "charts__refresh" not in names  # only the app can see it
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
        await page.get_by_role("button", name="Open app").first.click()  # it asks again, and is cancelled meanwhile
        await expect(card).to_contain_text("wants to call 'refresh'")
        await page.get_by_role("button", name="Close app").click()
        await expect(card).to_have_count(0)


@pytest.mark.nightly("it needs the package registry; the test above has an app of our own")
async def test_an_app_of_the_official_examples_calls_its_server(tmp_path: Path) -> None:
    packing = [str(node()), str(npm()), "pack", OFFICIAL, "--silent", "--pack-destination", str(tmp_path)]
    result = await anyio.run_process(packing, check=False)
    if result.returncode:
        pytest.skip(f"the package cannot be had: {result.stderr.decode().strip()[-200:]}")
    archive = tmp_path / result.stdout.decode().split()[-1]
    await anyio.to_thread.run_sync(shutil.unpack_archive, archive, tmp_path, "gztar")
    entry = {"command": str(node()), "args": [str(tmp_path / "package" / "dist" / "index.js"), "--stdio"]}
    steps = [use("time__get-time"), say("It is late.")]
    async with console(tmp_path / "server", *steps, any_command=True, expected=POLICY_SAYS) as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain(
            mcpServers={"time": entry}, toolPolicy={"time__*": "allow"}, mcpApps=["time"], model="scripted-1"
        )
        state = await rig.ok("POST", f"/api/domains/{domain}/mcp-servers/time/restart")
        assert state["state"] == "ready", state
        conversation = await rig.conversation(domain)
        assert (await rig.say(conversation, "What time is it?"))[-1]["type"] == "done"
        await desk.goto(f"#/chat/{domain}/{conversation}")
        await page.locator("summary.steps-head").first.click()
        await page.locator(".call-head").first.click()
        await page.get_by_role("button", name="Open app").click()
        app = page.frame_locator("iframe.app-frame")
        server_time = app.locator("#server-time")
        await expect(server_time).to_contain_text("Z")  # the result of the model's call
        before = await server_time.text_content()
        await app.get_by_role("button", name="Get Server Time").click()
        card = page.locator(".app .wait")
        await expect(card).to_contain_text("wants to call")
        await card.get_by_role("button", name="Approve", exact=True).click()
        await expect(server_time).not_to_have_text(before or "")
        await page.get_by_role("button", name="Close app").click()
        await expect(page.locator("iframe.app-frame")).to_have_count(0)

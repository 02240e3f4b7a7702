"""Notifications and schedules on the page of a domain, and the operator's endpoints."""

from pathlib import Path

from playwright.async_api import expect

from agentic_rag.testing.steps import say
from tests.console.axe import check_accessible
from tests.console.rig import console, needs_browser
from tests.reach.receiver import Receiver

pytestmark = needs_browser


async def test_an_admin_adds_an_endpoint_and_a_schedule_and_views_their_runs(tmp_path: Path) -> None:
    async with (
        Receiver().open() as receiver,
        console(tmp_path, say("All calm."), mcp_hosts=receiver.address, language="en") as desk,
    ):
        page, rig = desk.page, desk.rig
        domain = await rig.domain()
        await desk.goto(f"#/domains/{domain}/notifications")
        await page.get_by_role("button", name="Add endpoint").first.click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Name").fill("Team <b>hook</b>")
        await dialog.get_by_label("Address", exact=True).fill("http://10.0.0.1/")
        await dialog.get_by_label("schedule.finished").check()
        await check_accessible(page)
        await dialog.get_by_role("button", name="Save").click()
        await expect(dialog.get_by_text("this address cannot be used")).to_be_visible()
        await dialog.get_by_label("Address", exact=True).fill(receiver.url)
        await dialog.get_by_role("button", name="Save").click()
        await expect(page.get_by_text("It is not shown again")).to_be_visible()
        assert (await page.locator("dialog code").inner_text()).startswith("whsec_")
        await page.get_by_role("dialog").get_by_role("button", name="Close").last.click()
        await expect(page.get_by_text("Team <b>hook</b>")).to_be_visible()
        await page.get_by_role("button", name="Add schedule").first.click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Name").fill("Morning")
        await dialog.get_by_label("Cron fields").fill("* * * * *")
        await dialog.get_by_label("Prompt").fill("What is new?")
        await check_accessible(page)
        await dialog.get_by_role("button", name="Save").click()
        await expect(dialog.get_by_text("at least 300 s")).to_be_visible()
        await dialog.get_by_label("Cron fields").fill("0 7 * * MON")
        await dialog.get_by_role("button", name="Save").click()
        await expect(page.get_by_text("0 7 * * MON")).to_be_visible()
        await page.get_by_role("button", name="Run Morning now").click()
        (webhook,) = await receiver.wait_for(1)
        assert (webhook["type"], webhook["data"]["state"]) == ("schedule.finished", "done")
        await page.get_by_role("button", name="Runs of Morning").click()
        await expect(page.get_by_role("dialog").get_by_text("Done")).to_be_visible()
        await check_accessible(page)
        await page.get_by_role("dialog").get_by_role("link", name="Open").click()
        await expect(page.get_by_text("All calm.")).to_be_visible()
        await desk.follow("#/operator/notifications")
        await expect(page.get_by_text("No endpoints yet")).to_be_visible()
        await check_accessible(page)

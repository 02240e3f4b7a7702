"""A domain's history, its bundles and its budgets in the console: shown, restored, moved, set."""

from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.console.axe import check_accessible, check_fits
from tests.console.rig import console, in_shapes, needs_browser
from tests.console.test_domain_pages import domain_of
from tests.server.rig import Rig
from tests.usage.test_budgets import make_step, write_price_file

pytestmark = needs_browser

ROLE = "<role>\n  <personality>\n    {}\n  </personality>\n</role>\n"


async def write_role(rig: Rig, domain: str, words: str) -> None:
    files = [{"kind": "role", "id": "lawyer", "content": ROLE.format(words)}]
    await rig.ok("PUT", f"/api/domains/{domain}/roles/lawyer", {"files": files})


async def test_a_change_is_viewed_reverted_and_the_revert_undone(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain(language="de")
        path = f"/api/domains/{domain}"
        await rig.ok("PATCH", path, {"settings": {"language": "fr"}, "name": "Renamed"})
        await rig.ok("PUT", f"{path}/prompt-components/tone.md", {"content": "Be calm.\n"})
        await rig.ok("PUT", f"{path}/prompt-components/tone.md", {"content": "Be quick.\n"})
        await write_role(rig, domain, "Calm.")
        await desk.goto(f"#/domains/{domain}/history")
        rows = page.get_by_label("Changes", exact=True).get_by_role("listitem")
        await expect(rows).to_have_count(5)
        await page.get_by_label("Filter changes").select_option("settings")
        await expect(rows).to_have_count(2)
        await rows.nth(1).get_by_role("link").click()
        preview = page.get_by_role("region", name="What restoring would change")
        await expect(preview.get_by_role("row").filter(has_text="settings.language")).to_contain_text("de")
        await page.get_by_role("button", name="Restore", exact=True).click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Law")
        assert (await rig.ok("GET", path))["settings"]["language"] == "de"
        await page.locator(".toast").get_by_role("button", name="Undo").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Renamed")
        await expect(rows).to_have_count(4)
        assert (await rig.ok("GET", path))["settings"]["language"] == "fr"

        await desk.goto(f"#/domains/{domain}/prompt/tone.md")
        await page.locator(".domain-panel").get_by_role("link", name="History", exact=True).click()
        await expect(rows).to_have_count(2)
        await rows.first.get_by_role("link").click()
        await expect(page.locator(".diff-less")).to_contain_text("Be calm.")
        await expect(page.locator(".diff-more")).to_contain_text("Be quick.")
        await desk.goto(f"#/domains/{domain}/roles/lawyer")
        await page.locator(".domain-panel").get_by_role("button", name="More", exact=True).click()
        await page.get_by_role("menuitem", name="History").click()
        await expect(rows).to_have_count(1)
        await expect(rows).to_contain_text("lawyer.role.md")


async def choose_bundle(page: Page, bundle: Path) -> None:
    async with page.expect_file_chooser() as choosing:
        await page.get_by_role("dialog").get_by_role("button", name="Choose a bundle").click()
    await (await choosing.value).set_files(bundle)


@pytest.mark.nightly("bundles/test_moving.py moves a domain every time")
async def test_a_domain_is_exported_and_imported_as_new_and_over_itself(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, rig = desk.page, desk.rig
        server = {"type": "http", "url": "https://one.example/mcp", "headers": {"X-Team": "${TEAM}"}}
        domain = await rig.domain(language="de", mcpServers={"tools": server})
        path = f"/api/domains/{domain}"
        await rig.ok("PUT", f"{path}/secrets/TEAM", {"value": "team-secret-value"})
        await rig.ok("PUT", f"{path}/prompt-components/tone.md", {"content": "Be calm.\n"})
        await desk.goto(f"#/domains/{domain}/prompt")
        await page.locator(".domain-head").get_by_role("button", name="More", exact=True).click()
        await page.get_by_role("menuitem", name="Export…").click()
        async with page.expect_download() as downloading:
            await page.get_by_role("dialog").get_by_role("link", name="Download").click()
        bundle = tmp_path / "law.zip"
        await (await downloading.value).save_as(bundle)

        await desk.goto("#/domains")
        await page.get_by_role("button", name="Import a bundle").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Name", exact=True).fill("Law 2")
        await choose_bundle(page, bundle)
        await expect(dialog.get_by_role("region", name="What would change")).to_contain_text("tone.md")
        assert len((await rig.ok("GET", "/api/domains"))["items"]) == 1, "nothing is made yet"
        await check_accessible(page, "what would be imported")
        await dialog.get_by_role("button", name="Import now").click()
        await expect(dialog.get_by_role("region", name="Secrets")).to_contain_text("not set")
        await dialog.get_by_role("link", name="Set secrets").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Law 2")
        await expect(page.get_by_role("button", name="Set a secret")).to_be_visible()
        imported = await domain_of(desk)
        assert imported != domain
        assert (await rig.ok("GET", f"/api/domains/{imported}"))["settings"]["language"] == "de"

        moved_server = {**server, "url": "https://two.example/mcp"}
        await rig.ok("PATCH", path, {"settings": {"language": "fr", "mcpServers": {"tools": moved_server}}})
        await desk.goto(f"#/domains/{domain}/prompt")
        await page.locator(".domain-head").get_by_role("button", name="More", exact=True).click()
        await page.get_by_role("menuitem", name="Import over this…").click()
        await choose_bundle(page, bundle)
        await expect(dialog.get_by_role("region", name="What would change")).to_contain_text("language")
        await dialog.get_by_role("button", name="Import now").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("tools (https://one.example/mcp) receives TEAM")
        assert (await rig.ok("GET", path))["settings"]["language"] == "fr"
        await dialog.get_by_role("button", name="Send these secrets and import").click()
        await dialog.get_by_role("link", name="Open the domain").click()
        settings = (await rig.ok("GET", path))["settings"]
        assert (settings["language"], settings["mcpServers"]["tools"]["url"]) == ("de", "https://one.example/mcp")


@in_shapes
@pytest.mark.nightly("axe checks the chat every time")
async def test_axe_finds_nothing_on_the_history(tmp_path: Path, dark: bool, size: tuple[int, int]) -> None:
    async with console(tmp_path, dark=dark, size=size, language="zh" if dark else "en") as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain()
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"expertise": "Long words of law. " * 30}})
        await write_role(rig, domain, "Calm.")
        await write_role(rig, domain, "Quick.")
        await desk.goto(f"#/domains/{domain}/history")
        await expect(page.locator(".rows-item").nth(3)).to_be_visible()
        await check_accessible(page, "list")
        await check_fits(page)
        for kind, part in (("role", ".diff"), ("settings", ".value-text")):
            await desk.goto(f"#/domains/{domain}/history/{kind}")
            await page.locator(".row-name").last.click()
            await expect(page.locator(part).first).to_be_visible()
            await check_accessible(page, kind)
            await check_fits(page)


@pytest.mark.nightly("usage/test_budgets.py sets and removes budgets every time")
async def test_an_operator_manages_budgets_and_sees_their_use(tmp_path: Path) -> None:
    async with console(tmp_path, make_step(), prices=write_price_file(tmp_path), requests_per_second=10_000) as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain()
        await rig.say(await rig.conversation(domain), "Hi")
        await desk.goto("#/operator/budgets")
        await page.get_by_role("button", name="New budget").first.click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Domain, user or key").select_option(label="Law")
        await dialog.get_by_label("Hard limit").fill("1000.5")
        await dialog.get_by_role("button", name="Save").click()
        await expect(dialog.get_by_role("alert").filter(has_text="whole")).to_be_visible()
        await dialog.get_by_label("Hard limit").fill("200000")
        await dialog.get_by_role("button", name="Save").click()
        row = page.get_by_role("row").filter(has_text="Law")
        await expect(row).to_contain_text("of 200,000")
        await row.get_by_role("button", name="Change the budget of Law").click()
        await dialog.get_by_label("Soft limit").fill("1000")
        await check_accessible(page, "the dialog")
        await dialog.get_by_role("button", name="Save").click()
        await expect(row).to_contain_text("1,000")
        await page.locator(".toast").last.get_by_role("button", name="Undo").click()
        await expect(row).not_to_contain_text(" 1,000")
        await expect(row).to_contain_text("each month")
        (budget,) = (await rig.ok("GET", "/api/budgets"))["items"]
        assert (budget["hard"], budget.get("soft")) == ("200000", None)
        await row.get_by_role("button", name="Remove the budget of Law").click()
        await expect(page.get_by_role("heading", name="No budgets")).to_be_visible()
        await page.locator(".toast").last.get_by_role("button", name="Undo").click()
        await expect(row).to_be_visible()
        await desk.goto("#/operator/usage")
        await expect(page.locator(".figure").filter(has_text="Cost")).to_contain_text("$")


@in_shapes
@pytest.mark.nightly("axe checks the chat every time")
async def test_axe_finds_nothing_on_the_budgets(tmp_path: Path, dark: bool, size: tuple[int, int]) -> None:
    async with console(tmp_path, dark=dark, size=size, language="zh" if dark else "en") as desk:
        domain = await desk.rig.domain()
        for scope, subject in (("domain", domain), ("user", "*")):
            body = {"scope": scope, "subject": subject, "unit": "tokens", "period": "day", "hard": "9000000"}
            await desk.rig.ok("PUT", "/api/budgets", body)
        await desk.goto("#/operator/budgets")
        await expect(desk.page.locator("tbody tr")).to_have_count(2)
        await check_accessible(desk.page, "budgets")
        await check_fits(desk.page)

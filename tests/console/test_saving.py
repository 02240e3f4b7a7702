"""Text typed during a save stays in every editor, and nobody overwrites an unseen version of a prompt file."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from playwright.async_api import Page, Route, expect

from tests.console.rig import console, needs_browser

pytestmark = needs_browser

ROLE = "<role>\n<personality>\nI am the clerk.\n</personality>\n</role>\n"
SERVER = '{"mcpServers": {"calc": {"url": "https://example.com/mcp", "disabled": true}}}'


@asynccontextmanager
async def hold_saves(page: Page) -> AsyncIterator[anyio.Event]:
    """Delay saves until the block ends. The event is set when a save has begun."""
    started, release = anyio.Event(), anyio.Event()

    async def hold(route: Route) -> None:
        if route.request.method == "PUT":
            started.set()
            await release.wait()
        await route.continue_()

    await page.route("**/api/domains/**", hold)
    yield started
    release.set()


@pytest.mark.parametrize(
    "place",
    [
        "settings",
        *(
            pytest.param(place, marks=pytest.mark.nightly("the settings page runs every time"))
            for place in ("prompt", "roles/clerk", "servers")
        ),
    ],
)
async def test_text_typed_during_a_save_stays(tmp_path: Path, place: str) -> None:
    async with console(tmp_path, any_command=True) as desk:
        page, domain = desk.page, await desk.rig.domain()
        base = f"/api/domains/{domain}"
        await desk.rig.ok("PUT", f"{base}/prompt-components/a.md", {"content": "One."})
        await desk.goto(f"#/domains/{domain}/{place}")
        area = page.get_by_label("Expertise") if place == "settings" else page.locator(".lines-area")
        first = {"roles/clerk": ROLE, "servers": SERVER}.get(place, "First.")
        await area.fill(first)
        async with hold_saves(page) as save_started:
            save = page.get_by_role("button", name="Save").first
            await expect(save).to_be_enabled()
            await save.click()
            await save_started.wait()
            await area.fill(f"{first}\n")
            await area.press("End")
            await area.press_sequentially(" And more")
        await expect(page.locator(".toast").first).to_contain_text("Saved")
        text = await area.input_value()
        assert text.startswith(first)
        assert text.strip().endswith("And more")
        await page.reload()
        await expect(area).to_have_value(text)


@pytest.mark.nightly("settings that are edited while they are saved are kept every time")
async def test_a_prompt_file_saved_elsewhere_is_not_silently_overwritten(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, domain = desk.page, await desk.rig.domain()
        base = f"/api/domains/{domain}/prompt-components"
        await desk.rig.ok("PUT", f"{base}/a.md", {"content": "One."})
        await desk.goto(f"#/domains/{domain}/prompt")
        area = page.locator(".lines-area")
        await area.fill("Mine.")
        await desk.rig.ok("PUT", f"{base}/a.md", {"content": "Theirs."})
        await page.reload()  # the draft continues from the version it was typed over
        await expect(area).to_have_value("Mine.")
        save = page.get_by_role("button", name="Save", exact=True)
        await save.click()
        dialog = page.get_by_role("dialog", name="Someone else saved meanwhile")
        await expect(dialog).to_contain_text("Theirs.")
        await page.keyboard.press("Escape")
        await expect(area).to_have_value("Mine.")
        assert (await desk.rig.ok("GET", base))["items"][0]["content"] == "Theirs."
        await save.click()
        await dialog.get_by_role("button", name="Use their version").click()
        await expect(area).to_have_value("Theirs.")
        await area.fill("Mine again.")
        await desk.rig.ok("DELETE", f"{base}/a.md")
        await save.click()
        await expect(dialog).to_contain_text("deleted")
        await dialog.get_by_role("button", name="Overwrite with mine").click()
        await expect(page.locator(".toast")).to_contain_text("Saved")
        assert (await desk.rig.ok("GET", base))["items"][0]["content"] == "Mine again."


@pytest.mark.nightly("unsaved settings are kept every time")
async def test_an_unsaved_prompt_file_is_restored_after_a_reload(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, domain = desk.page, await desk.rig.domain()
        await desk.goto(f"#/domains/{domain}/prompt")
        await page.get_by_role("button", name="New prompt file").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("File name").fill("new.md")
        await dialog.get_by_role("button", name="Create file").click()
        await page.locator(".lines-area").fill("Not saved yet.")
        await desk.goto(f"#/domains/{domain}/prompt")
        await expect(page.locator(".lines-area")).to_have_value("Not saved yet.")
        await page.get_by_role("button", name="Save", exact=True).click()
        await expect(page.locator(".toast")).to_contain_text("Saved")
        (component,) = (await desk.rig.ok("GET", f"/api/domains/{domain}/prompt-components"))["items"]
        assert (component["name"], component["content"]) == ("new.md", "Not saved yet.")

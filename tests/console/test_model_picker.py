"""The model picker: beside the message, stored with the conversation, shown in the details of the answer."""

from pathlib import Path

from playwright.async_api import expect

from agentic_rag.base.events import Usage
from agentic_rag.testing.steps import Say, Step
from tests.console.axe import check_accessible
from tests.console.rig import console, needs_browser

pytestmark = needs_browser

STEPS = [Step((Say(text),), usage=Usage(input=40, output=4)) for text in ("First.", "Second.")]


async def test_a_model_is_chosen_per_conversation_and_shown_in_the_answers_details(tmp_path: Path) -> None:
    async with console(tmp_path, *STEPS) as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain(model="claude-sonnet-5-5", allowedModels=["claude-haiku-5-5"])
        await desk.goto(f"#/chat/{domain}")
        picker, message = page.get_by_label("Model", exact=True), page.get_by_label("Message", exact=True)
        await expect(picker).to_have_value("claude-sonnet-5-5")
        await check_accessible(page, "the picker of a model")
        await picker.select_option("claude-haiku-5-5")
        await message.fill("One?")
        await message.press("Enter")
        await expect(page.locator('.turn[data-status="done"]')).to_have_count(1)
        await page.reload()
        await expect(picker).to_have_value("claude-haiku-5-5")
        await page.locator(".answer-acts").get_by_role("button", name="More about this answer").click()
        await expect(page.locator(".menu-facts").get_by_text("claude-haiku-5-5")).to_be_visible()
        await page.keyboard.press("Escape")
        await picker.select_option("claude-sonnet-5-5")
        await message.fill("Two?")
        await message.press("Enter")
        await expect(page.locator('.turn[data-status="done"]')).to_have_count(2)
        assert [request.model for request in rig.model.requests] == ["claude-haiku-5-5", "claude-sonnet-5-5"]

"""A long conversation: older messages load while scrolling without a jump, and distant ones are not laid out."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from agentic_rag.testing.scripted import Stalled
from agentic_rag.testing.steps import say
from tests.console.rig import console, needs_browser

pytestmark = needs_browser

TURNS = 90
LAID_OUT = """
(turns) => turns.filter((turn) => turn.checkVisibility({ contentVisibilityAuto: true })).length
"""

TO_THE_TOP = """
(thread) => {
  const go = () => (thread.scrollTop = 0);
  const afterAFrame = () => requestAnimationFrame(() => requestAnimationFrame(go));
  new MutationObserver(afterAFrame).observe(thread.querySelector(".turns"), { childList: true });
  go();
}
"""
"""A person scrolls to the top again while the latest messages are still being laid out."""


async def test_older_messages_load_in_place_and_only_near_ones_are_laid_out(tmp_path: Path) -> None:
    answers = [say(f"Answer {number} has a line.\n\nAnd **another** one.") for number in range(TURNS)]
    async with console(tmp_path, *answers) as desk:
        page, domain = desk.page, await desk.rig.domain()
        conversation = await desk.rig.conversation(domain, title="Long")
        for number in range(TURNS):
            await desk.rig.say(conversation, f"Question {number}")
        await desk.goto(f"#/chat/{domain}/{conversation}")
        turns = page.locator(".turn")
        await expect(turns.last).to_contain_text(f"Answer {TURNS - 1} has a line.")
        await expect(turns.last).to_be_in_viewport()
        assert await turns.count() < TURNS
        thread, rested = page.locator(".thread"), page.locator('.turns[aria-busy="false"]')
        for _ in range(12):
            await expect(rested).to_be_attached()
            if await turns.count() == TURNS:
                break
            first = await turns.first.locator(".question-text").text_content() or ""
            anchor = page.locator(".turn", has=page.get_by_text(first, exact=True))
            await thread.evaluate("(thread) => { thread.scrollTop = 0; }")
            await expect(turns.first.locator(".question-text")).not_to_have_text(first)
            await expect(rested).to_be_attached()
            await expect(anchor).to_be_in_viewport()  # the visible message stays in place
        await expect(turns).to_have_count(TURNS)
        texts = await page.locator(".question-text").all_text_contents()
        assert texts == [f"Question {number}" for number in range(TURNS)]
        assert await page.locator(".turn > .question").evaluate_all(LAID_OUT) < TURNS / 2
        await page.get_by_role("button", name="Jump to latest").click()
        await expect(turns.last).to_be_in_viewport()
        await desk.goto(f"#/chat/{domain}/{conversation}")
        await expect(turns.last).to_be_in_viewport()
        await thread.evaluate(TO_THE_TOP)
        await expect(turns).to_have_count(TURNS)
        await expect(rested).to_be_attached()
        await expect(turns.first).to_be_in_viewport()


@pytest.mark.nightly("older messages are loaded in place every time")
async def test_a_page_that_starts_with_an_answer_gets_its_question_with_the_next_page(tmp_path: Path) -> None:
    last = Stalled(say("This one is under way."), 2)
    async with console(tmp_path, *[say(f"Answer {number}.") for number in range(25)], last) as desk:
        page, domain = desk.page, await desk.rig.domain()
        conversation = await desk.rig.conversation(domain, title="Long")
        for number in range(25):
            await desk.rig.say(conversation, f"Question {number}")
        await desk.goto(f"#/chat/{domain}/{conversation}")
        await page.get_by_label("Message", exact=True).fill("Question 25")
        await page.keyboard.press("Enter")
        await last.reached.wait()
        await page.reload()  # the running exchange is one message, so the page of forty begins with an answer
        turns, question = page.locator(".turn"), page.locator(".question-text")
        await expect(page.locator('.turns[aria-busy="false"]')).to_be_attached()
        await expect(turns.last).to_have_attribute("data-status", "running")
        await page.locator(".thread").evaluate(TO_THE_TOP)
        await expect(question).to_have_text([f"Question {number}" for number in range(26)])
        await expect(page.locator(".answer .prose").first).to_have_text("Answer 0.")
        await expect(page.locator(".question:visible")).to_have_count(26)
        last.until.set()
        await expect(turns.last).to_contain_text("This one is under way.")


@pytest.mark.nightly("a shorter conversation runs every time")
async def test_a_long_conversation_keeps_near_messages_in_the_page_and_reloads_the_rest(tmp_path: Path) -> None:
    answers = [say(f"Answer {number}.") for number in range(TURNS)]
    async with console(tmp_path, *answers) as desk:
        page, domain = desk.page, await desk.rig.domain()
        conversation = await desk.rig.conversation(domain, title="Long")
        await desk.goto(f"#/chat/{domain}/{conversation}")
        turns, questions = page.locator(".turn"), page.locator(".question-text")
        await expect(page.locator('.turns[aria-busy="false"]')).to_be_attached()
        for number in range(TURNS):
            await desk.rig.say(conversation, f"Question {number}")
            await expect(turns.last.locator(".answer .prose")).to_have_text(f"Answer {number}.")
            await expect(turns.last).to_have_attribute("data-status", "done")
        await expect(turns.last).to_be_in_viewport()
        assert await turns.count() < TURNS * 3 / 4
        visible = await questions.all_text_contents()
        assert visible == [f"Question {number}" for number in range(TURNS - len(visible), TURNS)]
        await page.locator(".thread").evaluate(TO_THE_TOP)
        await expect(questions).to_have_text([f"Question {number}" for number in range(TURNS)])

"""The list of conversations: states, search in titles and messages, pins, and a reload during an answer."""

import re
from pathlib import Path

import anyio
import pytest
from playwright.async_api import Route, expect

from agentic_rag.base.errors import ModelError
from agentic_rag.testing.scripted import Stalled
from agentic_rag.testing.steps import Step, Use, say
from tests.console.axe import check_accessible
from tests.console.rig import console, needs_browser
from tests.waiting import pause

pytestmark = needs_browser


LONG = "\n\n".join(f"Paragraph {number} says nothing about it." for number in range(40))


async def test_the_list_shows_activity_and_a_search_opens_the_message(tmp_path: Path) -> None:
    asks = Step((Use("ask_user", {"question": "Which year?", "options": ["2026", "2027"]}),))
    slow = Stalled(say("This answer takes its time, and then some more of it."), 4)
    answers = (say(f"{LONG}\n\nThe summer **bypass** opens at night."), *(say(LONG) for _ in range(3)))
    async with console(tmp_path, *answers, ModelError("no", http_status=400), asks, slow) as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain(askUser=True)
        conversation = await rig.conversation(
            domain, title="Rooms that stay warm in the morning, in two lines of a title"
        )
        for question in ("When does it open?", "And in winter?", "And in spring?", "And by day?"):
            await rig.say(conversation, question)
        failed_conversation, waiting_conversation, running_conversation = [
            await rig.conversation(domain, title=title) for title in ("Bad", "Asked", "Slow")
        ]
        await rig.say(failed_conversation, "Hi")
        as_json = {"accept": "application/json"}
        path = f"/api/conversations/{waiting_conversation}/messages"
        await rig.http.post(path, json={"content": "Go on"}, headers=as_json)
        while not (await rig.ok("GET", "/api/waits"))["items"]:
            await pause()
        await desk.goto()
        lines = page.locator(".conversation")
        line = {name: lines.filter(has_text=name) for name in ("Rooms", "Bad", "Asked", "Slow")}
        await expect(line["Asked"].locator(".conversation-wait")).to_have_text("Waiting for you")
        await expect(line["Bad"].locator(".conversation-bad")).to_have_text("Failed")
        await expect(line["Rooms"].locator(".conversation-state")).to_have_count(0)
        await expect(page.locator(".conversations-head")).to_have_text(["Today"])
        await check_accessible(page, "list with states")

        await desk.goto(f"#/chat/{domain}/{running_conversation}")
        await page.get_by_label("Message", exact=True).fill("Go on")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        await expect(line["Slow"].locator(".conversation-run")).to_have_text("Answering")
        await page.reload()
        await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        slow.until.set()
        await expect(page.locator('.turn[data-status="done"] .answer-acts')).to_have_count(1)
        await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
        await expect(line["Slow"].locator(".conversation-state")).to_have_count(0)

        await lines.filter(has_text="Bad").hover()
        await page.get_by_role("button", name="Actions for “Bad”").click()
        await page.get_by_role("menuitem", name="Pin").click()
        await expect(page.locator(".conversations-head")).to_have_text(["Pinned", "Today"])
        await expect(lines.first).to_contain_text("Bad")

        async def choose(name: str, item: str) -> None:
            await line[name].hover()
            await line[name].get_by_role("button", name="Actions for").click()
            await page.get_by_role("menuitem", name=item).click()

        heads = page.locator(".conversations-head")
        folder = page.locator(".folder-toggle")
        ducts, pumps = re.compile("^Ducts ?1 conversation"), re.compile("^Pumps ?1 conversation")
        await choose("Rooms", "Move to folder")
        await page.get_by_role("button", name="Move", exact=True).click()
        await expect(page.get_by_text("Enter a name.")).to_be_visible()
        await page.get_by_label("Name of the new folder").fill("Pumps")
        await page.keyboard.press("Enter")
        await expect(heads).to_have_text(["Pinned", pumps, "Today"])
        await expect(line["Rooms"].get_by_role("button", name="Actions for")).to_be_focused()
        await choose("Asked", "Move to folder")
        await expect(page.get_by_label("Folder", exact=True)).to_have_value("Pumps")
        await page.get_by_role("button", name="Move", exact=True).click()
        await expect(folder).to_have_accessible_name("Pumps 2 conversations")
        await expect(folder).to_have_attribute("aria-expanded", "true")
        await check_accessible(page, "folders")
        await folder.press("Enter")
        await expect(folder).to_be_focused()
        await page.reload()
        await expect(folder).to_have_accessible_name("Pumps 2 conversations, Waiting for you")
        await expect(folder).to_have_attribute("aria-expanded", "false")
        await expect(line["Rooms"]).to_be_hidden()
        await folder.click()
        await choose("Asked", "Remove from folder")
        await expect(folder).to_have_accessible_name("Pumps 1 conversation")
        await expect(line["Rooms"]).to_be_visible()
        await choose("Slow", "Move to folder")
        await page.get_by_label("Folder", exact=True).select_option("New folder")
        await page.get_by_label("Name of the new folder").fill("Ducts")
        await page.keyboard.press("Enter")
        await expect(heads).to_have_text(["Pinned", ducts, pumps, "Today"])
        await choose("Slow", "Remove from folder")
        await expect(heads).to_have_text(["Pinned", pumps, "Today"])

        await page.keyboard.press("/")
        await page.keyboard.type("bypass opens")
        await expect(page.get_by_label("Search conversations")).to_have_value("bypass opens")
        await expect(page.locator(".conversations-head")).to_have_text(["1 conversation"])
        await expect(page.locator(".conversation-hit mark")).to_have_text(["bypass", "opens"])
        await expect(page.locator(".conversation-folder")).to_have_text("Folder: Pumps")

        await check_accessible(page, "search")
        await page.locator(".conversation-link").click()
        await expect(page.locator(".turn")).to_have_count(4)
        await expect(page.locator(".answer strong")).to_be_in_viewport()
        await expect(page.get_by_text("And by day?")).not_to_be_in_viewport()
        marked = await page.evaluate("[...CSS.highlights.get('found')].map(String)")
        assert "bypass" in marked
        await page.get_by_label("Search conversations").fill("nothing like this")
        await expect(page.locator(".conversations")).to_have_text("Nothing found in titles and messages.")
        await page.get_by_label("Search conversations").fill("")
        await expect(lines).to_have_count(4)

        deep = await rig.conversation(domain, title="Deep")
        await rig.ok("PATCH", f"/api/conversations/{deep}", {"folder": "Far"})
        for number in range(45):
            await rig.conversation(domain, title=f"Filler {number}")
        await page.reload()
        await expect(heads.filter(has_text="Far")).to_be_visible()
        await expect(lines.filter(has_text="Deep")).to_have_count(0)
        await page.get_by_role("button", name="Far 1 conversation").click()
        await expect(lines.filter(has_text="Deep")).to_be_visible()


@pytest.mark.nightly("test_chat.py sends a question every time")
async def test_a_new_conversation_offers_questions_and_sends_the_one_that_is_chosen(tmp_path: Path) -> None:
    async with console(tmp_path, say("Twenty-seven days.")) as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain()
        await rig.upload(domain, "people-handbook.md", b"# People\n\n## Leave\n\n27 days.\n\n## Travel\n\nBy train.\n")
        await desk.goto()
        questions = page.locator(".starter-text")
        await expect(questions).to_have_count(2)
        await check_accessible(page, "start")
        composer = page.get_by_label("Message", exact=True)
        await composer.fill("half a thou")
        await page.set_viewport_size({"width": 390, "height": 844})
        await page.set_viewport_size({"width": 1280, "height": 800})
        await questions.first.click()
        await expect(page.locator(".question-text")).to_have_text("What does “people handbook” say about “Leave”?")
        await expect(page.locator('.turn[data-status="done"] .answer-acts')).to_have_count(1)
        await expect(composer).to_have_value("half a thou")
        await expect(questions).to_have_count(0)
        await page.keyboard.press("Alt+n")
        await expect(questions).to_have_count(2)
        await page.get_by_label("Search conversations").focus()
        await page.keyboard.press("Alt+n")
        await expect(composer).to_be_focused()


@pytest.mark.nightly("the list and its search are used every time")
async def test_a_conversation_is_exported_and_shared_from_its_menu(tmp_path: Path) -> None:
    async with console(tmp_path, say("Twenty-seven **days**."), share_links="anyone") as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain()
        conversation = await rig.conversation(domain, title="Leave / rest")
        await rig.say(conversation, "How many days?")
        await desk.goto(f"#/chat/{domain}/{conversation}")
        await expect(page.locator(".answer strong")).to_have_text("days")
        await page.locator(".chat-head").get_by_role("button", name="More").click()
        await page.get_by_role("menuitem", name="Share or export").click()
        async with page.expect_download() as download:
            await page.get_by_role("button", name="Markdown", exact=True).click()
        download_file = await download.value
        assert download_file.suggested_filename == "Leave rest.md"
        await download_file.save_as(tmp_path / "saved.md")
        assert "Twenty-seven **days**." in (tmp_path / "saved.md").read_text()
        await page.get_by_role("button", name="Make a link").click()
        address = await page.get_by_label("Link to this conversation").input_value()
        await check_accessible(page, "share")
        shared = await page.context.new_page()
        await shared.goto(address)
        await expect(shared.locator("strong")).to_have_text("days")
        await check_accessible(shared, "shared page")
        await page.get_by_role("button", name="Revoke the link").click()
        await expect(page.get_by_text("The link no longer works.")).to_be_visible()
        response = await shared.reload()
        assert response is not None
        assert response.status == 404


async def test_a_slow_page_shows_lines_and_a_list_that_cannot_be_loaded_offers_another_try(tmp_path: Path) -> None:
    release = anyio.Event()

    async def hold(route: Route) -> None:
        await release.wait()
        await route.continue_()

    async def fail(route: Route) -> None:
        await route.fulfill(status=503, json={"error": {"code": "STORAGE_UNAVAILABLE", "message": "No database."}})

    async with console(tmp_path) as desk:
        page, domain = desk.page, await desk.rig.domain()
        await desk.rig.conversation(domain, title="Filters")
        await page.route("**/api/domains", hold)
        await page.route("**/api/conversations?*", fail)
        await desk.goto()
        await expect(page.locator("main .skeleton")).to_be_visible()
        release.set()
        again = page.locator(".chat-list").get_by_role("button", name="Try again")
        await expect(again).to_be_visible()
        await expect(page.locator("main > .page .skeleton")).to_have_count(0)
        await page.unroute("**/api/conversations?*")
        await again.click()
        await expect(page.locator(".conversation")).to_have_text(re.compile("Filters"))

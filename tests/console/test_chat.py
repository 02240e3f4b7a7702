"""Chatting in the console: the main path in both languages, branches, feedback, delegates, lists."""

import json
import re
from pathlib import Path

import anyio
import pytest
from playwright.async_api import FilePayload, Page, Route, WebSocketRoute, expect

from agentic_rag.base.errors import ModelError
from agentic_rag.base.messages import plain_text
from agentic_rag.models.base import ModelRequest
from agentic_rag.testing.scripted import Plain, Stalled
from agentic_rag.testing.steps import Cite, Say, Step, Think, Use, say, use
from tests.console.rig import Desk, console, needs_browser
from tests.runtime.test_pictures import png
from tests.usage.test_budgets import make_step, write_price_file
from tests.waiting import pause

pytestmark = needs_browser

HANDBOOK = (
    b"# Leave\n\nFull-time staff have twenty-five days of paid leave.\n\n## Rest\n\nFive days may be carried over."
)
SEARCH = Step(
    (Think("I look it up."), Say("I will look that up. "), Use("search_documents", {"query": "paid leave days"}))
)
ANSWER = Step((Say("They have **25 days**.", (Cite(0),)), Say("\n\n| kind | days |\n|---|---:|\n| paid | 25 |\n")))

WORDS = {
    "en": {
        "message": "Message",
        "copy": "Copy as Markdown with sources",
        "search": "Search documents",
        "sources": "1 source",
        "source": "Source",
        "good": "Good answer",
        "rename": "Rename",
        "title": "Title",
        "save": "Save",
        "actions": "Actions for",
        "close": "Close",
    },
    "zh": {
        "message": "消息",
        "copy": "复制为 Markdown（含来源）",
        "search": "检索文档",
        "sources": "1 个来源",
        "source": "来源",
        "good": "回答很好",
        "rename": "重命名",
        "title": "标题",
        "save": "保存",
        "actions": "的操作",
        "close": "关闭",
    },
}


async def ask(page: Page, text: str, label: str = "Message") -> None:
    """Type a message and send it."""
    await page.get_by_label(label, exact=True).fill(text)
    await page.keyboard.press("Enter")


async def wait_for_answers(page: Page, count: int = 1) -> None:
    """Wait until this number of answers has ended."""
    await expect(
        page.locator('.turn:not([data-status="running"]):not([data-status="sending"]) .answer-acts')
    ).to_have_count(count)


@pytest.mark.parametrize(
    "language", ["en", pytest.param("zh", marks=pytest.mark.nightly("other pages run in Chinese every time"))]
)
async def test_a_person_asks_reads_the_answer_and_opens_the_cited_sentence(tmp_path: Path, language: str) -> None:
    words = WORDS[language]
    async with console(
        tmp_path, SEARCH, ANSWER, language=language, permissions=["clipboard-read", "clipboard-write"]
    ) as desk:
        page, domain = desk.page, await desk.rig.domain()
        await desk.rig.upload(domain, "handbook.md", HANDBOOK)
        await desk.goto()
        await ask(page, "How many days?", words["message"])
        await wait_for_answers(page)
        await expect(page.locator(".answer strong")).to_have_text("25 days")
        await expect(page.locator(".answer td.align-right")).to_have_text("25")
        await page.locator("summary.steps-head").click()
        call = page.locator(".call-head")
        await expect(call).to_contain_text(words["search"])
        await call.click()
        await expect(page.locator(".call-body")).to_contain_text("paid leave days")
        await expect(page.locator(".call-body .hit").first).to_contain_text("twenty-five days")
        await expect(page.locator(".answer-sources")).to_contain_text(words["sources"])
        await expect(page.locator(".source-place")).to_have_text("Leave")
        await expect(page.locator(".call-body .hit").first).to_contain_text("Leave")
        await page.locator(".citation").click()
        panel = page.get_by_role("dialog", name=words["source"])
        await expect(panel.locator("mark")).to_have_text("Full-time staff have twenty-five days of paid leave.")
        await expect(panel).to_contain_text("Five days may be carried over.")
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name=words["copy"]).click()
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert "They have **25 days**." in copied
        assert "1. handbook.md, Leave: “Full-time staff have twenty-five days of paid leave.”" in copied
        await page.get_by_role("button", name=words["good"]).click()
        await expect(page.get_by_role("button", name=words["good"])).to_have_attribute("aria-pressed", "true")
        await page.locator(".conversation").hover()
        await page.get_by_role("button", name=words["actions"]).click()
        await page.get_by_role("menuitem", name=words["rename"]).click()
        await page.get_by_label(words["title"], exact=True).fill("Leave & rest")
        await page.get_by_role("button", name=words["save"]).click()
        await expect(page.locator(".chat-title")).to_have_text("Leave & rest")
        await page.reload()
        await wait_for_answers(page)
        await expect(page.locator(".chat-title")).to_have_text("Leave & rest")
        await expect(page.get_by_role("button", name=words["good"])).to_have_attribute("aria-pressed", "true")
        await page.locator("summary.steps-head").click()
        await expect(page.locator(".call-head")).to_contain_text(words["search"])
        await expect(page.locator(".call-state")).to_contain_text("ms" if language == "en" else "毫秒")
        assert (await page.locator(".answer .prose").all_inner_texts())[0] == "I will look that up."
        feedback = (await desk.rig.ok("GET", f"/api/domains/{domain}/feedback"))["items"]
        assert [entry["rating"] for entry in feedback] == ["up"]


async def test_the_step_line_counts_recalled_memories_and_text_follows_its_direction(tmp_path: Path) -> None:
    engram = {"content": "Tea at four", "schema": "tea time", "strength": 1, "type": "ATOMIC"}
    remember = use("promptx_remember", role="assistant", engrams=[engram])
    recall = Step(tuple(Use("promptx_recall", {"role": "assistant", "query": word}) for word in ("tea", "time")))
    recall = Step((Use("promptx_action", {"role": "assistant"}), *recall.blocks))
    no_memories = use("promptx_recall", role="researcher", query="tea")
    arabic = say("الشاي في الرابعة.\n\n> اقتباس\n\n- نعم\n\n| a | b |\n|---|---|\n| " + "z" * 90 + " | c |\n")
    async with console(tmp_path, remember, recall, arabic, no_memories, say("No."), size=(390, 780)) as desk:
        page = desk.page
        await desk.rig.domain(subRoleIds=["researcher"])
        await desk.goto()
        steps = "Recalled 1 memory · took on a role · used Remember · "
        await ask(page, "متى الشاي؟")
        await wait_for_answers(page)
        await expect(page.locator(".steps-words")).to_contain_text(steps)
        await expect(page.locator(".prose blockquote")).to_have_css("direction", "rtl")
        for part in (".prose p", ".prose ul", ".question-text"):
            await expect(page.locator(part).first).to_have_css("direction", "rtl")
        cell = page.locator(".prose td").first
        assert await cell.evaluate("(at) => at.scrollWidth <= at.clientWidth"), "a long word leaves its cell"
        await page.reload()
        await wait_for_answers(page)
        await expect(page.locator(".steps-words")).to_contain_text(steps)
        await page.get_by_role("button", name="Conversations", expanded=False).click()
        await expect(page.locator(".chat-list")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.locator(".chat-list")).to_be_hidden()
        await ask(page, "And the other?")
        await wait_for_answers(page, 2)
        await expect(page.locator(".steps-words").last).to_contain_text("Found no memories")


async def test_a_question_is_retried_edited_and_stopped_and_its_branches_stay(tmp_path: Path) -> None:
    model_error = ModelError("upstream 529 overloaded_error at host x", retryable=False)
    slow = Stalled(say("This answer is stopped before its end, which nobody reads."), 4)
    async with console(tmp_path, model_error, say("Blue."), slow, say("Green.")) as desk:
        page = desk.page
        await desk.rig.domain()
        await desk.goto()
        await ask(page, "Which colour?")
        failure = page.get_by_role("alert")
        await expect(failure).to_contain_text("The model’s service did not answer.")
        await failure.get_by_role("button", name="Try again").click()
        await expect(page.locator(".answer .prose")).to_have_text("Blue.")
        await expect(failure).to_have_count(0)
        await wait_for_answers(page)
        await page.get_by_role("button", name="Edit the question").click()
        await page.locator("textarea[aria-label='Edit the question']").fill("Which other colour?")
        await page.keyboard.press("Enter")
        await expect(page.locator(".answer .prose")).to_contain_text("This answer")
        await page.get_by_label("Message", exact=True).press("Escape")
        await expect(page.locator(".answer")).to_contain_text("Stopped. The text so far is kept.")
        await page.get_by_role("button", name="Try again").click()
        await expect(page.locator(".answer .prose")).to_have_text("Green.")
        await wait_for_answers(page)
        await expect(page.locator(".branch")).to_contain_text("4 of 4")
        await page.get_by_role("button", name="Previous branch").click()
        await expect(page.locator(".answer .prose")).to_contain_text("This answer")
        await page.get_by_role("button", name="Previous branch").click()
        await expect(page.locator(".answer .prose")).to_have_text("Blue.")
        await expect(page.locator(".question-text")).to_have_text("Which colour?")
        await expect(page.locator(".turn")).to_have_count(1)


async def test_delegates_are_shown_in_lanes_below_their_call_also_after_a_reload(tmp_path: Path) -> None:
    script = {
        "Ask": [
            Step(
                tuple(
                    Use("delegate", {"role": role, "task": task})
                    for role, task in (("researcher", "One"), ("assistant", "Two"))
                )
            ),
            say("All done."),
        ],
        "One": [use("promptx_discover"), say("The *first* report.")],
        "Two": [say("The second report.")],
    }

    def by_task(request: ModelRequest) -> Plain:
        return script[plain_text(request.messages[0]["content"]).split()[0]].pop(0)

    async with console(tmp_path, *[by_task] * 5) as desk:
        page = desk.page
        await desk.rig.domain(subRoleIds=["researcher", "assistant"])
        await desk.goto()
        await ask(page, "Ask them")
        await wait_for_answers(page)
        await page.locator("summary.steps-head").click()
        for role, text in (("researcher", "The first report."), ("assistant", "The second report.")):
            lane = page.get_by_role("region", name=f"Delegate {role}")
            await expect(lane).to_contain_text(text)
        await expect(page.get_by_role("region", name="Delegate researcher").locator("em")).to_have_text("first")
        await page.reload()
        await page.locator("summary.steps-head").click()
        await page.locator(".call-head").first.click()
        await expect(page.get_by_role("region", name="Delegate researcher").locator("em")).to_have_text("first")


async def test_conversations_are_searched_archived_deleted_and_restored(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, domain = desk.page, await desk.rig.domain()
        for number in range(60):
            await desk.rig.conversation(domain, title=f"Talk {number:02}")
        await desk.goto()
        titles = page.locator(".conversation-link .clip")
        await expect(titles.first).to_have_text("Talk 59")
        await titles.last.scroll_into_view_if_needed()
        await expect(titles).to_have_count(60)
        await page.keyboard.press("Escape")
        await page.locator("main").click(position={"x": 600, "y": 300})
        await page.keyboard.press("/")
        await page.keyboard.type("Talk 07")
        await expect(titles).to_have_count(1)
        await act(desk, "Archive")
        await expect(titles).to_have_count(0)
        await page.get_by_role("button", name="Undo").click()
        await expect(titles).to_have_text(["Talk 07"])
        await act(desk, "Delete")
        await expect(titles).to_have_count(0)
        await page.locator(".toast").get_by_role("button", name="Undo").last.click()
        await expect(titles).to_have_text(["Talk 07"])
        assert (await desk.rig.ok("GET", "/api/conversations?q=Talk 07"))["total"] == 1
        await act(desk, "Delete")
        await expect(titles).to_have_count(0)
        await page.goto("about:blank")  # leaving meanwhile deletes it
        with anyio.fail_after(240):
            while (await desk.rig.ok("GET", "/api/conversations?q=Talk 07"))["total"]:
                await pause()


async def act(desk: Desk, name: str) -> None:
    """Do something with the first conversation of the list."""
    await desk.page.locator(".conversation").first.hover()
    await desk.page.get_by_role("button", name=re.compile("Actions for")).first.click()
    await desk.page.get_by_role("menuitem", name=name).click()


async def test_typed_text_is_restored_and_an_operator_creates_the_first_domain(tmp_path: Path) -> None:
    async with console(tmp_path, say("Hello.")) as desk:
        page = desk.page
        await desk.goto()
        await page.get_by_role("button", name="New domain").click()
        await page.get_by_label("Name").fill("People")
        await page.get_by_role("button", name="Create").click()
        await expect(page.get_by_role("heading", name="People")).to_be_visible()
        await page.get_by_role("link", name="Open the chat").click()
        await page.get_by_label("Message", exact=True).fill("Half a thou")
        await page.reload()
        await expect(page.get_by_label("Message", exact=True)).to_have_value("Half a thou")
        await page.keyboard.press("End")
        await page.keyboard.type("ght")
        await page.keyboard.press("Enter")
        await wait_for_answers(page)
        await expect(page.locator(".question-text")).to_have_text("Half a thought")
        await expect(page.get_by_label("Message", exact=True)).to_have_value("")


async def test_a_queued_question_survives_a_reload_and_a_refused_retry_adds_nothing(
    tmp_path: Path,
) -> None:
    slow = Stalled(say("This answer takes its time, and then some more of it."), 4)
    async with console(tmp_path, say("Blue."), slow, say("Green.")) as desk:
        page, sockets = desk.page, list[WebSocketRoute]()

        def listen(socket: WebSocketRoute) -> None:
            socket.connect_to_server()
            sockets.append(socket)

        await page.route_web_socket("**/ws", listen)
        await desk.rig.domain()
        await desk.goto()
        await ask(page, "Which colour?")
        await wait_for_answers(page)
        conversation = page.url.rpartition("/")[2]
        await desk.rig.ok("PATCH", f"/api/conversations/{conversation}", {"status": "archived"})
        await page.get_by_role("button", name="Try again").click()
        await expect(page.locator(".toast-error")).to_be_visible()
        await expect(page.locator(".question-text")).to_have_text(["Which colour?"])
        await expect(page.locator(".answer .prose")).to_have_text(["Blue."])
        await desk.rig.ok("PATCH", f"/api/conversations/{conversation}", {"status": "active"})
        await ask(page, "And slowly?")
        await slow.reached.wait()
        await ask(page, "And then?")
        note = page.locator(".answer-line:visible")
        await expect(note).to_have_text("Waits for the answer before it")
        questions = ["Which colour?", "And slowly?", "And then?"]
        await expect(page.locator(".question-text")).to_have_text(questions)
        async with page.expect_response(lambda response: "/messages?" in response.url):
            sockets[-1].send(json.dumps({"type": "resync", "conversationId": conversation}))
        await expect(page.locator(".question-text")).to_have_text(questions)
        await expect(page.locator('.turns[aria-busy="false"] .turn')).to_have_count(3)
        await expect(note).to_have_text("Waits for the answer before it")
        slow.until.set()
        await wait_for_answers(page, 3)
        await expect(page.locator(".question-text")).to_have_text(questions)
        await expect(page.locator(".answer .prose").last).to_have_text("Green.")


async def check_cost(page: Page) -> None:
    """Open the menu of the answer and close it again."""
    await page.get_by_role("button", name="More about this answer").click()
    await expect(page.locator(".menu-facts")).to_contain_text("$0.0003")
    await page.keyboard.press("Escape")


async def test_a_sent_image_and_the_cost_of_an_answer_are_shown_before_and_after_a_reload(tmp_path: Path) -> None:
    async with console(tmp_path, make_step("A grey field."), prices=write_price_file(tmp_path)) as desk:
        page = desk.page
        await desk.rig.domain()
        await desk.goto()
        picture = FilePayload(name="grey.png", mimeType="image/png", buffer=png(60, 50))
        await page.locator("input[type=file]").set_input_files([picture])
        await expect(page.locator(".composer-image img")).to_be_visible()
        await ask(page, "What is in it?")
        await wait_for_answers(page)
        await expect(page.locator(".composer-image")).to_have_count(0)
        image = page.locator(".question-images img")
        await check_cost(page)
        await expect(image).to_have_js_property("naturalWidth", 60)
        await page.reload()
        await check_cost(page)
        await expect(image).to_have_js_property("naturalWidth", 60)
        await expect(image).to_have_attribute("src", re.compile("^/api/payloads/"))
        await expect(page.locator(".question-text")).to_have_text("What is in it?")
        request_messages = str(desk.rig.model.requests[0].messages)
        assert "image" in request_messages


async def test_messages_sent_while_a_conversation_is_created_join_it(tmp_path: Path) -> None:
    requested, release = anyio.Event(), anyio.Event()

    async def hold(route: Route) -> None:
        if route.request.method == "POST":
            requested.set()
            await release.wait()
        await route.continue_()

    async with console(tmp_path, say("One."), say("Two.")) as desk:
        page, domain = desk.page, await desk.rig.domain()
        await desk.goto(f"#/chat/{domain}")
        await page.route("**/api/conversations", hold)
        box = page.get_by_label("Message", exact=True)
        for text in ("First?", "Second?"):
            await box.fill(text)
            await box.press("Enter")
            await requested.wait()
        release.set()
        await expect(page.locator(".answer .prose")).to_have_text(["One.", "Two."])
        conversations = await desk.rig.ok("GET", "/api/conversations")
        assert [conversation["messageCount"] for conversation in conversations["items"]] == [4]

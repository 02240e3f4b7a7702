"""Answers that come late: after a newer one, or after the reader has gone on to another page, section or dialog."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from playwright.async_api import Page, Request, Route, expect

from agentic_rag.testing.scripted import Stalled
from agentic_rag.testing.steps import say
from tests.console.rig import console, needs_browser
from tests.evaluation.test_runs import make_filled_domain
from tests.reach.receiver import Receiver
from tests.waiting import pause

pytestmark = needs_browser

NOWHERE = "#/nowhere"
"""An address without a page: it shows its text at once, without a request."""
LOOK = "document.dispatchEvent(new Event('visibilitychange'))"
"""What happens when somebody returns to the browser's tab: pages that follow the server load their state at once."""


@dataclass
class HeldAnswer:
    """The first answer to a request, which is fetched at once and reaches the page after `release`."""

    page: Page
    asked: anyio.Event = field(default_factory=anyio.Event)
    released: anyio.Event = field(default_factory=anyio.Event)
    arrived: anyio.Event = field(default_factory=anyio.Event)

    async def release(self) -> None:
        """Let the page have the answer, and wait until it has dealt with it."""
        self.released.set()
        await self.arrived.wait()
        await settle(self.page)


async def settle(page: Page) -> None:
    """Wait until the page has dealt with every answer that it has received: a later one comes after them."""
    await page.evaluate(
        "fetch('/api/version').then((answer) => answer.text()).then(() => new Promise(requestAnimationFrame))"
    )


@asynccontextmanager
async def hold_first(page: Page, pattern: str, method: str = "GET") -> AsyncIterator[HeldAnswer]:
    """Hold the first answer to a request of this method from here on."""
    held = HeldAnswer(page)

    async def hold(route: Route) -> None:
        if held.asked.is_set() or route.request.method != method:
            await route.fallback()
            return
        held.asked.set()
        answer = await route.fetch()
        await held.released.wait()
        await route.fulfill(response=answer)
        held.arrived.set()

    await page.route(pattern, hold)
    yield held
    held.released.set()
    await page.unroute(pattern, hold)


async def lose_next(page: Page, pattern: str, act: Callable[[], Any]) -> None:
    """Lose the next request on its way to the server, which `act` causes."""
    lost = anyio.Event()

    async def lose(route: Route) -> None:
        if lost.is_set():
            await route.fallback()
            return
        lost.set()
        await route.abort()

    await page.route(pattern, lose)
    await act()
    await lost.wait()
    await settle(page)


async def test_a_page_that_is_left_while_it_loads_is_not_shown_later(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page = desk.page
        async with hold_first(page, "**/api/domains") as domains:
            await desk.goto("#/programs")
            await expect(page).to_have_title(re.compile("programs"))
            await domains.asked.wait()
            await desk.follow(NOWHERE)
            await expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
            await domains.release()
            await expect(page.get_by_role("heading", level=1)).to_have_text("Page not found")


async def test_a_section_that_is_left_while_it_loads_does_not_change_the_title(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, domain = desk.page, await desk.rig.domain()
        await desk.goto(f"#/domains/{domain}/prompt")
        no_files = page.get_by_text("No prompt files yet")
        await expect(no_files).to_be_visible()
        async with hold_first(page, "**/documents") as documents:
            await desk.follow(f"#/domains/{domain}/documents")
            await documents.asked.wait()
            await desk.follow(f"#/domains/{domain}/prompt")
            await expect(no_files).to_be_visible()
            await documents.release()
            await expect(page.locator(".section-head")).to_have_text("Prompt")


async def test_a_section_that_was_not_loaded_can_be_loaded_again(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, domain = desk.page, await desk.rig.domain()
        await desk.goto(f"#/domains/{domain}/search")
        await expect(page.get_by_role("button", name="Search")).to_be_visible()
        await lose_next(page, f"**/api/domains/{domain}", lambda: desk.follow(f"#/domains/{domain}/servers"))
        await page.get_by_role("button", name="Try again").click()
        await expect(page.get_by_role("region", name="Running servers")).to_be_visible()


async def test_an_older_list_of_documents_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain()
        await rig.upload(domain, "first.md", b"# First\n\nOne.")
        await desk.goto(f"#/domains/{domain}/documents")
        rows = page.locator(".document-row")
        await expect(rows).to_have_count(1)
        async with hold_first(page, "**/documents") as older:
            await page.evaluate(LOOK)
            await older.asked.wait()
            await rig.upload(domain, "second.md", b"# Second\n\nTwo.")
            await page.evaluate(LOOK)
            await expect(rows).to_have_count(2)
            await older.release()
            await expect(rows).to_have_count(2)


async def test_a_document_that_is_ready_while_a_menu_is_open_is_shown_once_it_closes(tmp_path: Path) -> None:
    is_ready = False

    async def list_documents(route: Route) -> None:
        answer = await route.fetch()
        documents = await answer.json()
        if not is_ready:
            documents["items"][0] |= {"status": "indexing", "progress": {}}
        await route.fulfill(response=answer, json=documents)

    async with console(tmp_path) as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain()
        await rig.upload(domain, "leave.md", b"# Leave\n\nFive days.")
        await page.route("**/documents", list_documents)
        await desk.goto(f"#/domains/{domain}/documents")
        row = page.locator(".document-row")
        await expect(row).to_contain_text("Indexing")
        await row.get_by_role("button", name="Actions for leave.md").click()
        await expect(page.get_by_role("menuitem").first).to_be_focused()
        is_ready = True
        async with page.expect_response("**/documents"):
            await page.evaluate(LOOK)
        await settle(page)
        await expect(row).to_contain_text("Indexing")
        await page.keyboard.press("Escape")
        await expect(row).to_contain_text("Ready")


async def test_what_will_be_deleted_stays_out_of_lists_that_are_loaded_meanwhile(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain()
        for name in ("first.md", "second.md"):
            await rig.upload(domain, name, f"# Leave\n\nThis is {name}.".encode())
        await desk.goto(f"#/domains/{domain}/documents")
        rows = page.locator(".document-row")
        await rows.filter(has_text="first.md").get_by_role("button", name="Actions").click()
        await page.get_by_role("menuitem", name="Delete").click()
        await expect(rows).to_have_count(1)
        await desk.follow(f"#/domains/{domain}/prompt")
        await expect(page.get_by_text("No prompt files yet")).to_be_visible()
        await desk.follow(f"#/domains/{domain}/documents")
        await expect(rows).to_have_text([re.compile("second.md")])
        await page.get_by_role("button", name="Undo").click()
        await expect(rows).to_have_count(2)
        role = "<role>\n<personality>\nI am the clerk.\n</personality>\n</role>\n"
        body = {"files": [{"kind": "role", "id": "clerk", "content": role}]}
        await rig.ok("PUT", f"/api/domains/{domain}/roles/clerk", body)
        await desk.follow(f"#/domains/{domain}/roles/clerk")
        await page.locator(".domain-panel").get_by_role("button", name="More", exact=True).click()
        await page.get_by_role("menuitem", name="Delete").click()
        await expect(page.get_by_role("button", name="New role").first).to_be_visible()
        await expect(page.get_by_role("link", name="clerk")).to_have_count(0)
        await page.goto("about:blank")  # without Undo until then, the role is deleted
        with anyio.fail_after(60):
            while any(item["id"] == "clerk" for item in (await rig.ok("GET", f"/api/domains/{domain}/roles"))["items"]):
                await pause()


async def test_sources_are_followed_after_a_lost_request_and_an_older_answer(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain()
        base = f"/api/domains/{domain}/sources"
        body = {"name": "Wiki", "website": {"urls": ["https://wiki.example/"]}, "enabled": False}
        source = await rig.ok("POST", base, body)
        await desk.goto(f"#/domains/{domain}/documents")
        await page.get_by_role("button", name="Sources").click()
        rows = page.get_by_role("list", name="Sources").get_by_role("listitem")
        await expect(rows).to_contain_text("Wiki")
        await lose_next(page, "**/sources", lambda: page.evaluate(LOOK))
        async with hold_first(page, "**/sources") as older:
            await page.evaluate(LOOK)
            await older.asked.wait()
            await rig.ok("PATCH", f"{base}/{source['id']}", {"name": "Handbook"})
            await page.evaluate(LOOK)
            await expect(rows).to_contain_text("Handbook")
            await older.release()
            await expect(rows).to_contain_text("Handbook")


async def test_a_launch_request_shows_what_was_decided_elsewhere(tmp_path: Path) -> None:
    request = {
        "id": "req_1", "server": "calc", "command": "npx", "args": ["calc"], "reason": "", "state": "open",
        "requestedAt": "2026-11-20T10:00:00Z",
    }  # fmt: skip
    async with console(tmp_path) as desk:
        page, domain = desk.page, await desk.rig.domain()
        await page.route("**/launch-requests", lambda route: route.fulfill(json={"items": [request]}))
        await desk.goto(f"#/domains/{domain}/servers")
        requests = page.get_by_role("region", name="Requests")
        await expect(requests).to_contain_text("Waiting for the operator")
        request["state"] = "installed"
        await page.evaluate(LOOK)
        await expect(requests).to_contain_text("Allowed")


async def test_a_tab_of_the_operator_that_is_left_while_it_loads_asks_no_more(tmp_path: Path) -> None:
    requests: list[str] = []

    def note(request: Request) -> None:
        if request.url.endswith("/api/health"):
            requests.append(request.url)

    async with console(tmp_path) as desk:
        page = desk.page
        page.on("request", note)
        await desk.goto("#/operator/catalogue")
        await expect(page.get_by_label("Search lines")).to_be_visible()
        async with hold_first(page, "**/api/health") as health:
            await desk.follow("#/operator/health")
            await health.asked.wait()
            await desk.follow(NOWHERE)
            await expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
            await health.release()
        await page.evaluate(LOOK)
        await settle(page)
        assert len(requests) == 1


async def test_a_backup_whose_server_restarts_leaves_no_error(tmp_path: Path) -> None:
    job = {"id": "job_1", "kind": "write", "state": "running", "name": "", "part": "rows", "bytes": 10}
    backups: dict[str, Any] = {"items": [], "folder": "/backups", "everyHours": 0, "keep": 3, "job": job}
    async with console(tmp_path) as desk:
        page = desk.page
        await page.route("**/api/backups", lambda route: route.fulfill(json=backups))
        await desk.goto("#/operator/backups")
        make = page.get_by_role("button", name="Back up now")
        await expect(make).to_be_disabled()
        del backups["job"]
        await page.evaluate(LOOK)
        await expect(make).to_be_enabled()
        await expect(page.get_by_role("alert")).to_have_count(0)


async def test_rights_that_are_typed_stay_when_a_key_of_the_user_is_revoked(tmp_path: Path) -> None:
    key: dict[str, Any] = {
        "id": "key_1", "userId": "ann", "role": None, "domains": [], "groups": [],
        "createdAt": "2026-11-20T10:00:00Z", "revokedAt": None,
    }  # fmt: skip

    async def revoke(route: Route) -> None:
        key["revokedAt"] = "2026-11-21T10:00:00Z"
        await route.fulfill(status=204)

    async with console(tmp_path) as desk:
        page, rig = desk.page, desk.rig
        await rig.ok("POST", "/api/users", {"name": "ann"})
        ann = await rig.ok("GET", "/api/users/ann")
        await page.route("**/api/users/ann", lambda route: route.fulfill(json=ann | {"keys": [key]}))
        await page.route("**/api/keys/key_1", revoke)
        await desk.goto("#/operator/users/ann")
        name = page.get_by_label("Display name")
        await name.fill("Ann Example")
        await page.get_by_role("button", name="Revoke key_1").click()
        await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        await expect(page.locator("tbody .badge-bad")).to_have_text("revoked")
        await expect(name).to_have_value("Ann Example")


async def test_a_first_message_is_sent_to_its_own_conversation_after_the_reader_goes_on(tmp_path: Path) -> None:
    async with console(tmp_path, say("Old answer."), say("New answer.")) as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain()
        conversation = await rig.conversation(domain, title="Earlier")
        await rig.say(conversation, "Hi")
        await desk.goto(f"#/chat/{domain}")
        async with hold_first(page, "**/api/conversations", "POST") as created:
            box = page.get_by_label("Message", exact=True)
            await box.fill("What is new?")
            await box.press("Enter")
            await created.asked.wait()
            await desk.follow(f"#/chat/{domain}/{conversation}")
            await expect(page.locator(".answer .prose")).to_have_text("Old answer.")
            await created.release()
        lines = page.locator(".conversation")
        await expect(lines).to_have_count(2)
        assert page.url.endswith(f"#/chat/{domain}/{conversation}")
        await expect(page.locator(".answer .prose")).to_have_text("Old answer.")
        await lines.first.locator("a").click()
        await expect(page.locator(".answer .prose")).to_have_text("New answer.")
        await expect(page.locator(".question-text")).to_have_text("What is new?")
        await desk.follow(f"#/chat/{domain}")
        await expect(box).to_have_value("")


async def test_search_results_show_that_an_answer_has_ended(tmp_path: Path) -> None:
    slow = Stalled(say("It opens at night, and it closes by day."), 3)
    async with console(tmp_path, slow) as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain()
        conversation = await rig.conversation(domain, title="Bypass")
        await desk.goto(f"#/chat/{domain}/{conversation}")
        await page.get_by_label("Message", exact=True).fill("When does it open?")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        await page.get_by_label("Search conversations").fill("Bypass")
        line = page.locator(".conversation", has=page.locator("mark"))
        await expect(line.locator(".conversation-run")).to_have_text("Answering")
        slow.until.set()
        await expect(page.locator('.turn[data-status="done"] .answer-acts')).to_have_count(1)
        await expect(line.locator(".conversation-run")).to_have_count(0)


async def test_a_saved_prompt_is_what_further_changes_are_compared_with(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, domain = desk.page, await desk.rig.domain()
        await desk.rig.ok("PUT", f"/api/domains/{domain}/prompt-components/a.md", {"content": "One."})
        await desk.goto(f"#/domains/{domain}/prompt")
        await page.locator(".lines-area").fill("One line, and then a second line that is longer.")
        change = page.locator(".preview .badge")
        await expect(change).to_contain_text("more")
        await page.get_by_role("button", name="Save").click()
        await expect(change).to_have_count(0)


async def test_more_memories_of_an_earlier_search_are_left_out(tmp_path: Path) -> None:
    def engram(number: int, content: str) -> dict[str, Any]:
        return {"id": f"e{number}", "content": content, "cues": [], "type": "ATOMIC", "strength": 0.5,
                "createdAt": "2026-11-20T10:00:00Z"}  # fmt: skip

    async def list_memories(route: Route) -> None:
        query = route.request.url
        items = [engram(1, "found")] if "q=found" in query else [engram(number, "first") for number in range(50)]
        if "offset=50" in query:
            items = [engram(99, "late")]
        total = 1 if "q=found" in query else 51
        await route.fulfill(json={"roles": ["assistant"], "scope": "user", "items": items, "total": total})

    async with console(tmp_path) as desk:
        page, domain = desk.page, await desk.rig.domain()
        await page.route("**/memories?*", list_memories)
        await desk.goto(f"#/domains/{domain}/memory")
        await page.get_by_role("tab", name="List").click()
        await expect(page.get_by_role("button", name="Show 1 more")).to_be_visible()
        held, release = anyio.Event(), anyio.Event()

        async def hold(route: Route) -> None:
            held.set()
            await release.wait()
            await list_memories(route)

        await page.route("**/memories?*offset=50*", hold)
        await page.get_by_role("button", name="Show 1 more").click()
        await held.wait()
        await page.get_by_label("Find in content and cues").fill("found")
        await page.get_by_role("button", name="Find", exact=True).click()
        rows = page.locator(".tab-panel .rows-item")
        await expect(rows).to_have_count(1)
        async with page.expect_response("**/memories?*offset=50*"):
            release.set()
        await settle(page)
        await expect(rows).to_have_count(1)


async def test_a_run_that_begins_late_keeps_the_part_that_the_reader_has_chosen(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page = desk.page
        domain = await make_filled_domain(desk.rig)
        await desk.goto(f"#/domains/{domain}/evaluation")
        async with hold_first(page, "**/evaluation/runs", "POST") as started:
            await page.get_by_role("button", name="Run now").click()
            await started.asked.wait()
            await page.get_by_role("link", name="Drafts").click()
            await expect(page.get_by_text("No drafts")).to_be_visible()
            async with page.expect_response("**/evaluation/cases?state=draft"):
                await started.release()
        await settle(page)
        await expect(page.get_by_text("No drafts")).to_be_visible()


async def test_a_run_is_followed_after_a_lost_request(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page = desk.page
        domain = await make_filled_domain(desk.rig)
        await desk.goto(f"#/domains/{domain}/evaluation")
        run = page.get_by_role("button", name="Run now")
        await expect(run).to_be_visible()
        is_lost = False

        async def delay(route: Route) -> None:
            nonlocal is_lost
            if route.request.url.endswith("limit=60"):
                answer = await route.fetch()
                runs = await answer.json()
                if not is_lost and runs["items"]:
                    runs["items"][0] |= {"state": "running"}
                await route.fulfill(response=answer, json=runs)
            elif route.request.method == "GET" and not is_lost:
                is_lost = True
                await route.abort()
            else:
                await route.fallback()

        await page.route("**/evaluation/runs**", delay)
        await run.click()
        await expect(page.locator(".lead")).to_contain_text("found in 6 of 6 cases")


async def test_an_endpoint_shows_that_its_test_was_delivered(tmp_path: Path) -> None:
    async with Receiver().open() as receiver, console(tmp_path, mcp_hosts=receiver.address) as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain()
        body = {"name": "Hook", "channel": "webhook", "url": receiver.url, "events": ["turn.failed"]}
        await rig.ok("POST", f"/api/domains/{domain}/endpoints", body)
        await desk.goto(f"#/domains/{domain}/notifications")
        row = page.get_by_role("row").filter(has_text="Hook")
        await expect(row.locator("time")).to_have_count(0)
        await row.get_by_role("button", name="Test").click()
        await receiver.wait_for(1)
        await expect(row.locator("time")).to_have_count(1)


async def test_a_changed_list_leaves_the_focus_at_the_same_button_of_the_same_row(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain()
        path = f"/api/domains/{domain}/endpoints"
        ids = []
        for name in ("First", "Second", "Third"):
            body = {"name": name, "channel": "webhook", "url": "https://hook.example/", "events": ["turn.failed"]}
            ids.append((await rig.ok("POST", path, body))["id"])
        await desk.goto(f"#/domains/{domain}/notifications")
        edit = page.get_by_role("button", name="Edit Second")
        await edit.focus()
        await rig.ok("DELETE", f"{path}/{ids[0]}")
        await page.evaluate(LOOK)
        await expect(page.get_by_role("button", name="Edit First")).to_have_count(0)
        await expect(edit).to_be_focused()
        await rig.ok("DELETE", f"{path}/{ids[1]}")
        await page.evaluate(LOOK)
        await expect(edit).to_have_count(0)
        await expect(page.get_by_role("button", name="Edit Third")).to_be_focused()


async def test_a_domain_that_is_created_late_takes_nobody_from_another_page(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page = desk.page
        await desk.goto("#/domains")
        async with hold_first(page, "**/api/domains", "POST") as created:
            await page.get_by_role("button", name="New domain").first.click()
            await page.get_by_role("dialog").get_by_label("Name", exact=True).fill("Library")
            await page.get_by_role("dialog").get_by_role("button", name="Create").click()
            await created.asked.wait()
            await desk.follow(NOWHERE)
            await expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
            await created.release()
        await settle(page)
        assert page.url.endswith(NOWHERE)


async def test_the_chat_counts_documents_that_were_uploaded_since_the_page_was_loaded(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain()
        await desk.goto(f"#/domains/{domain}/documents")
        await expect(page.locator(".domain-panel .empty")).to_be_visible()
        await rig.upload(domain, "leave.md", b"# Leave\n\nFive days.")
        await desk.follow(f"#/chat/{domain}")
        await expect(page.get_by_text("Answers use 1 document")).to_be_visible()


async def test_a_dialog_does_not_open_on_a_page_that_was_chosen_since(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, domain = desk.page, await desk.rig.domain()
        await desk.goto(f"#/domains/{domain}/notifications")
        await expect(page.get_by_text("No schedules yet")).to_be_visible()
        async with hold_first(page, "**/endpoints") as endpoints:
            await page.get_by_role("button", name="Add schedule").first.click()
            await endpoints.asked.wait()
            await desk.follow(NOWHERE)
            await expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
            await endpoints.release()
        await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_older_messages_that_come_twice_are_shown_once(tmp_path: Path) -> None:
    turns = 25
    async with console(tmp_path, *[say(f"Answer {number}.") for number in range(turns)]) as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain()
        conversation = await rig.conversation(domain, title="Long")
        for number in range(turns):
            await rig.say(conversation, f"Question {number}")
        messages = (await rig.ok("GET", f"/api/conversations/{conversation}/messages?limit=200"))["items"]
        place = f"#/chat/{domain}/{conversation}"
        await desk.goto(place)
        shown = page.locator(".turn")
        await expect(shown).to_have_count(20)
        async with hold_first(page, "**/messages?limit=200*") as searched:
            await desk.follow(f"{place}?at={messages[0]['id']}&find=Question")
            await searched.asked.wait()
            await page.locator(".thread").evaluate("(thread) => (thread.scrollTop = 0)")
            await expect(shown).to_have_count(turns)
            await searched.release()
        await expect(shown).to_have_count(turns)


async def test_messages_of_a_branch_that_was_left_are_not_shown(tmp_path: Path) -> None:
    async with console(tmp_path, say("One."), say("Two.")) as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain()
        conversation = await rig.conversation(domain, title="Branches")
        path = f"/api/conversations/{conversation}/messages"
        await rig.say(conversation, "First wording")
        question = (await rig.ok("GET", path))["items"][0]["id"]
        await rig.http.post(f"{path}/{question}/edit", json={"content": "Second wording"})
        await desk.goto(f"#/chat/{domain}/{conversation}")
        wording = page.locator(".question-text")
        await expect(wording).to_have_text("Second wording")
        async with hold_first(page, "**/messages?*") as messages:
            await page.get_by_role("button", name="Previous branch").click()
            await messages.asked.wait()
            await page.locator(".chat-head").get_by_role("button", name="More").click()
            await page.get_by_role("menuitem", name="Branches").click()
            lines = page.get_by_role("dialog").locator(".branch-line")
            async with page.expect_response("**/messages?*"):
                await lines.filter(has_text="Second wording").click()
            await settle(page)
            await messages.release()
        await expect(wording).to_have_text("Second wording")

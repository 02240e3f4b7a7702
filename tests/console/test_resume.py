"""An answer in the console survives a reload, a network failure, and a kill of the server."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import anyio
import anyio.to_thread
import pytest
from playwright.async_api import FilePayload, Page, Route, expect

from agentic_rag.models.base import ModelEvent, TextDelta
from agentic_rag.testing.scripted import ScriptedModel, Stalled
from agentic_rag.testing.steps import Say, Step, Think, say
from tests.console.relay import relaying
from tests.console.rig import console, desk_at, needs_browser
from tests.faults.outside import PATIENCE, make_outside
from tests.faults.server import Server
from tests.runtime.test_pictures import png
from tests.server.rig import Rig
from tests.waiting import pause
from tests.ws.serving import serving

pytestmark = needs_browser

LOST = ("WebSocket connection to", "ERR_")
"""Chromium's messages about lost connections."""
PARTS = [f"Sentence {number} of this answer is said exactly once.\n\n" for number in range(40)]
LONG = Step((Think("Think."), Say("".join(PARTS), pieces=tuple(PARTS))))


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


async def read_answer(page: Page) -> str:
    """Return the words of the answer on the page."""
    return words(" ".join(await page.locator(".answer .prose").all_inner_texts()))


async def settle(page: Page, expected: str) -> None:
    """Wait until the page shows these words. The server's rendering replaces the streamed text piece by piece."""
    answer = ""
    with anyio.move_on_after(PATIENCE):
        while (answer := await read_answer(page)) != expected:
            await pause()
    assert answer == expected


async def ask(page: Page, text: str) -> None:
    await page.get_by_label("Message", exact=True).fill(text)
    await page.keyboard.press("Enter")


async def wait_for_end(page: Page) -> None:
    await expect(page.locator('.turn[data-status="done"] .answer-acts')).to_have_count(1)


async def test_a_reload_in_mid_sentence_loses_and_repeats_nothing(tmp_path: Path) -> None:
    stalled_model = Stalled(LONG, 20)
    async with console(tmp_path, stalled_model) as desk:
        await desk.rig.domain()
        await desk.goto()
        await ask(desk.page, "Tell me")
        await expect(desk.page.locator(".answer .prose")).to_contain_text("Sentence 14")
        await desk.page.reload()
        await expect(desk.page.locator(".answer .prose")).to_contain_text("Sentence 14")
        await expect(desk.page.get_by_role("button", name="Stop")).to_be_visible()
        stalled_model.until.set()
        await wait_for_end(desk.page)
        await settle(desk.page, words("".join(PARTS)))


@asynccontextmanager
async def make_paced_rig(folder: Path, gate: anyio.Event) -> AsyncIterator[Rig]:
    """Run the application with a model that sends half of its answer, and the rest once the gate is open."""

    async def hold(call: int, number: int, event: ModelEvent) -> None:
        if isinstance(event, TextDelta) and number > 25:
            await gate.wait()

    model = ScriptedModel(LONG, pause=hold)
    async with model, Rig(folder, instead=model) as rig:
        yield rig


async def test_a_network_loss_in_mid_answer_shows_a_quiet_notice_and_loses_nothing(tmp_path: Path) -> None:
    gate = anyio.Event()
    async with make_paced_rig(tmp_path, gate) as rig, serving(rig.application.app) as address:
        await rig.domain()
        async with relaying(int(address.rpartition(":")[2])) as (relay, url), desk_at(url, expected=LOST) as desk:
            page = desk.page
            await desk.goto()
            await ask(page, "Tell me")
            await expect(page.locator(".answer .prose")).to_contain_text("Sentence 18")
            await relay.cut()
            await expect(page.locator(".chat-line")).to_contain_text("The answer continues on the server.")
            gate.set()
            await page.get_by_label("Message", exact=True).fill("And more?")
            relay.mend()
            await expect(page.locator(".chat-line")).to_contain_text("Nothing was lost")
            await wait_for_end(page)
            await settle(page, words("".join(PARTS)))
            await expect(page.get_by_label("Message", exact=True)).to_have_value("And more?")


async def test_a_message_sent_without_a_network_arrives_once_when_it_returns(tmp_path: Path) -> None:
    async with (
        Rig(tmp_path, say("First."), say("Second.")) as rig,
        serving(rig.application.app) as address,
    ):
        await rig.domain()
        async with relaying(int(address.rpartition(":")[2])) as (relay, url), desk_at(url, expected=LOST) as desk:
            page = desk.page
            await desk.goto()
            await ask(page, "One")
            await wait_for_end(page)
            await relay.cut()
            await ask(page, "Two")
            await expect(page.locator('.turn[data-status="sending"]')).to_be_visible()
            await expect(page.locator(".chat-line")).to_have_text("Connection lost. Reconnecting …")
            relay.mend()
            await expect(page.locator(".answer .prose")).to_have_text(["First.", "Second."])
            conversation = (await rig.ok("GET", "/api/conversations"))["items"][0]["id"]
            messages = (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"]
            assert [message["content"] for message in messages] == ["One", "First.", "Two", "Second."]


async def test_an_unacknowledged_message_is_sent_once_after_a_reload_or_reported_lost(
    tmp_path: Path,
) -> None:
    slow = Stalled(say("This answer is stopped before its end."), 3)
    async with (
        Rig(tmp_path, say("First."), slow) as rig,
        serving(rig.application.app) as address,
    ):
        await rig.domain()
        async with relaying(int(address.rpartition(":")[2])) as (relay, url), desk_at(url, expected=LOST) as desk:
            page = desk.page
            await desk.goto()
            await ask(page, "One")
            await wait_for_end(page)
            place = page.url
            await relay.cut()
            await expect(page.locator(".chat-line")).to_contain_text("Connection lost.")
            await ask(page, "Two")
            await page.get_by_label("Message", exact=True).fill("And three")
            await page.goto("about:blank")
            relay.mend()
            await page.goto(place)
            await slow.reached.wait()
            await expect(page.locator(".question-text")).to_have_text(["One", "Two"])
            await expect(page.get_by_label("Message", exact=True)).to_have_value("And three")
            stop = page.get_by_role("button", name="Stop")
            await expect(stop).to_be_visible()
            await relay.cut()
            await expect(page.locator(".chat-line")).to_contain_text("Connection lost.")
            await stop.click()
            await expect(page.locator(".toast-error")).to_contain_text("The server does not respond")
            relay.mend()
            await page.get_by_label("Message", exact=True).press("Escape")
            await expect(page.locator(".answer").last).to_contain_text("Stopped. The text so far is kept.")
            conversation = (await rig.ok("GET", "/api/conversations"))["items"][0]["id"]
            messages = (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"]
            assert [message["content"] for message in messages if message["role"] == "user"] == ["One", "Two"]


@pytest.mark.nightly("a message of a conversation is reloaded every time")
async def test_a_first_message_without_a_conversation_is_a_draft_after_a_reload(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig, serving(rig.application.app) as address:
        domain = await rig.domain()
        async with desk_at(f"http://{address}", expected=LOST) as desk:
            page, requested, release = desk.page, anyio.Event(), anyio.Event()

            async def hold(route: Route) -> None:
                if route.request.method == "POST":
                    requested.set()
                    await release.wait()
                    await route.abort()
                else:
                    await route.continue_()

            await page.route("**/api/conversations", hold)
            await desk.goto(f"#/chat/{domain}")
            await ask(page, "One")
            await requested.wait()
            await page.get_by_label("Message", exact=True).fill("Two")
            await page.goto("about:blank")
            release.set()
            await desk.goto(f"#/chat/{domain}")
            await expect(page.get_by_label("Message", exact=True)).to_have_value("One\nTwo")


@pytest.mark.nightly("a reload in the middle of a sentence runs every time")
async def test_a_server_killed_in_the_middle_of_an_answer_shows_the_stored_part(tmp_path: Path) -> None:
    chance = Random(11)
    with make_outside(tmp_path) as outside, Server(tmp_path, outside) as server:
        domain = server.domain(outside)
        port = int(server.url.rpartition(":")[2])
        async with relaying(port) as (relay, url), desk_at(url, expected=LOST) as desk:
            page = desk.page
            await desk.goto(f"#/chat/{domain}")
            await ask(page, "Hello key slow")
            for _ in range(2):
                length = len(await read_answer(page)) + chance.randrange(20, 120)
                with anyio.fail_after(PATIENCE):
                    while len(await read_answer(page)) < length:
                        await pause()
                await anyio.to_thread.run_sync(server.kill)
                await anyio.to_thread.run_sync(server.start)
                relay.target = int(server.url.rpartition(":")[2])
            await wait_for_end(page)
            conversation = page.url.rpartition("/")[2]
            messages = await anyio.to_thread.run_sync(server.messages, conversation)
            await settle(page, words(messages[-1]["content"]))
            await page.reload()
            await wait_for_end(page)
            await settle(page, words(messages[-1]["content"]))


@pytest.mark.nightly("an unsent message is reloaded every time")
async def test_images_are_sent_after_a_reload_or_stay_in_the_input(tmp_path: Path) -> None:
    requested = anyio.Event()
    first, second = (FilePayload(name=f"{size}.png", mimeType="image/png", buffer=png(60, size)) for size in (50, 40))

    async def hold(route: Route) -> None:
        if route.request.method == "POST" and not requested.is_set():
            requested.set()  # it never gets an answer
        else:
            await route.continue_()

    async with console(tmp_path, say("Hello."), say("A grey field."), expected=LOST) as desk:
        page = desk.page
        await desk.rig.domain()
        await desk.goto()
        await ask(page, "Hi")
        await wait_for_end(page)
        await page.route("**/messages", hold)
        await page.locator("input[type=file]").set_input_files([first])
        await expect(page.locator(".composer-image img")).to_be_visible()
        await ask(page, "What is in it?")
        await requested.wait()
        await page.locator("input[type=file]").set_input_files([second])
        await expect(page.locator(".composer-image img")).to_have_count(1)
        await page.reload()
        await expect(page.locator(".answer .prose").last).to_have_text("A grey field.")
        await expect(page.locator(".question-text")).to_have_text(["Hi", "What is in it?"])
        await expect(page.locator(".composer-image img")).to_have_js_property("naturalHeight", 40)
        await page.get_by_role("button", name="Remove 40.png").click()
        await page.reload()
        await expect(page.locator(".question-images img")).to_have_js_property("naturalHeight", 50)
        await expect(page.locator(".composer-image")).to_have_count(0)
        assert len(desk.rig.model.requests) == 2
        assert "image" in str(desk.rig.model.requests[1].messages)
        script = "indexedDB.databases().then((found) => found.map((each) => each.name))"
        assert await page.evaluate(script) == ["agentic-rag.images"]

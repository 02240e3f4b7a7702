"""The files that a browser fetches at the start. Later ones are fetched on demand, also at a second attempt."""

import re
from pathlib import Path

import anyio
import pytest
from playwright.async_api import Route, expect

from agentic_rag.testing.steps import say
from tests.console.rig import Desk, console, needs_browser

pytestmark = needs_browser

MOST_SHIFT = 0.02
"""The largest share of the window that may move while a page loads (Cumulative Layout Shift)."""
SHIFTS = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const { value, hadRecentInput, sources } of list.getEntries()) {
    if (!hadRecentInput) shifts.push([value, ...sources.map(({ node }) => node?.className ?? node?.nodeName)]);
  }
}).observe({ type: "layout-shift", buffered: true });
"""
BUDGET = 80_000
"""Bytes of the page, its modules, texts, styles and icon, compressed.

The font, which is fetched later, does not count.
"""
FONT_BUDGET = 80_000
VERSION = re.compile(r"^/web/[0-9a-f]{16}/")


class Fetched:
    """The files that a page has fetched, with their sizes on the wire."""

    def __init__(self, desk: Desk) -> None:
        self.paths: list[str] = []
        self._desk = desk
        desk.page.on("response", lambda response: self.paths.append(response.url.removeprefix(desk.url)))

    async def sizes(self) -> dict[str, int]:
        """Return the bytes of each file of the page, without answers of the API."""
        files = sorted({path for path in self.paths if path == "/" or path.startswith("/web/")})
        answers = {path: await self._desk.rig.http.get(path, headers={"Accept-Encoding": "gzip"}) for path in files}
        return {VERSION.sub("/web/", path): int(answer.headers["content-length"]) for path, answer in answers.items()}


@pytest.mark.parametrize(
    ("language", "chat"), [("zh", "对话"), pytest.param("en", "Chat", marks=pytest.mark.nightly("Chinese is larger"))]
)
async def test_the_first_page_is_small_in_each_language(tmp_path: Path, language: str, chat: str) -> None:
    async with console(tmp_path, language=language) as desk:
        await desk.rig.domain()
        fetched = Fetched(desk)
        await desk.goto()
        await expect(desk.page.locator(".start")).to_be_visible()
        await desk.page.wait_for_load_state("networkidle")
        sizes = await fetched.sizes()
        assert {"/", "/web/app.js", "/web/style.css", f"/web/lang/{language}/chat.js"} <= sizes.keys()
        assert 0 < sizes.pop("/web/vendor/inter.woff2") <= FONT_BUDGET
        assert sum(sizes.values()) <= BUDGET, sizes
        assert not [path for path in sizes if f"/lang/{'zh' if language == 'en' else 'en'}/" in path]
        assert f"/web/lang/{language}/waiting.js" not in sizes, "nothing waits"
        assert all(path.startswith("/") for path in fetched.paths), "only this server is asked"
        await expect(desk.page.get_by_role("navigation").get_by_role("link", name=chat)).to_be_visible()


@pytest.mark.parametrize(
    "size", [(390, 780), pytest.param((1280, 800), marks=pytest.mark.nightly("a phone's size runs every time"))]
)
@pytest.mark.parametrize(
    "places",
    [
        pytest.param({"chat/{domain}": ".start", "chat/{domain}/{conversation}": ".answer-acts"}, id="chat"),
        pytest.param(
            {
                "domains": ".domain-card",
                "domains/{domain}/documents": ".document-row",
                "domains/{domain}/usage": ".usage-bar",
                "operator/health": ".health-card",
            },
            id="others",
            marks=pytest.mark.nightly("the chat is loaded every time"),
        ),
    ],
)
async def test_the_layout_shifts_little_while_a_page_loads(
    tmp_path: Path, places: dict[str, str], size: tuple[int, int]
) -> None:
    async with console(tmp_path, say("Yes."), size=size) as desk:
        page = desk.page
        domain = await desk.rig.domain()
        await desk.rig.upload(domain, "leave.md", b"# Leave\n\n27 days.\n")
        conversation = await desk.rig.conversation(domain)
        await desk.rig.say(conversation, "Hi")
        await page.add_init_script(SHIFTS)
        for place, part in places.items():
            await desk.goto(f"#/{place.format(domain=domain, conversation=conversation)}")
            await expect(page.locator(part).first).to_be_visible()
            await page.wait_for_load_state("networkidle")
            shifts = await page.evaluate("shifts")
            assert sum(shift for shift, *_ in shifts) <= MOST_SHIFT, (place, shifts)


@pytest.mark.nightly("the parts of the first page are fetched every time")
async def test_a_part_that_failed_to_load_is_fetched_again_on_the_next_use(tmp_path: Path) -> None:
    async with console(tmp_path, say("Yes."), expected=("Failed to fetch dynamically",)) as desk:
        page, refused_paths, module_failed = desk.page, list[str](), anyio.Event()
        page.on("requestfailed", lambda request: module_failed.set() if request.url.endswith("/list.js") else None)

        async def refuse_once(route: Route) -> None:
            path = route.request.url
            if path in refused_paths:
                await route.continue_()
            else:
                refused_paths.append(path)
                if "/lang/" in path:  # a page that offers a retry too early would fail again
                    await module_failed.wait()
                await route.abort()

        domain = await desk.rig.domain()
        await desk.goto(f"#/chat/{domain}")
        message = page.get_by_label("Message", exact=True)
        await expect(message).to_be_visible()
        for pattern in ("**/chat/conversation.js", "**/domain/list.js", "**/lang/en/domain.js"):
            await page.route(pattern, refuse_once)
        await message.fill("Hello")
        await page.keyboard.press("Enter")
        await expect(page.locator(".toast")).to_contain_text("does not respond")
        await expect(message).to_have_value("Hello")
        await message.focus()
        await page.keyboard.press("Enter")
        await expect(page.locator('.turn[data-status="done"]')).to_contain_text("Yes.")
        await expect(message).to_have_value("")
        await page.get_by_role("navigation").get_by_role("link", name="Domains").click()
        await expect(page.get_by_role("heading", name="This couldn’t be loaded")).to_be_visible()
        await page.get_by_role("button", name="Try again").click()
        await expect(page.get_by_role("heading", name="Domains", level=1)).to_be_visible()
        assert len(refused_paths) == 3
        assert len((await desk.rig.ok("GET", "/api/conversations"))["items"]) == 1


async def test_going_back_closes_an_open_dialog(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page = desk.page
        await desk.rig.domain()
        await desk.goto("#/chat")
        await page.get_by_role("navigation").get_by_role("link", name="Domains").click()
        await page.get_by_role("button", name="New domain").click()
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.go_back()
        await expect(page.locator(".start")).to_be_visible()
        await expect(page.get_by_role("dialog")).to_have_count(0)

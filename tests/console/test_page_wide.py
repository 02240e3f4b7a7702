"""Rules for every page of the console: rights, error texts, axe, sizes, directions, no foreign content."""

import re
from pathlib import Path

import pytest
from playwright.async_api import FilePayload, Page, Response, expect

from agentic_rag.server.web_files import FOLDER
from agentic_rag.testing.steps import Cite, Say, Step, use
from tests.access.tenants import as_operator, bearer, make_key
from tests.console.axe import check_accessible, check_fits
from tests.console.people import sign_in
from tests.console.relay import relaying
from tests.console.rig import EVERY, NARROW, WIDE, console, desk_at, in_shapes, needs_browser
from tests.server.rig import Rig
from tests.ws.serving import serving

PHYSICAL = re.compile(
    r"(?<![\w-])(?:(?:margin|padding|border)-(?:left|right)|(?:text-align|float|clear):\s*(?:left|right)|(?:left|right):)"
)
ALLOWED = {
    "style.css": {".menu {", ".prose .align-"},
}
"""A menu opens beside its button, and a table's columns are aligned as written."""
TABS = ("health", "users", "users/ann", "keys", "provider", "requests", "catalogue", "audit", "usage", "backups")


@pytest.mark.parametrize("sheet", sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.css")))
async def test_style_sheets_use_logical_directions_instead_of_left_and_right(sheet: str) -> None:
    lines = (FOLDER / sheet).read_text(encoding="utf-8").splitlines()
    matches = [line.strip() for line in lines if PHYSICAL.search(line)]
    assert [line for line in matches if not line.startswith(tuple(ALLOWED.get(sheet, ("never",))))] == []


async def test_motion_is_left_out_on_request() -> None:
    assert "@media (prefers-reduced-motion: reduce)" in (FOLDER / "style.css").read_text(encoding="utf-8")


@needs_browser
@pytest.mark.parametrize(
    "role",
    [
        "member",
        "operator",
        pytest.param("author", marks=pytest.mark.nightly("test_role_pages.py opens an author's pages every time")),
        pytest.param("admin", marks=pytest.mark.nightly("a member and an operator sign in every time")),
    ],
)
async def test_forbidden_actions_are_neither_offered_nor_requested(tmp_path: Path, role: str) -> None:
    async with console(tmp_path) as desk:
        page, rig, forbidden = desk.page, desk.rig, list[str]()

        def listen(response: Response) -> None:
            if response.status in (401, 403):
                forbidden.append(f"{response.status} {response.url}")

        as_operator(rig)
        domain = await rig.domain()
        await sign_in(desk, "ann", role, *([] if role == "operator" else [domain]))
        page.on("response", listen)
        links = page.get_by_role("navigation").locator("a[data-page]:visible")
        pages = [await link.get_attribute("data-page") for link in await links.all()]
        assert ("operator" in pages) == (role == "operator")
        for link in await links.all():
            await link.click()
            await expect(page.locator("main :is(h1, h2)").first).to_be_attached()
            await expect(page.locator("main .skeleton")).to_have_count(0)
        if role != "operator":
            await desk.goto("#/operator/users")
            await expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
            await page.keyboard.press("Tab")  # to the link that skips the navigation
            await page.keyboard.press("Enter")
            assert await page.evaluate("document.activeElement.id") == "main"
        assert forbidden == []


@needs_browser
async def test_a_lost_server_and_too_large_input_have_plain_errors_and_typed_text_stays(
    tmp_path: Path,
) -> None:
    expected = ("WebSocket connection",)
    async with Rig(tmp_path) as rig, serving(rig.application.app) as address:
        domain = await rig.domain()
        async with (
            relaying(int(address.rpartition(":")[2])) as (relay, url),
            desk_at(url, rig, expected=expected) as desk,
        ):
            page = desk.page
            await desk.goto(f"#/chat/{domain}")
            await page.get_by_label("Message", exact=True).fill("What is in the picture?")
            large = FilePayload(name="large.png", mimeType="image/png", buffer=b"\x89PNG" + bytes(4_000_000))
            await page.locator("input[type=file]").set_input_files([large])
            await expect(page.locator(".toast-error")).to_be_visible()
            await expect(page.get_by_label("Message", exact=True)).to_have_value("What is in the picture?")
            await desk.goto("#/operator/users")
            await page.get_by_role("button", name="New user").first.click()
            dialog = page.get_by_role("dialog")
            await dialog.get_by_label("Name", exact=True).fill("ann")
            await relay.cut()
            await dialog.get_by_role("button", name="Create").click()
            await expect(dialog.get_by_role("alert").last).to_contain_text("The server does not respond")
            await expect(dialog.get_by_label("Name", exact=True)).to_have_value("ann")
            relay.mend()
            await dialog.get_by_role("button", name="Create").click()
            await expect(page.get_by_role("heading", name="ann")).to_be_visible()


async def fill(rig: Rig) -> None:
    """Create one of everything that the operator's pages show."""
    as_operator(rig)
    domain = await rig.domain(toolPolicy={"promptx_remember": "ask-admin"})
    member = bearer(await make_key(rig, "ann", "member", domain))
    local = rig.settings.data / "mcp" / "local"
    local.mkdir(parents=True, exist_ok=True)
    (local / "notes.py").write_text("print('notes')\n")
    entry = {"command": "python3", "args": ["./notes.py"]}
    await rig.ok("POST", f"/api/domains/{domain}/mcp-servers/notes/request", entry)
    conversation = await rig.ok("POST", "/api/conversations", {"domainId": domain}, headers=member)
    path = f"/api/conversations/{conversation['id']}/messages"
    await rig.ok("POST", path, {"content": "Keep it."}, headers={**member, "accept": "application/json"})


REMEMBER = use("promptx_remember", engrams=[{"content": "tea", "schema": "tea", "strength": 1, "type": "ATOMIC"}])


async def check(page: Page, place: str) -> None:
    """Check the current page: axe finds nothing, and nothing is wider than the window."""
    await check_accessible(page, place)
    await check_fits(page)
    excess = await page.evaluate("(at => at.scrollWidth - at.clientWidth)(document.getElementById('main'))")
    assert excess == 0, f"{place} is wider than its place"


@needs_browser
@pytest.mark.parametrize(("language", "dark", "size"), [("en", *WIDE), ("zh", *NARROW)] if EVERY else [("zh", *NARROW)])
@pytest.mark.nightly("axe checks the chat every time")
async def test_axe_finds_nothing_on_the_operators_pages_which_load_nothing_foreign(
    tmp_path: Path, language: str, dark: bool, size: tuple[int, int]
) -> None:
    async with console(tmp_path, REMEMBER, language=language, dark=dark, size=size) as desk:
        page = desk.page
        await fill(desk.rig)
        urls: list[str] = []
        page.on("request", lambda request: urls.append(request.url))
        await desk.goto()
        await expect(page.locator(".sign-in h1")).to_be_visible()
        await check(page, "sign-in")
        access = desk.rig.application.access
        ticket = (await desk.rig.ok("POST", "/api/ws-tickets", headers=bearer(access.local_key)))["ticket"]
        await desk.goto(f"#ticket={ticket}")
        await expect(page.locator(".rail-link").first).to_be_visible()
        (request,) = (await desk.rig.ok("GET", "/api/launch-requests"))["items"]
        places = (*(f"operator/{tab}" for tab in TABS), f"operator/requests/{request['id']}", "waiting")
        for place in places:
            await desk.follow(f"#/{place}")
            await expect(page.locator(".operator-tab, .wait").first).to_be_visible()
            await expect(page.locator("main .skeleton")).to_have_count(0)
            await check(page, place)
        await desk.follow("#/operator/users")
        await page.locator(".operator-bar button").click()
        await expect(page.get_by_role("dialog")).to_be_visible()
        await check(page, "the dialog of a new user")
        assert all(url.startswith((desk.url, "about:", "data:", "blob:")) for url in urls)
        blocked = "try { document.body.innerHTML = '<b>x</b>'; 'taken' } catch (error) { error.name }"
        assert await page.evaluate(blocked) == "TypeError", "Trusted Types are off"
        desk.heard.clear()  # of that


LEAVE = "عقود العمل والإجازات السنوية للموظفين في جميع المواقع"
"""Longer than the width of the conversation list."""
CUT_OFF = """
() => [...document.querySelectorAll(".clip")]
  .filter((each) => /^[\\u0600-\\u06ff]/.test(each.textContent) && each.checkVisibility())
  .map((each) => [each.className, getComputedStyle(each).direction])
"""


@needs_browser
@in_shapes
@pytest.mark.nightly("the rules of the style sheets run every time")
async def test_right_to_left_text_is_aligned_right_and_fits(tmp_path: Path, dark: bool, size: tuple[int, int]) -> None:
    source = f"<role>\n<personality>\n{LEAVE}.\n</personality>\n</role>\n"
    steps = (use("search_documents", query=LEAVE), Step((Say(LEAVE, (Cite(0),)),)))
    async with console(tmp_path, *steps, dark=dark, size=size) as desk:
        page, rig = desk.page, desk.rig
        domain = (await rig.ok("POST", "/api/domains", {"name": LEAVE, "description": LEAVE}))["id"]
        await rig.upload(domain, "إجازات.md", f"# {LEAVE}\n\n{LEAVE}.\n".encode())
        await rig.ok(
            "PUT", f"/api/domains/{domain}/roles/clerk", {"files": [{"kind": "role", "id": "clerk", "content": source}]}
        )
        conversation = await rig.conversation(domain, title=LEAVE)
        await rig.say(conversation, LEAVE)
        places = {
            "domains": ".domain-card",
            f"domains/{domain}/documents": ".rows-item",
            f"domains/{domain}/settings": ".token-sum",
            f"domains/{domain}/roles": ".rows-item",
            f"domains/{domain}/roles/clerk": ".rendered-line",
            f"chat/{domain}/{conversation}": ".citation",
        }
        clipped: list[list[str]] = []
        for place, part in places.items():
            await desk.goto(f"#/{place}")
            await expect(page.locator(part).first).to_be_visible()
            await check_fits(page)
            clipped += await page.evaluate(CUT_OFF)
        assert {name for name, _ in clipped} >= {"clip chat-title", "strong clip"}
        assert [entry for entry in clipped if entry[1] != "rtl"] == [], "what is cut off of them is their beginning"
        await expect(page.locator(".chat-title")).to_have_css("text-align", "start")

"""The console opens: in both languages, signed in or not, and only from its own files."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from agentic_rag.server.web_files import FOLDER, MEDIA_TYPES
from tests.access.tenants import bearer, make_key
from tests.console.rig import console, needs_browser
from tests.server.rig import Rig

WORDS = {"en": ("Chat", "No domains yet"), "zh": ("对话", "还没有知识域")}


@needs_browser
@pytest.mark.parametrize("language", ["en", "zh"])
async def test_the_shell_opens_in_the_browsers_language(tmp_path: Path, language: str) -> None:
    navigation, empty = WORDS[language]
    async with console(tmp_path, language=language) as desk:
        asked: list[str] = []
        desk.page.on("request", lambda request: asked.append(request.url))
        await desk.goto()
        await expect(desk.page.get_by_role("navigation").get_by_role("link", name=navigation)).to_be_visible()
        await expect(desk.page.get_by_role("heading", name=empty)).to_be_visible()
        await desk.page.keyboard.press("Tab")
        await desk.page.keyboard.press("Enter")
        assert await desk.page.evaluate("document.activeElement.id") == "main"
        await desk.goto("#/nowhere/at/all")
        await expect(desk.page.locator("main h1")).to_be_visible()
        assert all(url.startswith(desk.url) or url == "about:blank" for url in asked)


@needs_browser
async def test_one_signs_in_with_name_and_key_and_by_the_address_that_open_prints(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        key = await make_key(desk.rig, "ann", "operator")
        page = desk.page
        await desk.goto()
        await page.get_by_label("Name").fill("ann")
        await page.get_by_label("Key").fill("arag_wrong")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_contain_text("do not belong together")
        await page.get_by_label("Key").fill(key)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("heading", name="No domains yet")).to_be_visible()
        await page.get_by_role("button", name="Account: ann").click()
        await page.get_by_role("menuitem", name="Sign out").click()
        await expect(page.get_by_role("heading", name="Sign in to Agentic RAG")).to_be_visible()
        for headers, name in ((bearer(key), "ann"), (bearer(desk.rig.application.access.local_key), "local")):
            ticket = (await desk.rig.ok("POST", "/api/ws-tickets", headers=headers))["ticket"]
            await desk.goto(f"#ticket={ticket}")
            await expect(page.get_by_role("button", name=f"Account: {name}")).to_be_visible()
            assert ticket not in page.url
            await page.get_by_role("button", name=f"Account: {name}").click()
            await page.get_by_role("menuitem", name="Sign out").click()
            await expect(page.get_by_role("heading", name="Sign in to Agentic RAG")).to_be_visible()
            await desk.goto(f"#ticket={ticket}")  # it was good once
            await expect(page.locator(".toast")).to_contain_text("used before")


async def test_files_come_with_their_policy_and_only_those_of_the_folder(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        await make_key(rig, "ann", "operator")  # from here on the API asks for one; the page does not
        first = await rig.http.get("/")
        assert first.headers["content-type"].startswith("text/html")
        policy = dict(part.split(" ", 1) for part in first.headers["content-security-policy"].split("; "))
        assert (policy["default-src"], policy["script-src"], policy["style-src"]) == ("'none'", "'self'", "'self'")
        assert policy["require-trusted-types-for"] == "'script'"
        assert first.headers["cache-control"] == "no-cache"
        again = await rig.http.get("/", headers={"If-None-Match": f'W/{first.headers["etag"]}, "other"'})
        assert (again.status_code, again.content) == (304, b"")
        for path in sorted(each for each in FOLDER.rglob("*") if each.is_file()):
            answer = await rig.http.get(f"/web/{path.relative_to(FOLDER)}")
            assert answer.content == path.read_bytes(), path
            assert answer.headers["content-type"] == MEDIA_TYPES[path.suffix]
            assert answer.headers["x-content-type-options"] == "nosniff"
        for missing in ("/web/", "/web/nothing.js", "/web/%2e%2e/http.py", "/web/../http.py", "/web/chat", "/web/.js"):
            assert (await rig.http.get(missing)).status_code == 404, missing

"""Foreign texts never run in a domain's pages: names, documents, roles, memories, tools, refusals."""

import sys
from pathlib import Path

import anyio
import pytest
from playwright.async_api import expect

from tests.console.rig import Desk, console, needs_browser
from tests.console.test_history_pages import choose_bundle
from tests.console.xss import CORPUS, LISTEN_FOR_HITS
from tests.tools.support import SERVERS

pytestmark = [needs_browser, pytest.mark.attack(kind="web")]

PRINTED = " ".join(text for text in CORPUS if text.isprintable())
SAID = " ".join(text for text in CORPUS if text.isprintable() and "{" not in text)
ALL = "\n\n".join(CORPUS)


async def check_quiet(desk: Desk) -> None:
    """Fail if a text ran, or left executable content."""
    page = desk.page
    assert await page.evaluate("window.hits") == []
    assert await page.locator("base, meta[http-equiv=refresh]").count() == 0
    forbidden = "script, iframe, object, embed, style, [onerror], [onload], [ontoggle], [href^='javascript' i]"
    assert await page.locator(f"#main :is({forbidden}), dialog :is({forbidden})").count() == 0
    assert page.url.startswith(desk.url)


async def test_no_script_runs_in_the_pages_of_a_domain(tmp_path: Path) -> None:
    async with console(tmp_path, any_command=True) as desk:
        page, rig = desk.page, desk.rig
        await page.add_init_script(LISTEN_FOR_HITS)
        domain = await rig.domain(expertise=PRINTED[:1900])
        base = f"/api/domains/{domain}"
        await rig.ok("PATCH", base, {"name": CORPUS[1], "description": PRINTED})
        await rig.upload(domain, "<img src=x onerror=hit()>.md", f"# {CORPUS[1]}\n\npassage {ALL}".encode())
        await rig.upload(domain, "<svg onload=hit()>.pdf", b"%PDF-1.7 <script>hit()</script>")
        role = f"<role><personality>{ALL}</personality></role>"
        await rig.ok("PUT", f"{base}/roles/clerk", {"files": [{"kind": "role", "id": "clerk", "content": role}]})
        await rig.ok("PUT", f"{base}/prompt-components/rules.md", {"content": ALL})
        engrams = [
            {
                "id": f"e{index}",
                "content": text,
                "cues": [text, "tea"],
                "type": "ATOMIC",
                "strength": 0.5,
                "createdAt": index,
            }
            for index, text in enumerate(CORPUS)
        ]
        await rig.ok("POST", f"{base}/memories/import?role=assistant", {"engrams": engrams})
        entry = {"command": sys.executable, "args": ["-I", "-S", str(SERVERS / "hostile.py"), "says", SAID]}
        await rig.ok("PATCH", base, {"settings": {"mcpServers": {"evil": entry}}})
        parts = {
            "documents": ".rows-item",
            "search": ".empty",
            "prompt": ".token-sum",
            "settings": ".token-sum",
            "servers": ".rows-item",
            "roles": ".rows-item",
            "roles/clerk": ".rendered-line",
            "memory": ".net-node",
        }
        await desk.goto("#/domains")
        await expect(page.locator(".domain-card")).to_be_visible()
        await check_quiet(desk)
        for tab, part in parts.items():
            await desk.follow(f"#/domains/{domain}/{tab}")
            await expect(page.locator(f".panel-{tab.partition('/')[0]} {part}").first).to_be_visible()
            for summary in await page.locator("main summary").all():
                await summary.click()
            await check_quiet(desk)
        await page.locator(".net-node").nth(3).press("Enter")
        await page.get_by_role("tab", name="List").click()
        await expect(page.get_by_role("tabpanel").locator(".rows-item").first).to_be_visible()
        await check_quiet(desk)
        await desk.follow(f"#/domains/{domain}/documents")
        await page.locator(".panel-documents .row-name").first.click()
        await expect(page.locator("dialog .chunk, dialog .bad").first).to_be_visible()
        await check_quiet(desk)
        await page.keyboard.press("Escape")
        await desk.follow(f"#/domains/{domain}/search")
        await page.get_by_label("Ask as a user would").fill("passage " + CORPUS[1])
        await page.keyboard.press("Enter")
        await expect(page.locator(".score").first).to_be_visible()
        await check_quiet(desk)
        await desk.follow(f"#/domains/{domain}/servers")
        row = page.get_by_label("Servers", exact=True).locator(".rows-item").filter(has_text="evil")
        await expect(row).to_be_visible()  # the list moves the editor below it
        await (
            page.get_by_label("Servers of this domain")
            .get_by_role("textbox")
            .fill('{"mcpServers": {"<img src=x onerror=hit()>": {"command": "x"}}}')
        )
        await page.get_by_role("button", name="Test", exact=True).click()
        await expect(page.locator(".notice-bad")).to_be_visible()
        await check_quiet(desk)
        await row.get_by_role("button", name="Restart").click()
        await expect(row.locator(".rows-end .badge")).to_have_text("Ready")
        await row.get_by_role("button", name="tool").click()
        for summary in await page.locator("dialog summary").all():
            await summary.click()
        await check_quiet(desk)


@pytest.mark.nightly("the attacks on the chat and a domain run every time")
async def test_no_script_runs_in_the_history_and_bundles_of_a_domain(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, rig = desk.page, desk.rig
        await page.add_init_script(LISTEN_FOR_HITS)
        domain = await rig.domain(expertise=PRINTED[:1900])
        base = f"/api/domains/{domain}"
        await rig.ok("PATCH", base, {"name": CORPUS[0], "settings": {"expertise": PRINTED[-1900:]}})
        for text in (ALL, f"{ALL}\n{CORPUS[1]}"):
            await rig.ok("PUT", f"{base}/prompt-components/rules.md", {"content": text})
        role = {"kind": "role", "id": "clerk", "content": f"<role><personality>{ALL}</personality></role>"}
        await rig.ok("PUT", f"{base}/roles/clerk", {"files": [role]})
        await desk.goto(f"#/domains/{domain}/history")
        rows = page.get_by_label("Changes", exact=True).get_by_role("listitem")
        await expect(rows).to_have_count(5)
        await check_quiet(desk)
        for index in range(5):
            await desk.goto(f"#/domains/{domain}/history")
            await rows.nth(index).get_by_role("link").click()
            await expect(page.get_by_role("main").get_by_role("region").first).to_be_visible()
            await expect(page.locator("main .skeleton")).to_have_count(0)
            await check_quiet(desk)
        bundle = tmp_path / "evil.zip"
        answer = await rig.http.get(f"{base}/bundle")
        await anyio.Path(bundle).write_bytes(answer.content)
        await rig.ok("PATCH", base, {"name": CORPUS[1], "settings": {"expertise": CORPUS[2]}})
        await rig.ok("DELETE", f"{base}/prompt-components/rules.md")
        await desk.goto(f"#/domains/{domain}/prompt")
        await page.locator(".domain-head").get_by_role("button", name="More", exact=True).click()
        await page.get_by_role("menuitem", name="Import over this…").click()
        await choose_bundle(page, bundle)
        dialog = page.get_by_role("dialog")
        await expect(dialog.get_by_role("region", name="What would change")).to_contain_text("expertise")
        await check_quiet(desk)
        await dialog.get_by_role("button", name="Import now").click()
        await expect(dialog.get_by_role("link", name="Open the domain")).to_be_visible()
        await check_quiet(desk)

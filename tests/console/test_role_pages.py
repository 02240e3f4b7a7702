"""A role author writes a role, sees its errors, tries the draft, and reads the role's memories."""

import json
from pathlib import Path

import anyio
import pytest
from playwright.async_api import FilePayload, expect

from agentic_rag.testing.scripted import Stalled
from agentic_rag.testing.steps import say, use
from tests.access.tenants import bearer, make_key
from tests.console.axe import check_accessible, check_fits
from tests.console.rig import Desk, console, in_languages, in_shapes, needs_browser
from tests.server.rig import Json
from tests.waiting import pause

pytestmark = needs_browser

WORDS = {
    "en": {
        "new": "New role",
        "id": "Id",
        "begin": "Start",
        "source": "Source of the role",
        "fine": "No findings",
        "try": "Try it",
        "message": "Ask the draft a question",
        "close": "Close",
        "save": "Save (applies from the next message)",
        "saved": "Saved. Applies from the next message.",
        "more": "More",
        "delete": "Delete",
        "undo": "Undo",
        "roles": "Roles",
        "recall": "Recall from {}",
        "list": "List",
        "forget": "Forget",
        "memories": "{} memories",
    },
    "zh": {
        "new": "新建角色",
        "id": "标识",
        "begin": "开始",
        "source": "角色源文本",
        "fine": "没有问题",
        "try": "试用",
        "message": "向草稿提问",
        "close": "关闭",
        "save": "保存：从下一轮起生效",
        "saved": "已保存，从下一轮起生效。",
        "more": "更多",
        "delete": "删除",
        "undo": "撤销",
        "roles": "角色",
        "recall": "从 {} 回忆",
        "list": "列表",
        "forget": "忘记",
        "memories": "{} 条记忆",
    },
}
OWN_FILE = {"kind": "role", "id": "clerk", "content": "<role>\n<personality>\nI am a clerk.\n</personality>\n</role>\n"}
ROLE = "<role>\n<personality>\nI am the clerk of the draft.\n</personality>\n</role>\n"


def engrams() -> list[Json]:
    memories = {
        "Anna likes sencha.": ("anna", "tea"),
        "Tea is at four.": ("tea", "four"),
        "Four is late": ("four", "late"),
    }
    common = {"type": "ATOMIC", "strength": 0.9}
    return [
        {**common, "id": f"e{index}", "content": text, "cues": cues, "createdAt": 1_700_000_000_000 + index}
        for index, (text, cues) in enumerate(memories.items())
    ]


async def sign_in(desk: Desk, key: str) -> None:
    """Sign the browser in with a key."""
    ticket = (await desk.rig.ok("POST", "/api/ws-tickets", headers=bearer(key)))["ticket"]
    await desk.goto(f"#ticket={ticket}")
    await expect(desk.page.locator(".rail-link").first).to_be_visible()  # the page is drawn for the signed-in user


@in_languages("zh")
async def test_an_author_writes_a_role_and_tries_it_before_it_is_live(tmp_path: Path, language: str) -> None:
    words = WORDS[language]
    steps = (use("promptx_action", role="clerk"), say("Here is the clerk."))
    async with console(tmp_path, *steps, language=language) as desk:
        page = desk.page
        domain = await desk.rig.domain()
        await sign_in(desk, await make_key(desk.rig, "ann", "author", domain))
        await desk.goto(f"#/domains/{domain}/roles")
        sections = page.locator(".section-nav").get_by_role("listitem")
        await expect(sections).to_have_count(5)  # actions without the right are not offered
        await page.get_by_role("button", name=words["new"]).click()
        await page.get_by_role("dialog").get_by_label(words["id"]).fill("clerk")
        await page.get_by_role("button", name=words["begin"]).click()
        source = page.get_by_label(words["source"])
        await expect(page.get_by_text(words["fine"])).to_be_visible()  # the template
        await source.fill(ROLE.replace("</personality>", "</personalty>"))
        await expect(page.locator(".lines-number.mark-error").first).to_be_visible()
        await expect(page.locator(".lines-mark").first).to_contain_text(":")
        await source.fill(ROLE)
        await expect(page.get_by_text(words["fine"])).to_be_visible()
        await expect(page.locator(".rendered")).to_contain_text("I am the clerk of the draft.")
        await page.get_by_role("button", name=words["try"]).click()
        await page.get_by_label(words["message"]).fill("Who are you?")
        await page.keyboard.press("Enter")
        await expect(page.locator(".trial-answer")).to_contain_text("Here is the clerk.")
        assert "I am the clerk of the draft." in str(desk.rig.model.requests[1].messages)
        roles = await desk.rig.ok("GET", f"/api/domains/{domain}/roles")
        assert "clerk" not in [role["id"] for role in roles["items"]]  # nothing is live yet
        await page.get_by_role("dialog").get_by_role("button", name=words["close"]).click()

        await page.reload()  # the typed text is still there
        await expect(source).to_have_value(ROLE)
        await page.get_by_role("button", name=words["save"]).click()
        await expect(page.locator(".toast")).to_contain_text(words["saved"])
        clerk = await desk.rig.ok("GET", f"/api/domains/{domain}/roles/clerk")
        assert clerk["files"][0]["content"] == ROLE
        await page.get_by_role("button", name=words["more"], exact=True).last.click()
        await page.get_by_role("menuitem", name=words["delete"]).click()
        await page.get_by_role("button", name=words["undo"]).click()
        await expect(source).to_have_value(ROLE)


@pytest.mark.nightly("an author writes and tries a role every time")
async def test_a_saved_role_becomes_the_primary_role(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, domain = desk.page, await desk.rig.domain()
        await desk.goto(f"#/domains/{domain}/roles/clerk")
        head = page.locator(".role-head")
        await expect(head).to_contain_text("New")
        save = page.get_by_role("button", name="Save (applies from the next message)")
        source = page.get_by_label("Source of the role")
        template = await source.input_value()
        await source.fill(template.replace("Say in two or three sentences who this role is", "You are the clerk"))
        await save.click()
        warning = page.get_by_role("dialog", name="Lines of the template are left")
        await expect(warning).to_contain_text("What must never happen.")
        await warning.get_by_role("button", name="Back to the text").click()
        assert "clerk" not in [
            role["id"] for role in (await desk.rig.ok("GET", f"/api/domains/{domain}/roles"))["items"]
        ]
        await save.click()
        await warning.get_by_role("button", name="Remove and save").click()
        note = "The model can now use this role. assistant still answers first."
        await expect(page.get_by_text(note)).to_be_visible()
        await expect(head).to_contain_text("In this domain")
        await expect(save).to_be_disabled()  # everything is saved
        await page.get_by_role("button", name="Use as primary role").click()
        await expect(head).to_contain_text("Primary")
        settings = (await desk.rig.ok("GET", f"/api/domains/{domain}"))["settings"]
        assert settings["primaryRoleId"] == "clerk"
        clerk = await desk.rig.ok("GET", f"/api/domains/{domain}/roles/clerk")
        (file,) = clerk["files"]
        own = [line.strip() for line in file["content"].splitlines() if line.strip() and line.strip()[0] not in "<#"]
        assert own == ["You are the clerk and whom it serves."]
        assert clerk["findings"] == []


@pytest.mark.nightly("an author writes and tries a role every time")
async def test_a_role_changed_on_disk_is_not_silently_overwritten(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page = desk.page
        domain = await desk.rig.domain()
        path = f"/api/domains/{domain}/roles/clerk"
        await desk.rig.ok("PUT", path, {"files": [{"kind": "role", "id": "clerk", "content": ROLE}]})
        await desk.goto(f"#/domains/{domain}/roles/clerk")
        await page.get_by_label("Source of the role").fill(ROLE.replace("clerk", "scribe"))
        file = desk.rig.settings.workspaces / domain / ".promptx" / "resource" / "role" / "clerk" / "clerk.role.md"
        file.write_text(ROLE.replace("clerk", "typist"))
        await page.get_by_role("button", name="Save (applies from the next message)").click()
        dialog = page.get_by_role("dialog", name="Someone else saved meanwhile")
        await expect(dialog.locator("del")).to_contain_text("typist")
        await expect(dialog.locator("ins")).to_contain_text("scribe")
        await dialog.get_by_role("button", name="Use their version").click()
        await expect(page.get_by_label("Source of the role")).to_have_value(ROLE.replace("clerk", "typist"))


@in_languages("en")
async def test_a_memory_is_browsed_forgotten_exported_and_imported(tmp_path: Path, language: str) -> None:
    words = WORDS[language]
    async with console(tmp_path, language=language) as desk:
        page = desk.page
        domain = await desk.rig.domain()
        base = f"/api/domains/{domain}/memories"
        await desk.rig.ok("POST", f"{base}/import?role=assistant", {"engrams": engrams()})
        await desk.goto(f"#/domains/{domain}/memory")
        await page.get_by_role("button", name=words["recall"].format("tea")).press("Enter")
        await expect(page.locator(".net-center")).to_have_text(words["recall"].format("tea") + "tea")
        await expect(page.locator(".rows-item").first).to_contain_text(".")
        await page.locator(".net").press("+")
        await page.get_by_role("tab", name=words["list"]).click()
        await expect(page.get_by_text(words["memories"].format(3))).to_be_visible()
        await page.locator(".rows-item").filter(has_text="sencha").get_by_role("button", name=words["forget"]).click()
        await expect(page.locator(".rows-item").filter(has_text="sencha")).to_have_count(0)
        await page.get_by_role("button", name=words["undo"]).click()
        await expect(page.locator(".rows-item").filter(has_text="sencha")).to_be_visible()
        assert (await desk.rig.ok("GET", base))["total"] == 3
        menu = page.locator(".domain-panel").get_by_role("button", name=words["more"], exact=True)
        await menu.click()
        async with page.expect_download() as coming:
            await page.get_by_role("menuitem").first.click()
        await (await coming.value).save_as(tmp_path / "memory.json")
        exported = json.loads(await anyio.Path(tmp_path / "memory.json").read_text())
        assert len(exported["engrams"]) == 3
        exported["engrams"] = [{**exported["engrams"][0], "id": "e9", "content": "Brought in.", "cues": ["new", "tea"]}]
        await menu.click()
        async with page.expect_file_chooser() as choosing:
            await page.get_by_role("menuitem").last.click()
        file = FilePayload(name="memory.json", mimeType="application/json", buffer=json.dumps(exported).encode())
        await (await choosing.value).set_files(file)
        await expect(page.get_by_role("button", name=words["recall"].format("new"))).to_be_visible()


@in_shapes
@pytest.mark.nightly("axe checks the chat every time")
async def test_axe_finds_nothing_on_roles_and_memory(tmp_path: Path, dark: bool, size: tuple[int, int]) -> None:
    async with console(tmp_path, say("Yes."), dark=dark, size=size) as desk:
        page = desk.page
        domain = await desk.rig.domain()
        await desk.rig.ok("PUT", f"/api/domains/{domain}/roles/clerk", {})
        await desk.rig.ok("POST", f"/api/domains/{domain}/memories/import?role=assistant", {"engrams": engrams()})
        for place, part in (("roles", ".rows-item"), ("roles/clerk", ".rendered-line"), ("memory", ".net-node")):
            await desk.goto(f"#/domains/{domain}/{place}")
            await expect(page.locator(part).first).to_be_visible()
            await check_accessible(page, place)
            await check_fits(page)
        await desk.goto(f"#/domains/{domain}/roles/clerk")
        await page.get_by_label("Source of the role").fill("<role>\n<personality>")
        await expect(page.locator(".lines-mark").first).to_be_visible()
        await check_accessible(page, "marks")
        await page.get_by_label("Source of the role").fill(ROLE)
        await expect(page.get_by_text("No findings")).to_be_visible()
        await page.get_by_role("button", name="Try it").click()
        await page.get_by_label("Ask the draft a question").fill("Hi")
        await page.keyboard.press("Enter")
        await expect(page.locator(".trial-answer")).to_contain_text("Yes.")
        await check_accessible(page, "trial")


@pytest.mark.nightly("an author writes and tries a role every time")
async def test_a_trial_keeps_the_typed_text_and_ends_with_its_dialog(tmp_path: Path) -> None:
    slow = Stalled(say("This answer takes its time, and then some more of it."), 4)
    async with console(tmp_path, slow) as desk:
        page, domain = desk.page, await desk.rig.domain()
        await desk.rig.ok("PUT", f"/api/domains/{domain}/roles/clerk", {"files": [OWN_FILE]})
        await desk.goto(f"#/domains/{domain}/roles/clerk")
        await page.get_by_role("button", name="Try it").click()
        words = page.get_by_label("Ask the draft a question")
        await words.fill("Who are you?")
        await words.press("Enter")
        await words.press_sequentially("And you?")
        await slow.reached.wait()
        await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        await expect(words).to_have_value("And you?")
        await page.keyboard.press("Escape")
        (conversation,) = (await desk.rig.ok("GET", "/api/conversations"))["items"]
        with anyio.fail_after(240):
            while (await desk.rig.ok("GET", f"/api/conversations/{conversation['id']}"))["turn"] is not None:
                await pause()
        answer = (await desk.rig.ok("GET", f"/api/conversations/{conversation['id']}/messages"))["items"][-1]
        assert answer["metadata"]["interrupted"]

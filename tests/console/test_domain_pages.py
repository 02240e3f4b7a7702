"""An admin creates a domain, fills it, tunes it and adds servers. Typed text and the changes of others survive."""

import json
import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from playwright.async_api import FilePayload, Locator, Page, expect

from agentic_rag.testing.steps import say, use
from tests.console.axe import check_accessible, check_fits
from tests.console.rig import Desk, console, in_languages, in_shapes, needs_browser
from tests.tools.captives import needs_bubblewrap
from tests.tools.support import SERVERS

pytestmark = needs_browser

LEAVE = b"# Leave\n\nFull-time staff have 27 days of paid leave a year.\n\n# Notice\n\nThe period is three months.\n"
BROKEN = b"%PDF-1.7 broken"

WORDS = {
    "en": {
        "create": "New domain",
        "name": "Name",
        "make": "Create domain",
        "files": "Choose files",
        "ready": "Ready",
        "failed": "Cannot be read",
        "ask": "Ask as a user would",
        "search": "Search",
        "seen": "Used in the answer",
        "below": "Below the threshold",
        "threshold": "Threshold",
        "keep": "Use these settings for answers",
        "kept": "Saved. Answers now use",
        "expertise": "Expertise",
        "scans": "Scanned pages are read by",
        "scan pages": "Pages per document",
        "lines": "Context lines",
        "preview": "What the model receives",
        "save": "Save",
        "saved": "Saved. Applies from the next message.",
        "undo": "Undo",
        "actions": "Actions for {}",
        "delete": "Delete",
        "answers": "Searches of answers",
    },
    "zh": {
        "create": "新建知识域",
        "name": "名称",
        "make": "创建知识域",
        "files": "选择文件",
        "ready": "就绪",
        "failed": "无法读取",
        "ask": "像用户一样提问",
        "search": "检索",
        "seen": "用于回答",
        "below": "低于阈值",
        "threshold": "阈值",
        "keep": "将其用于回答",
        "kept": "已保存：此后",
        "expertise": "专长",
        "scans": "扫描页的读取方式",
        "scan pages": "每个文档的页数",
        "lines": "上下文行",
        "preview": "模型收到的内容",
        "save": "保存",
        "saved": "已保存，从下一轮起生效。",
        "undo": "撤销",
        "actions": "{} 的操作",
        "delete": "删除",
        "answers": "回答中的检索",
    },
}


async def choose_files(place: Page | Locator, label: str, *files: tuple[str, bytes]) -> None:
    page = place.page if isinstance(place, Locator) else place
    async with page.expect_file_chooser() as choosing:
        await place.get_by_role("button", name=label, exact=True).click()
    chooser = await choosing.value
    await chooser.set_files(
        [FilePayload(name=name, mimeType="application/octet-stream", buffer=content) for name, content in files]
    )


async def domain_of(desk: Desk) -> str:
    await expect(desk.page).to_have_url(re.compile(r"#/domains/dom_"))
    return desk.page.url.split("#/domains/")[1].split("/")[0]


@in_languages("en")
async def test_an_admin_creates_a_domain_adds_documents_and_tunes_its_search(tmp_path: Path, language: str) -> None:
    words = WORDS[language]
    steps = (use("search_documents", query="paid leave"), say("27 days."))
    async with console(tmp_path, *steps, language=language) as desk:
        page = desk.page
        await desk.goto("#/domains")
        await page.get_by_role("button", name=words["create"]).first.click()
        await page.get_by_role("dialog").get_by_label(words["name"], exact=True).fill("Human Resources")
        await page.get_by_role("button", name=words["make"]).click()
        domain = await domain_of(desk)
        await choose_files(page, words["files"], ("leave.md", LEAVE), ("broken.pdf", BROKEN), ("x.exe", b"MZ"))
        rows = page.locator(".rows-item")
        await expect(rows.filter(has_text="leave.md").locator(".state")).to_have_text(words["ready"])
        await expect(rows.filter(has_text="broken.pdf").locator(".state")).to_have_text(words["failed"])
        await expect(page.get_by_role("alert").filter(has_text="x.exe")).to_be_visible()
        await page.get_by_role("button", name=words["actions"].format("broken.pdf")).click()
        await page.get_by_role("menuitem", name=words["delete"]).click()
        await expect(rows.filter(has_text="broken.pdf")).to_have_count(0)
        await page.get_by_role("button", name=words["undo"]).click()
        await expect(rows.filter(has_text="broken.pdf")).to_be_visible()
        await page.get_by_role("button", name="leave.md", exact=True).click()
        await expect(page.locator("dialog .chunk").first).to_contain_text("27 days")
        await page.keyboard.press("Escape")

        await desk.follow(f"#/domains/{domain}/search")
        await page.get_by_label(words["ask"]).fill("paid leave")
        await page.get_by_role("button", name=words["search"], exact=True).click()
        await expect(page.locator(".score .badge").first).to_have_text(words["seen"])
        await page.get_by_label(words["threshold"]).fill("1")
        await expect(page.locator(".score .badge").first).to_have_text(words["below"])
        await page.get_by_label(words["threshold"]).fill("0.2")
        await page.get_by_role("button", name=words["search"], exact=True).click()
        await page.get_by_role("button", name=words["keep"]).click()
        await expect(page.get_by_text(words["kept"])).to_be_visible()

        await desk.goto(f"#/domains/{domain}/settings")
        preview = page.get_by_label(words["preview"])
        await expect(preview.locator(".token-sum")).to_be_visible()
        before = await preview.locator(".token-sum").inner_text()
        await page.get_by_label(words["expertise"]).fill("Leave, notice and contracts of all staff. " * 8)
        await expect(preview.locator(".token-sum")).not_to_have_text(before)  # nothing is saved yet
        await desk.goto(f"#/domains/{domain}/settings")  # the typed text is still there
        await expect(page.get_by_label(words["expertise"])).to_have_value(re.compile("^Leave, notice"))
        await expect(page.get_by_label(words["scan pages"])).to_be_hidden()
        await page.get_by_label(words["scans"]).select_option("model")
        await page.get_by_label(words["scan pages"]).fill("20")
        await page.get_by_label(words["lines"]).check()
        await page.get_by_label(words["lines"]).uncheck()  # the scripted model writes no answer
        await page.get_by_role("button", name=words["save"], exact=True).click()
        await expect(page.locator(".toast")).to_contain_text(words["saved"])
        settings = (await desk.rig.ok("GET", f"/api/domains/{domain}"))["settings"]
        assert settings["expertise"].startswith("Leave, notice")
        assert settings["retrievalThreshold"] == 0.2
        assert settings["scans"] == {"reader": "model", "pages": 20}

        conversation = await desk.rig.conversation(domain)
        await desk.rig.say(conversation, "How many days?")
        await desk.follow(f"#/domains/{domain}/answers")
        await page.get_by_label(words["answers"]).get_by_role("link", name="paid leave").first.click()
        await expect(page.locator(".score").first).to_contain_text("leave.md")


@pytest.mark.nightly("a failed document shows its remedy every time")
async def test_refused_uploads_have_a_reason_and_running_ones_can_be_stopped(tmp_path: Path) -> None:
    async with console(tmp_path, max_upload_bytes=1_000_000) as desk:
        page = desk.page
        domain = await desk.rig.domain()
        await desk.goto(f"#/domains/{domain}")
        await choose_files(page, "Choose files", ("huge.txt", b"word " * 300_000), ("good.md", LEAVE))
        await expect(page.get_by_role("alert").filter(has_text="huge.txt")).to_be_visible()
        await expect(page.locator(".rows-item").filter(has_text="good.md").locator(".state")).to_have_text("Ready")
        await page.evaluate(
            """async () => {
              const given = new DataTransfer();
              given.items.add(new File(["# Dropped\\n\\nIt was dropped."], "dropped.md"));
              const options = { bubbles: true, cancelable: true, dataTransfer: given };
              const panel = document.querySelector(".domain-panel");
              for (const type of ["dragenter", "dragover", "drop"]) panel.dispatchEvent(new DragEvent(type, options));
            }"""
        )
        await expect(page.locator(".rows-item").filter(has_text="dropped.md").locator(".state")).to_have_text("Ready")


async def test_a_failed_document_shows_its_remedy_in_the_language_of_the_page(tmp_path: Path) -> None:
    async with console(tmp_path, language="zh") as desk:
        page = desk.page
        domain = await desk.rig.domain()
        await desk.rig.upload(domain, "empty.md", b"")
        await desk.rig.upload(domain, "sheet.csv", b"\n\n")
        await desk.rig.upload(domain, "leave.md", LEAVE)
        await desk.goto(f"#/domains/{domain}/documents")
        await expect(page.get_by_role("group", name="显示哪些文档")).to_contain_text("需要处理 2")
        rows = page.locator(".document-row")
        failed = rows.filter(has_text="empty.md")
        await expect(failed).to_contain_text("文件中没有文字。")
        await expect(failed).to_contain_text("请替换为含有文字的文件。")
        await expect(failed.get_by_role("button", name="重试")).to_have_count(0)  # it would fail again
        await expect(rows.filter(has_text="leave.md").get_by_role("button", name="替换文件")).to_have_count(0)

        await choose_files(failed, "替换文件", ("other-name.md", b"# Notice\n\nThe period is two months.\n"))
        await expect(rows.filter(has_text="empty.md").locator(".state")).to_have_text("就绪")
        await choose_files(rows.filter(has_text="sheet.csv"), "替换文件", ("sheet.txt", b"Tea costs four euros."))
        await expect(rows.filter(has_text="sheet.txt").locator(".state")).to_have_text("就绪")
        await expect(rows.filter(has_text="sheet.csv")).to_have_count(0)
        documents = (await desk.rig.ok("GET", f"/api/domains/{domain}/documents"))["items"]
        assert sorted(document["name"] for document in documents) == ["empty.md", "leave.md", "sheet.txt"]

        await choose_files(page, "选择文件", ("x.exe", b"MZ"))
        alert = page.get_by_role("alert").filter(has_text="x.exe")
        await expect(alert).to_contain_text("不支持此类文件")
        assert (await alert.inner_text()).count("x.exe") == 1


async def test_the_sections_of_a_domain_are_three_groups_that_open_from_a_button_on_a_phone(tmp_path: Path) -> None:
    async with console(tmp_path, size=(390, 780)) as desk:
        page = desk.page
        domain = await desk.rig.domain()
        await desk.goto(f"#/domains/{domain}/usage")
        opener = page.locator(".section-opener")
        await expect(opener).to_have_text("Usage")
        await opener.click()
        nav = page.get_by_role("navigation", name="Sections of this domain")
        groups = nav.locator(".section-group")
        items = [await group.get_by_role("listitem").all_inner_texts() for group in await groups.all()]
        assert items == [
            ["Documents", "Search", "Evaluation"],
            ["Prompt", "Roles", "Memory", "Servers", "Settings", "Notifications"],
            ["Answers", "Feedback", "History", "Usage"],
        ]
        assert await groups.locator(".section-group-name").all_inner_texts() == ["Content", "Behaviour", "Record"]
        await check_accessible(page, "the sections")
        await check_fits(page)
        await nav.get_by_role("link", name="Memory").click()
        await expect(nav).to_be_hidden()
        await expect(page.get_by_role("heading", name="Memory", level=2)).to_be_visible()
        await page.set_viewport_size({"width": 1280, "height": 800})
        await nav.get_by_role("link", name="Servers").click()
        await expect(page.get_by_role("heading", name="Servers", level=2, exact=True).first).to_be_visible()
        assert page.url.endswith(f"#/domains/{domain}/servers")


@pytest.mark.nightly("test_saving.py changes the same settings twice every time")
async def test_two_tabs_with_the_same_settings_do_not_silently_overwrite(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page = desk.page
        domain = await desk.rig.domain()
        place = f"{desk.url}/#/domains/{domain}/settings"
        await page.goto(place)
        await expect(page.get_by_label("Expertise")).to_be_visible()
        other_tab = await page.context.new_page()
        await other_tab.goto(place)
        await expect(page.get_by_text("This page is open in another tab.")).to_be_visible()
        await expect(other_tab.get_by_text("This page is open in another tab.")).to_be_visible()
        await page.get_by_label("Expertise").fill("Mine")
        await other_tab.get_by_label("Expertise").fill("Theirs")
        await other_tab.get_by_role("button", name="Save", exact=True).click()
        await expect(page.get_by_text("This was saved in another tab.")).to_be_visible()
        await page.get_by_role("button", name="Save", exact=True).click()
        dialog = page.get_by_role("dialog", name="Someone else saved meanwhile")
        await expect(dialog.get_by_role("row").filter(has_text="expertise")).to_contain_text("Theirs")
        await dialog.get_by_role("button", name="Overwrite with mine").click()
        await expect(page.locator(".toast")).to_contain_text("Saved")
        settings = (await desk.rig.ok("GET", f"/api/domains/{domain}"))["settings"]
        assert settings["expertise"] == "Mine"


async def test_servers_are_checked_tested_requested_saved_and_restarted(tmp_path: Path) -> None:
    async with console(tmp_path, any_command=True) as desk:
        page = desk.page
        domain = await desk.rig.domain()
        await desk.goto(f"#/domains/{domain}/servers")
        text = page.get_by_label("Servers of this domain").get_by_role("textbox")
        await text.fill('{"mcpServers": {\n  "calc": {"command": "x",}\n}}')
        await page.get_by_role("button", name="2:27").click()  # the mark links to the place
        assert await text.evaluate("area => area.selectionStart") == 43
        entry = {"command": sys.executable, "args": [str(SERVERS / "plain.py")], "disabled": False}
        entry["env"] = {"TOKEN": "secret-value-1234"}
        await text.fill(json.dumps({"mcpServers": {"calc": entry}}, indent=2))
        await page.get_by_role("button", name="Test", exact=True).click()
        card = page.get_by_role("region", name="calc")
        await expect(card.get_by_text("Ready")).to_be_visible()
        await expect(card.locator(".tool").first).to_be_visible()
        assert (await desk.rig.ok("GET", f"/api/domains/{domain}"))["settings"]["mcpServers"].keys() == {"promptx"}
        await page.get_by_role("button", name="Save", exact=True).click()
        await expect(page.locator(".toast")).to_contain_text("Saved")
        assert "secret-value-1234" not in await page.content()
        assert "secret-value-1234" not in await text.input_value()
        row = page.get_by_label("Servers", exact=True).locator(".rows-item").filter(has_text="calc")
        await row.get_by_role("button", name="Restart").click()
        await expect(row.locator(".rows-end .badge")).to_have_text("Ready")
        await row.get_by_role("button", name="tool").click()
        tool = page.get_by_role("dialog").locator(".tool").filter(has_text="echo")
        await tool.locator("summary").click()
        await tool.get_by_label("When a model calls echo").select_option("deny")
        await expect(page.locator(".toast").last).to_contain_text("echo: Deny")
        policy = (await desk.rig.ok("GET", f"/api/domains/{domain}"))["settings"]["toolPolicy"]
        assert policy == {"calc__echo": "deny"}
        await tool.get_by_label("When a model calls echo").select_option("")
        await expect(page.locator(".toast").last).to_contain_text("Follow the domain’s rules")
        assert (await desk.rig.ok("GET", f"/api/domains/{domain}"))["settings"]["toolPolicy"] == {}
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="Set a secret").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Name").fill("GITHUB_TOKEN")
        await dialog.get_by_label("Value").fill("ghp_0123456789abcdef")
        await dialog.get_by_role("button", name="Save secret").click()
        await expect(page.get_by_role("row").filter(has_text="GITHUB_TOKEN")).to_contain_text("••••cdef")


@pytest.mark.nightly("a pasted server is asked for on the same page every time")
async def test_a_command_line_that_may_not_run_is_marked_and_requested(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page = desk.page
        script = desk.rig.settings.data / "mcp" / "local" / "tool" / "server.js"
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text("process.exit(0)")
        domain = await desk.rig.domain()
        await desk.goto(f"#/domains/{domain}/servers")
        text = page.get_by_label("Servers of this domain").get_by_role("textbox")
        line = {"command": sys.executable, "args": ["tool/server.js"]}
        await text.fill(json.dumps({"mcpServers": {"own": line}}, indent=2))
        await page.get_by_role("button", name="Save", exact=True).click()
        await expect(page.get_by_text("This command may not run yet")).to_be_visible()
        await expect(page.locator(".lines-number.mark-error")).to_be_visible()


@in_shapes
@pytest.mark.nightly("axe checks the chat every time")
async def test_axe_finds_nothing_on_the_pages_of_a_domain(tmp_path: Path, dark: bool, size: tuple[int, int]) -> None:
    async with console(tmp_path, say("Yes."), dark=dark, size=size) as desk:
        page = desk.page
        domain = await desk.rig.domain(toolPolicy={"a__*": {"admin": "allow"}}, variables={"SITE": "north"})
        await desk.rig.upload(domain, "leave.md", LEAVE)
        await desk.rig.upload(domain, "broken.pdf", BROKEN)
        await desk.rig.say(await desk.rig.conversation(domain), "Hi")
        await desk.rig.ok("PUT", f"/api/domains/{domain}/prompt-components/rules.md", {"content": "# Be brief"})
        parts = {
            "documents": ".rows-item",
            "search": ".empty",
            "answers": ".empty",
            "prompt": ".lines-area",
            "settings": ".token-sum",
            "servers": ".rows-item",
            "usage": ".usage-chart",
        }
        await desk.goto("#/domains")
        await expect(page.locator(".domain-card")).to_be_visible()
        await check_accessible(page, "list")
        for tab, part in parts.items():
            await desk.goto(f"#/domains/{domain}/{tab}")
            await expect(page.locator(part).first).to_be_visible()
            await check_accessible(page, tab)
            await check_fits(page)
        await desk.goto(f"#/domains/{domain}/search")
        await page.get_by_label("Ask as a user would").fill("paid leave")
        await page.keyboard.press("Enter")
        await expect(page.locator(".score").first).to_be_visible()
        await check_accessible(page, "found")
        await page.locator(".row-name").first.click()
        await expect(page.locator("dialog .chunk").first).to_be_visible()
        await check_accessible(page, "document")


@pytest.mark.nightly("a pasted server is approved on the same page every time")
async def test_a_pasted_file_gives_one_report_with_the_needs_of_each_server(tmp_path: Path) -> None:
    async with console(tmp_path, any_command=True) as desk:
        page = desk.page
        domain = await desk.rig.domain()
        await desk.goto(f"#/domains/{domain}/servers")
        await page.get_by_role("button", name="Paste servers").click()
        dialog = page.get_by_role("dialog")
        command = {"command": sys.executable, "args": ["-I", "-S", str(SERVERS / "hostile.py"), "ok"]}
        calc, keyed = json.dumps(command), json.dumps({**command, "env": {"TOKEN": "${input:api-token}"}})
        outside = {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/me"]}
        pasted = f'{{ // of a colleague\n"servers": {{"calc": {calc}, "keyed": {keyed}, "files": {json.dumps(outside)},'
        await dialog.get_by_label("Server configuration").fill(f'{pasted} "odd": {{"command": "x", "url": "y"}},}},}}')
        await dialog.get_by_role("button", name="Check").click()
        rows = {name: dialog.locator(f'[data-server="{name}"]') for name in ("calc", "keyed", "files", "odd")}
        await expect(rows["calc"].locator(".badge")).to_have_text("Ready")
        await expect(rows["files"].locator(".badge")).to_have_text("Change proposed")
        await expect(rows["odd"].locator(".badge")).to_have_text("Not possible")
        await expect(rows["odd"]).to_contain_text("either a command or a url")
        await expect(rows["keyed"].locator(".badge")).to_have_text("Needs a secret")
        await rows["keyed"].get_by_label("Value of the secret api_token").fill("secret-value-1234")
        await rows["keyed"].get_by_role("button", name="Save api_token").click()
        await expect(rows["keyed"].locator(".badge")).to_have_text("Ready")
        await rows["files"].get_by_label("Save files with the proposed change").check()
        await rows["keyed"].get_by_label("Save keyed").uncheck()
        await check_accessible(page)
        await dialog.get_by_role("button", name="Save the selected servers").click()
        await expect(page.locator(".toast")).to_contain_text("2 servers saved")
        await expect(page.get_by_label("Servers", exact=True)).to_contain_text("calc")
        servers = (await desk.rig.ok("GET", f"/api/domains/{domain}"))["settings"]["mcpServers"]
        assert {name for name, entry in servers.items() if entry["origin"] == "user"} == {"calc", "files"}
        assert servers["files"]["args"][-1] == "."
        text = page.get_by_label("Servers of this domain").get_by_role("textbox")
        assert "server-filesystem" in await text.input_value()


async def open_paste(desk: Desk, domain: str) -> None:
    """Copy a server into the operator's folder, and check a file that names it, in the open tab."""
    local = desk.rig.settings.data / "mcp" / "local"
    local.mkdir(parents=True, exist_ok=True)
    (local / "calc.py").write_bytes((SERVERS / "hostile.py").read_bytes())
    page = desk.page
    await desk.follow(f"#/domains/{domain}/servers")
    await page.get_by_role("button", name="Paste servers").click()
    dialog = page.get_by_role("dialog")
    pasted = {"mcpServers": {"calc": {"command": "python3", "args": ["./calc.py", "ok"]}}}
    await dialog.get_by_label("Server configuration").fill(json.dumps(pasted))
    await dialog.get_by_role("button", name="Check").click()
    await expect(dialog.locator('[data-server="calc"] .badge')).to_have_text("Needs approval")


async def check_keys_are_needed(desk: Desk) -> None:
    async with httpx2.AsyncClient(base_url=desk.url, trust_env=False) as program:
        assert (await program.get("/api/domains")).status_code == 401, "access without keys has ended"


async def chat(page: Page, words: str, answer: str) -> None:
    await page.get_by_role("textbox", name="Message").fill(words)
    await page.keyboard.press("Enter")
    await expect(page.get_by_text(answer)).to_be_visible()


@needs_bubblewrap
async def test_a_pasted_server_with_network_is_approved_and_its_tab_keeps_chatting(tmp_path: Path) -> None:
    async with console(tmp_path, say("Hello, you."), say("Still here.")) as desk:
        page, domain = desk.page, await desk.rig.domain()
        await desk.goto(f"#/chat/{domain}")
        await chat(page, "Hello?", "Hello, you.")
        place = urlsplit(page.url).fragment
        await open_paste(desk, domain)
        await page.get_by_role("button", name="Approve and continue").click()
        approval = page.get_by_role("dialog").filter(has=page.get_by_role("heading", name="Approve calc"))
        await expect(approval.get_by_text("This browser stays signed in")).to_be_hidden()
        await approval.get_by_label("May use the network").check()
        await expect(approval.get_by_text("This browser stays signed in")).to_be_visible()
        await approval.get_by_role("button", name="Approve", exact=True).click()
        row = page.locator('[data-server="calc"]')
        await expect(row.locator(".badge")).to_have_text("Ready")
        await check_keys_are_needed(desk)
        await page.get_by_role("button", name="Save the selected servers").click()
        await expect(page.get_by_label("Servers", exact=True)).to_contain_text("calc")
        await desk.follow(f"#{place}")
        await chat(page, "Are you still there?", "Still here.")


@needs_bubblewrap
@pytest.mark.nightly("an approval in the same tab runs every time")
async def test_approving_a_server_in_a_second_tab_does_not_disturb_the_first(tmp_path: Path) -> None:
    steps = say("Hello, you."), say("Still here."), say("Here, too.")
    async with console(tmp_path, *steps, expected=("WebSocket connection to",)) as desk:
        page, domain = desk.page, await desk.rig.domain()
        await desk.goto(f"#/chat/{domain}")
        await chat(page, "Hello?", "Hello, you.")
        place = urlsplit(page.url).fragment
        await open_paste(desk, domain)
        await page.get_by_role("button", name="Approve and continue").click()
        approval = page.get_by_role("dialog").filter(has=page.get_by_role("heading", name="Approve calc"))
        await expect(approval).to_be_visible()
        second = await page.context.new_page()
        await second.goto(f"{desk.url}/#/operator/requests")
        await second.get_by_role("link", name="calc").click()
        await second.get_by_label("May use the network").check()
        await second.get_by_role("button", name="Approve exactly this").click()
        await expect(second.get_by_text("calc is allowed")).to_be_visible()
        await check_keys_are_needed(desk)
        await approval.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.locator('[data-server="calc"] .badge')).to_have_text("Ready")
        await page.keyboard.press("Escape")
        await desk.follow(f"#{place}")
        await chat(page, "Are you still there?", "Still here.")
        await second.evaluate("place => (location.hash = place)", f"#/chat/{domain}")
        await chat(second, "And you?", "Here, too.")

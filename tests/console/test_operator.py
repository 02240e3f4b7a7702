"""The operator's pages: the main path in both languages, requests, keys shown once, erasing, and pending reviews."""

from pathlib import Path
from urllib.parse import quote

import anyio
import httpx2
import pytest
from playwright.async_api import Page, Route, expect

from agentic_rag.operations.members import Members
from agentic_rag.store.database import Database
from agentic_rag.testing.steps import say, use
from tests.access.tenants import as_operator, audited, bearer, make_key
from tests.console.axe import check_accessible
from tests.console.people import fill_in, sign_in, tab_to
from tests.console.rig import HANG_SECONDS, console, in_languages, needs_browser
from tests.console.xss import CORPUS, LISTEN_FOR_HITS
from tests.server.rig import Rig
from tests.store.conftest import needs_postgresql, postgresql_server
from tests.waiting import pause

pytestmark = needs_browser

WORDS = {
    "en": {
        "operator": "Operator", "well": "Everything works", "limit": "Search by meaning", "bad": "1 to 64 letters",
        "users": "Users", "new": "New user", "name": "Name",
        "create": "Create", "key": "New key", "make": "Create key", "value": "The new key", "kept": "I have saved it",
        "audit": "Audit", "verify": "Verify the log", "now": "Verify", "intact": "Whole", "close": "Close",
        "backups": "Backups", "backup": "Back up now", "whole": "is intact", "usage": "Usage", "calls": "Model calls",
        "catalogue": "Catalogue", "search": "Search lines", "csv": "Save as CSV",
    },
    "zh": {
        "operator": "运维", "well": "正常", "limit": "语义检索", "bad": "且不是保留名称",
        "users": "用户", "new": "新建用户", "name": "用户名",
        "create": "创建", "key": "新建密钥", "make": "生成密钥", "value": "新密钥", "kept": "我已保存",
        "audit": "审计", "verify": "验证审计日志", "now": "验证", "intact": "完整", "close": "关闭",
        "backups": "备份", "backup": "立即备份", "whole": "完整", "usage": "用量", "calls": "模型调用",
        "catalogue": "启动目录", "search": "搜索命令行", "csv": "导出 CSV",
    },
}  # fmt: skip
WORDS["zh"]["verify"] = "验证日志"


async def open_tab(page: Page, name: str) -> None:
    await page.locator(".operator-head").get_by_role("link", name=name, exact=True).click()


@in_languages("zh")
async def test_an_operator_maintains_the_server_in_the_console(tmp_path: Path, language: str) -> None:
    words = WORDS[language]
    async with console(tmp_path, say("Yes."), language=language) as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain()
        await rig.say(await rig.conversation(domain), "Hi")
        await desk.goto()
        await page.get_by_role("navigation").get_by_role("link", name=words["operator"]).click()
        await expect(page.get_by_role("heading", name=words["well"])).to_be_visible()
        # no test may download the default model, so search by meaning is off or uses the smaller model
        limited = page.locator(".health-card").filter(has=page.locator(".badge-wait"))
        await expect(limited.locator(".health-limit")).to_contain_text(words["limit"])
        await open_tab(page, words["usage"])
        await expect(page.locator(".figure").first).to_contain_text(words["calls"])
        await expect(page.locator(".usage-chart g:has(.usage-bar)")).to_have_count(1)
        (usage,) = (await rig.ok("GET", "/api/usage?groupBy=model"))["items"]
        await expect(page.locator(".usage-legend li")).to_have_text([usage["model"]])
        await page.locator(".usage-chart").get_by_role("button").last.click()
        await expect(page.locator(".usage-legend li").first).not_to_have_text(usage["model"])  # the kinds of tokens
        async with page.expect_download() as saving:
            await page.get_by_role("button", name=words["csv"]).click()
        file = await saving.value
        assert file.suggested_filename.startswith("usage-domain-")
        await file.save_as(tmp_path / "usage.csv")
        head, *rows = (tmp_path / "usage.csv").read_text(encoding="utf-8").splitlines()
        assert head.startswith("domainId,")
        assert [row.split(",")[0] for row in rows] == [domain]
        await open_tab(page, words["catalogue"])
        await expect(page.get_by_label(words["search"])).to_be_visible()
        await page.keyboard.press("/")
        await page.keyboard.type("time")
        await expect(page.get_by_label(words["search"])).to_have_value("time")
        await expect(page.locator("tbody tr")).to_have_count(1)
        await open_tab(page, words["backups"])
        await page.get_by_role("button", name=words["backup"]).click()
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.locator("tbody").get_by_role("button").click()
        await expect(page.get_by_role("status").filter(has_text=words["whole"]).first).to_be_visible()
        await open_tab(page, words["audit"])
        await expect(page.locator("tbody")).to_contain_text("backup.verify")
        await page.get_by_role("button", name=words["verify"]).click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_role("button", name=words["now"], exact=True).click()
        await expect(dialog.get_by_role("status")).to_contain_text(words["intact"])
        await dialog.get_by_role("button", name=words["close"]).click()
        await open_tab(page, words["users"])
        await page.get_by_role("button", name=words["new"]).first.click()
        await dialog.get_by_label(words["name"], exact=True).fill("no name")
        await dialog.get_by_role("button", name=words["create"]).click()
        await expect(dialog.locator(".field-error").first).to_contain_text(words["bad"])
        await dialog.get_by_label(words["name"], exact=True).fill("ann")
        await dialog.get_by_role("checkbox").check()
        await dialog.get_by_role("button", name=words["create"]).click()
        await expect(page).to_have_url(f"{desk.url}/#/operator/users/ann")
        await page.get_by_role("button", name=words["key"]).first.click()
        await dialog.get_by_role("button", name=words["make"]).click()
        key = await dialog.get_by_label(words["value"]).input_value()
        await dialog.get_by_role("button", name=words["kept"]).click()
        assert (await rig.ok("GET", "/api/auth", headers=bearer(key)))["operator"]
        assert key not in await page.content()


async def test_keys_are_revoked_and_a_person_is_disabled_and_erased(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, rig = desk.page, desk.rig
        as_operator(rig)
        domain = await rig.domain()
        anns = await make_key(rig, "ann", "author", domain)
        await sign_in(desk, "root", "operator", at="#/operator/users/ann")
        await page.get_by_role("button", name="Disable").click()
        await expect(page.locator(".badge", has_text="disabled")).to_be_visible()
        assert (await rig.refused("GET", "/api/domains", headers=bearer(anns)))[0] == 401
        await page.locator(".toast").get_by_role("button", name="Undo").click()
        await expect(page.get_by_role("button", name="Disable")).to_be_enabled()
        await rig.ok("GET", "/api/domains", headers=bearer(anns))
        await page.get_by_label("Grant", exact=True).select_option("member")
        await page.get_by_role("button", name="Save").click()
        await expect(page.locator(".toast").last).to_contain_text("Saved")
        assert (await rig.ok("GET", "/api/users/ann"))["grants"] == {domain: "member"}
        await page.locator("tbody").get_by_role("button", name="Revoke").click()
        await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        await expect(page.locator("tbody .badge-bad")).to_have_text("revoked")
        assert (await rig.refused("GET", "/api/domains", headers=bearer(anns)))[0] == 401
        await page.get_by_role("button", name="Erase", exact=True).click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Type “ann” to confirm").fill("anne")
        await dialog.get_by_role("button", name="Erase permanently").click()
        await expect(dialog).to_contain_text("This name does not match.")
        await dialog.get_by_label("Type “ann” to confirm").fill("ann")
        await dialog.get_by_role("button", name="Erase permanently").click()
        await expect(page.locator(".toast").last).to_contain_text("Erased ann. Usage is kept under number 1")
        assert [user["name"] for user in (await rig.ok("GET", "/api/users"))["items"]] == ["root"]
        await desk.goto("#/operator/users/root")
        await expect(page.get_by_role("button", name="Erase", exact=True)).to_be_disabled()
        await desk.follow("#/operator/users/nobody")
        await expect(page.get_by_role("heading", name="User not found")).to_be_visible()


async def ask_for_script(rig: Rig, domain: str, name: str, text: str) -> None:
    """Request a script of the operator's folder as a server of a domain."""
    local = rig.settings.data / "mcp" / "local"
    local.mkdir(parents=True, exist_ok=True)
    (local / f"{name}.py").write_text(text)
    entry = {"command": "python3", "args": [f"./{name}.py", "--deep"]}
    await rig.ok("POST", f"/api/domains/{domain}/mcp-servers/{name}/request", entry)


@pytest.mark.nightly("what waits for an operator is decided every time")
async def test_a_launch_request_shows_its_command_and_is_approved_or_refused_with_a_reason(tmp_path: Path) -> None:
    async with console(tmp_path, say("Still here.")) as desk:
        page, rig = desk.page, desk.rig
        domain = await rig.domain()
        await ask_for_script(rig, domain, "notes", "print('notes')\n")
        await ask_for_script(rig, domain, "other", "print('other')\n")
        await desk.goto("#/operator/requests")
        await page.get_by_role("link", name="other").click()
        await expect(page.locator(".words li")).to_have_text(["python3", "./other.py", "--deep"])
        await page.get_by_role("button", name="Refuse").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Reason").fill("Not without a review.")
        await dialog.get_by_role("button", name="Refuse").click()
        await expect(page.get_by_role("note")).to_contain_text("Not without a review.")
        await page.get_by_role("link", name="All requests").click()
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.get_by_role("link", name="notes").click()
        args = page.get_by_label("Arguments, one per line")
        await args.fill("./notes.py\n--shallow")
        await page.get_by_role("button", name="Approve exactly this").click()
        await expect(page.locator(".toast-error, .field-error:visible").first).to_be_visible()
        await args.fill("./notes.py\n--deep")
        await expect(page.get_by_text("This browser stays signed in")).to_be_hidden()
        await page.get_by_label("May use the network").check()
        await expect(page.get_by_text("This browser stays signed in")).to_be_visible()
        await page.get_by_role("button", name="Approve exactly this").click()
        await expect(page.get_by_text("notes is allowed")).to_be_visible()
        with anyio.fail_after(HANG_SECONDS):
            while not rig.application.parts.policy.networked:
                await pause()
        async with httpx2.AsyncClient(base_url=desk.url, trust_env=False) as program:
            assert (await program.get("/api/domains")).status_code == 401, "access without keys has ended"
        await desk.goto("#/chat")
        await page.get_by_role("textbox", name="Message").fill("Are you still there?")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("Still here.")).to_be_visible()
        (approved,) = await audited(rig, action="mcp.approve")
        assert approved["details"]["network"] is True
        assert [row["target"] for row in await audited(rig, action="mcp.refuse")] == [f"{domain}/other"]


async def test_requests_for_an_admin_are_listed_and_answered_in_one_place(tmp_path: Path) -> None:
    remember = use("promptx_remember", engrams=[{"content": "tea", "schema": "tea", "strength": 1, "type": "ATOMIC"}])
    async with console(tmp_path, remember, say("Kept.")) as desk:
        page, rig = desk.page, desk.rig
        as_operator(rig)
        domain = await rig.domain(toolPolicy={"promptx_remember": "ask-admin"})
        member = bearer(await make_key(rig, "ann", "member", domain))
        conversation = await rig.ok("POST", "/api/conversations", {"domainId": domain}, headers=member)
        path = f"/api/conversations/{conversation['id']}/messages"
        await rig.ok("POST", path, {"content": "Keep it."}, headers={**member, "accept": "application/json"})
        await sign_in(desk, "bob", "admin", domain, at="#/chat")
        link = page.get_by_role("navigation").get_by_role("link", name="Waiting")
        await expect(link.locator(".rail-count")).to_have_text("1")
        await link.click()
        card = page.locator(".wait")
        await expect(card).to_contain_text("promptx_remember")
        await card.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.get_by_role("heading", name="Nothing is waiting for you")).to_be_visible()
        await expect(link.locator(".rail-count")).to_be_hidden()
        await page.get_by_role("navigation").get_by_role("link", name="Chat").click()
        await expect(link).to_be_hidden()  # nothing is pending
        assert [row["actor"] for row in await audited(rig, action="wait.accept")] == ["bob"]


async def test_signing_in_and_creating_a_user_works_by_keyboard(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, rig = desk.page, desk.rig
        key = await make_key(rig, "root", "operator")
        await desk.goto()
        await expect(page.get_by_label("Name", exact=True)).to_be_focused()
        await page.keyboard.type("root")
        await page.keyboard.press("Tab")
        await page.keyboard.type(key)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("button", name="Account: root")).to_be_visible()
        await tab_to(page, "Operator")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Everything works")).to_be_visible()
        await tab_to(page, "Users")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("link", name="root")).to_be_visible()
        await tab_to(page, "New user")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_be_visible()
        await tab_to(page, "Name")
        await page.keyboard.type("ann")
        await tab_to(page, "Operator of this server")
        await page.keyboard.press("Space")
        await tab_to(page, "Create")
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(f"{desk.url}/#/operator/users/ann")
        await tab_to(page, "New key")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        assert await page.evaluate("document.activeElement.textContent") == "New key"


@pytest.mark.nightly("the attacks on the chat and a domain run every time")
async def test_untrusted_texts_stay_text_on_the_operators_pages(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, rig = desk.page, desk.rig
        await page.add_init_script(LISTEN_FOR_HITS)
        domain, created = await rig.domain(), 0
        for number, text in enumerate(CORPUS):
            response = await rig.http.post(
                "/api/domains", json={"name": text}
            )  # a name that nobody may have is refused
            domain = response.json()["id"] if response.is_success else domain
            account = {"displayName": text, "grants": {domain: "member"}}
            response = await rig.http.post("/api/users", json={"name": f"user{number}", **account})
            created += response.is_success
            await rig.http.delete(f"/api/keys/{quote(text, safe='')}")
        await ask_for_script(rig, domain, "notes", "print('notes')\n")
        for tab in ("users", "keys", "requests", "audit", "health", "usage", "users/user1"):
            await desk.goto(f"#/operator/{tab}")
            await expect(page.locator(".operator-tab")).to_be_visible()
            assert await page.evaluate("window.hits") == []
        await desk.goto("#/operator/users")
        await expect(page.locator("tbody tr")).to_have_count(created)
        assert created > len(CORPUS) / 2
        text = await page.locator("tbody").inner_text()
        assert CORPUS[0] in text
        assert await page.evaluate("window.hits") == []


@pytest.mark.nightly("an operator fills in the other forms every time")
async def test_the_sign_in_form_shows_the_problem(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        key = await make_key(desk.rig, "ann", "operator")
        await desk.goto()
        for _ in range(14):
            async with desk.page.expect_response("**/api/auth/sign-in"):
                await fill_in(desk.page, "ann", "arag_wrong")
        await expect(desk.page.get_by_role("alert")).to_contain_text("Too many")
        assert (await desk.rig.ok("GET", "/api/auth", headers=bearer(key)))["name"] == "ann"


@pytest.mark.nightly("an operator opens all of these pages every time")
async def test_a_late_page_does_not_replace_the_page_chosen_since(tmp_path: Path) -> None:
    requested, release = anyio.Event(), anyio.Event()

    async def hold(route: Route) -> None:
        answer = await route.fetch()
        requested.set()
        await release.wait()
        await route.fulfill(response=answer)

    async with console(tmp_path) as desk:
        page = desk.page
        await desk.goto("#/operator/catalogue")
        await expect(page.get_by_label("Search lines")).to_be_visible()
        await page.route("**/api/keys*", hold)
        await open_tab(page, "Keys")
        await requested.wait()
        await open_tab(page, "Catalogue")
        await expect(page.get_by_label("Search lines")).to_be_visible()
        release.set()
        await page.wait_for_load_state("networkidle")
        await expect(page.get_by_label("Search lines")).to_be_visible()


@needs_postgresql
@pytest.mark.nightly("faults/test_replicas.py reads the same list every time")
async def test_the_servers_of_one_database_are_listed_with_draining_ones(tmp_path: Path) -> None:
    with postgresql_server() as server:
        async with console(tmp_path, database_url=server.url, replica="north") as desk:
            page = desk.page
            await desk.goto("#/operator/health")
            rows = page.get_by_role("group", name="Servers of this database").locator("tbody tr")
            await expect(rows).to_have_count(1)
            await expect(rows).to_contain_text("north this server")
            database = await Database.open(server.url)
            try:
                south = Members(database, "south", "run_2")
                await south.join()
                south.locate("http://south.example")
                await south.tell_leaving()
                await expect(rows).to_have_count(2)
                await expect(rows.last).to_contain_text("http://south.example")
                await expect(rows.last.locator(".badge")).to_have_text("finishing its turns")
                await check_accessible(page, "replicas")
                await south.leave()
                await expect(rows).to_have_count(1)
            finally:
                await database.aclose()

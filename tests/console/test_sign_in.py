"""Signing in to the console, staying signed in, and the typed text after the sign-in has ended."""

import os
from pathlib import Path
from typing import Any

import anyio
import oidc_provider_mock  # type: ignore[import-untyped]
import pytest
from playwright.async_api import expect

from tests.access.tenants import as_operator, make_key
from tests.console.people import fill_in, sign_in
from tests.console.rig import console, needs_browser
from tests.waiting import pause

pytestmark = needs_browser

LOOK = "document.dispatchEvent(new Event('visibilitychange'))"
"""The event by which the page notices that it is visible again."""

HIDDEN = "Object.defineProperty(document, 'hidden', { get: () => true })"

KEPT = "Object.values(localStorage).some((each) => each.includes('nobody else'))"


async def test_a_revoked_key_ends_the_sign_in_and_keeps_the_typed_text(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, rig = desk.page, desk.rig
        await sign_in(desk, "root", "operator", at="#/operator/users/root")
        second = await make_key(rig, "root", "operator")
        await page.get_by_label("Display name").fill("The one at the root")
        for key in (await rig.ok("GET", "/api/keys"))["items"]:
            await rig.ok("DELETE", f"/api/keys/{key['id']}")
        second = await make_key(rig, "root", "operator")
        await page.get_by_role("button", name="Save").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("Your unsent text is kept")
        await expect(dialog.get_by_label("Name", exact=True)).to_have_value("root")
        await dialog.get_by_label("Key", exact=True).fill(second)
        await dialog.get_by_role("button", name="Sign in", exact=True).click()
        await expect(dialog).to_have_count(0)
        await expect(page.locator(".toast")).to_contain_text("Saved")
        assert (await rig.ok("GET", "/api/users/root"))["displayName"] == "The one at the root"


async def test_the_page_notices_changed_rights_and_offers_the_remaining_functions(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, rig = desk.page, desk.rig
        as_operator(rig)
        domain = await rig.domain()
        key = await sign_in(desk, "ann", "operator", at=f"#/chat/{domain}")
        await page.get_by_label("Message", exact=True).fill("Half a sen")
        await expect(page.get_by_role("link", name="Operator")).to_be_visible()
        await rig.ok("PATCH", "/api/users/ann", {"operator": False, "grants": {domain: "member"}})
        key = await make_key(rig, "ann", "member", domain)
        await page.evaluate(LOOK)
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Key", exact=True).fill(key)
        await dialog.get_by_role("button", name="Sign in", exact=True).click()
        await expect(page.locator(".toast")).to_contain_text("Your rights have changed")
        await expect(page.get_by_role("link", name="Operator")).to_have_count(0)
        await expect(page.get_by_label("Message", exact=True)).to_have_value("Half a sen")


async def test_the_next_person_sees_no_draft_and_other_tabs_are_signed_out(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, rig = desk.page, desk.rig
        as_operator(rig)
        domain = await rig.domain()
        bobs = await make_key(rig, "bob", "member", domain)
        await sign_in(desk, "ann", "member", domain, at=f"#/chat/{domain}")
        await page.get_by_label("Message", exact=True).fill("For nobody else")
        with anyio.fail_after(240):
            while not await page.evaluate(KEPT):
                await pause()
        other_tab = await page.context.new_page()
        await other_tab.goto(f"{desk.url}/#/chat/{domain}")
        await expect(other_tab.get_by_role("button", name="Account: ann")).to_be_visible()
        await page.get_by_role("button", name="Account: ann").click()
        await page.get_by_role("menuitem", name="Sign out").click()
        await expect(page.get_by_role("heading", name="Sign in to Agentic RAG")).to_be_visible()
        await expect(other_tab.get_by_role("dialog")).to_contain_text("Your sign-in has ended")
        await fill_in(page, "bob", bobs)
        await expect(page.get_by_role("button", name="Account: bob")).to_be_visible()
        await expect(page.get_by_label("Message", exact=True)).to_have_value("")
        # the tab of ann reloads as bob's
        await expect(other_tab.get_by_role("button", name="Account: bob")).to_be_visible()
        await expect(other_tab.get_by_label("Message", exact=True)).to_have_value("")
        assert not await page.evaluate(KEPT)


@pytest.mark.nightly("another person signs in beside a visible tab every time")
async def test_a_hidden_tab_is_cleared_before_the_next_person_signs_in(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, rig = desk.page, desk.rig
        as_operator(rig)
        domain = await rig.domain()
        bobs = await make_key(rig, "bob", "member", domain)
        await sign_in(desk, "ann", "member", domain, at=f"#/chat/{domain}")
        hidden_tab = await page.context.new_page()
        await hidden_tab.add_init_script(HIDDEN)
        await hidden_tab.goto(f"{desk.url}/#/chat/{domain}")
        await expect(hidden_tab.get_by_role("button", name="Account: ann")).to_be_visible()
        await page.get_by_role("button", name="Account: ann").click()
        await page.get_by_role("menuitem", name="Sign out").click()
        await fill_in(page, "bob", bobs)
        await expect(page.get_by_role("button", name="Account: bob")).to_be_visible()
        await expect(hidden_tab.get_by_role("button", name="Account: bob")).to_be_visible()
        # a sign-in in another tab is noticed when this tab becomes visible
        anns = await make_key(rig, "ann", "member", domain)
        body = {"name": "ann", "key": anns}
        await page.request.post(f"{desk.url}/api/auth/sign-in", data=body, headers={"X-Requested-With": "test"})
        await page.evaluate(LOOK)
        await expect(page.get_by_role("button", name="Account: ann")).to_be_visible()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # issued by the provider's own libraries
async def test_a_person_signs_in_with_an_organisation_and_again_beside_the_page(tmp_path: Path) -> None:
    claims = {"groups": ["legal"], "preferred_username": "ann", "name": "Ann Example"}
    people = [
        oidc_provider_mock.User(sub="a-1", claims=claims),
        oidc_provider_mock.User(sub="b-1", claims={**claims, "groups": ["sales"], "preferred_username": "bob"}),
    ]
    file = tmp_path / "grants.toml"
    file.write_text('[[grants]]\ngroups = "legal*"\ndomain = "nowhere"\ngrant = "member"\n')
    with oidc_provider_mock.run_server_in_thread(user_claims=people, require_nonce=True) as server:
        issuer = f"http://localhost:{server.server_port}"
        settings: dict[str, Any] = {
            "oidc_issuer": issuer,
            "oidc_client_id": "rag",
            "oidc_client_secret": "s3cret",
            "oidc_grants": file,
        }
        async with console(tmp_path, **settings) as desk:
            page, rig = desk.page, desk.rig
            as_operator(rig)
            domain = await rig.domain()
            file.write_text(f'[[grants]]\ngroups = "legal*"\ndomain = "{domain}"\ngrant = "member"\n')
            os.utime(file, (1, 1))
            await desk.goto(f"#/chat/{domain}")
            await page.get_by_role("link", name="Sign in with your organisation").click()
            await page.locator("input[name=sub]").fill("b-1")
            await page.locator("button, input[type=submit]").first.click()
            await expect(page.get_by_role("alert")).to_contain_text("have access to this server")
            await page.get_by_role("link", name="Sign in with your organisation").click()
            await page.locator("input[name=sub]").fill("a-1")
            await page.locator("button, input[type=submit]").first.click()
            await expect(page.get_by_role("button", name="Account: ann")).to_be_visible()
            await page.get_by_label("Message", exact=True).fill("Half a sen")
            await rig.ok("POST", "/api/users/ann/disable")
            await rig.ok("POST", "/api/users/ann/enable")
            await page.evaluate(LOOK)
            dialog = page.get_by_role("dialog")
            async with page.expect_popup() as opening:
                await dialog.get_by_role("link", name="Sign in with your organisation").click()
            beside = await opening.value
            await beside.locator("input[name=sub]").fill("a-1")
            await beside.locator("button, input[type=submit]").first.click()
            await expect(beside.get_by_role("heading", name="You are signed in")).to_be_visible()
            await expect(dialog).to_have_count(0)
            await expect(page.get_by_label("Message", exact=True)).to_have_value("Half a sen")

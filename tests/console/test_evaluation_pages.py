"""Cases, runs, a held change and feedback in the console."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from agentic_rag.testing.steps import Cite, say, use
from tests.console.axe import check_accessible, check_fits
from tests.console.rig import console, needs_browser
from tests.evaluation.test_runs import QUESTIONS, case, make_filled_domain

pytestmark = needs_browser


async def test_cases_are_run_and_a_held_change_is_compared_and_dropped(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, rig = desk.page, desk.rig
        domain = await make_filled_domain(rig)
        await desk.goto(f"#/domains/{domain}/evaluation")
        await page.get_by_role("button", name="Run now").click()
        await expect(page.locator(".lead")).to_contain_text("found in 6 of 6 cases")
        cases = page.get_by_role("region", name="Cases")
        await expect(cases.get_by_text("As expected")).to_have_count(6)
        await expect(page.get_by_role("img", name="Share of cases as expected")).to_be_visible()
        await check_accessible(page)
        await check_fits(page)
        await rig.refused("PATCH", f"/api/domains/{domain}", {"settings": {"retrievalThreshold": 1}})
        await desk.goto(f"#/domains/{domain}/evaluation/compare")
        changes = page.get_by_role("region", name="Held changes")
        await changes.get_by_role("link", name="retrievalThreshold").click()
        await expect(page.locator(".verdict")).to_contain_text("Held: 6 of 6 worse, none better")
        await expect(page.locator(".pair")).to_have_count(6)
        await expect(page.locator(".pair").first).to_contain_text("below the threshold")
        await check_accessible(page)
        await page.get_by_role("button", name="Drop the change").click()
        await expect(page.get_by_text("Dropped")).to_be_visible()
        (draft,) = (await rig.ok("GET", f"/api/domains/{domain}/evaluation/drafts"))["items"]
        assert draft["state"] == "dropped"


@pytest.mark.nightly("cases are run on the same page every time")
async def test_a_case_is_added_with_a_passage_found_by_search(tmp_path: Path) -> None:
    async with console(tmp_path) as desk:
        page, rig = desk.page, desk.rig
        domain = await make_filled_domain(rig, cases=False)
        await desk.goto(f"#/domains/{domain}/evaluation")
        await page.get_by_role("button", name="Add a case").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Questions").fill(QUESTIONS["leave"])
        await dialog.get_by_role("button", name="Find the passage").click()
        await dialog.get_by_role("button", name="Use").first.click()
        await expect(dialog.get_by_label("Document", exact=True)).to_have_value("leave.md")
        await dialog.get_by_label("The answer contains").fill("27 | twenty-seven\n=27 days")
        await check_accessible(page)
        await dialog.get_by_role("button", name="Save case").click()
        await expect(page.get_by_role("button", name=QUESTIONS["leave"])).to_be_visible()
        (case,) = (await rig.ok("GET", f"/api/domains/{domain}/evaluation/cases"))["items"]
        assert case["origin"] == "search"
        assert case["expect"]["contains"] == [["27", "twenty-seven"], {"number": 27, "unit": "days"}]
        assert case["expect"]["cites"][0]["document"] == "leave.md"


@pytest.mark.nightly("evaluation/test_gate.py confirms such drafts every time")
async def test_a_thumbs_down_is_a_draft_that_an_admin_confirms(tmp_path: Path) -> None:
    answer = (use("search_documents", query="days of paid leave"), say("You have 27 days.", Cite(0)))
    async with console(tmp_path, *answer) as desk:
        page, rig = desk.page, desk.rig
        domain = await make_filled_domain(rig, cases=False)
        conversation = await rig.conversation(domain)
        turn = (await rig.say(conversation, QUESTIONS["leave"]))[0]
        path = f"/api/conversations/{conversation}/messages/{turn['messageId']}/feedback"
        await rig.ok("PUT", path, {"rating": "down", "reason": "Part-time staff?"})
        await desk.goto(f"#/domains/{domain}/feedback")
        row = page.get_by_role("listitem").filter(has_text="Part-time staff?")
        await row.get_by_role("button", name="Review").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_role("button", name="Use").first.click()
        await dialog.get_by_role("button", name="Confirm case").click()
        await expect(row.get_by_role("button", name="Open case")).to_be_visible()
        await check_accessible(page)
        (new_case,) = (await rig.ok("GET", f"/api/domains/{domain}/evaluation/cases"))["items"]
        assert (new_case["state"], new_case["origin"], new_case["source"]["reason"]) == (
            "active",
            "feedback",
            "Part-time staff?",
        )
        assert new_case["expect"]["cites"][0]["document"] == case("leave")["expect"]["cites"][0]["document"]

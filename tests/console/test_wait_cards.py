"""Waits in the console: an approval with changed arguments, a question, a form's fields, a refusal with a reason."""

from pathlib import Path

import anyio
import pytest
from playwright.async_api import Page, Route, expect

from agentic_rag.models.base import ModelRequest
from agentic_rag.testing.scripted import Plain
from agentic_rag.testing.steps import Step, Use, say, use
from tests.console.axe import check_accessible, check_fits
from tests.console.rig import console, in_languages, in_shapes, needs_browser

pytestmark = needs_browser

SEARCH = use("search_documents", query="leave")


async def ask(page: Page, text: str) -> None:
    await page.get_by_label("Message", exact=True).fill(text)
    await page.keyboard.press("Enter")


async def test_a_call_is_approved_with_other_arguments_after_a_reload(tmp_path: Path) -> None:
    async with console(tmp_path, SEARCH, say("Found."), SEARCH, say("As you like.")) as desk:
        page = desk.page
        domain = await desk.rig.domain(toolPolicy={"search_documents": "ask"})
        await desk.rig.upload(domain, "leave.md", b"# Leave\n\nTwenty-five days of leave.")
        await desk.goto()
        await ask(page, "How many?")
        await expect(page.locator(".wait")).to_contain_text("search_documents")
        await page.locator("summary.steps-head").first.click()
        await expect(page.locator(".call-state")).to_have_text("waiting for an answer")
        await page.reload()
        card = page.locator(".wait")
        await card.get_by_label("Arguments").fill('{"query": ')
        await card.get_by_role("button", name="Approve", exact=True).click()
        await expect(card.locator(".field-error").first).to_contain_text("not valid JSON")
        await card.get_by_label("Arguments").fill('{"query": 5}')
        await card.get_by_role("button", name="Approve", exact=True).click()
        await expect(card.get_by_role("alert").last).to_contain_text("content.arguments")
        await card.get_by_label("Arguments").fill('{"query": "days of leave"}')
        await card.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.locator(".answer .prose").last).to_have_text("Found.")
        await page.locator("summary.steps-head").first.click()
        await expect(card).to_contain_text("accepted by local")
        await expect(page.locator(".call-subject")).to_have_text("leave")
        await expect(page.locator(".call-state")).to_contain_text("done")
        await ask(page, "Again?")
        await page.locator(".wait").last.get_by_placeholder("Reason (if you decline)").fill("Not today.")
        await page.locator(".wait").last.get_by_role("button", name="Decline").click()
        await expect(page.locator(".answer .prose").last).to_have_text("As you like.")
        last = desk.rig.model.requests[-1].messages[-1]
        assert "Not today." in str(last["content"])


@pytest.mark.nightly("a call is approved from a card every time")
async def test_an_admin_allows_a_tool_in_the_whole_domain_from_the_card(tmp_path: Path) -> None:
    async with console(tmp_path, SEARCH, say("Found."), SEARCH, say("Found again.")) as desk:
        page = desk.page
        domain = await desk.rig.domain(toolPolicy={"search_documents": "ask"})
        await desk.goto()
        await ask(page, "How many?")
        await page.locator(".wait").get_by_role("button", name="Always allow this tool in this domain").click()
        await expect(page.locator(".answer .prose").last).to_have_text("Found.")
        settings = (await desk.rig.ok("GET", f"/api/domains/{domain}"))["settings"]
        assert settings["toolPolicy"] == {"search_documents": "allow"}
        await ask(page, "And now?")
        await expect(page.locator(".answer .prose").last).to_have_text("Found again.")
        await expect(page.locator(".wait"), "an answered question folds into the steps").to_have_count(0)


@pytest.mark.nightly("a card is filled in after a reload every time")
async def test_text_typed_into_a_card_stays_when_messages_arrive(tmp_path: Path) -> None:
    searches = Step(tuple(Use("search_documents", {"query": query}) for query in ("leave", "rest")))
    async with console(tmp_path, searches, say("Found.")) as desk:
        page = desk.page
        await desk.rig.domain(toolPolicy={"search_documents": "ask"})
        await desk.goto()
        await ask(page, "How many?")
        await expect(page.locator(".wait")).to_have_count(2)
        first = (await desk.rig.ok("GET", "/api/waits?state=open"))["items"][0]
        release = anyio.Event()

        async def hold(route: Route) -> None:
            await release.wait()
            await route.continue_()

        await page.route("**/messages?*", hold)
        async with page.expect_request("**/messages?*"):
            await page.reload()
        await desk.rig.ok("POST", f"/api/waits/{first['id']}", {"action": "decline"})
        arguments = page.locator(".wait").get_by_label("Arguments")
        await expect(arguments).to_have_count(1)
        await arguments.fill("one")  # an event of the turn arrived before the messages
        async with page.expect_response("**/messages?*") as messages_response:
            release.set()
        await (await messages_response.value).finished()
        await page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        await page.keyboard.type(" two")
        await expect(arguments).to_have_value("one two")
        await expect(page.get_by_label("Message", exact=True)).to_have_value("")
        await page.locator(".wait").get_by_role("button", name="Decline").click()
        await expect(page.locator(".answer .prose").last).to_have_text("Found.")


FORM = """
async () => {
  const { loadWords } = await import("/web/i18n.js");
  await loadWords("shell", "chat");
  const { schemaForm } = await import("/web/chat/waits.js");
  window.form = schemaForm({
    type: "object",
    required: ["name", "days"],
    properties: {
      name: { type: "string", title: "Your name", minLength: 1 },
      days: { type: "integer", title: "Days", minimum: 1, maximum: 30 },
      mail: { type: "string", format: "email", title: "Mail" },
      urgent: { type: "boolean", title: "Urgent", default: true },
      kind: { type: "string", title: "Kind", oneOf: [{ const: "p", title: "Paid" }, { const: "u", title: "Unpaid" }] },
      sites: { type: "array", title: "Sites", items: { enum: ["n", "s"] }, default: ["s"] },
    },
  });
  document.getElementById("main").replaceChildren(window.form.element);
}
"""


async def test_a_question_is_answered_by_an_option_and_words_and_a_form_follows_its_schema(tmp_path: Path) -> None:
    question = Step((Use("ask_user", {"question": "Which site?", "options": ["North", "South"], "multiple": True}),))

    def last(request: ModelRequest) -> Plain:
        answer = str(request.messages[-1]["content"])
        return say(
            "South and more." if "South" in answer and "both, please" in answer and "North" not in answer else answer
        )

    async with console(tmp_path, question, last) as desk:
        page = desk.page
        await desk.rig.domain(askUser=True)
        await desk.goto()
        await ask(page, "Where?")
        card = page.locator(".wait")
        await expect(card).to_contain_text("Which site?")
        await card.get_by_role("button", name="Send").click()
        await expect(card.get_by_role("alert")).to_contain_text("Choose an option")
        await card.get_by_label("South").check()
        await card.get_by_label("Or in your own words").fill("both, please")
        await card.get_by_role("button", name="Send").click()
        await expect(page.locator(".answer .prose").last).to_have_text("South and more.")

        await page.evaluate(FORM)
        script = "() => { try { return window.form.read(); } catch (error) { return error.message; } }"
        assert await page.evaluate(script) == "Your name *: Fill in this field."
        await page.get_by_label("Your name").fill("Ann")
        await page.get_by_label("Days").fill("31")
        assert str(await page.evaluate(script)).startswith("Days *: ")
        await page.get_by_label("Days").fill("3")
        await page.get_by_label("Mail").fill("no address")
        assert str(await page.evaluate(script)).startswith("Mail: ")
        await page.get_by_label("Mail").fill("ann@example.com")
        await page.get_by_label("Kind").select_option("Unpaid")
        await page.get_by_label("n", exact=True).check()
        expected = {
            "name": "Ann",
            "days": 3,
            "mail": "ann@example.com",
            "urgent": True,
            "kind": "u",
            "sites": ["n", "s"],
        }
        assert await page.evaluate(script) == expected


CARDS = """
async () => {
  const { loadWords } = await import("/web/i18n.js");
  await loadWords("shell", "chat");
  const { WaitCard } = await import("/web/chat/waits.js");
  const { h, replace } = await import("/web/dom.js");
  const when = "2030-01-01T00:00:00.000Z";
  const common = { state: "open", server: "desk", toolName: "send", expiresAt: when, warning: "It has effects." };
  const waits = [
    { kind: "approval", title: "Send it?", arguments: { to: "ann", text: "x".repeat(300) },
      sources: [{ kind: "document", name: "leave.md" }] },
    { kind: "form", title: "Your days", message: "For the request.", schema: {
      type: "object", required: ["name"],
      properties: {
        name: { type: "string", title: "Your name", description: "As in your contract" },
        days: { type: "integer", title: "Days", minimum: 1 },
        urgent: { type: "boolean", title: "Urgent" },
        kind: { type: "string", title: "Kind", enum: ["p", "u"], enumNames: ["Paid", "Unpaid"] },
        sites: { type: "array", title: "Sites", items: { enum: ["n", "s"] } },
      } } },
    { kind: "url", title: "Sign in", message: "The server asks for it.",
      url: `https://login.example/authorize?state=${"s".repeat(200)}` },
    { kind: "question", title: "Which sites?", options: [{ value: "North" }, { value: "South" }], multiple: true },
    { kind: "approval", title: "Done", state: "accept", by: "ann" },
  ];
  const cards = waits.map((each, at) => {
    const card = new WaitCard(async () => {}, () => true);
    card.update({ ...common, waitId: `wait_${at}`, ...each });
    return card.element;
  });
  const theirs = new WaitCard(async () => {}, () => false);
  theirs.update({ ...common, waitId: "wait_9", kind: "approval", title: "An admin's", arguments: {} });
  replace(document.getElementById("main"), h("h1", {}, "Waits"), cards, theirs.element);
}
"""


@in_languages("zh")
@in_shapes
async def test_axe_finds_nothing_on_a_card_of_any_kind(
    tmp_path: Path, language: str, dark: bool, size: tuple[int, int]
) -> None:
    async with console(tmp_path, language=language, dark=dark, size=size) as desk:
        page = desk.page
        await desk.rig.domain()
        await desk.goto("#/waiting")
        await expect(page.locator(".empty")).to_be_visible()
        await page.evaluate(CARDS)
        await expect(page.locator(".wait")).to_have_count(6)
        await check_accessible(page, "cards")
        await check_fits(page)

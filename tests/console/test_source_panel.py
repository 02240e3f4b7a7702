"""The source panel: a citation leads to its words on the page, in the table or in the text, or says why it cannot."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from playwright.async_api import Locator, Page, expect

from agentic_rag.testing.steps import Cite, Say, Step, use
from tests.console.axe import check_accessible, check_fits
from tests.console.rig import Desk, console, needs_browser
from tests.console.xss import CORPUS, LISTEN_FOR_HITS
from tests.retriever import files
from tests.sources.support import Library, documents_of, resource

pytestmark = needs_browser

CITED = "A part of it may be carried over to the next year."
PAGES: list[list[files.Line]] = [
    [(18, "Contents"), (11, "Rates are on the next page.")],
    [
        (18, "Rates"),
        (11, "Each of the full-time employees has twenty-five days of leave."),
        (11, CITED),
        (0, ""),
        (11, "The office closes at six. Nobody stays longer than that."),
    ],
    [(18, "Annex"), (11, "Forms are at the desk.")],
]
OPEN = """
async (place) => {
  const { openSource } = await import("/web/source.js");
  await openSource(place);
}
"""


async def chunks_of(desk: Desk, domain: str, name: str, data: bytes) -> list[dict[str, Any]]:
    document = await desk.rig.upload(domain, name, data)
    assert document["status"] == "indexed", document
    return list((await desk.rig.ok("GET", f"/api/domains/{domain}/documents/{document['id']}/chunks"))["items"])


async def open_source(page: Page, domain: str, chunk: str, sentence: str = "") -> Locator:
    """Open the panel at a passage, as a citation does."""
    await page.evaluate(OPEN, {"domainId": domain, "documentId": "", "chunkId": chunk, "sentence": sentence})
    return page.get_by_role("dialog", name="Source")


async def add_source(desk: Desk, domain: str) -> None:
    """Add a source on the page, see its run, look at its settings, pause it, and run it again."""
    page = desk.page
    await desk.goto(f"#/domains/{domain}/documents")
    await page.get_by_role("button", name="Sources").click()
    panel = page.get_by_role("dialog", name="Sources")
    await expect(panel).to_contain_text("No sources")
    await panel.get_by_role("button", name="Add source").click()
    form = page.get_by_role("dialog", name="Add source")
    await form.get_by_label("Kind").select_option("mcp")
    await form.get_by_label("Name", exact=True).fill("Library")
    await expect(form.get_by_label("Server", exact=True)).to_have_value("library")
    await check_accessible(page, "the form of a source")
    await form.get_by_role("button", name="Save").click()
    row = panel.get_by_role("listitem").filter(has_text="Library")
    await expect(row).to_contain_text("2 items")
    await expect(row.locator(".badge")).to_have_text("On")
    await row.get_by_role("button", name="Edit Library").click()
    form = page.get_by_role("dialog", name="Edit Library")
    await form.get_by_label("Run at its interval").uncheck()
    await form.get_by_role("button", name="Save").click()
    await expect(row.locator(".badge")).to_have_text("Paused")
    await row.get_by_role("button", name="Run now: Library").click()
    await expect(row.locator(".badge")).to_have_text("Paused")
    await check_accessible(page, "the sources")
    await panel.get_by_role("button", name="Close").click()
    await desk.rig.taken_up(domain)


async def box_of(part: Locator) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom in pixels."""
    box = await part.bounding_box()
    assert box is not None
    return box["x"], box["y"], box["x"] + box["width"], box["y"] + box["height"]


@pytest.mark.parametrize(
    ("dark", "size"),
    [
        pytest.param(False, (1280, 800), id="wide"),
        pytest.param(True, (360, 740), id="narrow-dark", marks=pytest.mark.nightly("the wide one runs every time")),
    ],
)
async def test_a_citation_of_a_pdf_is_followed_to_the_sentence_on_its_page(
    tmp_path: Path, dark: bool, size: tuple[int, int]
) -> None:
    steps = (
        use("search_documents", query="may a part be carried over to the next year"),
        Step((Say("Yes.", (Cite(0, 1),)),)),
    )
    async with console(tmp_path, *steps, dark=dark, size=size) as desk:
        page, domain = desk.page, await desk.rig.domain()
        data = await anyio.Path(files.pdf(tmp_path / "rates.pdf", PAGES)).read_bytes()
        document = (await desk.rig.upload(domain, "rates.pdf", data))["id"]
        await desk.goto()
        await page.get_by_label("Message", exact=True).fill("May I keep it?")
        await page.keyboard.press("Enter")
        citation = page.locator(".citation").first
        await citation.focus()
        await page.keyboard.press("Enter")
        panel = page.get_by_role("dialog", name="Source")
        image = panel.get_by_role("img", name=CITED)
        await expect(image).to_be_visible()
        await expect(panel.locator(".passage-main mark").first).to_contain_text("carried over")
        await expect(panel.locator(".source-page")).to_contain_text("Page 2 of 3")
        left, top, right, bottom = await box_of(image)
        x, y, end, base = await box_of(panel.locator(".page-cited").last)
        assert left < x < end < right
        line = 1 - (800 - int(18 * 1.2) - int(11 * 1.2)) / 842  # the base of the cited line, as a share of the page
        assert (y - top) / (bottom - top) < line < (base - top) / (bottom - top) + 0.005
        assert 0 <= y < size[1], "the cited words are in sight"
        natural, displayed = await image.evaluate("(at) => [at.naturalWidth, at.clientWidth * devicePixelRatio]")
        assert displayed <= natural < displayed + 101
        if size[0] >= 1100:  # beside a chat that stays usable
            chat = await page.locator(".chat-pane").evaluate("(at) => at.getBoundingClientRect().width")
            assert chat >= 480
            await expect(page.get_by_label("Message", exact=True)).to_be_enabled()
        await check_accessible(page, "a page")
        await check_fits(page)
        following = panel.get_by_role("button", name="Next page")
        await following.focus()
        await page.keyboard.press("Enter")
        await expect(panel.get_by_role("img", name="Page 3")).to_be_visible()
        await expect(panel.locator(".page-marks")).to_be_hidden()
        await expect(following).to_be_disabled()
        await expect(panel.get_by_role("button", name="Previous page")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(image).to_be_visible()
        await expect(panel.locator(".page-cited").first).to_be_visible()
        await panel.get_by_role("button", name="Enlarge").click()
        await expect(panel.get_by_role("button", name="Enlarge")).to_have_attribute("aria-pressed", "true")
        wide = "(at) => at.closest('.page-frame').scrollWidth / at.closest('.page-frame').clientWidth"
        assert round(await image.evaluate(wide)) == 2
        await check_fits(page)
        await page.keyboard.press("Escape")
        await expect(panel).to_have_count(0)
        await expect(citation).to_be_focused()
        await desk.rig.ok("DELETE", f"/api/domains/{domain}/documents/{document}")
        await page.keyboard.press("Enter")
        await expect(panel).to_contain_text("no longer in the domain’s documents")
        await expect(panel.locator("blockquote")).to_contain_text("carried over")


@pytest.mark.nightly("the citation of a PDF is opened, and ingestion/test_citation_places.py finds cells every time")
async def test_rows_paragraphs_and_script_text_are_shown_verbatim_in_place(tmp_path: Path) -> None:
    address = "https://wiki.example/rates?page=1"
    library = Library(tmp_path)
    library.save(resources=[resource(0, uri=address), resource(1, uri="javascript:alert(1)")], fails=["none"])
    async with console(tmp_path, any_command=True) as desk:
        page, domain = desk.page, await desk.rig.domain(mcpServers={"library": library.entry})
        await page.add_init_script(LISTEN_FOR_HITS)
        await add_source(desk, domain)
        linked = {document["sourceUri"]: document["id"] for document in await documents_of(desk.rig, domain)}
        rates = f"city,rate\nLeeds,1.5\nYork,2.5\n{CORPUS[1]},3.5\n".encode()
        (sheet,) = await chunks_of(desk, domain, "rates.csv", rates)
        text = "# Leave\n\n" + "\n\n".join(
            f"## Rule {number}\n\nRule {number} says 😀 this. It is kept. " + "Words. " * 150 for number in range(3)
        )
        rules = await chunks_of(desk, domain, "rules.md", text.encode())
        scripts = await chunks_of(desk, domain, f"{CORPUS[1]}.txt", "\n\n".join(CORPUS).encode())
        await desk.goto()
        await expect(page.get_by_label("Message", exact=True)).to_be_visible()

        for uri, document in linked.items():
            chunks = await desk.rig.ok("GET", f"/api/domains/{domain}/documents/{document}/chunks")
            panel = await open_source(page, domain, chunks["items"][0]["chunkId"])
            await expect(panel.locator(".passage-main")).to_contain_text("zebra")
            link = panel.get_by_role("link", name="Open at its source")
            await expect(link).to_have_count(int(uri == address))
            if uri == address:
                await expect(link).to_have_attribute("href", address)
                await expect(link).to_have_attribute("rel", "noreferrer noopener")
                await check_accessible(page, "a passage with an address")
            await page.keyboard.press("Escape")

        panel = await open_source(page, domain, sheet["chunkId"], "York | 2.5")
        await expect(panel.locator("thead th[scope=col]").filter(has_text="rate")).to_have_count(1)
        await expect(panel.locator("tr.row-cited")).to_have_count(1)
        assert await panel.locator("mark").all_inner_texts() == ["York", "2.5"]
        await expect(panel.locator("tbody td").filter(has_text=CORPUS[1])).to_have_count(1)
        await check_accessible(page, "a row")
        await page.keyboard.press("Escape")

        second = next(rule for rule in rules if rule["headingPath"][-1] == "Rule 1")
        panel = await open_source(page, domain, second["chunkId"], "Rule 1 says 😀 this.")
        await expect(panel.locator("mark")).to_have_text("Rule 1 says 😀 this.")
        await expect(panel.locator("mark")).to_be_in_viewport()
        await expect(panel.locator(".source-head")).to_contain_text("Leave › Rule 1")
        await expect(panel.locator(".passage").last).to_contain_text("Rule 2 says")
        await panel.get_by_role("button", name="Next passage").click()
        await expect(panel.locator(".passage-main")).not_to_contain_text("Rule 1 says")
        await page.keyboard.press("Escape")
        panel = await open_source(page, domain, second["chunkId"], "Nobody ever said this.")
        await expect(panel.get_by_role("note")).to_contain_text("does not contain the quoted words")
        await expect(panel.get_by_role("note").locator("blockquote")).to_have_text("Nobody ever said this.")
        await page.keyboard.press("Escape")

        for chunk in scripts:
            panel = await open_source(page, domain, chunk["chunkId"], chunk["text"])
            await expect(panel.locator(".passage-main")).not_to_be_empty()
            forbidden = (
                "script, iframe, img, svg:not(.icon), style, form, input, [onerror], [onload], [href^='javascript' i]"
            )
            assert await panel.locator(f".source :is({forbidden})").count() == 0
            await page.keyboard.press("Escape")
            await expect(panel).to_have_count(0)
        assert await page.evaluate("window.hits") == []


@pytest.mark.nightly("the citation of a short PDF is opened every time")
async def test_a_late_citation_in_a_document_of_a_thousand_pages_opens(tmp_path: Path) -> None:
    sentence = "A zebra is mentioned here alone."
    pages: list[list[files.Line]] = [[(11, f"Page {number} says little.")] for number in range(1, 1_001)]
    pages[989].append((11, sentence))
    async with console(tmp_path) as desk:
        page, domain = desk.page, await desk.rig.domain()
        data = await anyio.Path(files.pdf(tmp_path / "long.pdf", pages)).read_bytes()
        document = (await desk.rig.upload(domain, "long.pdf", data))["id"]
        result = await desk.rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": "zebra"})
        urls: list[str] = []
        page.on("request", lambda request: urls.append(request.url))
        await desk.goto()
        panel = await open_source(page, domain, result["candidates"][0]["chunkId"], sentence)
        await expect(panel.get_by_role("img", name=sentence)).to_be_visible()
        await expect(panel.locator(".source-page")).to_contain_text("Page 990 of 1,000")
        drawn = [url for url in urls if f"/documents/{document}/pages/" in url]
        assert 1 <= len(drawn) <= 3, "the page, and at most those beside it"

"""Questions that no single search answers: a whole chapter, a comparison, an inventory, and a row of a table.

Each one passes the real index and the tools to an answer with checked citations.
"""

from collections.abc import Iterator
from pathlib import Path

from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import Block
from agentic_rag.models.base import ModelRequest
from agentic_rag.testing.steps import Cite, Say, Step, Use, say, use
from tests.ingestion.test_citations import events_of_type
from tests.retriever import files
from tests.server.rig import Rig

ANSWERS = 3
"""Calls of `read_document` that cover the long chapter."""


def make_manual() -> bytes:
    """Return a manual of five chapters. The third one is longer than one answer of the tool."""
    chapters = []
    for chapter in range(1, 6):
        lines = [
            f"Step {chapter}.{step} of the overhaul takes {step} minutes and a calm hand." for step in range(1, 30)
        ]
        if chapter == 3:
            lines = [f"Step 3.{step} of the overhaul takes {step} minutes and a calm hand." for step in range(1, 500)]
        chapters.append(f"## Chapter {chapter}\n\n" + "\n\n".join(lines))
    return ("# The big manual\n\n" + "\n\n".join(chapters)).encode()


def passages_of(request: ModelRequest) -> Iterator[Block]:
    """Yield the passages of a request in the order of citations."""
    for message in request.messages:
        for block in message["content"]:
            if block["type"] == "tool_result":
                yield from (part for part in block["content"] if part["type"] == "search_result")


def cite(request: ModelRequest, sentence: str) -> Cite:
    """Return the citation of the first block of a request that contains these words."""
    for number, part in enumerate(passages_of(request)):
        for place, block in enumerate(part["content"]):
            if sentence in block["text"]:
                return Cite(number, place)
    raise AssertionError(f"no passage holds {sentence!r}")


def notes_of(request: ModelRequest) -> str:
    """Return the texts of the newest result that are no passages."""
    result = request.messages[-1]["content"][0]
    return "\n".join(block["text"] for block in result["content"] if block["type"] == "text")


def citations_of(events: list[Json]) -> list[tuple[str, str]]:
    return [(event["documentName"], event["citedText"]) for event in events_of_type(events, "source_reference")]


async def test_a_whole_chapter_is_read_and_cited(tmp_path: Path) -> None:
    def read_on(request: ModelRequest) -> Step:
        """Read until the tool reports the end, then cite the first and the last step of the chapter."""
        if "go on with from=" in (note := notes_of(request)):
            next_passage = int(note.split("go on with from=")[1].split(".")[0])
            return use("read_document", document="manual.md", section="Chapter 3", **{"from": next_passage})
        text = "".join(block["text"] for part in passages_of(request) for block in part["content"])
        assert all(f"Step 3.{step} of" in text for step in range(1, 500)), "a part of the chapter was not read"
        assert "Step 2.1 of" not in text
        ends = (cite(request, "Step 3.1 of"), cite(request, "Step 3.499 of"))
        return Step((Say("It begins calmly. ", ends[:1]), Say("It ends after 499 minutes.", ends[1:])))

    first = use("read_document", document="manual", section="chapter 3")
    async with Rig(tmp_path, first, *[read_on] * ANSWERS) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "manual.md", make_manual())
        events = await rig.say(await rig.conversation(domain), "Summarise chapter 3 of the big manual.")
        citations = citations_of(events)
        calls = [event["toolName"] for event in events_of_type(events, "tool_call")]
    assert calls == ["read_document"] * ANSWERS
    assert citations == [
        ("manual.md", "Step 3.1 of the overhaul takes 1 minutes and a calm hand."),
        ("manual.md", "Step 3.499 of the overhaul takes 499 minutes and a calm hand."),
    ]


async def test_a_comparison_cites_both_documents(tmp_path: Path) -> None:
    def compare(request: ModelRequest) -> Step:
        old, new = cite(request, "two years"), cite(request, "five years")
        return Step((Say("It was two years. ", (old,)), Say("It is five now.", (new,))))

    search_both = Step(
        tuple(
            Use("search_documents", {"query": "how long is the warranty", "document": name})
            for name in ("terms-2023", "terms-2025")
        )
    )
    async with Rig(tmp_path, search_both, compare) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "terms-2023.md", b"# Terms\n\n## Warranty\n\nThe warranty lasts two years.")
        await rig.upload(domain, "terms-2025.md", b"# Terms\n\n## Warranty\n\nThe warranty lasts five years.")
        events = await rig.say(await rig.conversation(domain), "How did the warranty change from 2023 to 2025?")
    assert citations_of(events) == [
        ("terms-2023.md", "The warranty lasts two years."),
        ("terms-2025.md", "The warranty lasts five years."),
    ]


async def test_list_documents_answers_what_the_library_contains(tmp_path: Path) -> None:
    def answer(request: ModelRequest) -> Step:
        listing = notes_of(request)
        assert "2 of 2 documents" in listing
        assert "manual.md" in listing
        assert "Chapter 1; Chapter 2" in listing
        assert "rules.md (2024-05-01; en" in listing
        return say("A manual of five chapters, and rules of May 2024.")

    async with Rig(tmp_path, use("list_documents"), answer) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "manual.md", make_manual())
        await rig.upload(domain, "rules.md", b"---\ndate: 2024-05-01\n---\n# Rules\n\nNobody runs in the hall.")
        events = await rig.say(await rig.conversation(domain), "What do you have?")
    assert events[-1]["type"] == "done"
    assert citations_of(events) == [], "a list is no passage"


async def test_a_row_of_a_table_is_found_and_cited_with_its_cells(tmp_path: Path) -> None:
    sheet = files.workbook(tmp_path / "rates.xlsx", rows=60)

    def answer(request: ModelRequest) -> Step:
        return say("That is its rate.", cite(request, "City number 47"))

    steps = (use("find_in_document", document="rates", pattern="city number 47"), answer)
    async with Rig(tmp_path, *steps) as rig:
        domain = await rig.domain()
        await rig.upload(domain, "rates.xlsx", sheet.read_bytes())
        events = await rig.say(await rig.conversation(domain), "What is the rate of city number 47?")
    ((name, text),) = citations_of(events)
    assert name == "rates.xlsx"
    assert "City number 47" in text
    assert events_of_type(events, "source_reference")[0]["cells"].startswith("Rates!")

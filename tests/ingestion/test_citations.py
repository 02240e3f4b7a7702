"""Citations through the whole product: uploaded files, a model that also invents quotes, and only true citations."""

import re
from pathlib import Path

from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.models.base import ModelRequest
from agentic_rag.testing.fake_api import FakeMessagesAPI
from agentic_rag.testing.steps import Cite, Say, Step, say, use
from tests.retriever import files
from tests.server.rig import Json, Rig


def events_of_type(events: list[Json], kind: str) -> list[Json]:
    return [event for event in events if event["type"] == kind]


def result_titles(request: ModelRequest) -> list[str]:
    """Return the titles of all search results in a request, in order."""
    return [
        part["title"]
        for message in request.messages
        for block in message["content"]
        if block["type"] == "tool_result"
        for part in block["content"]
        if part["type"] == "search_result"
    ]


def result_documents(request: ModelRequest) -> list[str]:
    """Return the documents of all search results in a request, in order."""
    return [title.split(" (")[0] for title in result_titles(request)]


async def test_only_verified_citations_are_sent_with_page_and_cells(tmp_path: Path) -> None:
    def answer(request: ModelRequest) -> Step:
        places = {title.split(" ")[0]: number for number, title in enumerate(result_titles(request))}
        blocks = (
            Say("Pumps. ", (Cite(places["pump.pdf"]),)),
            Say("Rates. ", (Cite(places["rates.xlsx"]),)),
            Say("Valves. ", (Cite(places["valve.md"]),)),
            Say("Wrong. ", (Cite(places["pump.pdf"], cited_text="The valve opens at nine bar."),)),
            Say("Invented. ", (Cite(places["valve.md"], cited_text="Nobody ever wrote this."),)),
            Say("Nowhere.", (Cite(99, cited_text="The pump holds twelve bar."),)),
        )
        return Step(blocks)

    steps = (use("search_documents", query="pump valve bar pressure City"), answer)
    async with Rig(tmp_path, *steps) as rig:
        domain = await rig.domain()
        pdf = files.pdf(tmp_path / "pump.pdf", [[(11, "Contents.")], [(11, "The pump holds twelve bar.")]])
        sheet = files.workbook(tmp_path / "rates.xlsx", rows=2)
        for name, content in (
            ("pump.pdf", pdf.read_bytes()),
            ("rates.xlsx", sheet.read_bytes()),
            ("valve.md", b"# Valves\n\nThe valve opens at nine bar."),
        ):
            assert (await rig.upload(domain, name, content))["status"] == "indexed"
        conversation = await rig.conversation(domain)
        events = await rig.say(conversation, "What do pumps, valves and cities have?")
        references = events_of_type(events, "source_reference")
        assert [event["documentName"] for event in references] == ["pump.pdf", "rates.xlsx", "valve.md"]
        assert (references[0]["page"], references[0]["citedText"]) == (2, "The pump holds twelve bar.")
        assert references[1]["cells"].startswith("Rates!")
        assert "page" not in references[2]
        hits = events_of_type(events, "retrieval")[0]["hits"]
        assert {hit["name"]: hit.get("cells") for hit in hits}["rates.xlsx"] == references[1]["cells"]
        _, reply = (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"]
        stored_references = reply["references"]
        assert [reference["number"] for reference in stored_references] == [1, 2, 3]
        assert stored_references[0]["page"] == 2
        assert stored_references[1]["cells"] == references[1]["cells"]
        retrievals = await rig.ok("GET", f"/api/domains/{domain}/retrievals")
        assert [row["query"] for row in retrievals["items"]] == ["pump valve bar pressure City"]


async def test_a_deleted_document_is_never_cited_again(tmp_path: Path) -> None:
    requests: list[ModelRequest] = []

    def answer_again(request: ModelRequest) -> Step:
        requests.append(request)
        return Step((Say("Again.", (Cite(0, cited_text="The pump holds twelve bar."),)),))

    steps = (use("search_documents", query="pump"), say("Twelve.", Cite(0)), answer_again)
    async with Rig(tmp_path, *steps) as rig:
        domain = await rig.domain()
        pump = await rig.upload(domain, "pump.md", b"The pump holds twelve bar.")
        await rig.upload(domain, "other.md", b"Cars need fuel.")
        conversation = await rig.conversation(domain)
        assert len(events_of_type(await rig.say(conversation, "How much?"), "source_reference")) == 1
        await rig.ok("DELETE", f"/api/domains/{domain}/documents/{pump['id']}")
        events = await rig.say(conversation, "Say it again.")
        assert events_of_type(events, "source_reference") == []
        # The session's notes stay unchanged, because Claude's thinking is bound to them; a note corrects them.
        assert result_documents(requests[0]) == ["pump.md"]
        assert "the document pump.md was deleted" in str(requests[0].messages[-2:])


async def test_without_the_index_a_deleted_document_stays_uncited_and_the_others_can_be_cited(tmp_path: Path) -> None:
    requests: list[ModelRequest] = []

    def cite_all(request: ModelRequest) -> Step:
        places = {name: number for number, name in enumerate(result_documents(request))}
        return Step(tuple(Say(f"{name}. ", (Cite(places[name]),)) for name in ("pump.md", "valve.md", "other.md")))

    def cite_by_text(request: ModelRequest) -> Step:
        requests.append(request)
        texts = ("The pump holds twelve bar.", "The valve opens at nine bar.", "A bar of chocolate is sweet.")
        cites = [Cite(index, cited_text=text) for index, text in enumerate(_texts_of_results(request, texts))]
        return Step(tuple(Say("So. ", (cite,)) for cite in cites))

    folder = tmp_path
    async with Rig(folder, use("search_documents", query="bar"), cite_all) as rig:
        domain = await rig.domain()
        pump = await rig.upload(domain, "pump.md", b"The pump holds twelve bar.")
        await rig.upload(domain, "valve.md", b"The valve opens at nine bar.")
        other = await rig.upload(domain, "other.md", b"A bar of chocolate is sweet.")
        conversation = await rig.conversation(domain)
        assert len(events_of_type(await rig.say(conversation, "What has bars?"), "source_reference")) == 3
        await rig.ok("DELETE", f"/api/domains/{domain}/documents/{pump['id']}")
        path = f"/api/domains/{domain}/documents"
        await rig.ok("POST", path, params={"replace": "true"}, files={"f": ("other.md", b"It is bitter.")})
        await rig.settled(domain, other["id"])
    async with Rig(folder, cite_by_text, qdrant_url="http://127.0.0.1:9") as rig:
        events = await rig.say(conversation, "And now?")
        assert [event["documentName"] for event in events_of_type(events, "source_reference")] == ["valve.md"]
        assert sorted(result_documents(requests[0])) == ["other.md", "pump.md", "valve.md"]
        assert "the document pump.md was deleted" in str(requests[0].messages[-2:])


def _texts_of_results(request: ModelRequest, texts: tuple[str, ...]) -> list[str]:
    """Return the model's memory of each search result, in order, removed or not."""
    contents = [
        part["content"][0]["text"]
        for message in request.messages
        for block in message["content"]
        if block["type"] == "tool_result"
        for part in block["content"]
        if part["type"] == "search_result"
    ]
    removed = [text for text in texts if text not in contents]
    return [text if text in texts else removed.pop() for text in contents]


async def test_marks_become_citations_and_invented_ones_are_removed(tmp_path: Path) -> None:
    numbers: list[int] = []

    def answer(request: Json) -> Step:
        (result,) = (
            block
            for message in request["messages"]
            if message["role"] == "user"
            for block in message["content"]
            if block["type"] == "tool_result"
        )
        results = "\n".join(part["text"] for part in result["content"])
        numbers.extend(int(number) for number in re.findall(r"^\[(\d+)\]", results, re.MULTILINE))
        pump = next(mark_number for mark_number in numbers if f"[{mark_number}] pump.md" in results)
        text = f"The pump holds twelve bar [[{pump}]]. So does the moon [[99]]. Nobody wrote this [[0]][[-1]]."
        return Step((Say(text),))

    async with (
        FakeMessagesAPI(use("search_documents", query="twelve bar"), answer) as api,
        Rig(tmp_path, instead=AnthropicModel(api.key or "", api.url, citations="marks")) as rig,
    ):
        domain = await rig.domain()
        document = await rig.upload(domain, "pump.md", b"# Pumps\n\nIt is blue. The pump holds twelve bar.")
        await rig.upload(domain, "valve.md", b"The valve opens at nine bar.")
        events = await rig.say(await rig.conversation(domain), "How much?")
    assert sorted(numbers) == [1, 2]
    (source,) = events_of_type(events, "source_reference")
    assert (source["documentId"], source["citedText"]) == (document["id"], "The pump holds twelve bar.")
    text = "".join(event["text"] for event in events_of_type(events, "text"))
    assert "[[99]]" not in text
    assert "twelve bar" in text
    assert [reference["documentName"] for reference in events[-1]["references"]] == ["pump.md"]


async def test_a_document_read_by_the_model_can_be_cited_with_the_places_of_its_passages(tmp_path: Path) -> None:
    requests: list[ModelRequest] = []

    def summarise(request: ModelRequest) -> Step:
        requests.append(request)
        return say("The valve opens at nine bar.", Cite(0, cited_text="The valve opens at nine bar."))

    steps = (
        use("list_documents"),
        use("read_document", document="valve", section="opening"),
        use("find_in_document", document="valve.md", pattern="NINE bar"),
        summarise,
    )
    async with Rig(tmp_path, *steps) as rig:
        domain = await rig.domain()
        text = b"# Valves\n\n## Opening\n\nThe valve opens at nine bar.\n\n## Closing\n\nIt closes.\n"
        text = b"---\ndate: 2024-05-01\n---\n" + text
        document = await rig.upload(domain, "valve.md", text)
        progress = document["progress"]
        assert (progress["date"], progress["outline"]) == ("2024-05-01", ["Opening", "Closing"])
        events = await rig.say(await rig.conversation(domain), "Summarise the valve manual.")
        listing, *_ = events_of_type(events, "tool_result")
        assert "valve.md (2024-05-01; en; 3 passages): Opening; Closing" in listing["content"]
        assert result_titles(requests[0]) == ["valve.md › Valves › Opening (passage 2 of 3; 2024-05-01)"], "shown twice"
        (reference,) = events_of_type(events, "source_reference")
        assert (reference["documentName"], reference["citedText"]) == ("valve.md", "The valve opens at nine bar.")
        assert not events_of_type(events, "retrieval"), "nothing was searched for"

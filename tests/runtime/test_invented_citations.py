"""Citations that an endpoint invents are never shown, and never sent back to a service that would refuse them."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_rag.testing.steps import Cite, Say, Step, Think, Use
from agentic_rag.tools.base import CallRequest
from tests.runtime.harness import MemoryToolset, Services, bench, definition, hits, info, kinds, ok
from tests.runtime.strict_model import NAME, StrictModel

SENTENCES = ("In the north. ", "In the south.")


async def search(request: CallRequest) -> Any:
    return ok("found", hits(*SENTENCES))


def tools() -> MemoryToolset:
    return MemoryToolset({"search_documents": (info("search_documents", origin="builtin"), search)})


places = st.integers(0, 6)
quotes = st.sampled_from([None, "Forged.", SENTENCES[0].strip(), ""])


@st.composite
def citations(draw: st.DrawFn) -> Cite:
    result, start, length, quote = draw(places), draw(places), draw(st.integers(1, 3)), draw(quotes)
    is_real = result == 0 and start + length <= len(SENTENCES)
    return Cite(result, start, start + length, cited_text=quote if quote is not None or is_real else "Forged.")


@settings(max_examples=20, deadline=None)
@given(first_cites=st.lists(citations(), max_size=4), second_cites=st.lists(citations(), max_size=4))
async def test_invented_citations_of_an_endpoint_are_not_sent_back(
    first_cites: list[Cite], second_cites: list[Cite]
) -> None:
    steps = [
        Step((Think("look"), Use("search_documents", {"query": "gold"}))),
        Step(
            (Think("say"), Say("In the north.", (Cite(0, 0), *first_cites)), Use("search_documents", {"query": "more"}))
        ),
        Step((Say("In the south.", tuple(second_cites)),)),
        Step((Say("Yes."),)),
    ]
    model = StrictModel(lambda body: steps.pop(0))
    with TemporaryDirectory() as folder:
        async with bench(Path(folder), model, services=Services(model, tools())) as b:
            events = await b.say("Where?", definition=definition(model=NAME))
            assert kinds(events)[-1] == "done", events[-1]
            assert events[-1].fields()["references"], "a true citation stays"
            assert kinds(await b.say("Sure?", definition=definition(model=NAME)))[-1] == "done"
    assert model.refused == []
    blocks = [block for message in model.requests[-1]["messages"] for block in message["content"]]
    text_citations = [
        citation for block in blocks for citation in block.get("citations") or () if block["type"] == "text"
    ]
    assert text_citations
    for location in text_citations:
        source_text = "".join(SENTENCES[location["start_block_index"] : location["end_block_index"]])
        assert " ".join(location["cited_text"].split()) in source_text

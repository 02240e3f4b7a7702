"""Evidence survives delegation: a parent cites the documents that its child cited."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from agentic_rag.base.events import AgentEvent
from agentic_rag.base.messages import Block, Message, Passage, text_block, tool_result_block, user_message
from agentic_rag.models.base import Model, ModelEvent, ModelRequest
from agentic_rag.models.extractive import decide
from agentic_rag.models.marks import MarkedAnswer, with_numbered_passages
from agentic_rag.runtime.core.definition import Limits
from agentic_rag.runtime.core.results import RESULT_BUDGET
from agentic_rag.testing.scripted import Broken, Stalled
from agentic_rag.testing.steps import Cite, say, use
from agentic_rag.tools.base import CallOutcome, CallRequest
from tests.runtime.delegate_rig import Crew, calls_of, define_leader, delegate_to, open_crew, read_events, results_of
from tests.runtime.harness import Bench, hits, ok, text_of

GOLD, DEEP, SILVER = "Gold lies in the north.", "It lies 30 metres deep.", "Silver lies in the south."
TEXTS = {"gold": (GOLD, DEEP), "silver": (SILVER,)}


async def search(request: CallRequest) -> CallOutcome:
    query = request.arguments["query"]
    return ok("found", hits(*TEXTS[query], document=f"doc_{query}"))


def references_of(events: list[AgentEvent]) -> list[tuple[Any, ...]]:
    """Return document, chunk, text and finder of each citation of an answer."""
    references = events[-1].fields()["references"]
    return [
        (reference["documentId"], reference["chunkId"], reference["citedText"], reference.get("agent"))
        for reference in references
    ]


async def results_in(b: Bench) -> list[Block]:
    return [block for message in await b.transcript() for block in message["content"] if block["type"] == "tool_result"]


LOOK_GOLD, LOOK_SILVER = use("search_documents", query="gold"), use("search_documents", query="silver")


async def test_a_parent_cites_the_documents_that_its_delegate_cited(tmp_path: Path) -> None:
    script = Crew(
        Ask=(delegate_to(("digger", "Dig here")), say("Dig in the north.", Cite(0), Cite(0, 1))),
        Dig=(LOOK_GOLD, say("In the north.", Cite(0))),
    )
    async with open_crew(tmp_path, script, search_documents=search) as b:
        events = await b.say("Ask them", definition=define_leader())
        assert references_of(events) == [
            ("doc_gold", "doc_gold-c0", GOLD, "digger"),
            ("doc_gold", "doc_gold-c0", DEEP, "digger"),
        ]
        (result,) = await results_in(b)
        text, passage = result["content"]
        assert text == text_block("In the north.")
        assert [sentence["text"] for sentence in passage["content"]] == [GOLD, DEEP]  # sentence by sentence
        assert (cited_passage := Passage.of(passage)) is not None
        assert (cited_passage.chunk_ids, cited_passage.agent) == (("doc_gold-c0", "doc_gold-c0"), "digger")
        assert (await b.turn(events[0].turn_id)).references[0].agent == "digger"
        source_references = [event.fields() for event in events if event.type == "source_reference"]
        assert [fields.get("agent", "") for fields in source_references] == ["digger", "", ""]


async def test_one_of_two_delegates_fails_and_the_others_passages_are_cited(tmp_path: Path) -> None:
    tasks = delegate_to(("digger", "Dig here"), ("digger", "Delve there"), ("writer", "Write this"))
    script = Crew(
        Ask=(tasks, say("North and south.", Cite(0), Cite(1))),
        Dig=(LOOK_GOLD, say("In the north.", Cite(0))),
        Delve=(LOOK_SILVER, Broken(say("South.", Cite(0)), 3), *[Broken(say("South."), 1)] * 3),
        Write=(LOOK_SILVER, say("In the south.", Cite(0))),
    )
    async with open_crew(tmp_path, script, search_documents=search) as b:
        events = await b.say("Ask them", definition=define_leader())
        calls = calls_of(events)
        paths = {fields["parentToolCallId"]: fields["agent"] for e in events if "agent" in (fields := e.fields())}
        assert sorted(paths.values()) == ["digger", "digger-2", "writer"]
        assert references_of(events) == [
            ("doc_gold", "doc_gold-c0", GOLD, paths[calls["Dig here"]]),
            ("doc_silver", "doc_silver-c0", SILVER, "writer"),
        ]
        failed_result = next(block for block in await results_in(b) if block["tool_use_id"] == calls["Delve there"])
        assert failed_result["is_error"]
        assert {block["type"] for block in failed_result["content"]} == {"text"}


async def test_passages_of_a_delegate_that_ended_before_a_stop_are_cited_after_it(tmp_path: Path) -> None:
    slow_step = Stalled(say("Slow end."), 2)
    two_delegates = delegate_to(("digger", "Dig here"), ("writer", "Write this"))
    first_script = Crew(
        Ask=(two_delegates,), Dig=(LOOK_GOLD, say("In the north.", Cite(0))), Write=(LOOK_SILVER, slow_step)
    )
    async with open_crew(tmp_path, first_script, search_documents=search) as b:
        accepted = await b.send("Ask them", define_leader())
        with anyio.fail_after(240):
            await slow_step.reached.wait()
            async for event in b.runtime.follow(accepted.turn_id):
                if event.type == "tool_result" and "agent" not in event.fields():
                    break
    second_script = Crew(Ask=(say("North and south.", Cite(0), Cite(1)),), Write=(say("In the south.", Cite(0)),))
    async with open_crew(tmp_path, second_script, search_documents=search) as b:
        await b.runtime.recover()
        events = await read_events(b, accepted.turn_id)
        assert references_of(events) == [
            ("doc_gold", "doc_gold-c0", GOLD, "digger"),
            ("doc_silver", "doc_silver-c0", SILVER, "writer"),
        ]


async def test_a_delegate_out_of_steps_returns_what_it_found(tmp_path: Path) -> None:
    script = Crew(
        Ask=(delegate_to(("digger", "Dig here")), say("Dig in the north.", Cite(0))),
        Dig=(LOOK_GOLD, LOOK_SILVER),
    )
    async with open_crew(tmp_path, script, search_documents=search) as b:
        events = await b.say("Ask them", definition=define_leader(limits=Limits(max_steps=4)))
        assert results_of(events) == [("ok", "[stopped: max_steps]")]
        assert references_of(events) == [("doc_gold", "doc_gold-c0", GOLD, "digger")]


async def test_a_passage_that_a_delegate_of_a_delegate_found_keeps_its_finder(tmp_path: Path) -> None:
    script = Crew(
        Ask=(delegate_to(("digger", "Dig here")), say("North.", Cite(0))),
        Dig=(delegate_to(("writer", "Write this")), say("In the north.", Cite(0))),
        Write=(LOOK_GOLD, say("There.", Cite(0))),
    )
    async with open_crew(tmp_path, script, search_documents=search) as b:
        events = await b.say("Ask them", definition=define_leader())
        assert references_of(events) == [("doc_gold", "doc_gold-c0", GOLD, "digger/writer")]


async def test_passages_beyond_the_budget_are_left_out_completely(tmp_path: Path) -> None:
    sentence = "Ore. " * (RESULT_BUDGET // 15)

    async def search_long(request: CallRequest) -> CallOutcome:
        long_hits = [hits(f"{name} {sentence}", document=f"doc_{name}")["hits"][0] for name in "abcd"]
        return ok("found", {"retrieval_id": "ret_1", "mode": "lexical", "hits": long_hits})

    script = Crew(
        Ask=(delegate_to(("digger", "Dig here")), say("North.", Cite(1))),
        Dig=(use("search_documents", query="ore"), say("There.", *map(Cite, range(4)))),
    )
    async with open_crew(tmp_path, script, search_documents=search_long) as b:
        events = await b.say("Ask them", definition=define_leader())
        (result,) = await results_in(b)
        text, *passages = result["content"]
        assert [passage["source"] for passage in passages] == ["doc_a", "doc_b"]
        assert all(sentence.strip() in passage["content"][0]["text"] for passage in passages)
        assert "2 further passages" in text["text"]
        assert [reference[0] for reference in references_of(events)] == ["doc_b"]


@dataclass(frozen=True)
class Marking:
    """A model without native citations, as its adapter makes it cite: numbered passages in, marks out."""

    inner: Model
    name = "marking"

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        numbered_request, passages = with_numbered_passages(request)
        answer = MarkedAnswer(passages)

        async def yield_citations(events: AsyncIterator[ModelEvent]) -> AsyncIterator[ModelEvent]:
            async for event in events:
                for marked_event in answer.take(event):
                    yield marked_event

        async with self.inner.stream(numbered_request) as events:
            yield yield_citations(events)

    async def aclose(self) -> None:
        await self.inner.aclose()


async def test_evidence_is_cited_by_marks(tmp_path: Path) -> None:
    script = Crew(
        Ask=(delegate_to(("digger", "Dig here")), say("It lies deep [[1]].")),
        Dig=(LOOK_GOLD, say("Gold lies in the north [[1]].")),
    )
    async with open_crew(tmp_path, script, Marking, search_documents=search) as b:
        events = await b.say("Ask them", definition=define_leader())
        assert references_of(events) == [("doc_gold", "doc_gold-c0", DEEP, "digger")]
        assert text_of([event for event in events if "agent" not in event.fields()]) == "It lies deep."


def test_the_extractive_model_quotes_a_delegates_passages() -> None:
    passage = {
        "type": "search_result",
        "source": "doc_gold",
        "title": "Mines",
        "content": [text_block(GOLD), text_block(DEEP)],
        "citations": {"enabled": True},
    }
    call: Message = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "delegate", "input": {}}]}
    result: Message = {"role": "user", "content": [tool_result_block("c", [text_block("North."), passage])]}
    request = ModelRequest("extractive", 1000, (), (user_message("Where does gold lie?"), call, result))
    citations = [citation for block in decide(request) for citation in block.get("citations", ())]
    assert citations[0]["cited_text"].startswith(GOLD)

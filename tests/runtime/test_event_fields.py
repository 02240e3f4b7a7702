"""The fields of events, compared with the documented list; and the metadata of an answer."""

from pathlib import Path
from typing import Any

from agentic_rag.base.events import EventBody, ToolStatus
from agentic_rag.base.json_form import camel
from agentic_rag.base.messages import text_block
from agentic_rag.runtime.log.encoder import _FIELDS
from agentic_rag.testing.scripted import ScriptedModel
from agentic_rag.testing.steps import Cite, Step, Use, say, use
from agentic_rag.tools.base import CallOutcome, CallRequest
from tests.runtime.delegate_rig import Crew, define_leader, delegate_to, open_crew
from tests.runtime.harness import MemoryToolset, bench, hits, info, ok, toolset

DOCUMENTED_FIELDS = {
    "turn_started": "user_message_id message_id content client_message_id? model image_id images? attachments?",
    "iteration_start": "iteration continues",
    "thinking": "text",
    "text": "text",
    "tool_call_started": "tool_call_id tool_name server",
    "tool_arguments": "tool_call_id delta",
    "tool_call": "tool_call_id tool_name server arguments",
    "tool_progress": "tool_call_id progress total? message?",
    "tool_result": "tool_call_id tool_name server status content structured? truncated ref? duration_ms",
    "retrieval": "retrieval_id source query hits",
    "source_reference": "number iteration text_from text_to document_id document_name chunk_id page? cells? "
    "cited_text score verified? scanned? table? document_date? review_by? scanned_by? source_uri?",
    "resumed": "voids",
    "step_reset": "iteration",
    "retrying": "attempt in_ms reason",
    "notice": "code message",
    "title": "title",
    "done": "message_id usage stop_reason references retrieval_ids model timings",
    "error": "code message retryable",
    "interrupted": "message_id?",
    "compacted": "messages summary_tokens",
    "input_required": "wait_id kind answerer title message expires_at tool_call_id? server? tool_name? arguments? "
    "schema? url? options? multiple? warning? sources? usage?",
    "input_answered": "wait_id action by",
}


def test_events_have_the_documented_fields() -> None:
    actual = {
        kind.type: {name + ("?" if optional else "") for _, name, optional in _FIELDS[kind]}
        for kind in EventBody.__args__
    }
    promised = {
        name: {camel(field.rstrip("?")) + ("?" if field.endswith("?") else "") for field in fields.split()}
        for name, fields in DOCUMENTED_FIELDS.items()
    }
    assert {name: promised.get(name) for name in actual} == actual
    assert promised.keys() == actual.keys()
    documentation = Path(__file__).parents[2].joinpath("docs/clients/native.md").read_text()
    assert all(f"`{name}`" in documentation for name in actual)


async def test_small_structured_results_are_sent_inline_and_large_ones_by_ref(tmp_path: Path) -> None:
    nested: Any = "end"
    for _ in range(300):
        nested = {"in": nested}
    contents = {"small": {"rows": [1, 2**70]}, "large": {"rows": ["x" * 100] * 400}, "deep": nested}

    async def lookup(request: CallRequest) -> CallOutcome:
        return ok("found", contents[request.arguments["query"]])

    calls = Step(tuple(Use("lookup", {"query": name}) for name in contents))
    async with ScriptedModel(calls, say("Seen.")) as model, bench(tmp_path, model, toolset(lookup=lookup)) as b:
        events = await b.say("Look")
        fields = [event.fields() for event in events]
        names = {e["toolCallId"]: e["arguments"]["query"] for e in fields if e["type"] == "tool_call"}
        results = {names[e["toolCallId"]]: e for e in fields if e["type"] == "tool_result"}
        assert results["small"]["structured"]["rows"][0] == 1
        assert results["large"]["structured"].keys() == {"_ref"}
        assert "structured" not in results["deep"]
        assert all(result["durationMs"] == 3 and result["truncated"] is False for result in results.values())
        assert events[-1].type == "done"


async def test_an_answer_names_its_searches_including_those_of_delegates(tmp_path: Path) -> None:
    async def search(request: CallRequest) -> CallOutcome:
        query = request.arguments["query"]
        return ok("found", hits("Gold lies in the north.") | {"retrieval_id": f"ret_{query}"})

    script = Crew(
        Ask=(delegate_to(("digger", "Dig here")), use("search_documents", query="own"), say("North.", Cite(0))),
        Dig=(use("search_documents", query="dug"), say("In the north.", Cite(0))),
    )
    async with open_crew(tmp_path, script, search_documents=search) as b:
        events = await b.say("Ask them", definition=define_leader())
        assert events[-1].fields()["retrievalIds"] == ["ret_dug", "ret_own"]
        assert [e.fields()["retrievalId"] for e in events if e.type == "retrieval"] == ["ret_dug", "ret_own"]


async def test_a_turn_records_its_answering_roles(tmp_path: Path) -> None:
    async def activate(request: CallRequest) -> CallOutcome:
        return CallOutcome(ToolStatus.OK, (text_block("You are a guide."),), {"role": "guide", "hash": "h1"})

    tools = MemoryToolset({"promptx_action": (info("promptx_action", origin="system"), activate)})
    steps = (use("promptx_action", query="guide"), say("Ready."), say("Still ready."))
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, tools) as b:
        for question in ("Hello", "And now?"):
            turn = await b.turn((await b.say(question))[0].turn_id)
            assert turn.role_hashes == {"guide": "h1"}

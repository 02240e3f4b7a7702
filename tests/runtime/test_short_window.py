"""A model that reads 8 000 tokens: tools are searched, results are bounded, and no turn fails for its length."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentic_rag.base.events import AgentEvent
from agentic_rag.base.json_form import Json
from agentic_rag.models.names import ModelNames
from agentic_rag.models.openai.model import OpenAIModel
from agentic_rag.models.pool import ModelPool
from agentic_rag.models.profiles import use_operator_profiles
from agentic_rag.testing.chat_problems import ChatRules, tokens_of
from agentic_rag.testing.fake_chat import FakeChatAPI
from agentic_rag.testing.steps import Say, Step, Use, say, use
from agentic_rag.tools.base import CallOutcome, CallRequest
from tests.runtime.harness import MemoryToolset, Services, bench, definition, hits, kinds, ok, text_of, toolset
from tests.tools.many import many_tools

SHORT, UNKNOWN = "openai:short-1", "openai:unknown-1"
WINDOW = 8_000
RULES = ChatRules(context_window=WINDOW)


@pytest.fixture(autouse=True)
def profiles() -> Iterator[None]:
    use_operator_profiles({SHORT: {"context_window": WINDOW}})
    yield
    use_operator_profiles({})


async def dump(request: CallRequest) -> CallOutcome:
    return ok(f"{request.arguments['query']} " + "word " * 4_000)


async def search(request: CallRequest) -> CallOutcome:
    sentences = [f"Sentence {number} of the pump's long manual. " * 12 for number in range(60)]
    long_hits = [hits(text, document=f"doc_{number}")["hits"][0] for number, text in enumerate(sentences)]
    return ok("found", {"retrieval_id": "ret_1", "mode": "lexical", "hits": long_hits})


async def answer(request: CallRequest) -> CallOutcome:
    return ok(f"{request.tool.name} ran")


def serve_steps(*steps: Step) -> FakeChatAPI:
    """Return a service whose model takes one step after the other, gives no summary, and answers briefly at the end."""
    remaining = list(steps)

    def brain(body: Json) -> Step:
        asks_for_summary = "Summarise the conversation" in str([body["messages"][0], body["messages"][-1]])
        must_stop = body.get("tool_choice") == "none" or not remaining
        return say("I had rather not.") if asks_for_summary else say("So.") if must_stop else remaining.pop(0)

    return FakeChatAPI(then=brain, rules=ChatRules(context_window=WINDOW))


async def run(folder: Path, api: FakeChatAPI, tools: MemoryToolset, model: str, *questions: str) -> list[AgentEvent]:
    """Return the events of all turns."""
    async with api:
        names = ModelNames("openai", frozenset({"openai"}))
        pool = ModelPool({"openai": OpenAIModel(api.key, api.base_url)}, names, {})
        try:
            async with bench(folder, pool, services=Services(pool, tools)) as b:
                settings = definition(model=model, max_tokens=2_000)
                return [event for question in questions for event in await b.say(question, definition=settings)]
        finally:
            await pool.aclose()


async def test_tools_that_would_fill_a_short_window_are_deferred(tmp_path: Path) -> None:
    tools = toolset(search_documents=search)
    server_tools = {tool.name: (tool, answer) for tool in many_tools(25)}
    tool_name = "helpdesk__get_ticket"
    call = use("call_tool", name=tool_name, arguments={"id": "T-1"})
    api = serve_steps(use("find_tools", query="get a ticket"), call)
    events = await run(
        tmp_path, api, replace(tools, functions={**tools.functions, **server_tools}), SHORT, "What of T-1?"
    )
    results = [event.fields() for event in events if event.type == "tool_result"]
    assert [(result["toolName"], result["status"]) for result in results] == [("find_tools", "ok"), (tool_name, "ok")]
    assert text_of(events) == "So."
    assert tokens_of(api.requests[0]) < WINDOW / 4
    assert api.refused == []


async def test_long_results_are_bounded_by_a_short_window_and_can_be_read_on(tmp_path: Path) -> None:
    three_calls = Step(
        (Use("dump", {"query": "a"}), Use("dump", {"query": "b"}), Use("search_documents", {"query": "c"}))
    )
    api = serve_steps(three_calls)
    events = await run(tmp_path, api, toolset(dump=dump, search_documents=search), SHORT, "Go")
    results = [event.fields() for event in events if event.type == "tool_result"]
    refs = [result["ref"] for result in results if result["toolName"] == "dump"]
    assert all(refs)
    assert all(len(result["content"]) < WINDOW for result in results)
    assert (kinds(events)[-1], text_of(events)) == ("done", "So.")
    tool_messages = [message["content"] for message in api.requests[1]["messages"] if message["role"] == "tool"]
    assert "more passages were left out" in tool_messages[2]
    assert api.refused == []


@pytest.mark.parametrize("model", [SHORT, UNKNOWN])
async def test_many_long_results_at_once_do_not_end_the_turn(tmp_path: Path, model: str) -> None:
    eight_calls = Step(tuple(Use("dump", {"query": f"number {number}"}) for number in range(8)))
    api = serve_steps(eight_calls, Step((Say("On."), Use("dump", {"query": "more"}))))
    events = await run(tmp_path, api, toolset(dump=dump), model, "Go", "And?")
    assert [kind for kind in kinds(events) if kind in ("done", "error")] == ["done", "done"]
    assert text_of(events).endswith("So.")
    assert len(api.calls) <= 14, "it turns in circles"
    assert all("kept as ref" in str(request["messages"]) for request in api.requests[-2:])

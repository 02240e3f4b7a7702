"""Another model answers if the first one refuses or is busy. No model receives the thinking of another."""

from pathlib import Path

import pytest

from agentic_rag.base.errors import ModelError
from agentic_rag.base.events import AgentEvent
from agentic_rag.base.messages import Block
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.models.base import ModelRequest
from agentic_rag.models.names import ModelNames
from agentic_rag.models.openai.model import OpenAIModel
from agentic_rag.models.pool import ModelPool
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.store import usage
from agentic_rag.testing.fake_api import Answer, FakeMessagesAPI, Fault, Reply
from agentic_rag.testing.fake_chat import FakeChatAPI
from agentic_rag.testing.scripted import Broken, Scripted, ScriptedModel
from agentic_rag.testing.steps import Say, Step, Think, Use, say
from agentic_rag.tools.base import CallOutcome, CallRequest
from tests.runtime.harness import (
    SESSION,
    Bench,
    MemoryToolset,
    Services,
    bench,
    definition,
    kinds,
    ok,
    text_of,
    toolset,
)
from tests.tools.many import many_tools

REFUSAL = Step((Think("No."), Say("I can")), stop_reason="refusal")
BUSY_ERROR = ModelError("busy", http_status=429, retryable=True, retry_after=999.0)
OVERLOADED_ERROR = ModelError("overloaded", http_status=529, retryable=True, retry_after=999.0)
BROKEN_ANSWER = Broken(
    say("Half an"),
    3,
    ModelError("overloaded", http_status=200, kind="overloaded_error", retryable=True, retry_after=9e9),
)


def chain(*fallbacks: str) -> Definition:
    return definition(model="first", fallback_models=fallbacks)


async def look(request: CallRequest) -> CallOutcome:
    return ok("found")


def thoughts(request: ModelRequest) -> list[str]:
    blocks: list[Block] = [block for message in request.messages for block in message["content"]]
    return [block["thinking"] for block in blocks if block["type"] == "thinking"]


async def models_of(b: Bench) -> list[str]:
    return [row.model for row in await b.database.read(lambda conn: usage.of_session(conn, SESSION))]


@pytest.mark.parametrize(
    "failure", [REFUSAL, BUSY_ERROR, OVERLOADED_ERROR, BROKEN_ANSWER], ids=["refusal", "429", "529", "inside"]
)
async def test_the_next_model_answers_and_the_turn_names_it(tmp_path: Path, failure: Scripted) -> None:
    async with ScriptedModel(failure, say("Well.")) as model, bench(tmp_path, model) as b:
        events = await b.say("Hi", definition=chain("second"))
        assert kinds(events)[-1] == "done"
        start = max((n for n, kind in enumerate(kinds(events)) if kind == "step_reset"), default=0)
        assert text_of(events[start:]) == "Well."
        notices = [event.fields()["code"] for event in events if event.type == "notice"]
        assert notices == ["FALLBACK_MODEL"]
        assert events[-1].fields()["model"] == "second"
        assert [request.model for request in model.requests] == ["first", "second"]
        assert "second" in await models_of(b)


async def test_models_of_a_chain_are_tried_in_order_and_the_last_answer_counts(tmp_path: Path) -> None:
    async with ScriptedModel(BUSY_ERROR, REFUSAL, OVERLOADED_ERROR) as model, bench(tmp_path, model) as b:
        events = await b.say("Hi", definition=chain("second", "third"))
        assert [request.model for request in model.requests] == ["first", "second", "third"]
        assert events[-1].fields()["code"] == "LLM_SERVICE_ERROR"
        assert await models_of(b) == ["second"]


@pytest.mark.parametrize("status", [400, 401, 500])
async def test_errors_that_another_model_cannot_fix_are_reported(tmp_path: Path, status: int) -> None:
    async with ScriptedModel(ModelError("no", http_status=status)) as model, bench(tmp_path, model) as b:
        assert kinds(await b.say("Hi", definition=chain("second")))[-1] == "error"


async def test_a_fallback_model_finishes_the_turn_and_the_next_starts_with_the_first(
    tmp_path: Path,
) -> None:
    steps = (
        Step((Think("one"), Use("look", {"query": "a"}))),
        BUSY_ERROR,
        Step((Think("two"), Use("look", {"query": "b"}))),
        say("Well."),
        Step((Think("three"), Say("Again."))),
    )
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, toolset(look=look)) as b:
        await b.say("Hi", definition=chain("second"))
        await b.say("More", definition=chain("second"))
        assert [request.model for request in model.requests] == ["first", "first", "second", "second", "first"]
        assert [thoughts(request) for request in model.requests] == [[], ["one"], [], ["two"], ["one"]]
        models = [record.model for record in await b.database.read(lambda conn: usage.of_session(conn, SESSION))]
        assert models == ["first", "second", "second", "first"]


CLAUDE, LOCAL = "claude-opus-5-5", "local:small"
TICKET_TOOL = "helpdesk__get_ticket"
FIND_STEP = Step((Think("Find."), Use("find_tools", {"query": "get a ticket"})))
OVERLOADED_REPLY = Reply(say("x"), Fault(status=529, retry_after="999"))


def call_by_name() -> Use:
    return Use("call_tool", {"name": TICKET_TOOL, "arguments": {"id": "T-1"}})


async def run_chain(
    folder: Path,
    first_model: str,
    second_model: str,
    claude_answers: tuple[Answer, ...],
    local_answers: tuple[Answer, ...],
) -> tuple[list[AgentEvent], list[AgentEvent], FakeMessagesAPI, FakeChatAPI]:
    """Return the events of two turns of a chain, and the requests to its services."""
    async with FakeMessagesAPI(*claude_answers) as messages_api, FakeChatAPI(*local_answers) as chat_api:
        chat = OpenAIModel(chat_api.key, chat_api.base_url, provider="local", in_file=True)
        models = {"anthropic": AnthropicModel(messages_api.key, messages_api.url), "local": chat}
        pool = ModelPool(models, ModelNames("anthropic", frozenset(models)), {})
        base_tools = toolset(search_documents=look)
        tools = {**base_tools.functions, **{tool.name: (tool, look) for tool in many_tools(60)}}
        settings = definition(model=first_model, fallback_models=(second_model,))
        try:
            async with bench(folder, pool, services=Services(pool, MemoryToolset(tools))) as b:
                turns = [await b.say(text, definition=settings) for text in ("What of T-1?", "And now?")]
        finally:
            await pool.aclose()
    assert (messages_api.refused, chat_api.refused) == ([], [])
    return turns[0], turns[1], messages_api, chat_api


def result_statuses(events: list[AgentEvent]) -> list[tuple[str, str]]:
    tool_results = [event.fields() for event in events if event.type == "tool_result"]
    return [(result["toolName"], result["status"]) for result in tool_results]


async def test_deferred_tools_survive_a_switch_to_a_service_without_them_and_back(tmp_path: Path) -> None:
    claude_answers = (
        FIND_STEP,
        OVERLOADED_REPLY,
        Step((Think("Again."), Use(TICKET_TOOL, {"id": "T-2"}))),
        say("Done."),
    )
    first_events, second_events, messages_api, chat_api = await run_chain(
        tmp_path,
        CLAUDE,
        LOCAL,
        claude_answers,
        (Step((call_by_name(),)), Step((Use("find_tools", {"query": "event"}),)), say("So.")),
    )
    assert (kinds(first_events)[-1], kinds(second_events)[-1]) == ("done", "done")
    assert result_statuses(first_events) == [("find_tools", "ok"), (TICKET_TOOL, "ok"), ("find_tools", "ok")]
    assert result_statuses(second_events) == [(TICKET_TOOL, "ok")]
    offered = [tool["function"]["name"] for tool in chat_api.requests[0]["tools"]]
    assert {"find_tools", "call_tool"} < set(offered)
    assert TICKET_TOOL not in offered, "all tools are shown at once"
    results_as_text = [message["content"] for message in chat_api.requests[0]["messages"] if message["role"] == "tool"]
    assert "arguments: {" in results_as_text[0], "what was found is said in words"
    assert "call_tool" in results_as_text[0]
    assert [tool["name"] for tool in messages_api.requests[0]["tools"]] == [
        tool["name"] for tool in messages_api.requests[-1]["tools"]
    ]
    assert "tool_reference" in str(messages_api.requests[-1]["messages"])


async def test_tools_called_by_name_survive_a_switch_to_a_deferring_service_and_back(tmp_path: Path) -> None:
    busy_reply = Reply(say("x"), Fault(status=429, retry_after="999"))
    local_answers = (
        Step((Use("find_tools", {"query": "get a ticket"}),)),
        busy_reply,
        Step((call_by_name(),)),
        say("So."),
    )
    claude_answers = (FIND_STEP, Step((Think("Call."), Use(TICKET_TOOL, {"id": "T-1"}))), say("Done."))
    first_events, second_events, messages_api, chat_api = await run_chain(
        tmp_path, LOCAL, CLAUDE, claude_answers, local_answers
    )
    assert (kinds(first_events)[-1], kinds(second_events)[-1]) == ("done", "done")
    assert result_statuses(first_events) == [("find_tools", "ok"), ("find_tools", "ok"), (TICKET_TOOL, "ok")]
    assert result_statuses(second_events) == [(TICKET_TOOL, "ok")]
    assert [tool["name"] for tool in messages_api.requests[0]["tools"] if tool.get("defer_loading")]
    assert "tool_reference" in str(messages_api.requests[1]["messages"])
    last_request = chat_api.requests[-1]
    assert "tool_reference" not in str(last_request)
    assert [tool["function"]["name"] for tool in last_request["tools"]] == [
        tool["function"]["name"] for tool in chat_api.requests[0]["tools"]
    ]

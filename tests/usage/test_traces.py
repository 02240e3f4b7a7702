"""One trace for each turn, by the conventions for GenAI and MCP. A collector that is down does no harm."""

import io
import json
import logging
import sys
import time
from pathlib import Path

import anyio
import pytest

from agentic_rag.base.errors import ModelError
from agentic_rag.base.events import Usage
from agentic_rag.base.messages import text_block
from agentic_rag.base.redaction import Redactor
from agentic_rag.base.telemetry import Observer, SpanContent, WorkKind
from agentic_rag.base.terminal import log_handler, log_turn, log_under
from agentic_rag.operations.tracing import Tracing
from agentic_rag.testing.steps import Step, Use, say, use
from tests.server.rig import Rig, types_of
from tests.usage.collector import Collector, run_collector
from tests.ws.serving import client, serving

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SEARCHED = Step((Use("search_documents", {"query": "leave"}),), usage=Usage(10, 20, 30, 4))


async def trace_turn(tmp_path: Path, collector: Collector, *, content: bool = False) -> str:
    """Run a turn that searches, and return its conversation. All its spans have arrived then."""
    rig = Rig(tmp_path, SEARCHED, say("Twenty-five."), otlp_endpoint=collector.url, trace_content=content)
    async with rig:
        domain = await rig.domain()
        await rig.upload(domain, "a.md", b"# Leave\n\nTwenty-five days of leave.\n")
        conversation = await rig.conversation(domain)
        response = await rig.http.post(
            f"/api/conversations/{conversation}/messages",
            json={"content": "How many?"},
            headers={"traceparent": GIVEN},
        )
        assert "event: done" in response.text
    return conversation


async def test_a_turn_continues_the_clients_trace(tmp_path: Path) -> None:
    with run_collector() as collector:
        conversation = await trace_turn(tmp_path, collector)
    assert {span.trace for span in collector.spans} == {GIVEN.split("-")[1]}
    turn = collector.find_span("invoke_agent assistant")
    assert turn.above == GIVEN.split("-")[2]
    assert turn.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert turn.attributes["gen_ai.conversation.id"] == conversation
    assert turn.attributes["agentic_rag.turn.end"] == "end_turn"
    steps = [span for span in collector.spans if span.name.startswith("chat ")]
    assert [collector.find_parent_name(step) for step in steps] == ["invoke_agent assistant"] * 2
    call_step = next(step for step in steps if step.attributes["gen_ai.response.finish_reasons"] == ["tool_use"])
    assert call_step.kind == 3, "CLIENT"
    attributes = call_step.attributes
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.provider.name"] == "scripted"
    assert call_step.name == f"chat {attributes['gen_ai.request.model']}"
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (60, 4)
    assert attributes["gen_ai.usage.cache_read.input_tokens"] == 20
    assert attributes["gen_ai.usage.cache_creation.input_tokens"] == 30
    tool = collector.find_span("execute_tool search_documents")
    assert tool.above == call_step.ident
    assert tool.attributes["gen_ai.tool.name"] == "search_documents"
    request = collector.find_span("tools/call search_documents")
    assert (collector.find_parent_name(request), request.kind) == (tool.name, 3)
    assert request.attributes["mcp.method.name"] == "tools/call"
    assert request.attributes["mcp.protocol.version"]
    retrieval = collector.find_span("retrieval documents")
    assert collector.find_parent_name(retrieval) == tool.name
    assert retrieval.attributes["agentic_rag.retrieval.hits"] == 1
    assert retrieval.attributes["gen_ai.retrieval.top_k"] > 0
    assert not any(span.failed for span in collector.spans)
    assert "Twenty-five" not in str(collector.spans), "nothing of what was said"


async def test_content_is_recorded_only_by_setting_and_without_secrets(tmp_path: Path) -> None:
    with run_collector() as collector:
        steps = (use("promptx_recall", query="leave"), say("The word is hunter2-hunter2."))
        async with Rig(tmp_path, *steps, otlp_endpoint=collector.url, trace_content=True) as rig:
            domain = await rig.domain()
            await rig.ok("PUT", f"/api/domains/{domain}/secrets/word", {"value": "hunter2-hunter2"})
            await rig.say(await rig.conversation(domain), "What is hunter2-hunter2?")
    model_spans = [span for span in collector.spans if span.name.startswith("chat ")]
    input_messages = json.loads(model_spans[-1].attributes["gen_ai.input.messages"])
    assert input_messages[0]["role"] == "user"
    assert {part["type"] for message in input_messages for part in message["parts"]} >= {
        "text",
        "tool_call",
        "tool_call_response",
    }
    assert json.loads(model_spans[-1].attributes["gen_ai.output.messages"])[0]["parts"][0]["type"] == "text"
    tool = collector.find_span("execute_tool promptx_recall")
    assert json.loads(tool.attributes["gen_ai.tool.call.arguments"]) == {"query": "leave"}
    assert "hunter2" not in str(collector.spans)


async def test_calls_outside_turns_belong_to_their_domain_and_show_no_secret(tmp_path: Path) -> None:
    summary = '{"facts": [{"fact": "The word is hunter2-hunter2.", "documents": []}]}'
    turns = [say("The word is hunter2-hunter2.")] * 10
    steps = (turns[0], say("Of hunter2-hunter2"), *turns[1:], say('{"memories": []}'), say(summary))
    with run_collector() as collector:
        async with Rig(tmp_path, *steps, titles="model", otlp_endpoint=collector.url, trace_content=True) as rig:
            domain = await rig.domain(memory={"extract": "after-turn"})
            await rig.ok("PUT", f"/api/domains/{domain}/secrets/word", {"value": "hunter2-hunter2"})
            conversation = await rig.conversation(domain)
            for _ in range(10):
                await rig.say(conversation, "What is hunter2-hunter2?")
                await rig.application.parts.naming.run()
            await rig.application.services.extraction.run(0)
            await rig.ok("POST", f"/api/conversations/{conversation}/compact")
            metrics = (await rig.http.get("/metrics")).text
    spans_without_turn = [span for span in collector.spans if span.name.startswith("chat ") and not span.above]
    assert [span.attributes.get("agentic_rag.domain.id") for span in spans_without_turn] == [domain] * 3
    assert all("gen_ai.input.messages" in span.attributes for span in spans_without_turn)
    assert "hunter2" not in str(collector.spans)
    assert f'agentic_rag_tokens_total{{domain="{domain}"' in metrics
    assert 'domain=""' not in metrics


def test_calls_without_a_domain_are_traced_without_content() -> None:
    with run_collector() as collector:
        tracing = Tracing(collector.url, Redactor(), content=True)
        step = Observer(time.monotonic, tracer=tracing).begin(WorkKind.STEP, "a")
        assert not step.wants_content
        step.say(SpanContent.ANSWER, [text_block("Whose secrets are in this?")])
        step.end()
        anyio.run(tracing.aclose)
    assert "gen_ai.output.messages" not in collector.find_span("chat a").attributes


async def test_a_delegates_turn_is_a_child_span_of_its_call(tmp_path: Path) -> None:
    task = use("delegate", role="researcher", task="Find it.")
    with run_collector() as collector:
        async with Rig(tmp_path, task, say("Found."), say("Done."), otlp_endpoint=collector.url) as rig:
            domain = await rig.domain(subRoleIds=["researcher"])
            await rig.say(await rig.conversation(domain), "Hi")
    child = collector.find_span("invoke_agent researcher")
    assert collector.find_parent_name(child) == "execute_tool delegate"
    assert len({span.trace for span in collector.spans}) == 1
    assert len([span for span in collector.spans if collector.find_parent_name(span) == child.name]) == 1


async def test_failures_have_their_code_and_a_turn_without_a_client_trace_has_its_own(tmp_path: Path) -> None:
    failure = ModelError("no", http_status=401, kind="authentication_error")
    with run_collector() as collector:
        async with Rig(tmp_path, failure, otlp_endpoint=collector.url) as rig:
            await rig.say(await rig.conversation(), "Hi")
    step = next(span for span in collector.spans if span.name.startswith("chat "))
    turn = next(span for span in collector.spans if span.name.startswith("invoke_agent"))
    assert (step.failed, step.attributes["error.type"]) == (True, "authentication_error")
    assert (turn.failed, turn.attributes["error.type"], turn.above) == (True, "LLM_SERVICE_ERROR", "")


async def test_each_socket_frame_can_carry_a_trace_context(tmp_path: Path) -> None:
    with run_collector() as collector:
        async with (
            Rig(tmp_path, say("Hello."), say("Again."), otlp_endpoint=collector.url) as rig,
            serving(rig.application.app) as address,
        ):
            conversation = await rig.conversation()
            async with client(address) as socket:
                for trace_context in (GIVEN, "not one"):
                    await socket.say("message", conversationId=conversation, content="Hi", traceparent=trace_context)
                    await socket.hear_turn()
    turns = [span for span in collector.spans if span.name.startswith("invoke_agent")]
    assert [turn.above for turn in turns] == [GIVEN.split("-")[2], ""]


@pytest.mark.parametrize("refusing", [503, 400])
async def test_a_trace_collector_that_refuses_affects_no_turn(tmp_path: Path, refusing: int) -> None:
    with run_collector() as collector:
        collector.refusing = refusing
        with anyio.fail_after(240):
            async with Rig(tmp_path, say("Hello."), say("Again."), otlp_endpoint=collector.url) as rig:
                conversation = await rig.conversation()
                assert types_of(await rig.say(conversation, "Hi"))[-1] == "done"
                assert await anyio.to_thread.run_sync(collector.has_request.wait, 60)
                assert types_of(await rig.say(conversation, "Hi"))[-1] == "done"


async def test_requests_to_mcp_servers_carry_the_trace(tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": ["-I", "-S", str(Path(__file__).parent / "meta_server.py")]}
    step = use("notes__show_trace")
    with run_collector() as collector:
        async with Rig(tmp_path, step, say("Done."), any_command=True, otlp_endpoint=collector.url) as rig:
            domain = await rig.domain(mcpServers={"notes": entry})
            events = await rig.say(await rig.conversation(domain), "Hi")
    (result,) = [event for event in events if event["type"] == "tool_result"]
    request = collector.find_span("tools/call show_trace")
    assert f"called with 00-{request.trace}-{request.ident}-01" in str(result["content"])


def test_log_lines_name_request_turn_and_trace_as_text_and_as_json() -> None:
    text_log, json_log = io.StringIO(), io.StringIO()
    text, objects = log_handler(text_log), log_handler(json_log, lines_of_json=True)
    record = logging.LogRecord("agentic_rag.x", logging.WARNING, "", 0, "it \x1b failed\n%s", ("why",), None)
    with log_under("req_1"), log_turn("turn_1", "abc"):
        text.handle(record)
        objects.handle(record)
    objects.handle(record)
    assert text_log.getvalue().rstrip().endswith("[req_1 turn_1 abc]")
    first_line, second_line = map(json.loads, json_log.getvalue().splitlines())
    assert {name: first_line[name] for name in ("requestId", "turnId", "traceId", "level", "logger")} == {
        "requestId": "req_1",
        "turnId": "turn_1",
        "traceId": "abc",
        "level": "warning",
        "logger": "agentic_rag.x",
    }
    assert first_line["message"] == "it \x1b failed\nwhy"
    assert "turnId" not in second_line
    assert "\x1b" not in json_log.getvalue()

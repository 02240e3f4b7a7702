"""AG-UI: every event equals the official package's output, byte for byte; offsets; the content of a snapshot."""

import orjson
import pytest
from ag_ui.core import PROTOCOL_VERSION as OFFICIAL_VERSION
from ag_ui.core import Event
from pydantic import TypeAdapter

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.events import (
    AgentEvent,
    IterationStart,
    StepReset,
    Text,
    Thinking,
    ToolArguments,
    ToolCall,
    ToolCallStarted,
    ToolResult,
    ToolStatus,
)
from agentic_rag.base.json_form import Json
from agentic_rag.server.dialects.ag_ui import PROTOCOL_VERSION, AgUi, Offset
from agentic_rag.server.dialects.base import KnownWaits
from agentic_rag.server.dialects.settled import settle
from tests.server.dialects.reading import parse_sse, stream
from tests.server.dialects.streams import (
    FIRST,
    FULL,
    INTERRUPTED,
    RESET,
    RESET_OF_DELEGATE,
    STREAMS,
    WAITING,
    end_turn,
    events,
    make_search,
    start_turn,
    tag,
)

OFFICIAL: TypeAdapter[Event] = TypeAdapter(Event)
ASKED = {"id": "m", "role": "user", "content": "Hi"}


def read_chunks(encoder: AgUi, events: list[AgentEvent]) -> list[Json]:
    return [orjson.loads(event.data) for event in parse_sse(stream(encoder, events))]


def kinds_of(chunks: list[Json]) -> list[str]:
    return [chunk["type"] for chunk in chunks]


@pytest.mark.parametrize("stream_events", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("history", [None, [ASKED]], ids=["", "history"])
def test_each_event_matches_the_official_model(stream_events: list[AgentEvent], history: list[Json] | None) -> None:
    for event in parse_sse(stream(AgUi(history=history), stream_events)):
        model = OFFICIAL.validate_json(event.data)
        assert model.model_dump_json(by_alias=True) == event.data
        assert not model.model_extra


@pytest.mark.parametrize("wait", ["wait_1", "wait_2", "wait_3"])
def test_a_resumed_run_matches_the_official_model_and_its_snapshot_has_no_duplicates(wait: str) -> None:
    reset = events(Text("Oh."), StepReset(3), IterationStart(3), Text("No."), end_turn(), first=WAITING[-1].seq)
    history = [ASKED, {"id": "msg_a.1", "role": "assistant", "content": "I will write it. "}]
    waits = KnownWaits(frozenset({"wait_1", "wait_2", "wait_3"}), frozenset({wait}))
    stream_events = parse_sse(stream(AgUi("t", "r2", history, waits=waits), [*WAITING[:-1], *reset]))
    for event in stream_events:
        assert OFFICIAL.validate_json(event.data).model_dump_json(by_alias=True) == event.data
    bodies = [orjson.loads(event.data) for event in stream_events]
    assert (bodies[0]["type"], bodies[0]["runId"]) == ("RUN_STARTED", "r2")
    assert [body["type"] for body in bodies].count("RUN_FINISHED") == 1
    (snapshot,) = [body["messages"] for body in bodies if body["type"] == "MESSAGES_SNAPSHOT"]
    ids = [message["id"] for message in snapshot]
    assert ids[:2] == ["m", "msg_a.1"]
    assert len(set(ids)) == len(ids)


def test_the_protocols_version_is_the_packages() -> None:
    assert PROTOCOL_VERSION == OFFICIAL_VERSION


def test_ids_chosen_by_the_client_are_used() -> None:
    (chosen, *_) = read_chunks(AgUi("thread", "run"), INTERRUPTED)
    assert (chosen["threadId"], chosen["runId"], chosen["metadata"]["conversationId"]) == ("thread", "run", "conv_1")
    (default, *_) = read_chunks(AgUi(), INTERRUPTED)
    assert (default["threadId"], default["runId"]) == ("conv_1", "mine")


def test_offsets_are_unique_and_each_leads_to_the_later_events() -> None:
    events = parse_sse(stream(AgUi(), FULL))
    numbered = [event for event in events if event.data.find("STORAGE_STALLED") < 0]
    offsets = [event.id or "" for event in numbered]
    assert len(set(offsets)) == len(offsets)
    assert offsets[-1] == f"turn_1:{FULL[-1].seq}"
    for index in range(0, len(numbered), 7):
        following = parse_sse(stream(AgUi(after=Offset.parse(offsets[index])), FULL))
        assert [event.data for event in following if event.data.find("STORAGE_STALLED") < 0] == [
            event.data for event in numbered[index + 1 :]
        ]


@pytest.mark.parametrize("text", ["", "turn_1", "turn_1:", "turn_1:x", "turn_1:1.", "turn_1:-1", "a:b:1", "t:1.2.3"])
def test_an_invalid_offset_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="offset"):
        Offset.parse(text)


def test_a_client_gets_each_reset_once() -> None:
    seq = next(event.seq for event in RESET if event.type == "step_reset")
    encoder = AgUi(after=Offset("turn_1", seq))
    sent_chunks = read_chunks(encoder, RESET)
    assert not encoder.ended
    assert [chunk["delta"] for chunk in sent_chunks if chunk["type"] == "TEXT_MESSAGE_CONTENT"] == ["Other words."]


def test_a_snapshot_keeps_the_text_of_other_steps_and_agents() -> None:
    turn = events(
        start_turn(),
        IterationStart(1),
        Text("Kept. "),
        *make_search(),
        ToolCall("call_d1", "delegate", "delegate", {"role": "researcher", "task": "look"}),
        *tag(FIRST, IterationStart(1), Text("Of the delegate.")),
        ToolResult("call_d1", "delegate", "delegate", ToolStatus.OK, "answer", False, 1),
        IterationStart(2),
        Thinking("Hm"),
        Text("Gone."),
        ToolCallStarted("call_x", "x", "y"),
        ToolArguments("call_x", '{"a": 1'),
        StepReset(2),
        IterationStart(2),
        Text("Said."),
        end_turn(),
    )
    sent_chunks = read_chunks(AgUi(history=[ASKED]), turn)
    (snapshot,) = [chunk["messages"] for chunk in sent_chunks if chunk["type"] == "MESSAGES_SNAPSHOT"]
    assert snapshot[0] == ASKED
    texts = [(message["role"], message.get("content")) for message in snapshot[1:]]
    assert texts == [
        ("assistant", "Kept. "),
        ("tool", "1 hit"),
        ("assistant", "Of the delegate."),
        ("tool", "answer"),
        ("reasoning", ""),
    ]
    calls = {call["id"]: call["function"]["arguments"] for call in snapshot[1]["toolCalls"]}
    assert calls == {"call_1": '{"query": "leave"}', "call_d1": '{"role":"researcher","task":"look"}'}
    assert snapshot[3]["subagentRunId"] == "msg_a/researcher"


def test_a_delegate_is_a_subagent_of_its_call() -> None:
    (first, second) = [chunk for chunk in read_chunks(AgUi(), FULL) if chunk["type"] == "SUBAGENT_STARTED"]
    assert first == {
        "type": "SUBAGENT_STARTED",
        "subagentRunId": "msg_a/researcher",
        "name": "researcher",
        "description": "look",
        "parentToolCallId": "call_d1",
        "parentMessageId": "msg_a.1",
    }
    assert second["subagentRunId"] == "msg_a/researcher-2"


def test_truncated_arguments_are_sent_completely_at_the_end_of_the_call() -> None:
    truncated = (ToolCallStarted("c", "x", "y"), ToolArguments("c", '{"a'), ToolCall("c", "x", "y", {}))
    turn = events(start_turn(), IterationStart(1), *truncated)
    (end,) = [chunk for chunk in read_chunks(AgUi(), turn) if chunk["type"] == "TOOL_CALL_END"]
    assert end["metadata"] == {"arguments": {}}


def test_a_call_that_never_ran_has_a_result_that_says_so() -> None:
    turn = events(start_turn(), IterationStart(1), ToolCallStarted("c", "x", "y"), end_turn())
    sent_chunks = read_chunks(AgUi(), turn)
    assert kinds_of(sent_chunks)[-4:] == ["TOOL_CALL_END", "TOOL_CALL_RESULT", "STEP_FINISHED", "RUN_FINISHED"]


def test_a_complete_log_is_read_without_reset_text() -> None:
    settled_events = settle(RESET)
    assert [event.fields()["text"] for event in settled_events if event.type == "text"] == ["Other words."]
    assert {"step_reset", "tool_call_started", "tool_arguments"}.isdisjoint(event.type for event in settled_events)
    assert [event.fields()["text"] for event in settle(RESET_OF_DELEGATE) if event.type == "text"] == ["b", "c"]
    assert settle(FULL) == FULL
    assert kinds_of(read_chunks(AgUi(), settled_events))[-1] == "RUN_FINISHED"

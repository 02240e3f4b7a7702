"""The frames that clients of each older contract read, item by item."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.errors import AgenticRagError, ServerStopping
from agentic_rag.base.events import (
    Delegate,
    Error,
    Interrupted,
    IterationStart,
    Notice,
    Retrieval,
    SourceReference,
    StepReset,
    Text,
    ToolCall,
)
from agentic_rag.server.dialects import get_dialect
from agentic_rag.server.dialects.knowledge import Chunks
from agentic_rag.server.dialects.message import MessageAnswer
from tests.server.dialects.reading import frames, parse_sse, stream
from tests.server.dialects.streams import (
    CITED,
    ERROR_AFTER_TEXT,
    ERROR_BEFORE_TEXT,
    FIRST,
    FULL,
    HIT,
    INTERRUPTED,
    RESET,
    RESET_BEFORE_TEXT,
    RESET_OF_DELEGATE,
    SILENT,
    TAKEN_BACK_CALL,
    WAITING,
    Step,
    approval,
    end_turn,
    events,
    make_search,
    start_turn,
)

ANSWER = "I will look. \n\nYou get 25 days of leave.\nTravel by train 🚆 — naïve\r\n\u2028end. And so on."


def read_items(name: str, stream_of: Any) -> list[tuple[str, Any]]:
    """Return the name and the parsed data of each server-sent event of a dialect."""
    sse_events = parse_sse(stream(get_dialect(name), stream_of))
    return [
        (event.event, orjson.loads(event.data) if event.data.startswith("{") else event.data) for event in sse_events
    ]


def kinds_of(name: str, stream_of: Any) -> list[str]:
    return [kind for kind, _ in read_items(name, stream_of)]


def read_frames(name: str, stream_of: Any) -> list[dict[str, Any]]:
    return [orjson.loads(text) for text in frames(get_dialect(name), stream_of)]


# observable


def test_observable_is_native_with_snake_case_fields_and_cards() -> None:
    native, observable = dict(read_items("native", FULL)), dict(read_items("observable", FULL))
    assert native.keys() == observable.keys()
    for name in ("tool_call_id", "tool_name", "conversation_id", "turn_id", "parent_tool_call_id"):
        assert name in observable["tool_call"]
    (event,) = [
        data
        for kind, data in read_items("observable", events(start_turn(), *make_search(), end_turn()))
        if "cards" in data
    ]
    assert event["cards"] == [
        {
            "id": HIT.id,
            "name": HIT.name,
            "snippet": HIT.snippet,
            "score": HIT.score,
            "document_id": "doc_1",
            "chunk_id": "chunk_1",
            "page": 3,
        }
    ]
    assert observable["done"]["usage"]["cache_read_tokens"] == 20
    assert observable["done"]["references"][1]["cited_text"] == "by train"


def test_observable_keeps_the_keys_of_tools_and_sends_no_empty_retrieval() -> None:

    call = ToolCall("c", "t", "s", {"topK": 1, "inner": {"maxAge": 2}})
    pairs = read_items("observable", events(start_turn(), call, Retrieval("r", "documents", "q", ())))
    assert [kind for kind, _ in pairs] == ["turn_started", "tool_call"]
    assert pairs[1][1]["arguments"] == {"topK": 1, "inner": {"maxAge": 2}}


def test_observable_keeps_the_keys_of_questions() -> None:
    schema = {"type": "object", "properties": {"fullName": {"type": "string", "maxLength": 5}}}
    request = replace(approval("wait_1", "c"), arguments={"fullName": "Ann"}, schema=schema)
    ((_, _), (kind, data)) = read_items("observable", events(start_turn(), request))
    assert (kind, data["wait_id"], data["arguments"], data["schema"]) == (
        "input_required",
        "wait_1",
        {"fullName": "Ann"},
        schema,
    )


@pytest.mark.parametrize("name", ["message", "agentx", "knowledge", "chat", "openai"])
def test_a_dialect_without_waits_sends_none_and_the_turn_continues(name: str) -> None:
    encoder = get_dialect(name)
    pieces = [(event.type, encoder.sse(event)) for event in WAITING]
    assert not encoder.ended
    assert {piece for kind, piece in pieces if kind in ("input_required", "input_answered")} == {b""}
    assert pieces[-1][1]


# message


def test_message_streams_deltas_and_each_source_once() -> None:
    citation = SourceReference(1, 1, 0, 4, "doc_1", "Leave policy.md", "chunk_1", "25 days", 0.9)
    turn = events(start_turn(), IterationStart(1), Text("Yes"), citation, Text("."), citation, end_turn(CITED))
    source = {"documentId": "doc_1", "documentName": "Leave policy.md", "content": "25 days", "relevanceScore": 0.9}
    usage = {"inputTokens": 30, "outputTokens": 30}
    assert read_items("message", turn) == [
        ("message_start", {"type": "message_start", "messageId": "msg_a"}),
        ("content_delta", {"type": "content_delta", "delta": "Yes"}),
        ("source_reference", {"type": "source_reference", **source}),
        ("content_delta", {"type": "content_delta", "delta": "."}),
        ("message_complete", {"type": "message_complete", "messageId": "msg_a", "usage": usage}),
    ]
    beside = {"conversationId": "conv_1", "turnId": "turn_1", "messageId": "msg_a"}
    assert read_frames("message", turn)[1:4] == [
        {"type": "content_delta", "delta": "Yes", **beside},
        {"type": "source_reference", "source": source, **beside},
        {"type": "content_delta", "delta": ".", **beside},
    ]


@pytest.mark.parametrize("name", ["message", "agentx", "knowledge", "chat"])
def test_the_answer_is_the_main_agents_with_blank_lines_between_steps(name: str) -> None:
    text = text_of(name, FULL).replace("[[Leave policy.md]]", "")
    assert text == (ANSWER.replace("\r\n", "\n") if name == "knowledge" else ANSWER)  # SSE has one kind of line end
    assert "From one." not in stream(get_dialect(name), FULL)


def text_of(name: str, stream_of: Any) -> str:
    """Return the answer as a client assembles it."""
    pairs = read_items(name, stream_of)
    match name:
        case "message":
            return "".join(data["delta"] for kind, data in pairs if kind == "content_delta")
        case "agentx":
            return "".join(data["data"]["text"] for kind, data in pairs if kind == "text_delta")
        case "knowledge":
            return "".join(
                event.data for event in parse_sse(stream(get_dialect(name), stream_of)) if event.event == "chunk"
            )
        case _:
            parts = [orjson.loads(event.data) for event in parse_sse(stream(get_dialect("chat"), stream_of))[:-1]]
            text = "".join(part["data"]["content"] for part in parts if part["type"] == "text")
            assert parts[-1]["data"]["final_message"] == {"role": "assistant", "content": text}
            return text


@pytest.mark.parametrize(
    ("turn", "code"),
    [
        (INTERRUPTED, "GENERATION_ABORTED"),
        (RESET, "STEP_RESET"),
        (ERROR_BEFORE_TEXT, "LLM_SERVICE_ERROR"),
        (ERROR_AFTER_TEXT, "LLM_SERVICE_ERROR"),
    ],
)
@pytest.mark.parametrize("name", ["message", "knowledge"])
def test_an_unknown_end_is_an_error_with_its_code(name: str, turn: Any, code: str) -> None:
    kind, data = read_items(name, turn)[-1]
    assert (kind, data["code"]) == ("error", code)
    assert data["error" if name == "message" else "message"]
    assert data["retryable"] == (code == "LLM_SERVICE_ERROR")


@pytest.mark.parametrize("name", ["message", "knowledge", "agentx", "chat"])
def test_a_step_without_output_can_run_again_and_so_can_a_delegates(name: str) -> None:
    for turn in (RESET_BEFORE_TEXT, RESET_OF_DELEGATE):
        assert "STEP_RESET" not in stream(get_dialect(name), turn)


@pytest.mark.parametrize("name", ["message", "agentx", "knowledge", "chat"])
def test_a_reset_of_a_step_that_never_started_retracts_nothing(name: str) -> None:
    """A server that takes over another one's turn resets the step that would have come next."""
    before = events(start_turn(), IterationStart(1), Text("I look."), *make_search())
    after = events(StepReset(2), IterationStart(2), Text("Found."), end_turn(), first=1_000_000_001)
    assert text_of(name, [*before, *after]) == "I look.\n\nFound."


@pytest.mark.parametrize("name", ["message", "agentx", "knowledge", "chat"])
def test_a_server_lost_in_mid_call_is_an_error(name: str) -> None:
    leaving = Notice(ServerStopping.code, "The server stops.")
    encoder = get_dialect(name)
    assert "SERVER_STOPPING" in stream(encoder, events(start_turn(), IterationStart(1), Text("I look"), leaving))
    assert encoder.ended


def test_a_waiting_callers_answer_has_no_retracted_text_and_fails_like_the_turn() -> None:
    def wait(turn: Any) -> Any:
        collector = MessageAnswer()
        for event in turn:
            collector.collect(event)
        return collector.result()

    assert wait(FULL)["content"] == ANSWER
    assert wait(RESET)["content"] == "Other words."
    assert wait(RESET_OF_DELEGATE)["content"] == "c"
    assert wait(SILENT)["content"] == ""
    for turn, status, code in [
        (ERROR_AFTER_TEXT, 502, "LLM_SERVICE_ERROR"),
        (events(start_turn(), Error("GENERATION_TIMEOUT", "Too slow.", True)), 504, "GENERATION_TIMEOUT"),
        (INTERRUPTED, 499, "GENERATION_ABORTED"),
        (FULL[:5], 503, "SERVER_STOPPING"),
    ]:
        with pytest.raises(AgenticRagError) as exc_info:
            wait(turn)
        assert (exc_info.value.status, exc_info.value.code) == (status, code)


# agentx


def test_agentx_reports_the_agents_activity() -> None:
    turn = events(
        start_turn("Hi"),
        IterationStart(1),
        *make_search(),
        IterationStart(2),
        Text("25"),
        Text(" days"),
        end_turn(CITED),
    )
    assert kinds_of("agentx", turn) == [
        "conversation_start",
        "turn_request",
        "conversation_thinking",
        "tool_planned",
        "tool_executing",
        "tool_completed",
        "conversation_thinking",
        "conversation_responding",
        "text_delta",
        "text_delta",
        "message_complete",
        "turn_response",
        "conversation_end",
    ]
    frames_of = dict(read_items("agentx", turn))
    assert frames_of["turn_request"]["data"] == {"turnId": "turn_1", "messageId": "msg_u", "content": "Hi"}
    assert frames_of["text_delta"] == {
        "type": "text_delta",
        "conversationId": "conv_1",
        "turnId": "turn_1",
        "timestamp": frames_of["text_delta"]["timestamp"],
        "data": {"text": " days"},
    }
    assert frames_of["tool_executing"]["data"]["arguments"] == {"query": "leave"}
    assert frames_of["turn_response"]["data"]["duration"] == 1500
    assert [reference["documentName"] for reference in frames_of["message_complete"]["data"]["references"]] == [
        "Leave policy.md"
    ]
    assert read_frames("agentx", turn)[-1]["data"]["reason"] == "completed"


def test_agentx_distinguishes_tools_of_delegates_and_ends_retracted_ones() -> None:
    pairs = read_items("agentx", FULL)
    of_tools = [(kind, data["data"].get("agent", "")) for kind, data in pairs if kind.startswith("tool_")]
    for agent in ("researcher", "researcher-2"):
        assert [kind for kind, whose in of_tools if whose == agent][:2] == ["tool_planned", "tool_executing"]
    assert ("tool_failed", "researcher-2") in of_tools
    failures = [data["data"] for kind, data in read_items("agentx", TAKEN_BACK_CALL) if kind == "tool_failed"]
    assert [(failure["toolCallId"], failure["status"]) for failure in failures] == [("call_1", "interrupted")]
    planned = [kind for kind, _ in pairs if kind in ("tool_planned", "tool_executing")]
    assert planned.count("tool_planned") == planned.count("tool_executing")
    assert read_items("agentx", INTERRUPTED)[-1][0] == "conversation_interrupted"
    assert kinds_of("agentx", RESET)[-2:] == ["error", "conversation_end"]


def test_agentx_forgets_a_delegates_planned_calls_after_a_reset() -> None:
    started_call = make_search()[0]
    inner = Delegate("researcher/summariser", "call_i")
    steps: list[Step] = [start_turn(), IterationStart(1)]
    steps += [
        (started_call, FIRST),
        (make_search("call_2")[0], inner),
        (StepReset(1), FIRST),
        *((b, FIRST) for b in make_search()),
    ]
    pairs = read_items("agentx", events(*steps, end_turn()))
    of_call = [(kind, data["data"]["toolCallId"]) for kind, data in pairs if kind.startswith("tool_")]
    assert of_call == [
        ("tool_planned", "call_1"),
        ("tool_planned", "call_2"),
        ("tool_failed", "call_1"),
        ("tool_failed", "call_2"),
        ("tool_planned", "call_1"),
        ("tool_executing", "call_1"),
        ("tool_completed", "call_1"),
    ]


# chat


def test_chat_is_data_lines_and_done_after_the_last() -> None:
    turn = events(start_turn(), IterationStart(1), *make_search(), IterationStart(2), Text("25 days."), end_turn(CITED))
    text = stream(get_dialect("chat"), turn)
    lines = [line for line in text.split("\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    parts = [orjson.loads(line[6:]) for line in lines[:-1]]
    assert all(part.keys() == {"type", "data", "timestamp"} for part in parts)
    assert [(part["type"], part["data"]) for part in parts] == [
        ("session_created", {"session_id": "conv_1"}),
        ("thinking", {"iteration": 1, "status": "processing"}),
        ("tool_call", {"tool_name": "search_documents", "arguments": {"query": "leave"}}),
        ("tool_result", {"tool_name": "search_documents", "result": "1 hit", "success": True}),
        ("thinking", {"iteration": 2, "status": "processing"}),
        ("text", {"content": "25 days."}),
        (
            "done",
            {
                "session_id": "conv_1",
                "final_message": {"role": "assistant", "content": "25 days."},
                "tool_calls": [
                    {
                        "tool_name": "search_documents",
                        "arguments": {"query": "leave"},
                        "result": "1 hit",
                        "success": True,
                    }
                ],
                "references": [
                    {
                        "document_id": "doc_1",
                        "document_name": "Leave policy.md",
                        "content": "25 days of paid leave",
                        "score": 0.91,
                    }
                ],
            },
        ),
    ]


def test_chat_sends_one_thinking_event_an_iteration_and_done_even_after_an_error() -> None:
    interrupted = events(start_turn(), IterationStart(1), StepReset(1), IterationStart(1), Text("a"), Interrupted())
    text = stream(get_dialect("chat"), interrupted)
    assert text.count('"thinking"') == 1
    assert text.endswith('"retryable":false},"timestamp":"2026-01-01T00:00:06.000Z"}\n\ndata: [DONE]\n\n')
    assert b"[DONE]" not in b"".join(frames(get_dialect("chat"), interrupted))


# knowledge


def test_knowledge_sends_sources_before_the_first_chunk_and_when_there_are_more() -> None:
    pairs = read_items("knowledge", FULL)
    assert [kind for kind, _ in pairs][:4] == ["user_message", "context_ready", "chunk", "context_ready"]
    assert pairs[0][1] == {"id": "msg_u"}
    contexts = [data["references"] for kind, data in pairs if kind == "context_ready"]
    assert contexts[0] == []  # the first words came before the first search
    assert [[reference["entityName"] for reference in references] for references in contexts[1:]] == [
        ["Leave policy.md"],
        ["Leave policy.md", "Travel.md"],
    ]
    assert pairs[-2] == ("context_ready", {"references": pairs[-1][1]["references"]})
    assert pairs[-1] == (
        "done",
        {
            "id": "msg_a",
            "references": [
                {
                    "entityId": "doc_1",
                    "entityName": "Leave policy.md",
                    "snippet": "25 days of paid leave",
                    "score": 0.91,
                },
                {"entityId": "doc_2", "entityName": "Travel.md", "snippet": "by train", "score": 0.7},
            ],
        },
    )
    answered = read_items(
        "knowledge", events(start_turn(), IterationStart(1), *make_search(), Text("25 days."), end_turn())
    )
    assert answered[1][1] == {
        "references": [
            {"entityId": "doc_1", "entityName": "Leave policy.md", "snippet": "25 days of paid leave", "score": 0.91}
        ]
    }
    assert [
        kinds_of("knowledge", turn).count("context_ready") for turn in (SILENT, ERROR_BEFORE_TEXT, INTERRUPTED)
    ] == [
        2,
        1,
        1,
    ]


def test_knowledge_writes_names_at_citations() -> None:
    assert "25 days of leave[[Leave policy.md]].\n" in text_of("knowledge", FULL)


def test_a_snippet_has_at_most_200_characters() -> None:

    from agentic_rag.base.events import Retrieval

    long = replace(HIT, snippet="x" * 500)
    turn = events(
        start_turn(),
        Retrieval("r", "documents", "q", (long,)),
        Text("a b"),
        end_turn(replace(CITED, cited_text="y" * 500)),
    )
    data = dict(read_items("knowledge", turn))
    assert (
        len(data["context_ready"]["references"][0]["snippet"]) == len(data["done"]["references"][0]["snippet"]) == 200
    )


def parse_like_older_clients(text: str) -> str:
    """Return the answer as older clients of the contract assemble it: line by line, each trimmed."""
    name, answer = "", ""
    for line in text.split("\n"):
        if line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:") and name == "chunk":
            answer += line[5:].strip()
    return answer


PIECES = st.lists(
    st.text(
        st.sampled_from("ab1é中 \t\n\r.,-[]🚆\u0301\u00a0\u2028") | st.characters(codec="utf-8"),
        max_size=12,
    ),
    max_size=30,
)


@given(PIECES, st.lists(st.integers(0, 30), max_size=4))
def test_any_text_in_any_chunking_reaches_both_kinds_of_parsers(pieces: list[str], cited_at: list[int]) -> None:
    cites = SourceReference(1, 1, 0, 1, "doc_1", "The  name.md", "chunk_1", "x", 0.5)
    steps: list[Step] = [start_turn(), IterationStart(1)]
    full_text = ""
    for index, piece in enumerate(pieces):
        if piece:
            steps.append(Text(piece))
            full_text += piece
        if index in cited_at and full_text:
            steps.append(cites)
            full_text += "[[The name.md]]"
    text = stream(get_dialect("knowledge"), events(*steps, end_turn()))
    ends = full_text.replace("\r\n", "\n").replace("\r", "\n")
    chunks = [event.data for event in parse_sse(text) if event.event == "chunk"]
    assert "".join(chunks) == ends
    assert parse_like_older_clients(text) == "".join(line.strip() for line in ends.split("\n"))
    for before, after in pairwise(chunks):
        assert before[-1].isalnum()
        assert after[0].isalnum()


def test_text_is_streamed_as_it_arrives() -> None:
    chunks = Chunks()
    pieces = [chunks.add(word) for word in ("The", " quick", " brown", " fox")]
    assert pieces == ["Th", "e quic", "k brow", "n fo"]
    assert chunks.end() == "x"


def test_held_back_text_is_scanned_once() -> None:
    class Counted(str):
        looked = 0

        def __getitem__(self, index: Any) -> str:
            Counted.looked += 1
            return str.__getitem__(self, index)

    counts = []
    for size in (200, 400):
        Counted.looked, chunks = 0, Chunks()
        for _ in range(size):
            assert chunks.add(Counted("....")) == ""
        counts.append(Counted.looked)
    assert counts[1] <= 2 * counts[0] + 10

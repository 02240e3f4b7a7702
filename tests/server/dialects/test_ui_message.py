"""The UI message stream: its end, its citations with JavaScript's offsets, and retracted text."""

import orjson

from agentic_rag.base.events import (
    InputAnswered,
    IterationStart,
    SourceReference,
    StepReset,
    Text,
    ToolCall,
    ToolResult,
    ToolStatus,
    WaitAction,
)
from agentic_rag.base.json_form import Json
from agentic_rag.server.dialects.base import KnownWaits
from agentic_rag.server.dialects.ui_message import UiMessage
from tests.server.dialects.reading import frames, stream
from tests.server.dialects.streams import (
    CITED,
    FULL,
    INTERRUPTED,
    OF_DELEGATE,
    STREAMS,
    approval,
    end_turn,
    events,
    start_turn,
    write_call,
    write_result,
)


def read_chunks(turn: list[object] | tuple[object, ...] | object) -> list[Json]:
    lines = stream(UiMessage(), turn).split("\n\n")  # type: ignore[arg-type]
    assert lines[-2:] == ["data: [DONE]", ""]
    return [orjson.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_every_stream_ends_with_done_and_nothing_after_it() -> None:
    for turn in STREAMS.values():
        sent_chunks = read_chunks(turn)
        assert sent_chunks[0]["type"] == "start"
        assert sent_chunks[-1]["type"] == "finish"


def test_citations_count_as_javascript_does() -> None:
    text = "🚆 By train. "
    reference = SourceReference(1, 1, 2, 10, "doc_1", "Travel.pdf", "chunk_1", "train", 0.5, 3)
    turn = events(start_turn(), IterationStart(1), Text(text), reference, Text("Yes."), end_turn())
    (end,) = [chunk for chunk in read_chunks(turn) if chunk["type"] == "text-end"]
    (citation,) = end["citations"]
    quote = text.encode("utf-16-le")[2 * citation["startIndex"] : 2 * citation["endIndex"]].decode("utf-16-le")
    assert quote == text[2:10]
    assert citation["source"]["mediaType"] == "application/pdf"


def test_each_cited_passage_is_one_source_with_those_of_delegates_last() -> None:
    sources = [chunk for chunk in read_chunks(FULL) if chunk["type"] == "source-document"]
    assert [source["sourceId"] for source in sources] == ["1:chunk_1", "2:chunk_2"]
    assert sources[1]["providerMetadata"]["agentic-rag"]["agent"] == OF_DELEGATE.agent
    assert sources[0]["providerMetadata"]["agentic-rag"]["citedText"] == CITED.cited_text


def test_a_retracted_source_is_sent_again() -> None:
    reference = SourceReference(1, 1, 0, 2, "doc_1", "Travel.md", "chunk_1", "train", 0.5)
    cited_text = (Text("By train."), reference)
    turn = events(
        start_turn(), IterationStart(1), *cited_text, StepReset(1), IterationStart(1), *cited_text, end_turn(CITED)
    )
    types = [chunk["type"] for chunk in read_chunks(turn)]
    assert types.count("source-document") == 2
    assert types.count("start-step") == types.count("reset-step") == types.count("finish-step") == 1


def test_a_result_without_its_call_gets_a_placeholder_part() -> None:
    result = ToolResult("c", "x", "y", ToolStatus.OK, "out", False, 1, None, {"a": 1})
    sent_chunks = read_chunks(events(start_turn(), IterationStart(1), result, end_turn()))
    assert [chunk["type"] for chunk in sent_chunks[2:4]] == ["tool-input-available", "tool-output-available"]
    assert sent_chunks[3]["output"] == {"content": "out", "structured": {"a": 1}}
    assert all(chunk["providerExecuted"] and chunk["dynamic"] for chunk in sent_chunks[2:4])


def test_an_early_answer_is_used_when_the_rest_of_the_step_has_ended() -> None:
    search_result = ToolResult("call_x", "search", "files", ToolStatus.OK, "1 hit", False, 1)
    calls = (write_call("call_w"), ToolCall("call_x", "search", "files", {}))
    approval_events = (approval("wait_1", "call_w"), InputAnswered("wait_1", WaitAction.ACCEPT, "ann"))
    turn = events(
        start_turn(), IterationStart(1), *calls, *approval_events, search_result, write_result("call_w"), end_turn()
    )
    waits = KnownWaits(frozenset({"wait_1"}), frozenset({"wait_1"}))
    sent_chunks = [orjson.loads(frame) for frame in frames(UiMessage(waits), turn)]
    assert [chunk["type"] for chunk in sent_chunks] == [
        "start",
        "data-input-required",
        "tool-approval-response",
        "tool-output-available",
        "tool-output-available",
        "finish-step",
        "finish",
    ]
    assert sent_chunks[0]["messageId"] == "msg_a"


def test_an_interrupt_aborts() -> None:
    assert [chunk["type"] for chunk in read_chunks(INTERRUPTED)][-3:] == ["finish-step", "abort", "finish"]

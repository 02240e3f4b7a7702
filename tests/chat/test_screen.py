"""The text on the screen for each event."""

import json

import pytest

from agentic_rag.base.events import (
    Delegate,
    Done,
    Error,
    EventBody,
    Interrupted,
    Notice,
    Reference,
    Retrieval,
    RetrievalHit,
    Retrying,
    SourceReference,
    StepReset,
    Text,
    Thinking,
    ToolCall,
    ToolProgress,
    ToolResult,
    ToolStatus,
    TurnStarted,
    Usage,
)
from agentic_rag.base.ids import ConversationId, TurnId
from agentic_rag.runtime.log.encoder import Encoder
from tests.chat.serving import Paper

CITED = Reference(1, "doc_1", "manual.pdf", "chunk_1", "Three\nyears.", 0.9, 4)
MARK = SourceReference(1, 1, 0, 5, "doc_1", "manual.pdf", "chunk_1", "Three years.", 0.9, 4)
TURN: tuple[EventBody, ...] = (
    TurnStarted("msg_u", "msg_a", "How long?", "scripted", "img_1"),
    Thinking("Let me look."),
    ToolCall("call_1", "search_documents", "retriever", {"query": "warranty [bold]", "k": 3}),
    ToolProgress("call_1", 1, 2, "half"),
    Retrieval(
        "ret_1",
        "documents",
        "warranty",
        (RetrievalHit("c", "manual.pdf", "Three\nyears.", 0.5, page=4), RetrievalHit("d", "a.md", "x", 1)),
    ),
    ToolResult("call_1", "search_documents", "retriever", ToolStatus.OK, "…", False, 12),
    ToolResult("call_2", "other", "x", ToolStatus.ERROR, "it\nfailed", False, 3),
    StepReset(1),
    Retrying(1, 1500, "overloaded"),
    Notice("ROLE_CHANGED", "The role changed."),
    Text("Three "),
    Text("years"),
    MARK,
    MARK,
    Text("."),
    Done("msg_a", Usage(7, 0, 0, 2), "end_turn", (CITED,), "scripted", {"total": 1234}),
)


def show(paper: Paper, *bodies: EventBody, agent: str = "") -> None:
    for seq, body in enumerate(bodies, 1):
        whose = Delegate(agent, "call_d") if agent else None
        event = Encoder(ConversationId("conv_1"), TurnId("turn_1")).encode(body, seq, "t", whose)
        paper.screen.show(event.data.decode(), event.fields())


def test_a_turn_is_read_from_top_to_bottom() -> None:
    paper = Paper()
    show(paper, *TURN)
    assert paper.out.splitlines() == [
        "Let me look.",
        '→ search_documents(query="warranty [bold]", k=3)',
        "  … 1/2 half",
        "  documents: 2 hits for warranty",
        "    manual.pdf, page 4 0.50  Three years.",
        "    a.md 1.00  x",
        "← search_documents ok 12 ms",
        "← other error 3 ms: it failed",
        "(the connection to the model broke; the answer since the last tool call is repeated)",
        "(retrying in 1.5 s: overloaded)",
        "! ROLE_CHANGED: The role changed.",
        "",
        "Three years[1].",
        "",
        "[1] manual.pdf, page 4",
        "    Three years.",
        "scripted · 7 tokens in, 2 out · 1.2 s",
    ]
    assert paper.err == ""


def test_with_json_each_event_is_one_unchanged_line() -> None:
    paper = Paper(as_json=True)
    show(paper, *TURN, Text("\x9b31m\u202e\x1b[0m[red]"))
    lines = [json.loads(line) for line in paper.out.splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, len(TURN) + 2))
    assert lines[-1]["text"] == "\x9b31m\u202e\x1b[0m[red]"
    assert not set(paper.out) & set("\x9b\u202e\x1b")


@pytest.mark.parametrize(
    "body",
    [
        Text("\x1b]0;title\x07 \x9b2J \r\u202e[bold]x[/bold]:smile:"),
        Notice("X\x1b[2J", "a\x1b[2Jb[bold]x[/bold]:smile:"),
        ToolCall("c", "t\x1b[1m", "s", {"a\x1b": "\x1b[2J[bold]x[/bold]:smile:"}),
        ToolResult("c", "t", "s", ToolStatus.ERROR, "\x1b[2J\x07[bold]x[/bold]:smile:", False, 1),
        Error("E\x1b", "\x1b[2J[bold]x[/bold]:smile:", False),
        Retrieval("call_1", "memory", "\x1b[2J", (RetrievalHit("h", "n\x1b", "\x1b[bold]x[/bold]:smile:", 1.0),)),
        Done(
            "m",
            Usage(),
            "s\x1b",
            (Reference(1, "d", "n\x1b", "c", "\x1b[bold]x[/bold]:smile:", 1.0),),
            "m\x1b",
        ),
    ],
    ids=lambda body: body.type,
)
def test_server_text_is_shown_without_markup_and_control_sequences(body: EventBody) -> None:
    paper = Paper()
    show(paper, body)
    printed = paper.out + paper.err
    assert not set(printed) & set("\x1b\x07\x9b\r\u202e")
    assert "[bold]x[/bold]:smile:" in printed


def test_a_delegates_tools_are_shown_under_its_name_without_its_text() -> None:
    paper = Paper()
    show(paper, ToolCall("c", "search", "s", {}), Text("inner"), Thinking("inner"), MARK, agent="researcher")
    assert paper.out == "→ researcher: search()\n"


def test_an_error_is_one_line_beside_the_answer() -> None:
    paper = Paper()
    show(paper, Text("so far"), Error("LLM_SERVICE_ERROR", "over\nloaded", True))
    assert paper.out == "so far\n"
    assert paper.err == "error: LLM_SERVICE_ERROR: over loaded\n"


def test_an_interrupted_answer_is_marked() -> None:
    paper = Paper()
    show(paper, Text("so far"), Interrupted())
    assert paper.out == "so far\n(interrupted)\n"


def test_another_stop_reason_is_reported() -> None:
    paper = Paper()
    show(paper, Done("m", Usage(), "max_tokens", (), "scripted"))
    assert paper.out.startswith("stopped: max_tokens · scripted")


def test_events_of_a_newer_server_are_ignored() -> None:
    paper = Paper()
    paper.screen.show("{}", {"type": "hologram", "seq": 1})
    assert paper.out == ""

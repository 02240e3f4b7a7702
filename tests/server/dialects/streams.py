"""Streams of events as turns produce them: every kind of event, parallel delegates, and every kind of end."""

from collections.abc import Sequence

from agentic_rag.base.events import (
    AgentEvent,
    Answerer,
    Compacted,
    Delegate,
    Done,
    Error,
    EventBody,
    InputAnswered,
    InputRequired,
    Interrupted,
    IterationStart,
    Notice,
    Option,
    Reference,
    Resumed,
    Retrieval,
    RetrievalHit,
    Retrying,
    Source,
    SourceReference,
    StepReset,
    Text,
    Thinking,
    Title,
    ToolArguments,
    ToolCall,
    ToolCallStarted,
    ToolProgress,
    ToolResult,
    ToolStatus,
    TurnStarted,
    Usage,
    WaitAction,
    WaitKind,
)
from agentic_rag.base.ids import ConversationId, TurnId
from agentic_rag.runtime.log.encoder import Encoder

FIRST = Delegate("researcher", "call_d1")
SECOND = Delegate("researcher-2", "call_d2")

HIT = RetrievalHit("hit_1", "Leave policy.md", "25 days of paid leave", 0.91, "doc_1", "chunk_1", 3)
MEMORY = RetrievalHit("mem_1", "likes tables", "The user likes tables.", 0.5)
CITED = Reference(1, "doc_1", "Leave policy.md", "chunk_1", "25 days of paid leave", 0.91, 3)
OF_DELEGATE = Reference(2, "doc_2", "Travel.md", "chunk_2", "by train", 0.7, None, None, "researcher")
QUESTION = "How many days of leave?\nAnd how do I travel?"

Step = EventBody | tuple[EventBody, Delegate]
"""An event of the main agent or of a delegate."""


def events(*steps: Step, turn_id: str = "turn_1", first: int = 1) -> list[AgentEvent]:
    """Return numbered events of one turn. A notice of the stream itself has no number."""
    encoder, numbered, seq = Encoder(ConversationId("conv_1"), TurnId(turn_id)), list[AgentEvent](), first
    for step in steps:
        body, agent = step if isinstance(step, tuple) else (step, None)
        outside = isinstance(body, Notice) and body.code == "STORAGE_STALLED"
        numbered.append(encoder.encode(body, 0 if outside else seq, f"2026-01-01T00:00:{seq % 60:02}.000Z", agent))
        seq += not outside
    return numbered


def start_turn(message: str = QUESTION) -> TurnStarted:
    return TurnStarted("msg_u", "msg_a", message, "scripted", "img_1", "mine")


def end_turn(*references: Reference) -> Done:
    timings = {"total": 1500, "retrieval": 20, "generation": 1400}
    return Done("msg_a", Usage(10, 20, 0, 30), "end_turn", references, "scripted", timings, ("ret_1",))


def make_search(call: str = "call_1", status: ToolStatus = ToolStatus.OK) -> tuple[EventBody, ...]:
    """Return the events of one search, from its start to its result."""
    name, server = "search_documents", "retriever"
    return (
        ToolCallStarted(call, name, server),
        ToolArguments(call, '{"query": '),
        ToolArguments(call, '"leave"}'),
        ToolCall(call, name, server, {"query": "leave"}),
        ToolProgress(call, 0.5, 1.0, "half"),
        Retrieval("ret_1", "documents", "leave", (HIT,)),
        ToolResult(call, name, server, status, "1 hit", False, 12, None, {"count": 1}),
    )


def tag(agent: Delegate, *bodies: EventBody) -> tuple[Step, ...]:
    return tuple((body, agent) for body in bodies)


def delegate_twice() -> tuple[Step, ...]:
    """Return the interleaved events of two parallel delegates."""
    calls = [
        ToolCall(delegate.tool_call_id, "delegate", "delegate", {"role": "researcher", "task": "look"})
        for delegate in (FIRST, SECOND)
    ]
    first_run = tag(FIRST, IterationStart(1), *make_search("call_f"), Thinking("hm"), Text("From one."))
    second_run = tag(SECOND, IterationStart(1), Text("From two."), *make_search("call_s", ToolStatus.ERROR))
    interleaved = [step for pair in zip(first_run, second_run, strict=False) for step in pair]
    remainder = [*first_run[len(second_run) :], *second_run[len(first_run) :]]
    ends = [
        ToolResult(delegate.tool_call_id, "delegate", "delegate", ToolStatus.OK, "answer", False, 900)
        for delegate in (FIRST, SECOND)
    ]
    return (*calls, *interleaved, *remainder, *ends)


ANSWER = (
    Text("You get 25 days"),
    Text(" of leave"),
    SourceReference(1, 2, 0, 24, "doc_1", "Leave policy.md", "chunk_1", "25 days of paid leave", 0.91, 3),
    Text(".\nTravel by train 🚆 — "),
    Text("naïve\r\n\u2028end. "),
)

FULL = events(
    start_turn(),
    Title("Leave"),
    IterationStart(1),
    Thinking("Let me"),
    Thinking(" look."),
    Text("I will look. "),
    *make_search(),
    Retrieval("call_r", "memory", "tables", (MEMORY,)),
    *make_search("call_2", ToolStatus.ERROR),
    ToolCallStarted("call_3", "files__write", "files"),
    ToolCall("call_3", "files__write", "files", {}),
    ToolResult("call_3", "files__write", "files", ToolStatus.DENIED, "no", True, 0, "ref_1", {"_ref": "ref_1"}),
    *delegate_twice(),
    Retrying(1, 500, "slow"),
    Notice("MCP_SERVER_STARTING", "It starts."),
    Notice("STORAGE_STALLED", "It waits."),
    Compacted(8, 200),
    IterationStart(2),
    *ANSWER,
    IterationStart(3, True),
    Text("And so on."),
    end_turn(CITED, OF_DELEGATE),
)
"""Every kind of event in a turn that succeeds and retracts nothing."""

RESET = events(
    start_turn(),
    IterationStart(1),
    Text("First words"),
    ToolCallStarted("call_1", "search_documents", "retriever"),
    ToolArguments("call_1", '{"qu'),
    StepReset(1),
    IterationStart(1),
    Text("Other words."),
    end_turn(),
)
RESET_BEFORE_TEXT = events(start_turn(), IterationStart(1), StepReset(1), IterationStart(1), Text("Words."), end_turn())
RESET_OF_DELEGATE = events(
    start_turn(),
    IterationStart(1),
    *tag(FIRST, IterationStart(1), Text("a"), StepReset(1), Text("b")),
    Text("c"),
    end_turn(),
)
RESUMED = [
    *events(start_turn(), IterationStart(1), Text("Before ")),
    *events(
        Resumed((4, 1_000_000_000)), StepReset(1), IterationStart(1), Text("after."), end_turn(), first=1_000_000_001
    ),
]
RESUMED_BETWEEN_STEPS = [
    *events(start_turn(), IterationStart(1), *make_search()),
    *events(Resumed((10, 1_000_000_000)), IterationStart(2), *ANSWER, end_turn(CITED), first=1_000_000_001),
]
INTERRUPTED = events(start_turn(), IterationStart(1), Text("I was about"), Interrupted("msg_a"))
INTERRUPTED_AT_ONCE = events(start_turn(), Interrupted())
INTERRUPTED_IN_A_CALL = events(
    start_turn(),
    IterationStart(1),
    ToolCallStarted("call_1", "search_documents", "retriever"),
    ToolCall("call_1", "search_documents", "retriever", {"query": "x"}),
    ToolResult("call_1", "search_documents", "retriever", ToolStatus.INTERRUPTED, "interrupted", False, 5),
    Interrupted("msg_a"),
)
FAILURE = Error("LLM_SERVICE_ERROR", "The model gives no answer.", True)
ERROR_BEFORE_TEXT = events(start_turn(), IterationStart(1), FAILURE)
ERROR_AFTER_TEXT = events(start_turn(), IterationStart(1), Text("Half an ans"), FAILURE)
SILENT = events(start_turn(), IterationStart(1), end_turn())
TAKEN_BACK_CALL = events(
    start_turn(), IterationStart(1), ToolCallStarted("call_1", "x", "y"), ToolArguments("call_1", "{"), FAILURE
)

EXPIRES = "2026-01-02T00:00:00.000Z"


def approval(wait: str, call: str) -> InputRequired:
    """Return the request for approval of a call to a server's tool."""
    kind, schema = WaitKind.APPROVAL, {"type": "object", "properties": {"path": {"type": "string"}}}
    return InputRequired(
        wait_id=wait,
        kind=kind,
        answerer=Answerer.OWNER,
        title="files: write",
        message="May it run?",
        expires_at=EXPIRES,
        tool_call_id=call,
        server="files",
        tool_name="write",
        arguments={"path": "a.txt"},
        schema=schema,
        warning="It writes.",
        sources=(Source("document", "Leave policy.md"),),
    )


def question(wait: str, call: str) -> InputRequired:
    """Return a question of the model."""
    options = (Option("tea", "Tea"), Option("coffee", "Coffee"))
    return InputRequired(
        wait, WaitKind.QUESTION, Answerer.OWNER, "Question", "Tea?", EXPIRES, call, "agentic-rag", options=options
    )


def write_result(call: str, status: ToolStatus = ToolStatus.OK) -> ToolResult:
    return ToolResult(call, "files__write", "files", status, "written", False, 7)


def write_call(call: str) -> ToolCall:
    return ToolCall(call, "files__write", "files", {"path": "a.txt"})


WAITING = events(
    start_turn(),
    IterationStart(1),
    Text("I will write it. "),
    write_call("call_w"),
    ToolCall("call_d1", "delegate", "delegate", {"role": "researcher", "task": "look"}),
    ToolCall("call_d2", "delegate", "delegate", {"role": "researcher", "task": "look too"}),
    *tag(FIRST, IterationStart(1), write_call("call_f")),
    *tag(SECOND, IterationStart(1), Thinking("Hm"), ToolCallStarted("call_s", "files__write", "files")),
    (ToolArguments("call_s", '{"path": '), SECOND),
    approval("wait_1", "call_w"),
    (approval("wait_2", "call_f"), FIRST),
    (ToolArguments("call_s", '"a.txt"}'), SECOND),
    InputAnswered("wait_1", WaitAction.DECLINE, "ann"),
    write_result("call_w", ToolStatus.DENIED),
    *tag(SECOND, write_call("call_s"), write_result("call_s"), IterationStart(2), Text("Second.")),
    ToolResult("call_d2", "delegate", "delegate", ToolStatus.OK, "Second.", False, 900),
    *tag(FIRST, InputAnswered("wait_2", WaitAction.EXPIRE, ""), write_result("call_f", ToolStatus.DENIED)),
    *tag(FIRST, IterationStart(2), Text("First.")),
    ToolResult("call_d1", "delegate", "delegate", ToolStatus.OK, "First.", False, 900),
    IterationStart(2),
    ToolCall("call_q", "ask_user", "agentic-rag", {"question": "Tea?"}),
    question("wait_3", "call_q"),
    InputAnswered("wait_3", WaitAction.ACCEPT, "ann"),
    ToolResult("call_q", "ask_user", "agentic-rag", ToolStatus.OK, "tea", False, 5),
    IterationStart(3),
    *ANSWER,
    end_turn(),
)
"""Two waits at once, one of them a delegate's, while another delegate writes; one is declined, one expires, a third is
answered."""

APPROVING = events(
    start_turn(),
    IterationStart(1),
    Text("I will write them. "),
    write_call("call_1"),
    write_call("call_2"),
    ToolCall("call_x", "search_documents", "retriever", {"query": "leave"}),
    approval("wait_1", "call_1"),
    approval("wait_2", "call_2"),
    ToolResult("call_x", "search_documents", "retriever", ToolStatus.OK, "1 hit", False, 12),
    InputAnswered("wait_2", WaitAction.ACCEPT, "ann"),
    InputAnswered("wait_1", WaitAction.DECLINE, "ann"),
    write_result("call_2"),
    write_result("call_1", ToolStatus.DENIED),
    IterationStart(2),
    write_call("call_3"),
    approval("wait_3", "call_3"),
    InputAnswered("wait_3", WaitAction.ACCEPT, "ann"),
    write_result("call_3"),
    IterationStart(3),
    Text("Written."),
    end_turn(),
)
"""Two approvals at once while another call of the step runs, and one more in the next step."""

STREAMS: dict[str, Sequence[AgentEvent]] = {
    "full": FULL,
    "reset": RESET,
    "reset before text": RESET_BEFORE_TEXT,
    "reset of a delegate": RESET_OF_DELEGATE,
    "resumed": RESUMED,
    "resumed between steps": RESUMED_BETWEEN_STEPS,
    "interrupted": INTERRUPTED,
    "interrupted at once": INTERRUPTED_AT_ONCE,
    "interrupted in a call": INTERRUPTED_IN_A_CALL,
    "error before text": ERROR_BEFORE_TEXT,
    "error after text": ERROR_AFTER_TEXT,
    "silent": SILENT,
    "a call taken back": TAKEN_BACK_CALL,
    "waiting": WAITING,
    "approving": APPROVING,
}

"""The turn as a pure machine: its messages can always be sent."""

import functools
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.errors import ModelError
from agentic_rag.base.events import TERMINAL_TYPES, ToolStatus, Usage
from agentic_rag.base.ids import MessageId
from agentic_rag.base.messages import Message, text_block, user_message
from agentic_rag.models.anthropic.request import request_body
from agentic_rag.models.base import BlockStarted, BlockStopped, MessageCompleted
from agentic_rag.runtime.core.calls import Policy
from agentic_rag.runtime.core.request import build_request
from agentic_rag.runtime.core.turn import CallModel, CallTools, Commit, Turn
from agentic_rag.testing.problems import problems
from agentic_rag.testing.steps import RedactedThinking, Say, Step, Think, Use, step_events
from agentic_rag.tools.base import CallOutcome
from tests.runtime.harness import definition, info

TOOLS = (info("alpha"), info("beta", read_only=True))
DEEP_ARGUMENTS: dict[str, Any] = functools.reduce(lambda inner, _: {"a": inner}, range(900), {})

blocks = st.one_of(
    st.builds(Say, st.sampled_from(["Hello there.", "x", "Ünïcode 文字。"])),
    st.builds(Think, st.just("hm")),
    st.builds(RedactedThinking, st.just("cipher")),
    st.builds(Use, st.sampled_from(["alpha", "beta", "gone"]), st.sampled_from([{"query": "q"}, {}, {"query": 1}])),
    st.builds(
        Use,
        st.sampled_from(["alpha", "", "no such tool", "函数", "a" * 129, "srv.read", "<alpha>", "x\x00"]),
        st.sampled_from([{}, DEEP_ARGUMENTS]),
        st.sampled_from(["", "call_0", "call 0", "调用", "toolu." * 40, "_"]),
        st.sampled_from([None, "[1, 2]", '"text"', "{"]),
    ),
)
reasons = st.sampled_from([None, "max_tokens", "refusal", "pause_turn", "stop_sequence"])
steps = st.builds(lambda body, reason: Step(tuple(body), stop_reason=reason), st.lists(blocks, max_size=4), reasons)
ends = st.sampled_from(["interrupt", "fail"])


def check_sendable(transcript: list[Message]) -> None:
    built_request = build_request(definition(), TOOLS, transcript)
    if not built_request.request.messages or built_request.request.messages[-1]["role"] == "assistant":
        built_request = build_request(definition(), TOOLS, [*transcript, user_message("next")])
    assert problems(request_body(built_request.request)) == []


def without_breakpoints(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_breakpoints(item) for key, item in value.items() if key != "cache_control"}
    return [without_breakpoints(item) for item in value] if isinstance(value, list) else value


class Run:
    """Drives a turn as the agent does. It can be stopped at any moment."""

    def __init__(self, scripted: list[Step], cut_at: int, end: str) -> None:
        self.transcript: list[Message] = [user_message("question")]
        self.turn = Turn(message_id=MessageId("msg_1"), model="m", policy=Policy({"beta*": "deny"}), max_steps=3)
        self.turn.offer(TOOLS)
        self.terminals: list[str] = []
        self._scripted = scripted
        self._cut = cut_at
        self._end = end
        self._moments = 0

    def moment(self) -> bool:
        """Count a moment. The turn is stopped at the chosen one."""
        self._moments += 1
        if self._moments != self._cut:
            return False
        if self._end == "interrupt":
            self.turn.interrupt()
        else:
            self.turn.fail(ModelError("gone"))
        return True

    def run(self) -> None:
        was_stopped = False
        while (instruction := self.turn.next()) is not None:
            check_sendable(self.transcript)
            if isinstance(instruction, Commit):
                self.transcript.extend(instruction.messages)
                if instruction.final is not None:
                    self.terminals.append(instruction.final.type)
                self.turn.take_commit(instruction)
                check_sendable(self.transcript)
                was_stopped = was_stopped or self.moment()
            elif isinstance(instruction, CallModel):
                self.model()
            elif isinstance(instruction, CallTools):
                self.tools(instruction)

    def model(self) -> None:
        built_request = build_request(definition(), TOOLS, self.transcript)
        self.turn.begin_step(built_request.passages, built_request.call_ids)
        step = self._scripted.pop(0) if self._scripted else Step((Say("The end."),))
        for event in step_events(step, model="m"):
            if self.moment():
                return
            self.turn.receive(event)
        if not self.moment():
            return

    def tools(self, instruction: CallTools) -> None:
        for call in instruction.calls:
            if self.moment():
                return
            self.turn.finish_call(call, call.refusal or CallOutcome(ToolStatus.OK, (text_block("fine"),)))


@given(st.lists(steps, max_size=4), st.integers(0, 40), ends)
def test_a_turn_stopped_at_any_moment_leaves_a_sendable_transcript(scripted: list[Step], cut_at: int, end: str) -> None:
    run = Run(scripted, cut_at, end)
    run.run()
    check_sendable(run.transcript)
    assert len(run.terminals) == 1
    assert run.terminals[0] in TERMINAL_TYPES
    assert run.turn.next() is None


@given(st.lists(steps, min_size=1, max_size=4), st.data())
def test_any_prefix_of_a_transcript_renders_to_a_valid_request(scripted: list[Step], data: st.DataObject) -> None:
    run = Run(scripted, 0, "interrupt")
    run.run()
    transcript: list[Message] = [*run.transcript, user_message("second question")]
    check_sendable(transcript[: data.draw(st.integers(0, len(transcript)))])
    start = data.draw(st.integers(0, len(transcript)))
    check_sendable(transcript[start:])


@given(st.lists(steps, min_size=1, max_size=4))
def test_requests_of_a_session_only_grow(scripted: list[Step]) -> None:
    run = Run(scripted, 0, "interrupt")
    run.run()
    bodies: list[dict[str, Any]] = [
        without_breakpoints(request_body(build_request(definition(), TOOLS, run.transcript[:end]).request))
        for end in range(1, len(run.transcript) + 1)
    ]
    for earlier, later in itertools.pairwise(bodies):
        assert earlier["system"] == later["system"]
        assert later["messages"][: len(earlier["messages"]) - 1] == earlier["messages"][:-1]


@pytest.mark.parametrize("name", ["", "srv.read", "no such tool", "函数", "a" * 129, "alpha\n", "alpha "])
def test_an_unsendable_tool_name_is_stored_in_a_sendable_form_and_runs_nothing(name: str) -> None:
    run = Run([Step((Use(name, {"query": "q"}),))], 0, "interrupt")
    run.run()
    use, result = run.transcript[1]["content"][0], run.transcript[2]["content"][0]
    assert use["name"] not in {tool.name for tool in TOOLS}
    assert result["is_error"]
    assert f"There is no tool {name[:100]!r}"[:60] in result["content"][0]["text"]
    check_sendable(run.transcript)
    resumed_turn = Turn(message_id=MessageId("msg_1"), model="m", policy=Policy(), max_steps=3)
    resumed_turn.offer(TOOLS)
    (call,) = resumed_turn.restore(run.transcript[1:2], {}, Usage())
    assert call.refusal is not None


def test_an_endpoint_that_reuses_call_ids_in_each_answer_is_supported() -> None:
    repeating_step = Step((Use("alpha", {"query": "q"}, "call_0"), Use("alpha", {"query": "q"}, "call_0")))
    run = Run([repeating_step, repeating_step], 0, "interrupt")
    run.run()
    ids = [block["id"] for message in run.transcript for block in message["content"] if block["type"] == "tool_use"]
    assert ids[0] == "call_0"
    assert len(set(ids)) == 4
    check_sendable(run.transcript)


@pytest.mark.parametrize("arguments", [[1, 2], "text", 7, None, DEEP_ARGUMENTS])
def test_invalid_or_deeply_nested_arguments_are_refused_and_stored_empty(arguments: Any) -> None:
    turn = Turn(message_id=MessageId("m"), model="m", policy=Policy(), max_steps=2)
    turn.offer(TOOLS)
    turn.next()
    turn.begin_step(())
    block = {"type": "tool_use", "id": "call_0", "name": "alpha", "input": arguments}
    for event in (BlockStarted(0, block), BlockStopped(0, block), MessageCompleted("tool_use", Usage())):
        turn.receive(event)
    commit = turn.next()
    assert isinstance(commit, Commit)
    assert commit.messages[0]["content"][0]["input"] == {}
    assert commit.calls[0].refusal is not None
    assert "JSON object" in commit.calls[0].refusal.content[0]["text"]
    check_sendable([user_message("question"), *commit.messages])


def test_usage_of_all_steps_adds_up() -> None:
    turn = Turn(message_id=MessageId("m"), model="m", policy=Policy(), max_steps=2)
    turn.next()
    turn.begin_step(())
    turn.receive(MessageCompleted("end_turn", Usage(1, 2, 3, 4)))
    commit = turn.next()
    assert isinstance(commit, Commit)
    assert turn.usage == Usage(1, 2, 3, 4)

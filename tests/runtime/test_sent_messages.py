"""A conversation's next request is built from its last one. It equals a request built from scratch, and costs less."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.ids import MessageId, SessionId, TurnId
from agentic_rag.base.messages import (
    ACTIVATION,
    DOWN,
    GONE,
    MADE_BY,
    NOTE,
    REFUSED,
    SHED,
    Block,
    Message,
    Passage,
    kept_image,
    refs_of_images,
    text_block,
    tool_result_block,
    tool_uses,
    user_message,
)
from agentic_rag.models.anthropic.request import encoded_body, request_body
from agentic_rag.models.base import ModelRequest
from agentic_rag.models.profiles import profile_of
from agentic_rag.runtime.core.request import BuiltRequest, build_request, servers_back
from agentic_rag.runtime.core.results import search_result_block
from agentic_rag.runtime.core.transcript import Transcript, list_rewrites
from agentic_rag.runtime.core.window import TranscriptEntry, choose_to_shed, cited_chunks, last_activation, shed_results
from agentic_rag.store.sessions import SessionLabels
from tests.runtime.harness import definition, info
from tests.runtime.test_passage_dedup import chunks_in, hit, runs

MODELS = ("claude-sonnet-5-5", "claude-opus-4-8", "local", "anthropic:claude-sonnet-5-5")
TOOLS = (info("search_documents", origin="builtin"), info("fs__read"))


def result_of(kind: str, call_id: str, passage_runs: list[tuple[int, int, int]], number: int) -> Block:
    """Return the result of a call, by its kind."""
    passages: list[Block] = [search_result_block(hit(run)) for run in passage_runs]
    contents: dict[str, list[Block]] = {
        "found": [text_block("Found."), *passages],
        "image": [text_block("Look."), kept_image("image/png", f"ref_{number}", (number * 500 + 1, 10))],
        "tools": [{"type": "tool_reference", "tool_name": "fs__read"}],
        "plain": [text_block("Nothing.")],
        "role": [text_block("You sell.")],
    }
    activated = {ACTIVATION: {"role": f"role-{number}", "hash": "x"}} if kind == "role" else {}
    return tool_result_block(call_id, contents[kind]) | activated


@dataclass
class Talk:
    """A randomly continued conversation with its requests, each built from the one before it."""

    data: st.DataObject
    transcript: Transcript = field(default_factory=lambda: Transcript(SessionId("sess_1"), SessionLabels()))
    model: str = MODELS[0]
    deleted: set[str] = field(default_factory=set)
    shown: set[str] = field(default_factory=set)
    tools: Any = TOOLS
    calls: list[str] = field(default_factory=list)
    count: int = 0
    turn: int = 0

    def draw(self, *choices: Any) -> Any:
        return self.data.draw(st.sampled_from(choices))

    def say(self, role: str, content: list[Block], step: int = 1) -> None:
        self.count += 1
        turn, seq = TurnId(f"turn_{self.turn}"), self.transcript.last_seq + 1
        self.transcript.append(seq, turn, step, MessageId("msg"), {"role": role, "content": content})  # type: ignore[typeddict-item]

    def ask(self) -> None:
        self.turn += 1
        note = self.draw({}, {DOWN: ["fs"]}, {GONE: ["doc_1"]}, {DOWN: []})
        notes: list[Block] = [text_block("[note]") | {NOTE: True} | note] if self.draw(True, False) else []
        images = [kept_image("image/png", f"ref_{self.count}", (10, 10))] if self.draw(False, False, True) else []
        self.say("user", [*images, text_block(f"question {self.count} \ud800")], 0)
        if notes:
            question = self.transcript.question_of(TurnId(f"turn_{self.turn}"))
            self.transcript.rewrite(question, [*notes, *question.message["content"]])

    def thought(self) -> list[Block]:
        thought = {"type": "thinking", "thinking": "Well.", "signature": "x", MADE_BY: self.draw(*MODELS)}
        return [thought] if self.draw(True, False) else []

    def answer(self) -> None:
        text_blocks = self.draw([text_block("So.")], [text_block("So."), text_block("It is.") | {"_references": []}])
        self.say("assistant", [*self.thought(), *text_blocks])

    def call(self) -> None:
        self.calls = [f"toolu_{self.count}_{number}" for number in range(self.draw(1, 1, 2))]
        uses: list[Block] = [
            {"type": "tool_use", "id": call_id, "name": "fs__read", "input": {}} for call_id in self.calls
        ]
        self.say("assistant", [*self.thought(), *uses])

    def results(self) -> None:
        """Append results for the last calls, except for some that a crash has lost, or for a call that was not made."""
        kinds = {
            call: self.draw("found", "found", "found", "image", "tools", "tools", "plain", "role", "")
            for call in self.calls
        }
        drawn_runs = {call: self.data.draw(st.lists(runs, max_size=2)) for call in self.calls}
        results = [result_of(kind, call_id, drawn_runs[call_id], self.count) for call_id, kind in kinds.items() if kind]
        self.say("user", [*results, text_block("And?")][self.draw(0, 0, 0, 1) :])

    def search(self) -> None:
        self.call()
        self.check()
        self.results()

    def shed(self) -> None:
        entries = self.transcript.in_window()
        results = [(entry, block) for entry in entries for block in entry.message["content"] if "tool_use_id" in block]
        if results:
            entry, block = self.draw(*results)
            shed_content = shed_results(entry.message["content"], {block["tool_use_id"]: {"name": "x", "ref": "ref_x"}})
            later_rewrites = list_rewrites([later_entry for later_entry in entries if later_entry.seq > entry.seq])
            for changed_entry, content in [(entry, shed_content), *later_rewrites]:
                self.transcript.rewrite(changed_entry, content)

    def refuse(self) -> None:
        if self.turn:
            question = self.transcript.question_of(TurnId(f"turn_{self.turn}"))
            self.transcript.leave_out(question, [{**block, REFUSED: True} for block in question.message["content"]])

    def move(self) -> None:
        if self.transcript.entries:
            start = self.draw(*self.transcript.entries).seq
            self.transcript.set_window(start, [text_block("Before.")] if self.draw(True, False) else [])

    def delete(self) -> None:
        self.deleted.add(f"c{self.draw(0, 1)}-{self.draw(*range(7))}")

    def ask_another(self) -> None:
        self.model = self.draw(*MODELS)

    def edit_tool(self) -> None:
        read_tool = replace(self.tools[1], description=f"Reads {self.count}.")
        self.tools = (self.tools[0], read_tool)

    def go_on(self) -> None:
        frequent_acts = (self.ask, self.answer, self.call, self.results, self.search, self.search) * 2
        rare_acts = (self.shed, self.refuse, self.move, self.delete, self.ask_another, self.edit_tool)
        act: Callable[[], None] = self.draw(*frequent_acts, *rare_acts)
        act()
        self.check()

    def check(self) -> None:
        """Build the next request from the last one and from scratch; query the transcript, and a newly read one."""
        extended_request, new_request = self.build(self.transcript.take_sent()), self.build(None)
        self.transcript.keep_sent(extended_request.messages)
        assert extended_request == new_request
        assert body_of(extended_request.request) == whole_body(new_request.request)
        check_sent(extended_request.request, each_once=not self.deleted)
        talk, window = self.transcript, self.transcript.window()
        reread = Transcript(
            SessionId("sess_2"),
            SessionLabels(),
            entries=talk.entries,
            window_start=talk.window_start,
            head=talk.head,
        )
        assert talk.in_window() == reread.in_window() == [entry for entry in talk.entries if talk.is_sent(entry)]
        assert talk.pictures == reread.pictures == refs_of_images(window)
        assert talk.cited == reread.cited == cited_chunks(window)
        assert talk.lost_documents(self.deleted) == find_lost_documents(window, self.deleted)
        assert (talk.tokens(5), talk.turn_sizes()) == (reread.tokens(5), reread.turn_sizes())
        assert talk.activation == reread.activation == last_activation(window)
        assert talk.memory == reread.memory + extended_request.messages.memory, "what was weighed as it grew"
        downs = [block[DOWN] for message in window for block in message["content"] if DOWN in block]
        assert servers_back(talk.down, {}, {"fs"}) == (downs[-1] if downs else [])
        old_results = choose_to_shed([entry.message for entry in talk.in_window()], 10**9, old_only=True)
        assert talk.saved_by_old() == sum(result.saved for result in old_results)
        self.check_words(extended_request)

    def check_words(self, built_request: BuiltRequest) -> None:
        """Check that plain text messages are sent, measured and queried like any others."""
        marked_talk = replace(
            self, transcript=Transcript(SessionId("sess_3"), SessionLabels(), head=self.transcript.head)
        )
        marked_talk.transcript.entries += [
            replace(entry, message=marked_words(entry.message)) for entry in self.transcript.in_window()
        ]
        marked_request = marked_talk.build(None)
        assert whole_body(marked_request.request) == whole_body(built_request.request)
        assert (marked_request.passages, marked_request.call_ids) == (built_request.passages, built_request.call_ids)
        assert marked_talk.transcript.tokens(5) == self.transcript.tokens(5)
        assert [turn_size.tokens for turn_size in marked_talk.transcript.turn_sizes()] == [
            turn_size.tokens for turn_size in self.transcript.turn_sizes()
        ]

    def build(self, sent_messages: Any) -> BuiltRequest:
        pictures = {ref: "aGk=" for ref in self.transcript.pictures if not ref.endswith("3")}
        return build_request(
            definition(model=self.model),
            self.tools,
            self.transcript.window(),
            gone_chunks=self.deleted & self.transcript.cited,
            pictures=pictures,
            before=sent_messages,
        )


def marked_words(message: Message) -> Message:
    """Return a message with an extra key, which is never sent."""
    role, content = message["role"], message["content"]
    return {"role": role, "content": [{**block, "_mark": 1} if block["type"] == "text" else block for block in content]}


def body_of(request: ModelRequest) -> Any:
    return json.loads(b"".join(encoded_body(request, profile_of(request.model))))


def whole_body(request: ModelRequest) -> Any:
    body = {**request_body(request), "stream": True}
    return json.loads(json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"))


def check_sent(request: ModelRequest, *, each_once: bool) -> None:
    """Check that calls are answered, that nothing else is, and with ``each_once`` that no passage occurs twice."""
    open_ids: list[str] = []
    for message in request.messages:
        if message["role"] == "user":
            answers = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
            assert answers == open_ids
            open_ids = []
        elif message["role"] == "assistant":
            open_ids = [block["id"] for block in tool_uses(message["content"])]
    assert not open_ids
    chunks = chunks_in(request.messages)
    assert len(chunks) == len(set(chunks)) or not each_once


def find_lost_documents(window: list[Message], deleted: set[str]) -> dict[str, str]:
    """Return the expected result of `Transcript.lost_documents`, from everything that is sent."""
    blocks = [block for message in window for block in message["content"]]
    announced = {document_id for block in blocks for document_id in block.get(GONE, ())}
    content_blocks = [
        content_block
        for block in blocks
        if block["type"] == "tool_result" and SHED not in block
        for content_block in block["content"]
    ]
    passages = [passage for content_block in content_blocks if (passage := Passage.of(content_block)) is not None]
    lost = [passage for passage in passages if deleted.issuperset(passage.chunk_ids)]
    return {passage.document_id: passage.document_name for passage in lost if passage.document_id not in announced}


@given(st.data())
def test_an_incrementally_built_request_equals_a_newly_built_one(data: st.DataObject) -> None:
    talk = Talk(data, model=data.draw(st.sampled_from(MODELS)))
    for _ in range(data.draw(st.integers(1, 25))):
        talk.go_on()


def conversation(count: int, question: str = "And what of this?") -> Transcript:
    """Return a conversation with this number of messages, and a search in each turn."""
    talk = Transcript(SessionId("sess_1"), SessionLabels())
    for number in range(count // 4):
        append_turn(talk, number, question)
    return talk


def append_turn(talk: Transcript, number: int, question: str = "And what of this?") -> None:
    use: Block = {"type": "tool_use", "id": f"toolu_{number}", "name": "search_documents", "input": {"query": "x"}}
    result_block = tool_result_block(use["id"], [search_result_block(hit((number, number, 2)))])
    turn, answer = TurnId(f"turn_{number}"), [text_block("So it is.")]
    entries = talk.plan(
        turn,
        0,
        MessageId("msg"),
        [
            user_message(question),
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result_block]},
            {"role": "assistant", "content": answer},
        ],
    )
    talk.extend(entries)


def take_turn(talk: Transcript, number: int) -> None:
    """Use a conversation as a turn does: two encoded requests and the queries."""
    append_turn(talk, number)
    last_entries = talk.entries[-3:]
    del talk.entries[-3:]
    for entries in (last_entries[:2], last_entries[2:]):
        built_request = build_request(
            definition(model=MODELS[0]),
            TOOLS,
            talk.window(),
            gone_chunks=talk.cited & {"c1-1"},
            before=talk.take_sent(),
        )
        talk.keep_sent(built_request.messages)
        assert encoded_body(built_request.request, profile_of(MODELS[0]))
        talk.extend(entries)
        assert talk.tokens(0)
        assert not talk.pictures
        assert not talk.lost_documents({"c1-1"})
        assert not talk.down
    assert talk.memory
    assert talk.turn_sizes()
    assert not talk.unseen_turns()


def calls_of(task: Callable[[], None]) -> int:
    """Return the number of Python function calls of a task."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    profiler_before = sys.getprofile()
    sys.setprofile(note)
    try:
        task()
    finally:
        sys.setprofile(profiler_before)
    return count


def test_the_work_of_a_turn_does_not_grow_with_its_conversation() -> None:
    counts = []
    for length in (50, 1000):
        talk = conversation(length)
        for number in range(length, length + 3):
            take_turn(talk, number)
        counts.append(calls_of(lambda talk=talk, number=length + 3: take_turn(talk, number)))  # type: ignore[misc]
    short_count, long_count = counts
    assert abs(long_count - short_count) <= short_count / 10


def test_images_beyond_the_limit_become_text_and_no_image_is_stored_inline() -> None:
    talk = Transcript(SessionId("sess_1"), SessionLabels())
    sent_messages = None
    for number in range(25):
        width = 3_000 if number == 22 else 10
        content = [kept_image("image/png", f"ref_{number}", (width, 10)), text_block("Look.")]
        talk.append(2 * number + 1, TurnId(f"turn_{number}"), 0, MessageId("msg"), {"role": "user", "content": content})
        pictures = {f"ref_{index}": "aGk=" * 50_000 for index in range(number + 1)}
        built_request = build_request(
            definition(model=MODELS[0]), (), talk.window(), pictures=pictures, before=sent_messages
        )
        sent_messages = built_request.messages
        assert body_of(built_request.request) == whole_body(built_request.request)
        blocks = [message["content"][0] for message in built_request.request.messages if message["role"] == "user"]
        assert [block["type"] for block in blocks] == [
            "text" if index == 22 and number >= 22 else "image" for index in range(number + 1)
        ]
        answer = [text_block("A thing.")]
        talk.append(
            2 * number + 2, TurnId(f"turn_{number}"), 1, MessageId("msg"), {"role": "assistant", "content": answer}
        )
        assert sent_messages.memory < 100_000


def test_built_and_encoded_messages_count_as_the_conversations_memory() -> None:
    talk = conversation(400)
    bare_memory = talk.memory
    built_request = build_request(definition(model=MODELS[0]), TOOLS, talk.window(), before=talk.take_sent())
    talk.keep_sent(built_request.messages)
    built_memory = talk.memory
    assert built_memory > bare_memory
    body = encoded_body(built_request.request, profile_of(MODELS[0]))
    assert talk.memory > built_memory + sum(map(len, body)) * 0.8


def test_caches_of_a_long_conversation_take_less_than_its_own_memory() -> None:
    talk = conversation(2_000)
    bare = talk.memory
    for number in range(2_000, 2_010):
        take_turn(talk, number)
    assert talk.memory < 2 * bare


def test_a_loaded_tool_has_its_current_description() -> None:
    talk, tools, sent_messages = Transcript(SessionId("sess_1"), SessionLabels()), TOOLS, None
    use: Block = {"type": "tool_use", "id": "toolu_1", "name": "find_tools", "input": {"query": "read"}}
    messages: list[Message] = [
        user_message("Read it."),
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result_of("tools", "toolu_1", [], 0)]},
    ]
    for step, message in enumerate(messages):
        talk.extend(talk.plan(TurnId("turn_1"), step, MessageId("msg"), [message]))
        built_request = build_request(definition(model="local"), tools, talk.window(), before=sent_messages)
        sent_messages, tools = (
            built_request.messages,
            (TOOLS[0], replace(TOOLS[1], description=f"Reads, edition {step}.")),
        )
    assert "Reads, edition 1." in str(built_request.request.messages)


def test_the_first_entry_of_a_transcript_can_be_rewritten() -> None:
    talk = conversation(8)
    for index in (7, 0, 4):
        entry = talk.entries[index]
        talk.rewrite(entry, [text_block("Other."), *entry.message["content"]])
        assert talk.entries[index].message["content"][0] == text_block("Other.")
        assert entry.message["content"][0] != text_block("Other."), "who has the old one keeps it"
        assert talk.in_window() == talk.entries
        assert [any_entry.seq for any_entry in talk.entries] == list(range(1, 9))
        assert isinstance(talk.entries[index], TranscriptEntry)

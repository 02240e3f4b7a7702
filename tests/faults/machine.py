"""A state machine that uses and breaks the real server. After every step and at the end it checks the invariants.

Invariants (spec README, "Invariants") and the place of their checks:

1   sockets are dropped at any moment, and every accepted turn still reaches its end (`teardown`)
2   the model refuses no request of any conversation, also after interrupts and kills (`rig`, `teardown`)
3   an accepted message is in the transcript once; sent again it is the same turn (`resend`, `teardown`)
4   `Ledger` and `Reader` see every frame of every socket, and whole logs over SSE
5   a viewer that reads nothing while turns run resumes later by number (`look`, `drop`)
6   tools answer after every kill (`tools` turns end with results)
7   no tool offered to the model has an argument that isolates tenants (`check_requests`)
8   the tool with effects runs at most once a message, and a result that is not its own says so (`teardown`)
9   the tool server's secret is in no frame, answer, model request or log of the process (`check_requests`)
10  a domain's entry cannot take a reserved name (`administer`)
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agentic_rag.runtime.session import MAX_RESUMES
from tests.faults.client import Chat
from tests.faults.ledger import Event, Ledger, check_messages
from tests.faults.outside import SCRIPTS, SECRET
from tests.faults.server import Dead, Refused
from tests.faults.sweep import PLACES, Rig

VIEWERS = 2
BOUND = frozenset({"collection", "scope", "memory_scope", "parent_turn_id", "turn", "user_id", "domain_id"})
"""Names of arguments that the server binds."""

numbers = st.integers(0, 30)
places = st.builds(lambda name, number: f"{name}:{number}", st.sampled_from(PLACES), st.integers(1, 12))
viewers = st.integers(0, VIEWERS - 1)


@dataclass
class SentMessage:
    """A sent message. ``turn`` is None until its acceptance is known. ``unsure``: there was no answer."""

    key: str
    content: str
    script: str
    start: int
    turn: str | None = None
    unsure: bool = False


class Conversation(RuleBasedStateMachine):
    """One conversation. Many of them share a server one after another."""

    rig: ClassVar[Rig]
    conversation_count: ClassVar[int] = 0

    @initialize(script=st.sampled_from(("tools", "long", "slow")))
    def begin(self, script: str) -> None:
        type(self).conversation_count += 1
        self.server = self.rig.server
        if not self.server.alive:
            self.server.start()
        self.server.arm("")
        self.id = self.rig.conversation()
        self.ledger = Ledger()
        self.sent: list[SentMessage] = []
        self.refused: list[str] = []
        self.compacted = False
        self.chats: list[Chat | None] = [None] * VIEWERS
        self.send(0, script, False)

    # The user's actions

    @rule(viewer=viewers, queue=st.booleans())
    def send_for_tools(self, viewer: int, queue: bool) -> None:
        self.send(viewer, "tools", queue)

    @rule(viewer=viewers, script=st.sampled_from(SCRIPTS), queue=st.booleans())
    def send(self, viewer: int, script: str, queue: bool) -> None:
        key = f"m{self.conversation_count}-{len(self.sent) + len(self.refused)}-{self.id[-6:]}"
        message = SentMessage(key, f"Please {key} {script}", script, self.server.starts)
        self._send(viewer, message, queue)

    @precondition(lambda self: self.sent)
    @rule(viewer=viewers, index=numbers, change_content=st.booleans())
    def resend(self, viewer: int, index: int, change_content: bool) -> None:
        """Send a message again, or another message with its id."""
        message = self.sent[index % len(self.sent)]
        if not change_content:
            self._send(viewer, message, True)
            return
        chat = self._chat(viewer)
        if message.turn is None or chat is None:
            return
        try:
            reply = chat.send("Something else", message.key)
        except Dead:
            self._handle_death(viewer)
            return
        assert reply.get("code") == "IDEMPOTENCY_MISMATCH", reply

    def _send(self, viewer: int, message: SentMessage, queue: bool) -> None:
        chat = self._chat(viewer)
        if chat is None:
            return
        is_repeat = message in self.sent
        try:
            reply = chat.send(message.content, message.key, onBusy="queue" if queue else "reject")
        except Dead:
            self._handle_death(viewer)
            if not is_repeat:
                message.unsure = True
                self.sent.append(message)
            return
        if reply["type"] == "accepted":
            assert message.turn in (None, reply["turnId"]), "a message sent again made a second turn"
            message.turn, message.unsure = reply["turnId"], False
            if not is_repeat:
                self.sent.append(message)
            return
        assert reply["code"] == "TURN_IN_PROGRESS", reply
        assert message.turn is None, "a message that was accepted is refused when it is sent again"
        if is_repeat:
            self.sent.remove(message)
        self.refused.append(message.content)

    @precondition(lambda self: self.sent)
    @rule(viewer=viewers, index=st.none() | numbers, queued=st.booleans())
    def interrupt(self, viewer: int, index: int | None, queued: bool) -> None:
        chat = self._chat(viewer)
        turn = None if index is None else self.sent[index % len(self.sent)].turn
        if chat is None:
            return
        try:
            chat.say("interrupt", queued=queued, **({} if turn is None else {"turnId": turn}))
            assert chat.ask("ping")["type"] == "pong"
        except Dead:
            self._handle_death(viewer)

    @rule(viewer=viewers, index=st.none() | numbers, back=numbers)
    def drop(self, viewer: int, index: int | None, back: int) -> None:
        """Drop a socket. With ``index``, reconnect to a known turn after a number that was seen."""
        dropped_chat, self.chats[viewer] = self.chats[viewer], None
        if dropped_chat is not None:
            dropped_chat.drop()
        if index is None or not self.ledger.seen:
            return
        turn = sorted(self.ledger.seen)[index % len(self.ledger.seen)]
        after = max(0, max(self.ledger.seen[turn], default=0) - back)
        chat = self._chat(viewer)
        if chat is None:
            return
        try:
            assert chat.subscribe(turn, after)["type"] == "subscribed"
        except Dead:
            self._handle_death(viewer)

    @rule(viewer=viewers, count=st.integers(1, 12))
    def look(self, viewer: int, count: int) -> None:
        """Read some frames of the turn that this viewer is reading."""
        chat = self.chats[viewer]
        try:
            while chat is not None and count and self._expects_more(chat):
                chat.hear()
                count -= 1
        except Dead:
            self._handle_death(viewer)

    @staticmethod
    def _expects_more(chat: Chat) -> bool:
        """Whether more frames must come, because the end of the current turn has not been read."""
        return chat.reader.turn is not None and chat.reader.turn not in chat.reader.ended

    @precondition(lambda self: any(message.turn for message in self.sent))
    @rule()
    def finish(self) -> None:
        """Wait for the end of the last message's turn."""
        turn = next(message.turn for message in reversed(self.sent) if message.turn)
        try:
            self.server.log(turn)
        except Dead:
            self._restart()

    # The actions of an admin and an operator

    @rule(action=st.sampled_from(("settings", "reserved", "compact")), steps=st.integers(2, 12))
    def administer(self, action: str, steps: int) -> None:
        """Edit the domain's settings, try to take a reserved name, or compact the conversation."""
        domain = f"/api/domains/{self.rig.domain}"
        if action == "settings":
            self._call("PATCH", domain, {"settings": {"tone": "formal", "maxSteps": steps}})
        elif action == "reserved":
            entry = {"type": "http", "url": self.rig.outside.tools_url}
            name = ("promptx", "Retriever", "ｐｒｏｍｐｔｘ")[steps % 3]
            code = self._call("PATCH", domain, {"settings": {"mcpServers": {name: entry}}})
            assert code in ("MCP_SERVER_RESERVED", "dead"), code
        else:
            self._compact()

    def _compact(self) -> None:
        code = self._call("POST", f"/api/conversations/{self.id}/compact")
        assert code in ("", "COMPACTION_NOT_NEEDED", "TURN_IN_PROGRESS", "GENERATION_ABORTED", "missing", "dead"), code
        self.compacted = self.compacted or code == ""

    def _call(self, method: str, path: str, body: Any = None) -> str:
        """Send a request. Return its error code, ``dead`` without an answer, or ``missing`` without a route."""
        self._ensure_alive()
        try:
            self.server.call(method, path, body)
        except Refused as exc:
            return exc.code if exc.status not in (404, 405) else "missing"
        except Dead:
            self._restart()
            return "dead"
        return ""

    @rule(next_place=st.just("") | places)
    def kill(self, next_place: str) -> None:
        """Kill the server with ``kill -9``. ``next_place`` is a place where the next process dies."""
        self.server.kill()
        self._restart(next_place)

    @rule(place=places)
    def arm(self, place: str) -> None:
        """Let the process die when it reaches this place."""
        self._ensure_alive()
        self.server.arm(place)

    # The server's death

    def _ensure_alive(self) -> None:
        if not self.server.alive:
            self._restart()

    def _restart(self, next_place: str = "") -> None:
        """Handle the server's end: close all sockets and start it again."""
        self.server.wait_until_dead()
        for viewer in range(VIEWERS):
            self._close(viewer)
        self.server.start(next_place)

    def _handle_death(self, viewer: int) -> None:
        """Handle the end of a socket that was not dropped. Only the server's death causes this."""
        self._close(viewer)
        self._restart()

    def _close(self, viewer: int) -> None:
        chat = self.chats[viewer]
        if chat is not None:
            with chat:
                self.chats[viewer] = None

    def _chat(self, viewer: int) -> Chat | None:
        """Return the viewer's socket, opened if needed, or None if the server died."""
        self._ensure_alive()
        if self.chats[viewer] is None:
            try:
                self.chats[viewer] = Chat(self.server, self.id, self.ledger)
            except Dead:
                self._restart()
        return self.chats[viewer]

    # The end

    def teardown(self) -> None:
        """Finish everything, and compare the seen, logged and stored messages with the model's requests."""
        if not hasattr(self, "sent"):
            return
        self._ensure_alive()
        try:
            self.server.arm("")
        except Dead:
            self._restart()
        for message in [message for message in self.sent if message.unsure]:
            self._send(0, message, True)  # a client repeats a message without an answer
        logs = {message.turn: self._log(message) for message in self.sent if message.turn}
        for viewer in range(VIEWERS):
            chat = self.chats[viewer]
            if chat is not None and self._expects_more(chat) and chat.reader.turn is not None:
                chat.finish(chat.reader.turn)
            self._close(viewer)
        self._check_transcript(logs)
        self._next_message()
        self.check_requests()

    def _log(self, message: SentMessage) -> list[Event]:
        assert message.turn is not None
        events = self.ledger.check_log(self.server.log(message.turn))
        last = events[-1]
        if last["type"] == "error":
            assert last["code"] == "RESUME_LIMIT", last
            assert self.server.starts - message.start > MAX_RESUMES
        runs = self.rig.outside.spent[message.key]
        assert runs <= 1, f"the tool with effects ran {runs} times"
        for event in events:
            if event["type"] == "tool_result" and event["toolName"].endswith("spend") and not runs:
                assert event["status"] != "ok", event
        return events

    def _check_transcript(self, logs: dict[str, list[Event]]) -> None:
        messages = self.server.messages(self.id)
        shown_turns = [message["turnId"] for message in messages if message["role"] == "user"]
        order = [turn for turn in shown_turns if turn in logs] + [turn for turn in logs if turn not in shown_turns]
        if not self.compacted:
            check_messages(messages, [(turn, logs[turn]) for turn in order])
        contents = [message["content"] for message in messages if message["role"] == "user"]
        assert not set(contents) & set(self.refused), "a message that was refused is in the transcript"
        assert len(set(shown_turns)) == len(shown_turns)

    def _next_message(self) -> None:
        with Chat(self.server, self.id, self.ledger) as chat:
            accepted = chat.send(f"At last {self.id[-6:]}-last plain", "last")
            assert accepted["type"] == "accepted", accepted
            assert chat.finish(accepted["turnId"])["type"] == "done"

    def check_requests(self) -> None:
        api = self.rig.outside.api
        assert api.refused == []
        for request in api.requests:
            for tool in request.get("tools", ()):
                assert not BOUND & set(tool["input_schema"].get("properties", ())), tool
        received = [raw for turn in self.ledger.seen.values() for raw in turn.values()]
        outputs = [str(self.server.call("GET", f"/api/domains/{self.rig.domain}")), self.server.log_path.read_text()]
        assert all(SECRET not in text for text in (*received, *outputs, str(api.requests)))
        api.calls.clear()  # so that the next conversation counts only its own calls


def run_machine(rig: Rig, *, examples: int, steps: int, seed: int | None = None) -> None:
    """Run ``examples`` conversations of ``steps`` steps: always the same ones, or those of a seed."""
    Conversation.rig = rig
    options = settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=seed is None,
        database=None,
        phases=[Phase.explicit, Phase.generate],  # a failure's steps are printed; shrinking would take hours
        report_multiple_bugs=False,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    runner = Conversation if seed is None else with_seed(seed)(Conversation)
    run_state_machine_as_test(runner, settings=options)

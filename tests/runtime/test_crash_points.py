"""A server that dies between any two commits of a two-tool turn: the next one completes the turn exactly once.

A kill leaves the commits before it on disk. So the sweep lets every commit from one on fail.
"""

import itertools
from pathlib import Path

import anyio
import pytest

from agentic_rag.base.events import AgentEvent
from agentic_rag.base.ids import ConversationId
from agentic_rag.base.messages import plain_text, user_message
from agentic_rag.models.anthropic.request import request_body
from agentic_rag.models.base import ModelRequest
from agentic_rag.runtime.core.request import build_request
from agentic_rag.runtime.core.sent_messages import OUTCOME_UNKNOWN
from agentic_rag.store import sessions, tool_calls
from agentic_rag.store.database import Database
from agentic_rag.store.sessions import SessionLabels
from agentic_rag.testing.problems import problems
from agentic_rag.testing.scripted import ScriptedModel
from agentic_rag.testing.steps import Step, Use, say
from agentic_rag.tools.base import CallOutcome, CallRequest
from tests.databases import database_at
from tests.runtime.harness import SESSION, Disk, MemoryToolset, bench, definition, hits, info, ok, text_of

COMMITS = 8
"""At least as many as the turn makes. In the last runs of the sweep no commit fails."""


class Tools:
    """Two tools, one with effects, that count their runs."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    async def search(self, request: CallRequest) -> CallOutcome:
        self.runs.append("search")
        return ok("found", hits("The pump holds 3 litres."))

    async def send_mail(self, request: CallRequest) -> CallOutcome:
        self.runs.append("mail")
        return ok("sent")

    def toolset(self) -> MemoryToolset:
        return MemoryToolset(
            {
                "search_documents": (info("search_documents", origin="builtin", read_only=True), self.search),
                "send_mail": (info("send_mail"), self.send_mail),
            }
        )


def answer(request: ModelRequest) -> Step:
    """Call both tools once, then answer."""
    results = [block for message in request.messages for block in message["content"] if block["type"] == "tool_result"]
    if results:
        return say("It holds three litres, and the mail is on its way.")
    return Step((Use("search_documents", {"query": "pump"}), Use("send_mail", {"query": "boss"})))


def check_numbers(events: list[AgentEvent]) -> None:
    """Check that a number occurs once, and that ``voids`` names each gap."""
    void_ranges = [tuple(event.fields()["voids"]) for event in events if event.type == "resumed"]
    for earlier, later in itertools.pairwise(events):
        assert later.seq > earlier.seq
        if later.seq != earlier.seq + 1:
            assert (earlier.seq + 1, later.seq - 1) in void_ranges


@pytest.mark.parametrize("dies_at", range(2, COMMITS + 2))
async def test_a_turn_killed_between_any_two_commits_is_completed(tmp_path: Path, dies_at: int) -> None:
    tools = Tools()
    database = await Database.open(database_at(tmp_path / "test.db"))
    await database.write(
        lambda conn: sessions.create(
            conn, SESSION, SessionLabels(conversation_id=ConversationId("c")), created_at="2026"
        )
    )
    disk = Disk(database)
    disk.fill(at=dies_at)
    model = ScriptedModel(then=answer, strict=False)
    async with bench(tmp_path, model, tools.toolset(), database=disk) as b:
        accepted = await b.send("How much?", definition(), client_message_id="m1")
        with anyio.fail_after(240):
            events_before: list[AgentEvent] = []
            async for event in b.runtime.follow(accepted.turn_id):
                events_before.append(event)
                if event.type == "notice":  # the notice about the full disk; an end is sent only after it is stored
                    break
    await database.aclose()
    async with bench(tmp_path, ScriptedModel(then=answer), tools.toolset()) as b:
        resumed_turns = await b.runtime.recover()
        assert resumed_turns == (not events_before[-1].terminal)
        repeated = await b.send("How much?", definition(), client_message_id="m1")
        assert (repeated.turn_id, repeated.duplicate) == (accepted.turn_id, True)
        with anyio.fail_after(240):
            events = [event async for event in b.runtime.follow(accepted.turn_id)]
        assert [event.terminal for event in events].count(True) == 1
        assert events[-1].type == "done"
        check_numbers(events)
        data_by_seq = {event.seq: event.data for event in events_before if event.seq}
        assert all(data_by_seq.get(event.seq, event.data) == event.data for event in events)
        assert tools.runs.count("mail") <= 1
        transcript = await b.transcript()
        built_request = build_request(definition(), tools.toolset().tools, [*transcript, user_message("next")])
        assert problems(request_body(built_request.request)) == []
        assert [message["role"] for message in transcript] == ["user", "assistant", "user", "assistant"]
        assert plain_text(transcript[-1]["content"]) == "It holds three litres, and the mail is on its way."
        start = max((index for index, event in enumerate(events) if event.type == "step_reset"), default=0)
        assert text_of(events[start:]).endswith("It holds three litres, and the mail is on its way.")
        calls = await b.database.read(lambda conn: tool_calls.of_turn(conn, accepted.turn_id))
        assert all(call.status in ("ok", "error") for call in calls)
        unknown_calls = [call for call in calls if OUTCOME_UNKNOWN in str(call.result)]
        assert all(call.tool_name == "send_mail" for call in unknown_calls)

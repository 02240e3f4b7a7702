"""The requests of a long conversation: stored windows, carried roles, omitted results, and a stable prefix."""

import itertools
from pathlib import Path
from typing import Any

import anyio

from agentic_rag.base.events import Usage
from agentic_rag.base.messages import plain_text
from agentic_rag.models.anthropic.request import request_body
from agentic_rag.models.base import ModelRequest
from agentic_rag.runtime.core.definition import Limits
from agentic_rag.store import sessions
from agentic_rag.store.sessions import SessionRecord
from agentic_rag.testing.scripted import ScriptedModel
from agentic_rag.testing.steps import Say, Step, Use, say, use
from agentic_rag.tools.base import CallOutcome, CallRequest
from agentic_rag.tools.entries.entry import McpEntry, StdioTarget
from tests.runtime.harness import (
    SESSION,
    Bench,
    MemoryToolset,
    Services,
    bench,
    definition,
    hits,
    info,
    kinds,
    ok,
    toolset,
)
from tests.runtime.test_turn_properties import without_breakpoints
from tests.waiting import pause

NO_SUMMARY = say("I had rather not.")
"""Requests a summary. Without one the window moves."""


async def dump(request: CallRequest) -> CallOutcome:
    return ok("word " * 1_500)


async def activate(request: CallRequest) -> CallOutcome:
    return ok("Be kind to people.", {"role": "guide", "hash": "h1"})


def tools_of(**functions: Any) -> MemoryToolset:
    base_tools = toolset(**functions)
    action = (info("promptx_action", origin="system"), activate)
    return MemoryToolset({"promptx_action": action, **base_tools.functions})


def texts(request: ModelRequest) -> list[str]:
    return [plain_text(message["content"]) for message in request.messages]


def bodies(model: ScriptedModel) -> list[dict[str, Any]]:
    return [without_breakpoints(request_body(request)) for request in model.requests]


def is_prefix(earlier: dict[str, Any], later: dict[str, Any]) -> bool:
    if earlier["system"] != later["system"] or earlier.get("tools") != later.get("tools"):
        return False
    return bool(later["messages"][: len(earlier["messages"])] == earlier["messages"])


async def session_of(b: Bench) -> SessionRecord:
    session = await b.database.read(lambda conn: sessions.get(conn, SESSION))
    assert session is not None
    return session


async def test_the_window_moves_between_turns_keeps_the_role_and_survives_a_restart(tmp_path: Path) -> None:
    limits = definition(limits=Limits(context_tokens=4_000))
    long_text = "question " * 300
    first_steps = (use("promptx_action", query="x"), say("Zero."), *[say(f"Answer {number}.") for number in range(5)])
    async with ScriptedModel(*first_steps) as model, bench(tmp_path, model, tools_of()) as b:
        await b.say("Start", definition=limits)
        for number in range(5):
            # a scripted call reports meaningless usage, so the report is undone before each turn
            await b.say(f"{number} {long_text}", definition=limits)
        session = await session_of(b)
        assert session.window_start == 0
    steps = [Step((Say("More."),), usage=Usage(input=4_500)), NO_SUMMARY, NO_SUMMARY, say("A."), say("B.")]
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, tools_of()) as b:
        await b.say("5 " + long_text, definition=limits)
        await b.say("6", definition=limits)
        session = await session_of(b)
        assert session.window_start > 1
        assert session.head is not None
        await b.say("7", definition=limits)
        requests = [bodies(model)[index] for index in (0, 3, 4)]
        assert not is_prefix(requests[0], requests[1])
        assert is_prefix(requests[1], requests[2])
        carried_text = texts(model.requests[4])[0]
        assert carried_text.startswith('[carried over: the role "guide"')
        assert "Be kind to people." in carried_text
        assert not any(block["type"] == "tool_use" for m in model.requests[4].messages for block in m["content"])
        assert (await session_of(b)).window_start == session.window_start
    async with ScriptedModel(say("C.")) as third_model, bench(tmp_path, third_model, tools_of()) as b:
        await b.say("8", definition=limits)
        assert is_prefix(requests[2], bodies(third_model)[0])


async def test_an_edited_role_in_the_window_is_announced(tmp_path: Path) -> None:
    limits = definition(limits=Limits(context_messages=2))

    class Edited(Services):
        async def role_hash(self, domain_id: str, role: str) -> str | None:
            return "h1" if len(model.requests) < 3 else "h2"

    steps = (use("promptx_action", query="x"), say("Zero."), say("One."), say("Two."))
    async with (
        ScriptedModel(*steps) as model,
        bench(tmp_path, model, services=Edited(model, tools_of())) as b,
    ):
        await b.say("A", definition=limits)
        assert "ROLE_CHANGED" not in str([event.data for event in await b.say("B", definition=limits)])
        assert (await session_of(b)).window_start > 1
        events = await b.say("C", definition=limits)
        assert next(event.fields()["code"] for event in events if event.type == "notice") == "ROLE_CHANGED"


async def test_a_turn_that_outgrows_the_context_permanently_omits_its_oldest_results(tmp_path: Path) -> None:
    limits = definition(limits=Limits(context_tokens=16_000, max_steps=9))
    steps = (*[use("dump", query=str(number)) for number in range(7)], say("Enough."))
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, tools_of(dump=dump)) as b:
        # a scripted call reports 10 tokens; without a report everything is counted by its bytes
        sizes = (1_000, 3_600, 6_200, 8_800, 11_400, 9_100, 11_700, 9_300)
        for step, usage in zip(steps, sizes, strict=True):
            object.__setattr__(step, "usage", Usage(input=usage, output=1))
        events = await b.say("Read all", definition=limits)
        assert kinds(events)[-1] == "done"
        assert "CONTEXT_FULL" not in str([event.data for event in events])
        result_texts = [
            plain_text(block["content"])
            for message in model.requests[7].messages
            for block in message["content"]
            if block["type"] == "tool_result"
        ]
        omitted = [text.startswith("[result of dump, kept as ref ref_") for text in result_texts]
        assert omitted == sorted(omitted, reverse=True)
        assert 0 < sum(omitted) < 5
        ref = result_texts[0].removesuffix("]").rsplit(" ", 1)[1]
        assert (tmp_path / "payloads" / ref).read_text() == "word " * 1_500
        stored_blocks = [block for message in await b.transcript() for block in message["content"]]
        assert sum("_shed" in block for block in stored_blocks) == sum(omitted)
        assert all("word" in str(block["content"]) for block in stored_blocks if block["type"] == "tool_result")


async def test_a_turn_that_cannot_fit_continues_without_tools_and_says_so(tmp_path: Path) -> None:
    limits = definition(limits=Limits(context_tokens=500), entries=(McpEntry("srv", StdioTarget("x")),))
    async with ScriptedModel(say("Short."), say("Again.")) as model, bench(tmp_path, model, tools_of(dump=dump)) as b:
        events = await b.say("word " * 1_000, definition=limits)
        assert [event.fields()["code"] for event in events if event.type == "notice"] == ["CONTEXT_FULL"]
        assert model.requests[0].tool_choice == {"type": "none"}
        assert len(model.requests[0].tools) == 3
        assert kinds(events)[-1] == "done"
        object.__setattr__(limits, "limits", Limits())
        await b.say("Now?", definition=limits)
        assert model.requests[1].tool_choice is None


async def test_each_request_of_a_ten_turn_chat_has_the_one_before_as_its_prefix(tmp_path: Path) -> None:
    """With tools, a restart, a server that stops and an upload in between."""
    sentences = ["The pump holds 3 litres."]

    async def search(request: CallRequest) -> CallOutcome:
        return ok("found", hits(*sentences))

    settings = definition(entries=(McpEntry("srv", StdioTarget("x")),), collection_note="fewer than 10 documents")

    def steps(turns: int) -> list[Step]:
        two_calls = Step((Use("search_documents", {"query": "pump"}), Use("dump", {"query": "x"})))
        return [step for number in range(turns) for step in (two_calls, say(f"Answer {number}."))]

    sent_bodies: list[dict[str, Any]] = []
    working_tools = tools_of(search_documents=search, dump=dump)
    async with (
        ScriptedModel(use("promptx_action", query="x"), *steps(4)) as model,
        bench(tmp_path, model, working_tools) as b,
    ):
        for number in range(4):
            await b.say(f"Question {number}", definition=settings)
        sent_bodies += bodies(model)
    tools_without_server = MemoryToolset(working_tools.functions, missing={"srv": False})
    async with ScriptedModel(*steps(6)) as model, bench(tmp_path, model, tools_without_server) as b:
        for number in range(4, 7):
            await b.say(f"Question {number}", definition=settings)
        sentences.append("It weighs 2 kg.")  # an upload: later searches find more
        tools_without_server.missing = {}
        for number in range(7, 10):
            await b.say(f"Question {number}", definition=settings)
        sent_bodies += bodies(model)
        assert any("srv is not available" in text for text in texts(model.requests[-1]))
    assert len(sent_bodies) == 21
    for earlier, later in itertools.pairwise(sent_bodies):
        assert is_prefix(earlier, later)


async def test_the_size_of_a_session_survives_a_restart(tmp_path: Path) -> None:
    limits = definition(limits=Limits(context_tokens=5_000))
    heavy = Step((Say("Heavy."),), usage=Usage(input=100, cache_read=5_900, output=3))
    steps = (say("A."), heavy, NO_SUMMARY, NO_SUMMARY)
    async with ScriptedModel(*steps) as model, bench(tmp_path, model) as b:
        await b.say("One", definition=limits)
        await b.say("Two", definition=limits)
        with anyio.fail_after(240):  # the second attempt at a summary follows the end of the turn
            while len(model.requests) < len(steps):
                await pause()
    async with ScriptedModel(NO_SUMMARY, NO_SUMMARY, say("C.")) as model, bench(tmp_path, model) as b:
        await b.say("Three", definition=limits)
        start = (await session_of(b)).window_start
        assert start > 1
    async with ScriptedModel(say("E.")) as model, bench(tmp_path, model) as b:
        with anyio.fail_after(240):
            await b.say("Four", definition=limits)
        assert (await session_of(b)).window_start == start

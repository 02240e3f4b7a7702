"""No admin act between two turns ends a conversation, because its requests only grow.

The model thinks, and the service checks that nothing before a thought has changed, as the newest services do.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from agentic_rag.base.ids import SessionId
from agentic_rag.base.messages import text_block
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.runtime.core.definition import Definition, Limits
from agentic_rag.runtime.core.prompt_state import Prompt, PromptState, changes
from agentic_rag.testing.fake_api import FakeMessagesAPI
from agentic_rag.testing.prompt_cache import Clock
from agentic_rag.testing.steps import Cite, RedactedThinking, Say, Step, Think, Use
from agentic_rag.tools.base import Binding, CallOutcome, CallRequest
from tests.runtime.harness import Bench, MemoryToolset, Services, bench, definition, hits, kinds, ok, text_of, toolset

MODEL = "claude-sonnet-5-5"
BASE = definition(model=MODEL, collection_note="9 documents in English.")


async def search(request: CallRequest) -> CallOutcome:
    return ok("found", hits("Leave is 30 days.", "It is paid."))


async def role(request: CallRequest) -> CallOutcome:
    return ok("You are a guide.", {"role": "guide", "hash": "h1"})


async def extra(request: CallRequest) -> CallOutcome:
    return ok("extra")


def tools_of(*, added: bool = False) -> MemoryToolset:
    extra_tools = {"extra": extra} if added else {}
    base_tools = toolset(search_documents=search, promptx_action=role, **extra_tools)
    action, function = base_tools.functions["promptx_action"]
    return replace(
        base_tools, functions={**base_tools.functions, "promptx_action": (replace(action, origin="system"), function)}
    )


def brain(request: dict[str, Any]) -> Step:
    """Think, act and search for every question, then think again and cite the results."""
    last_content = [message for message in request["messages"] if message["role"] == "user"][-1]["content"]
    if any(block["type"] == "tool_result" for block in last_content):
        results = sum(
            part["type"] == "search_result"
            for message in request["messages"]
            for block in message["content"]
            if block["type"] == "tool_result"
            for part in block["content"]
        )
        return Step(
            (Think("Now I know."), Say("Leave is 30 days.", (Cite(results - 1),)), RedactedThinking("x"), Say(" So."))
        )
    return Step((Think("Look."), Use("promptx_action", {"query": "x"}), Use("search_documents", {"query": "leave"})))


@dataclass
class World(Services):
    """The services of a bench's turns, and the parts that an admin may change."""

    settings: Definition = BASE
    hash: str = "h1"
    deleted_chunks: set[str] = field(default_factory=set)

    async def role_hash(self, domain_id: str, role: str) -> str | None:
        return self.hash

    async def missing_chunks(self, domain_id: str, chunk_ids: set[str]) -> set[str]:
        return chunk_ids & self.deleted_chunks


def persona(world: World, **change: Any) -> None:
    world.settings = replace(world.settings, persona=replace(world.settings.persona, **change))


def more_documents(world: World) -> None:
    world.settings = replace(world.settings, collection_note="10 documents in English and German.")


def delete_document(world: World) -> None:
    world.deleted_chunks = {"doc_1-c0"}


def add_server(world: World) -> None:
    world.tools = tools_of(added=True)


def remove_tools(world: World) -> None:
    world.tools = replace(world.tools, functions={"search_documents": world.tools.functions["search_documents"]})


def break_server(world: World) -> None:
    world.tools = replace(world.tools, missing={"files": False})


def start_server(world: World) -> None:
    world.tools = replace(world.tools, missing={"files": True})


def pass_midnight(world: World) -> None:
    world.today = date(2026, 11, 23)


def edit_tool(world: World) -> None:
    info, function = world.tools.functions["search_documents"]
    edited_info = replace(info, description="Another description.", input_schema={**info.input_schema, "title": "new"})
    world.tools = replace(world.tools, functions={**world.tools.functions, "search_documents": (edited_info, function)})


def edit_role(world: World) -> None:
    world.hash = "h2"


def change_limits(world: World) -> None:
    world.settings = replace(world.settings, max_tokens=2000, effort="low", limits=Limits(max_steps=7))


ACTS: dict[str, tuple[Callable[[World], None], str]] = {
    "a style edit": (lambda world: persona(world, style="concise"), "Be brief."),
    "another tone": (lambda world: persona(world, tone="formal"), "Formal tone."),
    "another language": (lambda world: persona(world, language="de"), "language de"),
    "a component": (lambda world: persona(world, components=("Never guess.",)), "Never guess."),
    "another role": (lambda world: persona(world, role="clerk"), '"clerk"'),
    "the tenth document": (more_documents, "10 documents in English and German."),
    "a deleted document": (delete_document, "doc_1.md was deleted"),
    "a server added": (add_server, "extra"),
    "a server removed": (remove_tools, "promptx_action"),
    "a server down": (break_server, "files is not available"),
    "a server starting": (start_server, "files is still starting"),
    "another day": (pass_midnight, "Today is 2026-11-23."),
    "a tool edited": (edit_tool, "Another description."),
    "a role edited": (edit_role, "was edited"),
    "limits": (change_limits, ""),
}


@asynccontextmanager
async def open_world(
    folder: Path, api: FakeMessagesAPI, world: World | None = None
) -> AsyncIterator[tuple[Bench, World]]:
    model = AnthropicModel(api.key, api.url)
    await model.warm_up()
    world_now = world or World(model, tools_of())
    world_now.given_model = model
    async with bench(folder, model, services=world_now) as b:
        yield b, world_now
    assert model.mismatches == 0, "a thought did not fit what stands before it"
    await model.aclose()


async def ask(b: Bench, world: World, question: str) -> None:
    events = await b.say(question, definition=world.settings)
    assert kinds(events)[-1] == "done", events[-1]
    assert text_of(events) == "Leave is 30 days. So."


def system_texts(request: dict[str, Any]) -> str:
    return "\n".join(
        block["text"] for message in request["messages"] if message["role"] == "system" for block in message["content"]
    )


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("act", ACTS)
async def test_an_act_between_turns_is_announced_and_keeps_the_prefix(
    tmp_path: Path, act: str, restarted: bool
) -> None:
    apply_act, announcement = ACTS[act]
    async with FakeMessagesAPI(then=brain) as api:
        async with open_world(tmp_path, api) as (b, world):
            await ask(b, world, "How many days?")
            await ask(b, world, "Sure?")
            requests_before = len(api.requests)
            apply_act(world)
            if not restarted:
                await ask(b, world, "And now?")
                await ask(b, world, "And then?")
        if restarted:
            async with open_world(tmp_path, api, world) as (b, _):
                await ask(b, world, "And now?")
                await ask(b, world, "And then?")
    assert api.refused == []
    assert api.dropped == []
    assert announcement in system_texts(api.requests[requests_before])
    if act not in ("a server down", "a server starting", "a role edited"):  # repeated until they no longer apply
        assert system_texts(api.requests[-1]).count(announcement) == system_texts(api.requests[requests_before]).count(
            announcement
        ), "told twice"
    for earlier, later in zip(api.requests, api.requests[1:], strict=False):
        assert later["system"] == earlier["system"]
        assert bare(first_tools(later)) == bare(first_tools(earlier))
        assert bare(later["messages"])[: len(earlier["messages"])] == bare(earlier["messages"])


def first_tools(request: dict[str, Any]) -> list[Any]:
    return [tool for tool in request["tools"] if not tool.get("defer_loading")]


def bare(value: Any) -> Any:
    """Return a request without the fields that the prompt cache ignores."""
    if isinstance(value, dict):
        return {key: bare(item) for key, item in value.items() if key not in ("cache_control", "diagnostics")}
    return [bare(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("act", ["a style edit", "a deleted document", "a server added", "a tool edited"])
async def test_the_body_is_equal_after_an_act_and_a_compaction_between_turns(tmp_path: Path, act: str) -> None:
    def summarizing(request: dict[str, Any]) -> Step:
        if "Summarise the conversation" not in str(request["messages"][-1]):
            return brain(request)
        return Step((Think("All."), Say('{"facts": [{"fact": "Leave is 30 days.", "documents": ["doc_1"]}]}')))

    async with FakeMessagesAPI(then=summarizing) as api, open_world(tmp_path, api) as (b, world):
        for number in range(10):
            await ask(b, world, f"Question {number}?")
        ACTS[act][0](world)
        await b.compact(world.settings)
        for number in range(2):
            await ask(b, world, f"Another question {number}?")
    assert api.refused == []


async def test_a_moved_window_removes_the_thinking_of_the_remaining_messages(tmp_path: Path) -> None:
    short_window = replace(BASE, limits=Limits(max_steps=6, context_messages=6))
    async with FakeMessagesAPI(then=brain) as api, open_world(tmp_path, api) as (b, world):
        world.settings = short_window
        for number in range(9):
            await ask(b, world, f"Question {number}?")
    assert api.refused == []
    assert api.dropped == []


async def test_an_interrupted_turn_before_an_act_leaves_a_sendable_conversation(tmp_path: Path) -> None:
    async with FakeMessagesAPI(then=brain) as api, open_world(tmp_path, api) as (b, world):
        await ask(b, world, "How many days?")
        for style in ("concise", "detailed", "concise"):
            persona(world, style=style)
            accepted = await b.send("Wait", world.settings)
            await (await b.runtime.session(SessionId("sess_test"))).interrupt()
            async for _ in b.runtime.follow(accepted.turn_id):
                pass
        await ask(b, world, "And now?")
        await ask(b, world, "And then?")
    assert api.refused == []


async def test_a_tool_added_later_is_loaded_and_called(tmp_path: Path) -> None:
    steps = [
        Step((Think("a"), Say("Hello."))),
        Step((Think("b"), Use("find_tools", {"query": "extra"}))),
        Step((Think("c"), Use("extra", {"query": "x"}))),
        Step((Think("d"), Say("Done."))),
        Step((Think("e"), Say("Bye."))),
    ]
    async with FakeMessagesAPI(*steps) as api, open_world(tmp_path, api) as (b, world):
        await b.say("Hello", definition=world.settings)
        add_server(world)
        events = await b.say("Use it", definition=world.settings)
        await b.say("Bye", definition=world.settings)
    assert text_of(events) == "Done."
    assert [event.fields()["status"] for event in events if event.type == "tool_result"] == ["ok", "ok"]
    deferred_tools = [tool for tool in api.requests[-1]["tools"] if tool.get("defer_loading")]
    assert [tool["name"] for tool in deferred_tools] == ["extra"]


async def test_a_servers_return_is_reported_once(tmp_path: Path) -> None:
    async with FakeMessagesAPI(then=brain) as api, open_world(tmp_path, api) as (b, world):
        for missing in ({}, {"srv": False}, {"srv": False}, {"srv": True}, {}, {}):
            world.tools = replace(tools_of(added=True), missing=missing)
            await ask(b, world, "How many days?")
    notes = system_texts(api.requests[-1])
    assert notes.count("srv is not available now") == 2
    assert notes.count("srv is still starting") == 1
    assert notes.count("srv is back") == 1
    assert api.refused == []


async def test_why_a_server_cannot_be_called_is_for_admins_only(tmp_path: Path) -> None:
    reason = "it ended with exit code 3: /opt/secret/place --flag"
    async with FakeMessagesAPI(then=brain) as api, open_world(tmp_path, api) as (b, world):
        world.tools = replace(world.tools, notices=(("files", reason),), missing={"files": False})
        for admin in (False, True):
            world.settings = replace(BASE, binding=Binding(admin=admin))
            events = await b.say("How many days?", definition=world.settings)
            notices = [event.fields() for event in events if event.type == "notice"]
            assert [notice["code"] for notice in notices] == ["MCP_SERVER_UNAVAILABLE"]
            assert notices[0]["message"] == (f"files: {reason}" if admin else "files is not available now.")
    assert "/opt/secret" not in str(api.requests)


async def test_the_model_gets_the_date_and_the_user(tmp_path: Path) -> None:
    async with FakeMessagesAPI(then=brain) as api, open_world(tmp_path, api) as (b, world):
        world.settings = replace(BASE, binding=Binding(user="alice"))
        await ask(b, world, "How many days?")
    assert api.requests[0]["system"][-1]["text"] == "Today is 2026-11-22.\nThe user is alice."


async def test_after_another_models_answer_the_first_one_gets_its_thinking(tmp_path: Path) -> None:
    async with FakeMessagesAPI(then=brain) as api, open_world(tmp_path, api) as (b, world):
        await ask(b, world, "How many days?")
        for model in ("claude-haiku-5-5", MODEL):
            world.settings = replace(world.settings, model=model)
            await ask(b, world, f"And {model}?")
    assert api.refused == []
    assert api.dropped == [], "no model is sent another's"
    thinking = [
        [str(message["content"]).count("'thinking'") for message in request["messages"]] for request in api.requests
    ]
    assert sum(thinking[-1]) > 0


async def test_a_refused_question_is_left_out_of_later_requests_and_another_model_can_answer_it(tmp_path: Path) -> None:
    refusal = Step((Say("I can"),), stop_reason="refusal", category="cyber")
    async with FakeMessagesAPI(refusal, then=brain) as api, open_world(tmp_path, api) as (b, world):
        events = await b.say("A bad question", definition=world.settings)
        assert "REFUSED" in [event.fields()["code"] for event in events if event.type == "notice"]
        await ask(b, world, "How many days?")
        assert "A bad question" not in str(api.requests[-1]["messages"])
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    async with FakeMessagesAPI(refusal, then=brain) as api, open_world(other_folder, api) as (b, world):
        world.settings = replace(world.settings, fallback_models=("claude-haiku-5-5",))
        events = await b.say("A good question", definition=world.settings)
        reset_index = next(index for index, event in enumerate(events) if event.type == "step_reset")
        assert text_of(events[reset_index:]) == "Leave is 30 days. So."
    assert [request["model"] for request in api.requests[:2]] == [MODEL, "claude-haiku-5-5"]


async def test_the_last_allowed_step_answers_without_tools(tmp_path: Path) -> None:
    def insisting(request: dict[str, Any]) -> Step:
        if request.get("tool_choice") == {"type": "none"}:
            return Step((Think("I must."), Say("This is what I found.")))
        return Step((Think("More."), Use("search_documents", {"query": "leave"})))

    async with FakeMessagesAPI(then=insisting) as api, open_world(tmp_path, api) as (b, world):
        world.settings = replace(world.settings, limits=Limits(max_steps=3))
        for _ in range(2):
            events = await b.say("Search for ever", definition=world.settings)
            assert text_of(events) == "This is what I found."
            assert kinds(events)[-1] == "done"
            assert "last step" in system_texts(api.requests[-1])
    assert len(api.requests) == 6
    assert api.refused == []


def test_changes_are_reported_line_by_line() -> None:
    first = Prompt((text_block("You are A.\nBe brief."), text_block("Never guess.")), ())
    second = Prompt((text_block("You are A.\nGive reasons."), text_block("Never guess.")), ())
    assert changes(PromptState(first, first), second) == [
        "No longer holds: Be brief.",
        "Holds from now on: Give reasons.",
    ]
    assert changes(PromptState(first, second), second) == []
    assert first.id != second.id


@pytest.mark.parametrize("act", ["the tenth document", "a style edit", "a server added"])
async def test_over_long_pauses_ninety_percent_of_the_input_are_cache_reads(tmp_path: Path, act: str) -> None:
    clock, sent_tokens, cached_tokens = Clock(), 0, 0
    async with FakeMessagesAPI(then=brain, clock=clock) as api, open_world(tmp_path, api) as (b, world):
        for number in range(15):
            clock.ahead += (2, 10, 50)[number % 3] * 60
            if number == 7:
                ACTS[act][0](world)
            events = await b.say(f"Question {number}?", definition=world.settings)
            usage = events[-1].fields()["usage"]
            sent_tokens += usage["inputTokens"]
            cached_tokens += usage["cacheReadTokens"]
    assert cached_tokens / sent_tokens >= 0.9, f"{cached_tokens} of {sent_tokens}"

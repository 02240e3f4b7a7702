"""A client's view of a call while the model still writes it."""

import json
from pathlib import Path

import anyio

from agentic_rag.base.events import AgentEvent
from agentic_rag.base.redaction import Redactor
from agentic_rag.store.database import Database
from agentic_rag.testing.scripted import Broken, ScriptedModel, Stalled
from agentic_rag.testing.steps import Step, Use, pieces_of, say
from agentic_rag.tools.base import CallOutcome, CallRequest
from tests.databases import database_at
from tests.runtime.harness import Disk, bench, kinds, ok, toolset

SECRET = "sk-planted-0123456789-wxyz"
ARGUMENTS = {"query": "how deep the gold lies"}
ARGUMENT_PIECES = tuple(pieces_of(json.dumps(ARGUMENTS)))


async def lookup(request: CallRequest) -> CallOutcome:
    return ok("found")


def call(call_id: str = "toolu_1", pieces: tuple[str, ...] = ARGUMENT_PIECES, **arguments: str) -> Step:
    return Step((Use("lookup", arguments or ARGUMENTS, id=call_id, pieces=pieces),))


def fields_of_kind(events: list[AgentEvent], *names: str) -> list[dict[str, object]]:
    return [event.fields() for event in events if event.type in names]


async def test_a_call_is_shown_from_its_name_and_with_its_arguments_as_they_stream(tmp_path: Path) -> None:
    async with ScriptedModel(call(), say("Deep.")) as model, bench(tmp_path, model, toolset(lookup=lookup)) as b:
        events = await b.say("How deep?")
        first_kinds = kinds(events)[: kinds(events).index("tool_call") + 1]
        assert first_kinds == [
            "turn_started",
            "iteration_start",
            "tool_call_started",
            *["tool_arguments"] * len(ARGUMENT_PIECES),
            "tool_call",
        ]
        (start_fields,) = fields_of_kind(events, "tool_call_started")
        assert (start_fields["toolCallId"], start_fields["toolName"], start_fields["server"]) == (
            "toolu_1",
            "lookup",
            "srv",
        )
        streamed = "".join(str(fields["delta"]) for fields in fields_of_kind(events, "tool_arguments"))
        assert json.loads(streamed) == fields_of_kind(events, "tool_call")[0]["arguments"] == ARGUMENTS


async def test_argument_text_is_delivered_while_the_model_writes(tmp_path: Path) -> None:
    slow_step = Stalled(call(), 4)
    async with ScriptedModel(slow_step, say("Deep.")) as model, bench(tmp_path, model, toolset(lookup=lookup)) as b:
        accepted = await b.send("How deep?")
        with anyio.fail_after(240):
            await slow_step.reached.wait()
            async for event in b.runtime.follow(accepted.turn_id):
                if event.type == "tool_arguments" and event.fields()["delta"] == ARGUMENT_PIECES[1]:
                    break
            slow_step.until.set()
            assert [later_event async for later_event in b.runtime.follow(accepted.turn_id)][-1].type == "done"


async def test_a_repeated_step_retracts_its_started_calls(tmp_path: Path) -> None:
    steps = (Broken(call("toolu_a"), 2), call("toolu_b"), say("Deep."))
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, toolset(lookup=lookup)) as b:
        events = await b.say("How deep?")
        reset_index = kinds(events).index("step_reset")
        assert [
            started_call["toolCallId"] for started_call in fields_of_kind(events[:reset_index], "tool_call_started")
        ] == ["toolu_a"]
        later_calls = fields_of_kind(events[reset_index:], "tool_call_started", "tool_call")
        assert {started_call["toolCallId"] for started_call in later_calls} == {"toolu_b"}


async def test_a_call_with_a_repeated_id_starts_under_its_new_id(tmp_path: Path) -> None:
    steps = (call("toolu_1"), call("toolu_1"), say("Deep."))
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, toolset(lookup=lookup)) as b:
        events = await b.say("How deep?")
        started_ids = [fields["toolCallId"] for fields in fields_of_kind(events, "tool_call_started")]
        assert started_ids == [fields["toolCallId"] for fields in fields_of_kind(events, "tool_call")]
        assert len(set(started_ids)) == 2


async def test_a_secret_split_over_argument_deltas_is_not_shown(tmp_path: Path) -> None:
    arguments = {"query": f"the key is {SECRET} and more"}
    text = json.dumps(arguments)
    pieces = tuple(text[start : start + 5] for start in range(0, len(text), 5))
    redactor = Redactor()
    redactor.add("dom_test", "KEY", SECRET)
    steps = (call(pieces=pieces, **arguments), say("Deep."))
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, toolset(lookup=lookup), redactor=redactor) as b:
        events = await b.say("How deep?")
        streamed = "".join(str(fields["delta"]) for fields in fields_of_kind(events, "tool_arguments"))
        assert streamed == text.replace(SECRET, "[secret KEY]")
        assert len(fields_of_kind(events, "tool_arguments")) > 3


async def test_arguments_are_journalled_in_groups(tmp_path: Path) -> None:
    pieces = tuple(" " for _ in range(400))
    database = await Database.open(database_at(tmp_path / "test.db"))
    disk = Disk(database)
    steps = (call(), say("Deep."), call("toolu_2", pieces=pieces), say("Deep."))
    async with ScriptedModel(*steps) as model, bench(tmp_path, model, toolset(lookup=lookup), database=disk) as b:
        await b.say("How deep?")
        writes_of_short_call, disk.writes = disk.writes, 0
        await b.say("And now?")
        assert disk.writes - writes_of_short_call < len(pieces) / 8
    await database.aclose()

"""The scripts of the turn tests give the same events over the Messages API and over chat completions.

Each test runs on both services with all its assertions, and then the events for clients are compared. Differences that
a service decides are ignored: ids, figures of usage, how texts are cut into pieces (a blank before a mark is held
back), and times. Signatures of thinking are in no event.
"""

import inspect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from agentic_rag.base.json_form import Json
from agentic_rag.testing.chat_frames import Shape
from agentic_rag.testing.scripted import ScriptedModel
from agentic_rag.testing.steps import Say, Step, Use, say, use
from agentic_rag.tools.base import CallOutcome, CallRequest
from tests.runtime import test_evidence as evidence
from tests.runtime import test_fallback as fallback
from tests.runtime import test_queue as queue
from tests.runtime import test_runtime as turns
from tests.runtime import test_tool_arguments as arguments
from tests.runtime.harness import bench, definition, kinds, ok, toolset
from tests.runtime.served import Service, use_service

MODULES = (turns, fallback, arguments, evidence, queue)
EXCLUDED_TESTS = {
    "test_only_real_passages_are_cited": "a mark cannot forge a quote; of those that do not exist: test_marks",
    "test_a_parent_cites_the_documents_that_its_delegate_cited": "a mark names a passage, its sentence is found",
    "test_usage_of_delegates_belongs_to_the_turn": "it looks at the figures that the script's own model makes up",
    "test_passages_beyond_the_budget_are_left_out_completely": "its claims share no word with the cited sentence",
    "test_a_passage_that_a_delegate_of_a_delegate_found_keeps_its_finder": "the same",
    "test_evidence_is_cited_by_marks": "it has a model of its own",
    "test_deferred_tools_survive_a_switch_to_a_service_without_them_and_back": "the same: two services are in it",
    "test_tools_called_by_name_survive_a_switch_to_a_deferring_service_and_back": "the same",
    "test_a_silent_model_is_abandoned": "it is about time: what was asked within a twentieth of a second is chance",
    "test_one_of_two_delegates_fails_and_the_others_passages_are_cited": "it waits for seconds",
}
"""Tests whose script one of the services cannot express, with the reasons."""
PIECE_KEYS = {"text": "text", "thinking": "text", "tool_arguments": "delta"}
"""Events that hold a part of something, and the field with it."""
IGNORED_FIELDS = {"seq", "ts", "usage", "timings", "contextTokens", "durationMs", "imageId", "inMs", "verified"}
"""Fields of events that a service, a clock or chance decides. Passages of marks are also compared."""


@dataclass(frozen=True)
class Case:
    """A test with its parameters."""

    test: FunctionType
    arguments: Json
    label: str

    def __str__(self) -> str:
        return self.label


def cases(module: ModuleType) -> Iterator[Case]:
    """Yield the tests of a module that need only a folder, once for each of their parameters."""
    for name, test in inspect.getmembers(module, inspect.iscoroutinefunction):
        marks = [mark.args for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
        names = [
            [parameter_names]
            if isinstance(parameter_names, str) and "," not in parameter_names
            else list(parameter_names)
            for parameter_names, *_ in marks
        ]
        provided = {"tmp_path", *itertools.chain(*names)}
        is_ours = name.startswith("test_") and test.__module__ == module.__name__ and name not in EXCLUDED_TESTS
        if not is_ours or set(inspect.signature(test).parameters) != provided:
            continue
        for number, combination in enumerate(itertools.product(*(values for _, values, *_ in marks))):
            parameters: Json = {}
            for parameter_names, value in zip(names, combination, strict=True):
                parameters |= dict(zip(parameter_names, value if len(parameter_names) > 1 else [value], strict=True))
            yield Case(test, parameters, f"{name}-{number}" if parameters else name)


CASES = [case for module in MODULES for case in cases(module)]


def normalize_events(events: list[Json]) -> list[Json]:
    """Return the content of a turn's events for each agent: joined pieces, and ids numbered by first appearance."""
    agents: dict[str, list[Json]] = {}
    for event in events:
        fields = {key: value for key, value in event.items() if key not in IGNORED_FIELDS}
        agent_events = agents.setdefault(fields.get("agent", ""), [])
        key = PIECE_KEYS.get(fields["type"], "")
        if key and agent_events and {**agent_events[-1], key: ""} == {**fields, key: ""}:
            agent_events[-1][key] += fields[key]
        else:
            agent_events.append(fields)
    ids: dict[Any, str] = {}
    all_fields = [event for name in sorted(agents) for event in agents[name]]
    for fields in all_fields:
        fields |= {
            key: ids.setdefault(value, f"{key} {len(ids)}") for key, value in fields.items() if key.endswith("Id")
        }
        fields |= {"text": fields["text"].rstrip()} if fields["type"] == "text" else {}
    return all_fields


async def look(request: CallRequest) -> CallOutcome:
    return ok(f"{request.arguments['query']} is there")


async def run_steps(folder: Path, service: Service, steps: tuple[Step, ...]) -> list[Json]:
    """Return the events for clients of a turn with these steps on a service."""
    (folder / f"{service.name}").mkdir(exist_ok=True)
    with use_service(service):
        async with (
            ScriptedModel(*steps) as model,
            bench(folder / service.name, model, toolset(look=look), model_idle=20) as b,
        ):
            assert kinds(await b.say("Look", definition=definition(model="one")))[-1] == "done"
    assert service.refused == []
    return normalize_events(service.turns[-1])


AGAIN, DONE = use("look", query="x"), say("Done.")
ODD_STEPS: dict[str, tuple[Step, ...]] = {
    "cut in its text": (Step((Say("It holds 3 lit"),), stop_reason="max_tokens"), say("res, at most.")),
    "cut in a call": (Step((Use("look", raw='{"query": "a lo'),), stop_reason="max_tokens"), AGAIN, DONE),
    "cut before a word": (Step((Say(""),), stop_reason="max_tokens"), DONE),
    "refused in its middle": (Step((Say("I"),), stop_reason="refusal"),),
    "no JSON": (Step((Use("look", raw='{"query": "x"]'),)), DONE),
    "no object": (Step((Use("look", raw="[1, 2]"),)), DONE),
    "two of one id": (Step((Use("look", {"query": "a"}, "c1"), Use("look", {"query": "b"}, "c1"))), DONE),
    "an id again": (Step((Use("look", {"query": "a"}, "c1"),)), Step((Use("look", {"query": "b"}, "c1"),)), DONE),
    "no such tool": (use("nothing", query="x"), DONE),
}


@pytest.mark.parametrize("name", ODD_STEPS)
async def test_model_errors_are_reported_equally_on_both_services(tmp_path: Path, name: str) -> None:
    messages_events, chat_events = [
        await run_steps(tmp_path, Service(service_name), ODD_STEPS[name]) for service_name in ("messages", "chat")
    ]
    for messages_event, chat_event in zip(messages_events, chat_events, strict=True):
        assert messages_event == chat_event


async def test_calls_in_all_notations_of_chat_services_give_the_same_events(tmp_path: Path) -> None:
    steps = (Step((Say("So:"), Use("look", {"query": "a"}, "c1"), Use("look", {"query": "b c"}, "c2"))), DONE)
    usual = await run_steps(tmp_path, Service("chat"), steps)
    for shape in (
        Shape(interleaved=True),
        Shape(one_index=True),
        Shape(no_index=True, ids="none"),
        Shape(ids="same", nulls=True),
        Shape(as_objects=True, usage=False, done=False),
        Shape(reason=False),
    ):
        assert await run_steps(tmp_path, Service("chat", shape), steps) == usual, shape


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_script_gives_the_same_events_on_both_services(tmp_path: Path, case: Case) -> None:
    services = [Service("messages"), Service("chat")]
    for service in services:
        (tmp_path / service.name).mkdir()
        with use_service(service):
            await case.test(tmp_path / service.name, **case.arguments)
    assert [service.refused for service in services] == [[], []]
    assert services[0].call_count == services[1].call_count
    messages_turns, chat_turns = ([normalize_events(events) for events in service.turns] for service in services)
    assert messages_turns
    for messages_event, chat_event in zip(itertools.chain(*messages_turns), itertools.chain(*chat_turns), strict=True):
        assert messages_event == chat_event

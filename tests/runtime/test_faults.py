"""Faults that a turn must survive: nothing is lost, it ends once, and the next message is answered."""

import sqlite3
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from sqlalchemy import Connection

from agentic_rag.base.errors import ModelError, TurnInProgress
from agentic_rag.base.events import AgentEvent
from agentic_rag.base.ids import TurnId
from agentic_rag.base.messages import user_message
from agentic_rag.models.anthropic.request import request_body
from agentic_rag.runtime.core.definition import Limits
from agentic_rag.runtime.core.request import build_request
from agentic_rag.runtime.core.retry import Attempts, after, is_too_long, retry_delay, sizes_of
from agentic_rag.runtime.runtime import Runtime
from agentic_rag.runtime.turn_persistence import take_abandoned
from agentic_rag.store import run_events, turns
from agentic_rag.testing.problems import problems
from agentic_rag.testing.scripted import Broken, Scripted, ScriptedModel, Stalled
from agentic_rag.testing.steps import Say, Step, Think, Use, say, step_events, use
from agentic_rag.tools.base import CallOutcome, CallRequest
from tests.runtime.harness import SESSION, Bench, bench, definition, hits, info, kinds, ok, text_of, toolset

LONG_STEP = Step((Think("hm hm"), Say("It holds three litres, and it weighs two kilograms.")))


async def search(request: CallRequest) -> CallOutcome:
    return ok("found", hits("The pump holds 3 litres."))


async def check_sendable(b: Bench) -> None:
    transcript = [*await b.transcript(), user_message("next")]
    built_request = build_request(definition(), [info("search_documents", origin="builtin")], transcript)
    assert problems(request_body(built_request.request)) == []


async def test_a_database_locked_by_another_program_only_delays_a_turn(tmp_path: Path) -> None:
    slow_step = Stalled(LONG_STEP, 3)
    async with ScriptedModel(slow_step) as model, bench(tmp_path, model) as b:
        accepted = await b.send("Hi", definition())
        with anyio.fail_after(240):
            await slow_step.reached.wait()
            other_connection = sqlite3.connect(tmp_path / "test.db", isolation_level=None, check_same_thread=False)
            try:
                other_connection.execute("BEGIN IMMEDIATE")
                slow_step.until.set()
                await anyio.wait_all_tasks_blocked()
                other_connection.execute("ROLLBACK")
            finally:
                other_connection.close()
            events = [event async for event in b.runtime.follow(accepted.turn_id)]
        assert kinds(events)[-1] == "done"
        assert await b.database.read(lambda conn: run_events.last_seq(conn, accepted.turn_id)) == len(events)


@pytest.mark.parametrize("dropped_at", range(len(step_events(LONG_STEP, model="m"))))
async def test_a_stream_dropped_at_any_event_is_repeated_without_garbled_text(tmp_path: Path, dropped_at: int) -> None:
    broken_step = Broken(LONG_STEP, dropped_at, ModelError("dropped", retryable=True, started=True, retry_after=0.0))
    async with ScriptedModel(broken_step, LONG_STEP) as model, bench(tmp_path, model) as b:
        events = await b.say("Hi")
        assert kinds(events)[-1] == "done"
        start = max((index for index, kind in enumerate(kinds(events)) if kind == "step_reset"), default=0)
        assert text_of(events[start:]) == "It holds three litres, and it weighs two kilograms."
        (answer,) = [message for message in await b.transcript() if message["role"] == "assistant"]
        assert [block["type"] for block in answer["content"]] == ["thinking", "text"]


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (ModelError("overloaded", http_status=529, retryable=True, retry_after=0.0), 2),
        (ModelError("internal", http_status=500, retryable=True, retry_after=0.0), 2),
        (ModelError("no connection", retryable=True, retry_after=0.0), 2),
        (ModelError("slow down", http_status=429, retryable=True, retry_after=0.0), 2),
        (ModelError("slow down", http_status=429, retryable=True, retry_after=999.0), 1),
        (ModelError("bad request", http_status=400), 1),
        (ModelError("no key", http_status=401), 1),
    ],
)
async def test_each_error_of_the_service_is_retried_or_reported_by_rule(
    tmp_path: Path, error: ModelError, calls: int
) -> None:
    script: list[Scripted] = [error, *[say("Well.")] * (calls - 1), say("Next.")]
    async with ScriptedModel(*script) as model, bench(tmp_path, model) as b:
        events = await b.say("Hi")
        assert len(model.requests) == calls
        assert kinds(events)[-1] == ("done" if calls == 2 else "error")
        if calls == 1:
            assert events[-1].fields()["code"] == "LLM_SERVICE_ERROR"
        assert text_of(await b.say("Again")) == "Next."


async def test_a_stream_that_always_drops_fails_after_three_resets(tmp_path: Path) -> None:
    broken_step = Broken(LONG_STEP, 4, ModelError("dropped", retryable=True, started=True, retry_after=0.0))
    async with ScriptedModel(*[broken_step] * 4, say("Next.")) as model, bench(tmp_path, model) as b:
        events = await b.say("Hi")
        assert kinds(events).count("step_reset") == 3
        assert events[-1].fields()["code"] == "LLM_SERVICE_ERROR"
        assert text_of(await b.say("Again")) == "Next."


async def test_truncated_tool_input_is_answered_and_not_run(tmp_path: Path) -> None:
    cut_call = Step((Use("search_documents", raw='{"query": "pu'),))
    tools = toolset(search_documents=search)
    async with ScriptedModel(cut_call, say("Sorry.")) as model, bench(tmp_path, model, tools) as b:
        events = await b.say("Hi")
        assert [event.fields()["status"] for event in events if event.type == "tool_result"] == ["error"]
        assert tools.requests == []
        assert kinds(events)[-1] == "done"


async def test_a_turn_beyond_its_total_time_ends_with_the_reason(tmp_path: Path) -> None:
    async def hang(request: CallRequest) -> CallOutcome:
        await anyio.sleep_forever()
        raise AssertionError("slept for ever")

    short_settings = definition(limits=Limits(turn_timeout=0.2))
    async with (
        ScriptedModel(use("hang", query="x"), say("Next.")) as model,
        bench(tmp_path, model, toolset(hang=hang)) as b,
    ):
        events = await b.say("Hi", definition=short_settings)
        assert events[-1].fields()["code"] == "GENERATION_TIMEOUT"
        assert [event.fields()["status"] for event in events if event.type == "tool_result"] == ["error"]
        await check_sendable(b)
        assert text_of(await b.say("Again")) == "Next."


async def test_fifty_concurrent_and_duplicate_sends_make_one_turn(tmp_path: Path) -> None:
    slow_step = Stalled(say("One answer."), 1)
    accepted_turns: list[str] = []
    refusing_turns: list[str] = []
    async with ScriptedModel(slow_step) as model, bench(tmp_path, model) as b:

        async def send(number: int) -> None:
            key = None if number % 5 == 4 else "m1"
            try:
                accepted_turns.append((await b.send("Hi", definition(), client_message_id=key)).turn_id)
            except TurnInProgress as exc:
                refusing_turns.append(exc.turn_id)

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(send, number)
        assert len(set(accepted_turns) | set(refusing_turns)) == 1
        assert (len(accepted_turns), len(refusing_turns)) == (40, 10)
        slow_step.until.set()
        with anyio.fail_after(240):
            events = [event async for event in b.runtime.follow(TurnId(accepted_turns[0]))]
        assert kinds(events).count("turn_started") == 1
        assert await b.database.read(lambda conn: len(turns.of_session(conn, SESSION))) == 1


async def test_a_reader_dropped_at_every_event_gets_the_same_bytes_as_one_that_was_not(tmp_path: Path) -> None:
    """Each reader leaves one event later than the last one, and resumes by number while the turn runs."""
    total = 40
    text = " ".join(f"word{number}" for number in range(total))
    resumed_data: dict[int, list[bytes]] = {batch_size: [] for batch_size in range(1, total)}
    whole_data: list[bytes] = []

    async with (
        ScriptedModel(use("search_documents", query="x"), say(text)) as model,
        bench(tmp_path, model, toolset(search_documents=search)) as b,
    ):
        accepted = await b.send("Hi", definition())

        async def read_in_batches(batch_size: int) -> None:
            events: list[AgentEvent] = []
            while not events or not events[-1].terminal:
                stream = b.runtime.follow(accepted.turn_id, events[-1].seq if events else 0)
                remaining = batch_size
                async for event in stream:
                    events.append(event)
                    remaining -= 1
                    if not remaining:
                        break
                await stream.aclose()
            resumed_data[batch_size] = [event.data for event in events]

        async def read_whole() -> None:
            whole_data.extend([event.data async for event in b.runtime.follow(accepted.turn_id)])

        with anyio.fail_after(240):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read_whole)
                for batch_size in resumed_data:
                    tasks.start_soon(read_in_batches, batch_size)
    assert len(whole_data) > total
    assert all(data == whole_data for data in resumed_data.values())


async def test_a_reader_that_never_reads_holds_no_memory_and_delays_no_other(tmp_path: Path) -> None:
    long_step = Step((Say("x" * 200_000, pieces=("x" * 20,) * 10_000),))
    async with ScriptedModel(long_step) as model, bench(tmp_path, model) as b:
        accepted = await b.send("Hi", definition())
        unread = b.runtime.follow(accepted.turn_id)
        assert (await anext(unread)).seq == 1
        with anyio.fail_after(240):
            count = 0
            async for event in b.runtime.follow(accepted.turn_id):
                count += 1
                assert event.seq == count
        assert count > 10_000
        assert (await anext(unread)).seq == 2
        numbers = [event.seq async for event in unread]
        assert numbers == list(range(3, count + 1))


@pytest.mark.sqlite("of several servers, who follows a turn waits for its new owner")
async def test_an_owner_that_lost_its_turn_stops_silently(tmp_path: Path) -> None:
    slow_step = Stalled(LONG_STEP, 3)
    async with ScriptedModel(slow_step) as model, bench(tmp_path, model) as b:
        accepted = await b.send("Hi", definition())
        await slow_step.reached.wait()
        row = await b.turn(accepted.turn_id)
        assert (row.fence, row.status) == (1, "running")
        assert row.lease_until is not None

        def take_turn(conn: Connection) -> int:
            abandoned = take_abandoned(conn, "other", alone=True, first=False)
            return abandoned.running[0].fence

        assert await b.database.write(take_turn) == 2
        transcript_before = await b.transcript()
        slow_step.until.set()
        with anyio.fail_after(240):
            events = [event async for event in b.runtime.follow(accepted.turn_id)]
        assert not any(event.terminal for event in events)
        assert await b.transcript() == transcript_before
        row = await b.turn(accepted.turn_id)
        assert (row.owner, row.fence, row.status) == ("other", 2, "running")
        assert b.ended_turns == []
        with pytest.raises(TurnInProgress):
            await b.send("Go on", definition())


async def test_resuming_a_turn_takes_its_fencing_token(tmp_path: Path) -> None:
    slow_step = Stalled(LONG_STEP, 3)
    async with ScriptedModel(slow_step) as model, bench(tmp_path, model) as b:
        accepted = await b.send("Hi", definition())
        await slow_step.reached.wait()
        first_row = await b.turn(accepted.turn_id)
    async with ScriptedModel(say("Done.")) as model, bench(tmp_path, model) as b:
        await b.runtime.recover()
        with anyio.fail_after(240):
            assert [event async for event in b.runtime.follow(accepted.turn_id)][-1].type == "done"
        row = await b.turn(accepted.turn_id)
        assert (row.fence, row.lease_until) == (2, None)
        assert row.owner != first_row.owner


async def test_draining_finishes_running_turns_and_keeps_waiting_ones(tmp_path: Path) -> None:
    slow_step = Stalled(say("First."), 1)
    async with ScriptedModel(slow_step) as model, bench(tmp_path, model) as b:
        runtime: Runtime = b.runtime
        accepted = await b.send("A", definition())
        await slow_step.reached.wait()
        await b.send("B", definition(), on_busy="queue")
        slow_step.until.set()
        assert await runtime.drain(20) == 0
        assert (await b.turn(accepted.turn_id)).status == "done"
        assert len(await b.database.read(lambda conn: turns.list_queued(conn, SESSION))) == 1
    async with ScriptedModel(say("Second.")) as model, bench(tmp_path, model) as b:
        await b.runtime.recover()
        assert await b.runtime.drain(20) == 0
        assert (await b.transcript())[-1]["content"][0]["text"] == "Second."


def test_a_service_without_retry_after_is_retried_three_times() -> None:
    error, delays, attempts = ModelError("slow down", http_status=429, retryable=True), [], Attempts()
    while (delay := retry_delay(error, attempts, 60, 1.0)) is not None:
        delays.append(delay)
        attempts = after(error, attempts, delay)
    assert delays == [0.5, 1.0, 2.0]
    assert retry_delay(ModelError("busy", http_status=529, retryable=True), attempts, 60, 1.0) == 4.0


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, [0.5, 1, 2, 4, 8]), (1.0, [1, 1, 2, 4, 8]), (9.0, [9] * 5)])
def test_a_service_with_retry_after_is_retried_five_times_with_backoff(seconds: float, expected: list[float]) -> None:
    error, delays, attempts = (
        ModelError("slow down", http_status=429, retryable=True, retry_after=seconds),
        [],
        Attempts(),
    )
    while (delay := retry_delay(error, attempts, 60, 1.0)) is not None:
        delays.append(delay)
        attempts = after(error, attempts, delay)
    assert delays == expected


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (
            "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (8",
            (9000, 8192),
        ),
        ("prompt is too long: 250000 tokens > 200000 maximum", (250000, 200000)),
        ("This model's maximum context length is 8192 tokens, your messages resulted in 9001 tokens.", (9001, 8192)),
        ("the request exceeds the available context size", None),
    ],
)
def test_length_errors_of_services_are_parsed(text: str, sizes: tuple[int, int] | None) -> None:
    error = ModelError(text, http_status=400)
    assert is_too_long(error)
    assert sizes_of(error) == sizes

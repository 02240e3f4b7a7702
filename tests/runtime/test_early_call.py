"""The first call of a turn, sent while its message is stored: the same requests as without it, each once.

Each test has a service over HTTP, and a store whose commits can be held up: what came to the service by then was early.
"""

import hashlib
import json
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from sqlalchemy import Connection

from agentic_rag.base.errors import CompactionNotNeeded, IdempotencyMismatch, StorageFull, TurnInProgress
from agentic_rag.base.events import AgentEvent, Notice
from agentic_rag.base.ids import MessageId
from agentic_rag.base.messages import KeptImage
from agentic_rag.models.anthropic.model import BOUND_ELSEWHERE, AnthropicModel
from agentic_rag.models.base import Model, ModelEvent, ModelRequest
from agentic_rag.runtime.core.definition import Limits
from agentic_rag.runtime.early_call import MOST_BYTES
from agentic_rag.runtime.sent_images import SentImage
from agentic_rag.store.clock import new_id
from agentic_rag.store.database import Database
from agentic_rag.testing.fake_api import FakeMessagesAPI, Fault, Reply
from agentic_rag.testing.steps import Cite, Redacted, Say, Step, Think, Use, say
from agentic_rag.tools.base import CallOutcome, CallRequest
from tests.databases import POSTGRESQL, database_at
from tests.runtime.harness import SESSION, Bench, Disk, bench, hits, kinds, ok, text_of
from tests.runtime.test_append_only import ACTS, BASE, MODEL, World, brain, tools_of
from tests.runtime.test_crash_points import check_numbers
from tests.runtime.test_pictures import png

PATIENCE = 20


@dataclass
class Place(World):
    """A world in which it is known that no document changes, until ``mark`` does."""

    mark: object = field(default_factory=object)

    def documents_mark(self, domain_id: str) -> object:
        return self.mark


class Gate(Disk):
    """A real database whose writes wait while it is shut."""

    def __init__(self, inner: Database) -> None:
        super().__init__(inner)
        self._open = anyio.Event()
        self._open.set()
        self.reached = anyio.Event()

    def shut(self) -> None:
        self._open, self.reached = anyio.Event(), anyio.Event()

    def let_through(self) -> None:
        self._open.set()

    async def write(self, fn: Callable[[Connection], Any], *, durable: bool = False) -> Any:
        self.reached.set()
        await self._open.wait()
        return await super().write(fn, durable=durable)


class Unprepared(Model):
    """A model whose requests are made when they are asked for."""

    def __init__(self, inner: AnthropicModel) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        return self._inner.stream(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


@dataclass
class Rig:
    """``early`` are the requests that came before their message was stored, by message."""

    bench: Bench
    world: Place
    api: FakeMessagesAPI
    gate: Gate
    model: AnthropicModel
    early: list[int] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)

    async def say(self, text: str, **options: Any) -> list[AgentEvent]:
        """Send a message and return the events of its turn; what the store says no to is raised."""
        session = await self.bench.runtime.session(SESSION)
        while session.running:  # what follows a turn's end may be stored, or asked of the model
            await session.change()
        settings = options.pop("definition", self.world.settings)
        before = len(self.api.calls)
        events: list[AgentEvent] = []
        failure: Exception | None = None

        async def send() -> None:
            nonlocal events, failure
            try:
                events = await self.bench.say(text, definition=settings, **options)
            except Exception as exc:
                failure = exc
                self.gate.reached.set()

        self.gate.shut()
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                try:
                    await self.gate.reached.wait()
                    await self.arrive()
                    self.early.append(len(self.api.calls) - before)
                    assert not session.running, "it began before it was stored"
                finally:
                    self.gate.let_through()
        if failure is not None:
            raise failure
        self.questions.append(str(events[0].fields()["userMessageId"]))
        return events

    @property
    def first(self) -> str:
        """The first question's message id."""
        return self.questions[0]

    async def arrive(self) -> None:
        """Wait until all that was sent so far is with the service, which answers this later than that."""
        await self.model.knows(MODEL)

    async def interrupt(self) -> None:
        await (await self.bench.runtime.session(SESSION)).interrupt()


@asynccontextmanager
async def rigged(
    folder: Path, api: FakeMessagesAPI, world: Place | None = None, *, prepared: bool = True, **options: Any
) -> AsyncIterator[Rig]:
    model = AnthropicModel(api.key, api.url)
    await model.warm_up()
    known = world or Place(model, tools_of())
    known.given_model = model if prepared else Unprepared(model)
    own = await Database.open(database_at(folder / "test.db"))
    gate = Gate(own)
    try:
        async with bench(folder, known.given_model, services=known, database=gate, **options) as b:
            yield Rig(b, known, api, gate, model)
    finally:
        gate.let_through()
        await model.aclose()
        await own.aclose()
    assert model.mismatches == 0


def plain(events: Sequence[AgentEvent]) -> list[dict[str, Any]]:
    """Return events without what is another in each run."""
    own = {"ts", "turnId", "messageId", "userMessageId", "imageId", "timings", "seq", "conversationId", "durationMs"}
    return [{key: value for key, value in event.fields().items() if key not in own} for event in events]


def made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


async def reach(api: FakeMessagesAPI, calls: int) -> None:
    """Wait until so many calls have come to the service."""
    with anyio.fail_after(PATIENCE):
        while len(api.calls) < calls:
            await anyio.lowlevel.checkpoint()


# It is early, once, and the same.


async def test_it_is_with_the_service_before_the_message_is_stored_and_the_turn_takes_it(tmp_path: Path) -> None:
    async with FakeMessagesAPI(then=brain) as api, rigged(tmp_path, api) as rig:
        for number in range(4):
            events = await rig.say(f"Question {number}?")
            assert text_of(events) == "Leave is 30 days. So."
            assert kinds(events).count("iteration_start") == 2
            assert kinds(events)[:2] == ["turn_started", "iteration_start"]
        assert rig.early == [0, 1, 1, 1]
        assert len(api.calls) == 8
        assert len({call.headers["x-peer"] for call in api.calls}) <= 2, "and over the same connection"


async def test_its_events_are_those_of_any_other_turn(tmp_path: Path) -> None:
    told: list[list[dict[str, Any]]] = []
    notices = [Notice("LOCAL", "Only you can come in.")]
    for prepared in (True, False):
        async with FakeMessagesAPI(then=lambda request: say("Hello.")) as api:
            folder = made(tmp_path / str(prepared))
            async with rigged(folder, api, prepared=prepared) as rig:
                rig.world.opening_notices = notices
                await rig.say("One")
                told.append(plain(await rig.say("Two", notices=[Notice("GIVEN", "Of the message.")])))
                assert rig.early == [0, int(prepared)]
    assert told[0] == told[1]
    assert [each["type"] for each in told[0]][:4] == ["turn_started", "notice", "notice", "iteration_start"]


async def large(request: CallRequest) -> CallOutcome:
    query = request.arguments["query"]
    return ok("found", hits(*[f"{query}: sentence {n} of many." for n in range(len(query) * 3)], document="doc_2"))


def alike(value: Any) -> str:
    """Return the JSON of what was sent without what is drawn: the refs of results, and signatures over these."""
    return re.sub(r"(ref_|sig-)[\w.-]+", r"\1", json.dumps(value))


def moods(request: dict[str, Any]) -> Step:
    """Answer as the request's content has it: in all ways in which a turn may go."""
    if "Summarise the conversation" in str(request["messages"][-1]):
        return Step((Think("All."), Say('{"facts": [{"fact": "Leave is 30 days.", "documents": []}]}')))
    chance = Random(zlib.crc32(alike(request["messages"]).encode()))
    results = json.dumps(request["messages"]).count('"search_result"')
    if request.get("tool_choice") == {"type": "none"}:
        return say("That is all I found.")
    ident = f"toolu_{chance.getrandbits(40)}"
    ways: list[Step] = [
        say("Plain."),
        Step((Think("Hm."), Say("Thought over."))),
        Step((Think("Look."), Use("search_documents", {"query": "leave"}, id=ident))),
        Step((Say("I look."), Use("search_documents", {"query": "x" * chance.randrange(40)}, id=ident))),
        Step((Think("Who am I?"), Use("promptx_action", {"query": "x"}, id=ident))),
        Step((Use("nonsense", {"query": "x"}, id=ident),)),
        Step((Say("It goes on and"),), stop_reason="max_tokens"),
        Step((Think("Half."), Say("A pause."), Redacted("x")), stop_reason="end_turn"),
        Step((Say("Wait."),), stop_reason="pause_turn"),
        Step((), stop_reason="end_turn"),
    ]
    if results:
        ways += [Step((Say("As it says.", (Cite(chance.randrange(results)),)), Say(" So.")))] * 3
    return chance.choice(ways)


LIMITS = {
    "wide": Limits(max_steps=4),
    "narrow": Limits(max_steps=4, context_tokens=6_000),
    "few messages": Limits(max_steps=4, context_messages=6),
}


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("seed", range(3))
async def test_a_long_conversation_asks_what_it_asks_without_it_and_nothing_twice(
    tmp_path: Path, limits: str, seed: int
) -> None:
    asked: list[list[str]] = []
    told: list[list[Any]] = []
    early: list[int] = []
    for prepared in (True, False):
        folder = made(tmp_path / str(prepared))
        async with FakeMessagesAPI(then=moods) as api, rigged(folder, api, prepared=prepared) as rig:
            info, _ = rig.world.tools.functions["search_documents"]
            functions = {**rig.world.tools.functions, "search_documents": (info, large)}
            rig.world.tools = replace(rig.world.tools, functions=functions)
            rig.world.settings = replace(BASE, limits=LIMITS[limits], max_tokens=500)
            events: list[Any] = []
            for number in range(20):
                length = Random(f"{seed} {number}").choice((1, 1, 1, 200))
                events.append(kinds(await rig.say(f"Question {seed} {number}? " * length)))
            asked.append([alike(request) for request in api.requests])
            told.append(events)
            early.append(sum(rig.early))
            assert api.refused == []
            assert max(rig.early) <= 1
    differing = [place for place, (ours, theirs) in enumerate(zip(*asked, strict=False)) if ours != theirs]
    assert differing == []
    assert len(asked[0]) == len(asked[1]), "some call was wasted"
    assert told[0] == told[1]
    assert early[0] >= 4
    assert early[1] == 0


# Where it is not sent.


# Where it is not sent, and the turn asks once all the same.


async def again(rig: Rig, **options: Any) -> None:
    """Answer the first question again, on a branch."""
    accepted = await rig.bench.again(rig.first, "Other words", definition=rig.world.settings, **options)
    async for _ in rig.bench.runtime.follow(accepted.turn_id):
        pass


async def another_branch(rig: Rig) -> None:
    await again(rig)
    await (await rig.bench.runtime.session(SESSION)).activate(MessageId(rig.first))


async def compacted(rig: Rig) -> None:
    for number in range(8):
        await rig.say(f"More {number}?")
    await rig.bench.compact(rig.world.settings)


async def refused_compaction(rig: Rig) -> None:
    with pytest.raises(CompactionNotNeeded):
        await rig.bench.compact(rig.world.settings)


async def new_documents(rig: Rig) -> None:
    rig.world.mark = object()


async def unknown_documents(rig: Rig) -> None:
    rig.world.mark = None
    await rig.say("And?")


async def interrupted(rig: Rig) -> None:
    accepted = await rig.bench.send("Wait", rig.world.settings)
    await rig.interrupt()
    async for _ in rig.bench.runtime.follow(accepted.turn_id):
        pass


async def drained(rig: Rig) -> None:
    await rig.bench.runtime.drain(0)


async def unloaded(rig: Rig) -> None:
    (await rig.bench.runtime.session(SESSION)).unload()


def acting(act: str) -> Callable[[Rig], Awaitable[None]]:
    async def change(rig: Rig) -> None:
        ACTS[act][0](rig.world)

    return change


CHANGES: dict[str, Callable[[Rig], Awaitable[None]]] = {
    "another branch": another_branch,
    "a compaction": compacted,
    "a compaction that was not needed": refused_compaction,
    "documents": new_documents,
    "nobody knows of documents": unknown_documents,
    "an interrupted turn": interrupted,
    **({} if POSTGRESQL else {"the server drains": drained}),  # there another one runs it
    "the transcript was let go": unloaded,
    **{act: acting(act) for act in ACTS if act != "a deleted document"},
}


def summarizing(request: dict[str, Any]) -> Step:
    if "Summarise the conversation" not in str(request["messages"][-1]):
        return brain(request)
    return Step((Think("All."), Say('{"facts": [{"fact": "Leave is 30 days.", "documents": ["doc_1"]}]}')))


@pytest.mark.parametrize("change", CHANGES)
async def test_where_anything_has_changed_the_turn_asks_by_itself(tmp_path: Path, change: str) -> None:
    async with FakeMessagesAPI(then=summarizing) as api, rigged(tmp_path, api) as rig:
        await rig.say("How many days?")
        await rig.say("Sure?")
        assert rig.early == [0, 1]
        await CHANGES[change](rig)
        before = len(api.calls)
        events = await rig.say("And now?")
        assert rig.early[-1] == 0
        await reach(api, before + 2)
        assert len(api.calls) == before + 2
        if change != "the server drains":  # whose readers are sent away
            assert text_of(events) == "Leave is 30 days. So."
            assert text_of(await rig.say("And then?")) == "Leave is 30 days. So."
            assert len(api.calls) == before + 4
    assert api.refused == []


@pytest.mark.parametrize("change", ["another day", "documents"])
async def test_what_changes_while_an_answer_comes_is_not_taken_for_what_was_asked(tmp_path: Path, change: str) -> None:
    places: list[Place] = []

    def changing(request: dict[str, Any]) -> Step:
        step = brain(request)
        if any(isinstance(block, Say) for block in step.blocks):  # the last one of its turn
            for place in places:
                if change == "documents":
                    place.mark = object()
                else:
                    ACTS[change][0](place)
        return step

    async with FakeMessagesAPI(then=changing) as api, rigged(tmp_path, api) as rig:
        await rig.say("How many days?")
        places.append(rig.world)
        await rig.say("Sure?")
        places.clear()
        before = len(api.calls)
        await rig.say("And now?")
        assert rig.early[-1] == 0
        await reach(api, before + 2)
        assert len(api.calls) == before + 2
    assert api.refused == []


async def test_a_budget_leaves_the_call_to_the_turn(tmp_path: Path) -> None:
    async with FakeMessagesAPI(then=brain) as api, rigged(tmp_path, api, hard="100000000") as rig:
        for number in range(3):
            await rig.say(f"Question {number}?")
        assert rig.early == [0, 0, 0]
        assert len(api.calls) == 6


async def test_an_image_leaves_the_call_to_the_turn_and_the_one_after_it_may_be_early(tmp_path: Path) -> None:
    data = png()
    image = KeptImage(new_id("ref"), "image/png", 600, 500, len(data), hashlib.sha256(data).hexdigest())
    async with FakeMessagesAPI(then=lambda request: say("Hello.")) as api, rigged(tmp_path, api) as rig:
        await rig.say("One")
        await rig.say("Look", images=[SentImage(image, data)])
        await rig.say("Two")
        assert rig.early == [0, 0, 1]
        assert len(api.calls) == 3
        assert '"base64"' in json.dumps(api.requests[2])


async def test_what_waits_in_the_queue_is_asked_when_its_turn_comes(tmp_path: Path) -> None:
    slow = Reply(say("Slow."), Fault(silent_after=2))
    async with (
        FakeMessagesAPI(say("One."), slow, then=lambda request: say("Next.")) as api,
        rigged(tmp_path, api) as rig,
    ):
        await rig.say("One")
        await rig.bench.send("Two", rig.world.settings)
        await reach(api, 2)
        queued = await rig.bench.send("Three", rig.world.settings, on_busy="queue")
        with pytest.raises(TurnInProgress):
            await rig.bench.send("Four", rig.world.settings)
        await rig.arrive()
        assert len(api.calls) == 2
        await rig.interrupt()
        with anyio.fail_after(PATIENCE):
            assert [event.type async for event in rig.bench.runtime.follow(queued.turn_id)][-1] == "done"
        await rig.say("Five")
        assert rig.early == [0, 1]
        assert len(api.calls) == 4


@pytest.mark.parametrize("way", ["sent", "branched", "resumed"])
async def test_a_client_message_id_that_comes_again_is_not_asked_again(tmp_path: Path, way: str) -> None:
    async with FakeMessagesAPI(then=brain) as api:
        place: Place | None = None
        if way == "resumed":
            async with rigged(tmp_path, api) as rig:
                await rig.bench.send("How many days?", rig.world.settings, client_message_id="m1")
                place = rig.world
        async with rigged(tmp_path, api, place) as rig:
            if way == "resumed":
                await rig.bench.runtime.recover()
                session = await rig.bench.runtime.session(SESSION)
                with anyio.fail_after(PATIENCE):
                    while session.running:
                        await session.change()
            else:
                await rig.say("How many days?", client_message_id="m1" if way == "sent" else "m0")
            if way == "branched":
                await again(rig, client_message_id="m1")
            before = len(api.calls)
            if way != "branched":
                repeated = await rig.say("How many days?", client_message_id="m1")
                assert kinds(repeated)[0] == "turn_started"
            with pytest.raises(IdempotencyMismatch):
                await rig.say("Something else?", client_message_id="m1")
            assert len(api.calls) == before
            assert set(rig.early) == {0}


async def test_what_the_store_refuses_was_asked_once_and_its_repetition_asks_by_itself(tmp_path: Path) -> None:
    async with FakeMessagesAPI(say("One."), then=Reply(say("Two."), Fault(silent_after=2))) as api:
        async with rigged(tmp_path, api) as rig:
            await rig.say("One")
            for _ in range(2):
                rig.gate.fill(1)
                with pytest.raises(StorageFull):
                    await rig.say("Two", client_message_id="m2")
            assert rig.early == [0, 1, 0]
            with anyio.fail_after(PATIENCE):
                await api.calls[1].left.wait()
            accepted = await rig.bench.send("Two", rig.world.settings, client_message_id="m2")
            await reach(api, 3)
            await rig.interrupt()
            with anyio.fail_after(PATIENCE):
                assert [event.type async for event in rig.bench.runtime.follow(accepted.turn_id)][-1] == "interrupted"
        assert len(api.calls) == 3


# What may happen to it.


FAULTS = {
    "busy": Fault(status=429, retry_after="0"),
    "overloaded": Fault(status=529, retry_after="0"),
    "no key": Fault(status=401),
    "a web page": Fault(content_type="text/html"),
    "broken off": Fault(drop_at=400),
    "an error inside": Fault(error_after=3),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_refusal_is_treated_as_any_other(tmp_path: Path, fault: str) -> None:
    told: list[list[str]] = []
    asked: list[int] = []
    for prepared in (True, False):
        folder = made(tmp_path / str(prepared))
        service = FakeMessagesAPI(say("One."), FAULTS[fault], then=lambda request: say("Three."))
        async with service as api, rigged(folder, api, prepared=prepared) as rig:
            await rig.say("One")
            events = await rig.say("Two")
            await rig.say("Three")
            told.append(kinds(events))
            asked.append(len(api.calls))
            assert rig.early[1] == int(prepared)
    assert told[0] == told[1]
    assert asked[0] == asked[1]


async def test_a_connection_that_was_closed_meanwhile_is_nothing_that_anybody_hears_of(tmp_path: Path) -> None:
    async with FakeMessagesAPI(say("One."), Fault(refuse=True), then=lambda request: say("Two.")) as api:
        async with rigged(tmp_path, api) as rig:
            await rig.say("One")
            events = await rig.say("Two")
            assert kinds(events) == ["turn_started", "iteration_start", "text", "done"]
            assert rig.early == [0, 1]
        assert len(api.calls) == 3
        assert api.requests[1] == api.requests[2]


async def test_thinking_that_does_not_fit_any_more_is_left_out_in_a_second_try(tmp_path: Path) -> None:
    bound = Fault(status=400, message=f"thinking is {BOUND_ELSEWHERE}")
    async with FakeMessagesAPI(say("One."), bound, then=lambda request: say("Two.")) as api:
        async with rigged(tmp_path, api) as rig:
            await rig.say("One")
            assert text_of(await rig.say("Two")) == "Two."
            assert rig.early == [0, 1]
            assert rig.model.mismatches == 1
            rig.model.mismatches = 0
        assert len(api.calls) == 3


@pytest.mark.parametrize("answered", [False, True])
async def test_an_interrupt_ends_it_before_and_while_it_is_read(tmp_path: Path, answered: bool) -> None:
    silent = Reply(say("Two and more."), Fault(silent_after=4))
    async with FakeMessagesAPI(say("One."), silent, then=lambda request: say("Three.")) as api:
        async with rigged(tmp_path, api) as rig:
            await rig.say("One")
            accepted = await rig.bench.send("Two", rig.world.settings)
            seen: list[str] = []
            with anyio.fail_after(PATIENCE):
                if not answered:
                    await rig.interrupt()
                async for event in rig.bench.runtime.follow(accepted.turn_id):
                    seen.append(event.type)
                    if event.type == "text":
                        await rig.interrupt()
                await reach(api, 2)
                await api.calls[1].left.wait()
            assert seen[:2] == ["turn_started", "iteration_start"]
            assert seen[-1] == "interrupted"
            assert ("text" in seen) == answered
            assert text_of(await rig.say("Three")) == "Three."
        assert len(api.calls) == 3


async def test_a_server_that_stops_after_it_accepted_leaves_a_turn_to_the_next_one(tmp_path: Path) -> None:
    silent = Reply(say("Two."), Fault(silent_after=0))
    async with FakeMessagesAPI(say("One."), silent, then=lambda request: say("Two.")) as api:
        async with rigged(tmp_path, api) as rig:
            await rig.say("One")
            accepted = await rig.bench.send("Two", rig.world.settings)
        with anyio.fail_after(PATIENCE):
            await reach(api, 2)
            await api.calls[1].left.wait()
        async with rigged(tmp_path, api, rig.world) as rig:
            assert await rig.bench.runtime.recover() == 1
            with anyio.fail_after(PATIENCE):
                events = [event async for event in rig.bench.runtime.follow(accepted.turn_id)]
            check_numbers(events)
            expected = ["turn_started", "iteration_start", "resumed", "step_reset", "iteration_start", "text", "done"]
            assert kinds(events) == expected
        assert len(api.calls) == 3


async def test_a_server_that_stops_while_it_accepts_leaves_no_call(tmp_path: Path) -> None:
    silent = Reply(say("Two."), Fault(silent_after=0))
    refused: list[BaseException] = []
    async with FakeMessagesAPI(say("One."), silent) as api, anyio.create_task_group() as tasks:
        async with rigged(tmp_path, api) as rig:
            await rig.say("One")
            rig.gate.shut()

            async def send() -> None:
                try:
                    await rig.bench.send("Two", rig.world.settings)
                except RuntimeError as exc:  # there is nobody any more to run it: it is the next server's
                    refused.append(exc)

            tasks.start_soon(send)
            await rig.gate.reached.wait()
            await reach(api, 2)
        with anyio.fail_after(PATIENCE):
            await api.calls[1].left.wait()


async def test_a_message_that_is_too_long_or_a_request_leaves_the_call_to_the_turn(tmp_path: Path) -> None:
    async with FakeMessagesAPI(then=lambda request: say("Hello.")) as api, rigged(tmp_path, api) as rig:
        rig.world.settings = replace(BASE, limits=Limits(max_steps=4, context_tokens=30_000))
        await rig.say("One")
        await rig.say("long " * 14_500)
        await rig.say("Two")
        assert rig.early[:2] == [0, 0]
        rig.world.settings = BASE
        await rig.say("x" * MOST_BYTES)
        await rig.say("Three")
        assert rig.early[3:] == [0, 0]

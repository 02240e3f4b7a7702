"""Run scripts of `ScriptedModel` through fake services, so that the same script is tested over each protocol.

While `use_service` is open, every bench with a `ScriptedModel` calls it through an adapter and HTTP, and appends the
events of its turns to a list. Faults of a script apply to the adapter's events. `tests/models` covers faults of
connections.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import anyio
import orjson
from sqlalchemy import Connection

from agentic_rag.base.ids import SessionId
from agentic_rag.base.json_form import Json
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.models.base import MessageStarted, Model, ModelEvent, ModelRequest
from agentic_rag.models.openai.model import OpenAIModel
from agentic_rag.store import run_events, turns
from agentic_rag.store.database import Database
from agentic_rag.testing.chat_frames import Shape
from agentic_rag.testing.fake_api import FakeMessagesAPI
from agentic_rag.testing.fake_chat import FakeChatAPI
from agentic_rag.testing.scripted import ScriptedModel, step_of
from agentic_rag.testing.steps import Step

MAX_EVENTS = 100_000
"""Maximum events of one turn."""
ServiceName = Literal["messages", "chat"]
NAMES = {"messages": ("claude-opus-5", "claude-sonnet-5", "claude-opus-4-8"), "chat": ("small-1", "big-1", "huge-1")}
"""Model names of a service, in the order of the definition's models. They think, and check no prefix."""


@dataclass
class Service:
    """A fake service for scripts. ``shape`` is the writing style of a chat service.

    ``turns`` holds the events of each turn, ``call_count`` the number of calls, and ``refused`` the errors in some of
    them.
    """

    name: ServiceName
    shape: Shape = field(default_factory=Shape)
    turns: list[list[Json]] = field(default_factory=list)
    call_count: int = 0
    refused: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def serve(self, script: ScriptedModel) -> AsyncIterator[Model]:
        """Run a script on the service."""
        step: list[Step] = []

        def answer(body: Json) -> Step:
            return step.pop()

        api = FakeMessagesAPI(then=answer) if self.name == "messages" else FakeChatAPI(then=answer, shape=self.shape)
        async with api:
            if isinstance(api, FakeChatAPI):
                adapter: Model = OpenAIModel(api.key, api.base_url)
            else:
                adapter = AnthropicModel(api.key, api.url)
            try:
                yield Served(script, adapter, NAMES[self.name], step)
            finally:
                await adapter.aclose()
                self.call_count += len(api.calls)
                self.refused += api.refused

    async def note(self, database: Database, session_id: SessionId) -> None:
        """Record the events of a session's turns."""

        def read(conn: Connection) -> list[list[tuple[int, bytes]]]:
            return [run_events.read(conn, turn.id, 0, MAX_EVENTS) for turn in turns.of_session(conn, session_id)]

        self.turns += [[orjson.loads(data) for _, data in events] for events in await database.read(read) if events]


class Served(Model):
    """A `ScriptedModel` whose steps come from a service."""

    def __init__(self, script: ScriptedModel, adapter: Model, names: Sequence[str], step: list[Step]) -> None:
        self._script = script
        self._adapter = adapter
        self._names = list(names)
        self._known: dict[str, str] = {}
        self._step = step  # the service's next step
        self._asking = anyio.Lock()

    @property
    def name(self) -> str:
        return self._script.name

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        return self._stream(request)

    @asynccontextmanager
    async def _stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        call, plain = self._script.take(request, check=False)
        if request.model not in self._known:
            self._known[request.model] = self._names.pop(0)
        async with self._asking:
            self._step[:] = [step_of(plain)]
            stream = self._adapter.stream(replace(request, model=self._known[request.model]))
            answer = await stream.__aenter__()
        try:
            async with self._script.play(call, plain, _named(answer, request.model)) as events:
                yield events
        finally:
            await stream.__aexit__(None, None, None)

    async def aclose(self) -> None:
        """Do nothing, because the bench owns the service."""


async def _named(events: AsyncIterator[ModelEvent], model: str) -> AsyncIterator[ModelEvent]:
    """Replace the model's name in events by the definition's name."""
    async for event in events:
        yield replace(event, model=model) if isinstance(event, MessageStarted) else event


_current: ContextVar[Service | None] = ContextVar("service", default=None)


@contextmanager
def use_service(service: Service) -> Iterator[None]:
    """Run the scripts of benches that are opened inside on a service."""
    token = _current.set(service)
    try:
        yield
    finally:
        _current.reset(token)


@asynccontextmanager
async def served(model: Any, database: Database, session_id: SessionId) -> AsyncIterator[Any]:
    """Yield a bench's model. A scripted one runs on the current service, if any."""
    service = _current.get()
    if service is None or not isinstance(model, ScriptedModel):
        yield model
        return
    async with service.serve(model) as on_service:
        yield on_service
    await service.note(database, session_id)

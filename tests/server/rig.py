"""The whole application in process over ASGI, with real store, index and MCP servers, and a scripted model."""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import httpx2
import orjson
from starlette.routing import Match, Route
from starlette.types import Message, Receive, Scope, Send

from agentic_rag.app.application import Application, open_application
from agentic_rag.base import failpoints
from agentic_rag.base.ids import DocumentId
from agentic_rag.base.settings import Settings
from agentic_rag.directory.directory import FIRST_DOCUMENT_SECONDS
from agentic_rag.models.base import Model
from agentic_rag.operations.maintenance import SCAN_SECONDS
from agentic_rag.server.openapi import documented_statuses
from agentic_rag.server.routing import RouteEndpoint
from agentic_rag.store import documents
from agentic_rag.store.documents import DocumentRecord, DocumentStatus
from agentic_rag.store.migrations import OWN, Revisions
from agentic_rag.testing.scripted import Scripted, ScriptedModel
from tests.databases import database_url, prepare_data, without_demo
from tests.programs import share_tool_schemas
from tests.waiting import pause

WAIT_SECONDS = 240.0
CONSUMED_SECONDS = 30.0
"""How long the end of a test waits for scripted steps that are still unused."""
TURN_SECONDS = 240.0

Json = dict[str, Any]

share_tool_schemas()


def settings_for(folder: Path, **fields: Any) -> Settings:
    """Return settings that ignore ``.env`` and the machine's keys and models, and use no model for titles."""
    fields = {"embedding": "none", "qdrant_url": None, "titles": "message", **fields}
    fields.setdefault("data", folder / "data")
    if "database_url" not in fields:
        fields["database_url"] = database_url(fields["data"])
    return Settings(
        _env_file=None,
        anthropic_api_key=None,
        **fields,
    )


class Rig:
    """A running application and its client, as an async context manager.

    ``instead`` replaces the scripted model. With ``scripted`` false, the settings choose the model. ``failpoint`` is
    called at the product's failpoints.
    """

    def __init__(
        self,
        folder: Path,
        *steps: Scripted,
        instead: Model | None = None,
        scripted: bool = True,
        any_command: bool = False,
        failpoint: Callable[[str], object] | None = None,
        scan_seconds: float = SCAN_SECONDS,
        first_document_seconds: float = FIRST_DOCUMENT_SECONDS,
        revisions: Revisions = OWN,
        **settings: Any,
    ) -> None:
        self.settings = settings_for(folder, **settings)
        self.model = ScriptedModel(*steps)
        self._failpoint = failpoint
        self._undocumented: list[str] = []
        self._prepares = revisions is OWN and not self.settings.database_url
        self._opening = open_application(
            self.settings,
            model=instead or (self.model if scripted else None),
            any_command=any_command,
            scan_seconds=scan_seconds,
            first_document_seconds=first_document_seconds,
            revisions=revisions,
        )
        self.application: Application
        self.http: httpx2.AsyncClient
        self._stack: AsyncExitStack

    async def __aenter__(self) -> Self:
        without_demo(self.settings.data)
        if self._prepares:  # other revisions start with their own tables
            prepare_data(self.settings.data)
        async with AsyncExitStack() as stack:
            if self._failpoint is not None:
                stack.enter_context(failpoints.heard_by(self._failpoint))
            await stack.enter_async_context(self.model)
            self.application = await stack.enter_async_context(self._opening)
            transport = httpx2.ASGITransport(self._respond)
            hooks = {"response": [self._check_documented]}
            client = httpx2.AsyncClient(base_url="http://127.0.0.1", transport=transport, event_hooks=hooks)
            self.http = await stack.enter_async_context(client)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        if exc is None:  # work that a test does not wait for may not have started yet
            with anyio.move_on_after(CONSUMED_SECONDS):
                await self.model.wait_consumed()
        return await self._stack.__aexit__(exc_type, exc, tb)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and note a status that the OpenAPI document does not contain."""

        async def check(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._note_undocumented(scope, message["status"])
            await send(message)

        await self.application.app(scope, receive, check)

    def _note_undocumented(self, scope: Scope, status: int) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        endpoint = scope.get("endpoint")
        if endpoint is None:  # refused before routing
            routes = self.application.app.routes
            endpoint = next((r.endpoint for r in routes if isinstance(r, Route) and _matches(r, scope)), None)
        # A method that no route of the path takes leaves the endpoint of another method.
        if not isinstance(endpoint, RouteEndpoint) or endpoint.declared.method != method:
            return
        if status not in documented_statuses(endpoint.declared):
            self._undocumented.append(f"{method} {endpoint.declared.path} does not say that it answers {status}")

    async def _check_documented(self, response: httpx2.Response) -> None:
        assert not self._undocumented, "\n".join(self._undocumented)

    async def ok(self, method: str, path: str, json: Any = None, **options: Any) -> Any:
        """Make a request that must succeed and return its JSON."""
        response = await self.http.request(method, path, json=json, **options)
        assert response.is_success, response.text
        return response.json() if response.content else None

    async def refused(self, method: str, path: str, json: Any = None, **options: Any) -> tuple[int, str, str]:
        """Make a request that must be refused; return status, code and message."""
        response = await self.http.request(method, path, json=json, **options)
        error = response.json()["error"]
        assert error["requestId"] == response.headers["x-request-id"]
        assert "Traceback" not in response.text
        return response.status_code, error["code"], error["message"]

    async def domain(self, **settings: Any) -> str:
        domain = await self.ok("POST", "/api/domains", {"name": "Law", "settings": settings})
        return str(domain["id"])

    async def conversation(self, domain: str | None = None, **fields: Any) -> str:
        body = {"domainId": domain or await self.domain(), **fields}
        return str((await self.ok("POST", "/api/conversations", body))["id"])

    async def say(self, conversation: str, content: str, **fields: Any) -> list[Json]:
        """Send a message and return the events of its turn, read from the stream."""
        path = f"/api/conversations/{conversation}/messages"
        with anyio.fail_after(TURN_SECONDS):  # a turn that waits for an unanswered question would hang forever
            response = await self.http.post(path, json={"content": content, **fields})
        assert response.status_code == 200, response.text
        return events_of(response.text)

    async def upload(self, domain: str, name: str, content: bytes) -> Json:
        """Upload a file and return its document once it is indexed or failed."""
        path = f"/api/domains/{domain}/documents"
        upload = await self.ok("POST", path, files={"file": (name, content)})
        return await self.settled(domain, upload["items"][0]["id"])

    async def settled(self, domain: str, document: str) -> Json:
        """Return a document once it is indexed or failed."""
        await self._wait_until(lambda conn: (row := documents.get(conn, DocumentId(document))) is None or _is_done(row))
        path = f"/api/domains/{domain}/documents/{document}"
        return await self._until(path, lambda document: document["status"] in ("indexed", "failed"))

    async def taken_up(self, domain: str) -> None:
        """Wait until a domain has documents and all of them are finished."""
        await self._wait_until(lambda conn: bool(rows := documents.list_of(conn, domain)) and all(map(_is_done, rows)))
        await self._until(f"/api/domains/{domain}/documents", lambda page: _all_settled(page["items"]))

    async def _wait_until(self, met: Callable[[Any], bool]) -> None:
        """Wait until a condition is met, a function of a database connection.

        A request costs ten times the CPU time of such a check, and the first document takes a dozen checks.
        """
        with anyio.fail_after(WAIT_SECONDS):
            for checks in count():
                if await self.application.database.read(met):
                    return
                await pause(checks)

    async def dense(self, domain: str, document: str) -> Json:
        """Return a document when its dense vectors are available."""
        path = f"/api/domains/{domain}/documents/{document}"
        return await self._until(path, lambda record: record["denseState"] == "ready")

    async def reindexed(self, domain: str) -> Json:
        """Return the state of a domain's collection when it is not being rebuilt."""
        return await self._until(f"/api/domains/{domain}/reindex", lambda state: state["state"] != "rebuilding")

    async def _until(self, path: str, condition: Callable[[Json], bool]) -> Json:
        with anyio.fail_after(WAIT_SECONDS):
            for checks in count():
                answer: Json = await self.ok("GET", path)
                if condition(answer):
                    return answer
                await pause(checks)
        raise AssertionError("unreachable")


def _matches(route: Route, scope: Scope) -> bool:
    return route.matches(scope)[0] is Match.FULL


def _all_settled(items: list[Json]) -> bool:
    return bool(items) and all(item["status"] in ("indexed", "failed") for item in items)


def _is_done(document: DocumentRecord) -> bool:
    return document.status in (DocumentStatus.INDEXED, DocumentStatus.FAILED)


def events_of(text: str) -> list[Json]:
    """Parse an event stream. Each id and name must match the data."""
    events = []
    for part in text.split("\n\n"):
        lines: Mapping[str, str] = dict(line.split(": ", 1) for line in part.splitlines() if not line.startswith(":"))
        if lines:
            event = orjson.loads(lines["data"])
            assert lines["event"] == event["type"]
            assert lines["id"] == f"{event['turnId']}:{event['seq']}"
            events.append(event)
    return events


def types_of(events: list[Json]) -> list[str]:
    return [event["type"] for event in events]

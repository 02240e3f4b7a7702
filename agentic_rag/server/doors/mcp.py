"""The route `/mcp/{domain}`: a domain as an MCP server over streamable HTTP, for both generations of the protocol.

Keeps separate sessions for each key or authorization of a user at each domain, so that nobody else can use a session
id. Checks the scopes of OAuth tokens, and rewrites the validation errors of the protocol's library in readable words.
`agentic_rag.server.doors.mcp_server` implements the tools. That module is imported in a thread on the first request,
because the protocol's library takes half a second.
"""

import importlib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import orjson
from anyio.abc import TaskGroup
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from agentic_rag import __version__
from agentic_rag.access.authorizations import TOOL_SCOPES
from agentic_rag.base.errors import InsufficientScope, InternalError, InvalidInput
from agentic_rag.base.json_form import Json, to_text
from agentic_rag.directory.directory import Directory
from agentic_rag.server.auth import Caller, own_url_of
from agentic_rag.server.replies import request_id
from agentic_rag.server.routing import MAX_JSON_BYTES, read_body, route
from agentic_rag.server.services import McpServices
from agentic_rag.store.domains import DomainRecord

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

log = logging.getLogger(__name__)

SESSIONS = 32
"""Maximum open sessions of one key at one domain; clients of the newer protocol have none."""
CARD_SCHEMA = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
CARD_MEDIA_TYPE = "application/mcp-server-card+json"
CARD_CHARS = 100
"""Maximum characters of a text in a server card."""
PROTOCOL_VERSIONS = ("2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""All versions that the door serves."""
IDLE_SECONDS = 600.0
"""Idle time after which a session is closed."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of sessions: a user, the credential of the request (empty if none was needed), and the domain."""

    user_id: str
    key_id: str
    domain: str


class _Room:
    """The sessions of one owner, and the number of requests in progress."""

    def __init__(self) -> None:
        self.manager: StreamableHTTPSessionManager | None = None
        self.over = anyio.Event()
        self._open = anyio.Event()
        self._inside = 0
        self._left_at = anyio.current_time()

    def let_in(self, manager: "StreamableHTTPSessionManager | None") -> None:
        """Release the waiting requests. None means that there is no manager."""
        self.manager = manager
        self._open.set()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Count a request inside the block."""
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._left_at = anyio.current_time()

    async def wait_open(self) -> None:
        """Wait until the manager is ready."""
        await self._open.wait()

    def is_left(self, seconds: float) -> bool:
        """Return whether the room was unused for so long that all its sessions are closed."""
        return not self._inside and anyio.current_time() - self._left_at > seconds


class McpDoor:
    """All sessions of the process. An async context manager that closes them at its end.

    ``sessions`` is the maximum of one owner, ``idle_seconds`` the idle time before a session is closed.
    ``keeps_sessions`` is False if the next request may reach another process; then every request stands alone.
    """

    def __init__(
        self,
        services: McpServices,
        *,
        sessions: int = SESSIONS,
        idle_seconds: float = IDLE_SECONDS,
        keeps_sessions: bool = True,
    ) -> None:
        self._services = services
        self._sessions = sessions
        self._idle_seconds = idle_seconds
        self._keeps_sessions = keeps_sessions
        self._rooms: dict[Owner, _Room] = {}
        self._loading = anyio.Lock()
        self._server: Server[Any] | None = None
        self._tasks: TaskGroup

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(exc_type, exc, tb)

    async def answer(self, owner: Owner, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of an authenticated owner."""
        # No task looks for unused rooms; each request does.
        self._close_left()
        room = self._rooms.get(owner)
        if room is None:
            room = self._rooms[owner] = _Room()
            self._tasks.start_soon(self._keep, owner, room)
        with room.hold():
            await room.wait_open()
            if room.manager is None:
                raise InternalError(request_id(scope))
            await room.manager.handle_request(scope, receive, ReadableErrors(send, request_id(scope)))

    def _close_left(self) -> None:
        # After twice the idle time the library has closed every session of the room.
        for owner in [owner for owner, room in self._rooms.items() if room.is_left(2 * self._idle_seconds)]:
            self._rooms.pop(owner).over.set()

    async def _keep(self, owner: Owner, room: _Room) -> None:
        """Run a room until its end. An error ends only this owner's sessions: the next request creates another room."""
        try:
            await self._run(room)
        except Exception:  # from the protocol's library; other owners' sessions continue
            log.exception("the MCP sessions of a key ended")
        finally:
            # Requests that wait for the manager would wait for ever; they are refused.
            room.let_in(None)
            # `_close_left` may have taken this room out, and a request may have opened another one since.
            if self._rooms.get(owner) is room:
                del self._rooms[owner]

    async def _run(self, room: _Room) -> None:
        """Run the manager of a room, which has to be entered and left in the same task."""
        # The library takes long to load, so this waits for the first request, and for one request only.
        async with self._loading:
            if self._server is None:
                await anyio.to_thread.run_sync(importlib.import_module, "agentic_rag.server.doors.mcp_server")
                from agentic_rag.server.doors.mcp_server import make_server  # the thread above imported this module

                self._server = make_server(self._services)
        from agentic_rag.server.doors.mcp_server import make_manager

        idle_seconds = self._idle_seconds if self._keeps_sessions else None
        manager = make_manager(self._server, self._sessions, idle_seconds, MAX_JSON_BYTES)
        async with manager.run():
            room.let_in(manager)
            await room.over.wait()


def make_card(address: str, record: DomainRecord) -> Json:
    """Return the server card of a domain. ``address`` is the server's, whose host names the card in reverse."""
    host = (urlsplit(address).hostname or "localhost").replace(":", "-")
    title = clip(record.name)
    about = record.description.strip() or f"Search and questions over the documents of {record.name}."
    key = {"name": "Authorization", "description": "Bearer and a key", "isRequired": True, "isSecret": True}
    remote: Json = {
        "type": "streamable-http",
        "url": f"{address}/mcp/{record.id}",
        "headers": [key],
        "supportedProtocolVersions": list(PROTOCOL_VERSIONS),
    }
    return {
        "$schema": CARD_SCHEMA,
        "name": f"{'.'.join(reversed(host.split('.')))}/{record.id}",
        "version": __version__,
        "description": clip(about),
        "title": title,
        "remotes": [remote],
    }


def clip(text: str) -> str:
    """Return a text in one line that a card accepts."""
    line = " ".join(text.split())
    return line if len(line) <= CARD_CHARS else f"{line[: CARD_CHARS - 1]}…"


class RpcAnswer:
    """The ASGI answer of the door: JSON-RPC as JSON or as an event stream."""

    def __init__(self, door: McpDoor, owner: Owner, body: bytes | None = None) -> None:
        """``body`` is the request's body, if it was read before."""
        self._door = door
        self._owner = owner
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        if self._body is not None:
            receive = _Replay(self._body, receive)
        await self._door.answer(self._owner, scope, receive, send)


class _Replay:
    """Receives a body that was read before, then what follows."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._receive = receive
        self._messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def __call__(self) -> Message:
        return self._messages.pop() if self._messages else await self._receive()


class McpRoutes:
    """The routes of MCP clients. There is no GET stream, because the server sends nothing unasked."""

    def __init__(self, directory: Directory, door: McpDoor) -> None:
        self._directory = directory
        self._door = door

    @route("POST", "/mcp/{domain}", allow="member", streams=True, errors=[InsufficientScope])
    async def call(self, request: Request, caller: Caller, domain: str) -> RpcAnswer:
        """Handle a message of an MCP client: tools, resources and prompts of a domain, over streamable HTTP.

        With an OAuth token, the scopes `search`, `ask` and `remember` decide which tools are listed and may be called.
        """
        await self._directory.get(domain)
        body: bytes | None = None
        if caller.entrant.scopes is not None:
            # The protocol asks for an HTTP status, which is decided before its library sees the message.
            body = await read_body(request, MAX_JSON_BYTES)
            check_scope(body, caller.entrant.scopes)
        return RpcAnswer(self._door, _owner(caller, domain), body)

    @route("DELETE", "/mcp/{domain}", allow="member")
    async def close(self, caller: Caller, domain: str) -> RpcAnswer:
        """Close a session of an MCP client (`Mcp-Session-Id`)."""
        await self._directory.get(domain)
        return RpcAnswer(self._door, _owner(caller, domain))

    @route("GET", "/mcp/{domain}/server-card", allow="member")
    async def card(self, request: Request, domain: str) -> Response:
        """Show the server card of a domain (SEP-2127): its name, and where and how an MCP client connects."""
        record = await self._directory.get(domain)
        return Response(to_text(make_card(own_url_of(request.scope), record)), media_type=CARD_MEDIA_TYPE)


def _owner(caller: Caller, domain: str) -> Owner:
    return Owner(caller.user.id, caller.entrant.key_id or "", domain)


def check_scope(body: bytes, scopes: frozenset[str]) -> None:
    """Check that a message's tool is within a token's scopes. A message that is no call of a tool is not checked.

    Raises:
        InsufficientScope: names the scope of the tool.
    """
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError:
        return  # the protocol's library refuses it
    if not isinstance(message, dict) or message.get("method") != "tools/call":
        return
    params = message.get("params")
    name = params.get("name") if isinstance(params, dict) else None
    needed = TOOL_SCOPES.get(name) if isinstance(name, str) else None
    if needed is not None and needed not in scopes:
        raise InsufficientScope(needed)


_LIBRARY: Final = "Validation error: "
"""The beginning of the library's validation errors."""
_PLACE = re.compile(r"^JSONRPCRequest\.(\S+)\n +(.+?) \[type=", re.MULTILINE)


def readable_error(error: str) -> str | None:
    """Return a readable form of the library's validation error, or None for other texts."""
    if not error.startswith(_LIBRARY):
        return None
    match = _PLACE.search(error)
    if match is None:
        return str(InvalidInput("body", "a message of JSON-RPC 2.0 is expected: `jsonrpc`, `id`, `method`, `params`."))
    place, problem = match.groups()
    problem = "this key is required" if problem == "Field required" else problem
    return str(InvalidInput(place, f"{problem.replace('a valid dictionary', 'an object')}."))


class ReadableErrors:
    """An ASGI ``send`` that rewrites validation errors of the library and passes all other answers.

    A rewritten error names the invalid part of the message, without the library's type names and links.
    """

    def __init__(self, send: Send, reference: str) -> None:
        """Wrap ``send``. ``reference`` is the id under which the request is logged."""
        self._send = send
        self._reference = reference
        self._start: Message | None = None

    async def __call__(self, message: Message) -> None:
        """Send an ASGI message."""
        if message["type"] == "http.response.start" and message["status"] == 400:
            self._start = message  # held until its body arrives
            return
        start, self._start = self._start, None
        if start is None:
            await self._send(message)
            return
        body = message.get("body", b"")
        rewritten = b"" if message.get("more_body") else self._rewrite(body)
        if rewritten:
            others = [field for field in start["headers"] if field[0].lower() != b"content-length"]
            start = {**start, "headers": [*others, (b"content-length", str(len(rewritten)).encode())]}
            message = {**message, "body": rewritten}
        await self._send(start)
        await self._send(message)

    def _rewrite(self, body: bytes) -> bytes:
        """Return the rewritten body, or empty bytes to keep the original."""
        try:
            answer: Json = orjson.loads(body)
            words = readable_error(answer["error"]["message"])
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            return b""
        if words is None:
            return b""
        data = {"code": InvalidInput.code, "message": words, "requestId": self._reference}  # as in our other errors
        return orjson.dumps({**answer, "error": {**answer["error"], "message": words, "data": data}})

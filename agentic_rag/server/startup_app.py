"""What is answered while the store is waited for: the version, and to all else that it is not there yet.

Knows no reason: before there is a store nobody can show a key, so why it is not there stands in the log only.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from agentic_rag import __version__
from agentic_rag.base.errors import StorageUnavailable
from agentic_rag.base.json_form import to_json
from agentic_rag.server.auth import Gate, Guard
from agentic_rag.server.hosts import Hosts
from agentic_rag.server.http import Version
from agentic_rag.server.replies import json_response, refusal, request_id, send_refusal

RETRY_SECONDS = 5
"""What clients are told to wait."""


def make_waiting_app(hosts: Hosts) -> ASGIApp:
    """Return the ASGI application of a server without a store; it has no lifespan of its own."""
    return Guard(_answer, Gate(hosts=hosts))


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    if (scope.get("method"), scope["path"]) == ("GET", "/api/version"):
        response = json_response(to_json(Version(__version__)))
    else:
        response = refusal(StorageUnavailable("it is not there yet"), request_id(scope))
        response.headers["retry-after"] = str(RETRY_SECONDS)
    if scope.get("http_version", "1").startswith("1"):
        response.headers["connection"] = "close"  # the next request may be answered by the application itself
    await send_refusal(response, scope, receive, send)

"""Answer requests while the server waits for its database: the version, and 503 for anything else.

The answers give no reason, because no caller can be authenticated without a database. The log has the reason.
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
"""Seconds after which clients should retry."""


def make_waiting_app(hosts: Hosts) -> ASGIApp:
    """Return the ASGI application of a server without a database. The application has no lifespan."""
    return Guard(_answer, Gate(hosts=hosts))


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    if (scope.get("method"), scope["path"]) == ("GET", "/api/version"):
        response = json_response(to_json(Version(__version__)))
    else:
        response = refusal(StorageUnavailable("it is not there yet"), request_id(scope))
        response.headers["retry-after"] = str(RETRY_SECONDS)
    if scope.get("http_version", "1").startswith("1"):
        response.headers["connection"] = "close"  # closed, because the real application may answer the next request
    await send_refusal(response, scope, receive, send)

"""Add the error fields of other protocols to refusals on their paths.

A stock client of the protocol then reads its own error form, and our clients read ours in the same body. This module
defines the list of paths. Pure; it knows no route and no error.
"""

from typing import Protocol

from agentic_rag.base.json_form import Json
from agentic_rag.server.dialects.openai_answer import error_type


class ErrorShape(Protocol):
    """Adds a protocol's own fields to an error's body."""

    def __call__(self, body: Json, status: int) -> Json:
        """Return the body with the protocol's fields.

        ``body`` is ``{"error": {"code", "message", "requestId", "details"?}}``. ``status`` is the HTTP status.
        """
        ...


def shape_error(path: str, body: Json, status: int) -> Json:
    """Return the body of a refusal on a path."""
    shape = _shape_at(path)
    return body if shape is None else shape(body, status)


def keeps_error_form(path: str) -> bool:
    """Return whether refusals on a path have our ``error`` in its place, perhaps with more fields."""
    return _shape_at(path) not in (rpc_error, a2a_error, oauth_error)


def _shape_at(path: str) -> ErrorShape | None:
    for prefix, shape in _SHAPES:
        if path == prefix or path.startswith(prefix if prefix.endswith("/") else f"{prefix}/"):
            return shape
    return None


def run_error(body: Json, status: int) -> Json:
    """Return AG-UI's event that ends a run with an error."""
    error = body["error"]
    return {"type": "RUN_ERROR", "message": error["message"], "code": error["code"], **body}


def error_chunk(body: Json, status: int) -> Json:
    """Return the error chunk of the UI message stream."""
    return {"type": "error", "errorText": body["error"]["message"], **body}


def chat_error(body: Json, status: int) -> Json:
    """Return chat's error line, which precedes ``[DONE]``. There is no session yet."""
    error = body["error"]
    return {"type": "error", "data": {"error": error["message"], "code": error["code"]}, **body}


def knowledge_error(body: Json, status: int) -> Json:
    """Return the data of knowledge's ``error`` event."""
    return {"message": body["error"]["message"], "code": body["error"]["code"], **body}


_PARAMETERS = {
    "DOMAIN_NOT_FOUND": ("model", "model_not_found"),
    "TURN_NOT_FOUND": ("previous_response_id", "previous_response_not_found"),
    "CONVERSATION_NOT_FOUND": ("conversation", "conversation_not_found"),
}
"""Our codes that have other names in OpenAI's API, with the parameter at fault."""


def openai_error(body: Json, status: int) -> Json:
    """Add OpenAI's type, parameter and code. An unknown domain becomes an unknown model."""
    error = body["error"]
    param, code = _PARAMETERS.get(error["code"], (error.get("details", {}).get("path"), error["code"]))
    return {"error": {**error, "type": error_type(status), "param": param, "code": code}}


def response_error(body: Json, status: int) -> Json:
    """Return OpenAI's error for a single response. A missing turn becomes a missing response."""
    shaped = openai_error(body, status)
    if body["error"]["code"] == "TURN_NOT_FOUND":
        shaped["error"] |= {"param": "response_id", "code": "response_not_found"}
    return shaped


def rpc_error(body: Json, status: int) -> Json:
    """Return MCP's JSON-RPC error, which refers to no particular request."""
    error = body["error"]
    return {"jsonrpc": "2.0", "id": None, "error": {**error, "code": RPC_REFUSED, "data": error}}


_OAUTH_CODES = {429: "temporarily_unavailable", 503: "temporarily_unavailable"}


def oauth_error(body: Json, status: int) -> Json:
    """Return an error of the authorization server (RFC 6749 5.2). Our own error is in ``detail``."""
    code = _OAUTH_CODES.get(status, "server_error" if status >= 500 else "invalid_request")
    return {"error": code, "error_description": body["error"]["message"], "detail": body["error"]}


def a2a_error(body: Json, status: int) -> Json:
    """Return A2A's JSON-RPC error of a request that was refused before its method was known."""
    error = body["error"]
    code = INVALID_REQUEST if status == 422 else RPC_REFUSED
    if status == 422 and error.get("details", {}).get("path") == "body":
        code = PARSE_ERROR
    return {"jsonrpc": "2.0", "id": None, "error": {**error, "code": code, "data": a2a_details(error["code"], error)}}


def a2a_details(reason: str, error: Json) -> list[Json]:
    """Return the details of an A2A error: the protocol's reason, and our code, request id and facts as metadata."""
    facts = {name: error[name] for name in ("code", "requestId", "details") if error.get(name)}
    kind = "type.googleapis.com/google.rpc.ErrorInfo"
    return [{"@type": kind, "reason": reason, "domain": "a2a-protocol.org", "metadata": facts}]


PARSE_ERROR = -32700
INVALID_REQUEST = -32600
RPC_REFUSED = -32000
"""JSON-RPC code for errors that a server defines itself. Our own error is in ``data``."""
OPENAI = "/v1/"
# The first that matches counts, so a single response stands before the other paths of OpenAI's API. Paths without a
# last slash match themselves and what is below them: `/api/conversation` does not match `/api/conversations`.
_SHAPES: tuple[tuple[str, ErrorShape], ...] = (
    ("/api/ag-ui/", run_error),
    ("/api/ui-message/", error_chunk),
    ("/api/conversation", knowledge_error),
    ("/api/v1/chat", chat_error),
    ("/v1/responses/", response_error),
    (OPENAI, openai_error),
    ("/mcp/", rpc_error),
    ("/a2a/", a2a_error),
    ("/oauth/", oauth_error),
)


def status_at(path: str, status: int) -> int:
    """Return the HTTP status of a refusal on a path.

    Clients of two protocols expect 400 for invalid input instead of 422.
    """
    is_theirs = path.startswith(OPENAI) or (path.startswith("/api/turns/") and path.endswith("/stream"))
    return 400 if status == 422 and is_theirs else status


def headers_at(path: str, *, retryable: bool) -> dict[str, str]:
    """Return the headers of a refusal on a path. OpenAI's clients retry automatically unless a header forbids it."""
    return {"x-should-retry": "true" if retryable else "false"} if path.startswith(OPENAI) else {}

"""How a refusal is written on the paths of other protocols: their own error beside ours, so that a stock client of one
says what was wrong and a client of ours finds what it finds everywhere.

Owns the list of paths. Pure; knows no route and no error.
"""

from typing import Protocol

from agentic_rag.base.json_form import Json
from agentic_rag.server.dialects.openai_answer import error_type


class ErrorShape(Protocol):
    """Adds a protocol's own fields to an error's body."""

    def __call__(self, body: Json, status: int) -> Json:
        """``body``: ``{"error": {"code", "message", "requestId", "details"?}}``. ``status``: of the HTTP answer."""
        ...


def shape_error(path: str, body: Json, status: int) -> Json:
    """Return the body of a refusal at a path."""
    for prefix, shape in _SHAPES:
        if path == prefix or path.startswith(prefix if prefix.endswith("/") else f"{prefix}/"):
            return shape(body, status)
    return body


def run_error(body: Json, status: int) -> Json:
    """AG-UI: the event that ends a run."""
    error = body["error"]
    return {"type": "RUN_ERROR", "message": error["message"], "code": error["code"], **body}


def error_chunk(body: Json, status: int) -> Json:
    """UI message stream: the chunk that says why there is no answer."""
    return {"type": "error", "errorText": body["error"]["message"], **body}


def chat_error(body: Json, status: int) -> Json:
    """Chat: the last of its lines before ``[DONE]``; there is no session yet."""
    error = body["error"]
    return {"type": "error", "data": {"error": error["message"], "code": error["code"]}, **body}


def knowledge_error(body: Json, status: int) -> Json:
    """Knowledge: the data of its ``error`` event."""
    return {"message": body["error"]["message"], "code": body["error"]["code"], **body}


_PARAMETERS = {
    "DOMAIN_NOT_FOUND": ("model", "model_not_found"),
    "TURN_NOT_FOUND": ("previous_response_id", "previous_response_not_found"),
    "CONVERSATION_NOT_FOUND": ("conversation", "conversation_not_found"),
}
"""Codes that OpenAI's clients know by another word, with the parameter that was wrong."""


def openai_error(body: Json, status: int) -> Json:
    """OpenAI: type, parameter and code beside the message; an unknown domain is an unknown model."""
    error = body["error"]
    param, code = _PARAMETERS.get(error["code"], (error.get("details", {}).get("path"), error["code"]))
    return {"error": {**error, "type": error_type(status), "param": param, "code": code}}


def response_error(body: Json, status: int) -> Json:
    """OpenAI, of one response: it is what is not there."""
    shaped = openai_error(body, status)
    if body["error"]["code"] == "TURN_NOT_FOUND":
        shaped["error"] |= {"param": "response_id", "code": "response_not_found"}
    return shaped


def rpc_error(body: Json, status: int) -> Json:
    """MCP: an error of JSON-RPC to no request in particular."""
    error = body["error"]
    return {"jsonrpc": "2.0", "id": None, "error": {**error, "code": RPC_REFUSED, "data": error}}


RPC_REFUSED = -32000
"""JSON-RPC's code for what a server refuses for reasons of its own; ours stands in ``data``."""
OPENAI = "/v1/"
_SHAPES: tuple[tuple[str, ErrorShape], ...] = (
    ("/api/ag-ui/", run_error),
    ("/api/ui-message/", error_chunk),
    ("/api/conversation", knowledge_error),
    ("/api/v1/chat", chat_error),
    ("/v1/responses/", response_error),
    (OPENAI, openai_error),
    ("/mcp/", rpc_error),
)


def status_at(path: str, status: int) -> int:
    """Return the status of a refusal at a path: clients of two protocols know what does not fit as 400."""
    is_theirs = path.startswith(OPENAI) or (path.startswith("/api/turns/") and path.endswith("/stream"))
    return 400 if status == 422 and is_theirs else status


def headers_at(path: str, *, retryable: bool) -> dict[str, str]:
    """Return the header lines of a refusal at a path: OpenAI's clients repeat by themselves, unless they are told."""
    return {"x-should-retry": "true" if retryable else "false"} if path.startswith(OPENAI) else {}

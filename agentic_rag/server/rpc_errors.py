"""Rewrite the MCP library's validation errors in readable words.

The rewritten error names the invalid part of the message, without the library's type names and links. Other answers
pass unchanged.
"""

import re
from typing import Final

import orjson
from starlette.types import Message, Send

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.json_form import Json

_LIBRARY: Final = "Validation error: "
_PLACE = re.compile(r"^JSONRPCRequest\.(\S+)\n +(.+?) \[type=", re.MULTILINE)


def plain_words(error: str) -> str | None:
    """Return a readable form of the library's validation error, or None for other texts."""
    if not error.startswith(_LIBRARY):
        return None
    match = _PLACE.search(error)
    if match is None:
        return str(InvalidInput("body", "a message of JSON-RPC 2.0 is expected: `jsonrpc`, `id`, `method`, `params`."))
    place, problem = match.groups()
    problem = "this key is required" if problem == "Field required" else problem
    return str(InvalidInput(place, f"{problem.replace('a valid dictionary', 'an object')}."))


class PlainAnswer:
    """An ASGI ``send`` that rewrites validation errors of the library and passes all other answers."""

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
            words = plain_words(answer["error"]["message"])
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            return b""
        if words is None:
            return b""
        data = {"code": InvalidInput.code, "message": words, "requestId": self._reference}
        return orjson.dumps({**answer, "error": {**answer["error"], "message": words, "data": data}})

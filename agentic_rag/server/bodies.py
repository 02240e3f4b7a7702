"""What a request brings: JSON bodies under a cap, query parameters, and uploaded files as streams.

Owns the caps and the plain words for what cannot be read. Knows no record: values go to the forms of whoever
asks, file bytes to whoever takes them.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel
from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import parse_options_header
from starlette.requests import Request

from agentic_rag.errors import InvalidInput
from agentic_rag.forms import read_form

FormT = TypeVar("FormT", bound=BaseModel)

MAX_JSON_BYTES = 1024 * 1024


async def json_body(request: Request) -> Any:
    """Return the parsed body; an absent one is ``{}``.

    Raises:
        InvalidInput: not JSON, or too large.
    """
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_JSON_BYTES:
            raise InvalidInput("body", f"larger than {MAX_JSON_BYTES // 1024} KiB.")
    if not body.strip():
        return {}
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidInput("body", f"not valid JSON: {exc}.") from exc


async def json_form(request: Request, model: type[FormT]) -> FormT:
    """Return the body as a form; a body that is no object is refused by the form."""
    return read_form(model, await json_body(request))


def query_form(request: Request, model: type[FormT]) -> FormT:
    """Return the query parameters as a form."""
    return read_form(model, dict(request.query_params))


@dataclass(slots=True)
class FilePart:
    """A file of a multipart body begins. ``name`` is what the client called it: data, never a path."""

    name: str


@dataclass(slots=True)
class _Parts:
    """Collects what the parser reports between two reads of the body."""

    found: list[FilePart | bytes | None] = field(default_factory=list)
    _header: bytes = b""
    _value: bytes = b""
    _disposition: bytes = b""
    _is_file: bool = False

    def on_part_begin(self) -> None:
        self._disposition = b""

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"filename")
        self._is_file = name is not None
        if name is not None:
            self.found.append(FilePart(name.decode("utf-8", "replace")))

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self.found.append(data[start:end])

    def on_part_end(self) -> None:
        if self._is_file:
            self.found.append(None)


async def files(request: Request) -> AsyncGenerator[FilePart | bytes | None, None]:
    """Yield each file of a multipart body: a `FilePart`, its bytes in pieces, then None.

    Other fields are skipped. Nothing is kept: a body may be as large as the taker of the pieces allows.

    Raises:
        InvalidInput: the body is not ``multipart/form-data``, is broken, or ends too early.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise InvalidInput("body", "files are sent as multipart/form-data.")
    parts = _Parts()
    callbacks = {name: getattr(parts, name) for name in dir(parts) if name.startswith("on_")}
    parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]  # a TypedDict of these names
    open_part = False
    try:
        async for piece in request.stream():
            parser.write(piece)
            found, parts.found = parts.found, []
            for item in found:
                open_part = item is not None
                yield item
        parser.finalize()
    except MultipartParseError as exc:
        raise InvalidInput("body", "not a valid multipart body.") from exc
    if open_part:
        raise InvalidInput("body", "the multipart body ends inside a file.")

"""Receive the files of one upload one after another. Each file is accepted or refused independently.

This module reads multipart bodies as streams, decides what happens to the remaining files after a refusal, and limits
the bytes read in vain. It knows no file format and no route.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import Request

from agentic_rag.base.errors import AgenticRagError, InvalidInput, NotFound
from agentic_rag.documents.files import Incoming
from agentic_rag.server.routing import check_announced

Received = TypeVar("Received")

MAX_FILES = 100
"""Maximum files in one upload."""
MULTIPART_BYTES = 64 * 1024
"""Maximum overhead of a multipart body for each file: its headers, and skipped fields."""


@dataclass(frozen=True, slots=True)
class RefusedFile:
    """A refused file with its client's name for it. ``name`` is empty if the body broke between two files."""

    name: str
    error: AgenticRagError


async def receive_files(
    request: Request,
    receive: Callable[[str], Awaitable[Incoming[Received]]],
    max_bytes: int,
    *,
    max_files: int = MAX_FILES,
    refuses_whole: bool = True,
) -> list[Received | RefusedFile]:
    """Receive the files of a multipart body, and return a record or a refusal for each, in order.

    If the body cannot be read any further, the result ends with the file that caused this.

    Args:
        receive: begins the upload of a file with the client's name.
        max_bytes: maximum bytes of one file.
        max_files: maximum files of the body.
        refuses_whole: raise the reason of the first file if all were refused.

    Raises:
        BodyTooLarge: the body announces more bytes than ``max_files`` files may have. None of it was read.
        NotFound: the domain or the conversation does not exist (any more).
        AgenticRagError: all files were refused; this is the reason of the first.
    """
    check_announced(request, max_files * (max_bytes + MULTIPART_BYTES))
    state = _UploadState(receive, max_bytes, max_files, _length(request))
    try:
        async with aclosing(read_files(request)) as parts:
            async for part in parts:
                if isinstance(part, FilePart):
                    await state.begin(part.name)
                elif part is not None:
                    await state.write(part)
                else:
                    await state.end()
    except NotFound:
        raise
    except AgenticRagError as exc:
        state.refuse(exc)  # the files before this one are in, so their records are returned with the refusal
    finally:
        await state.drop()
    if not state.items:
        raise InvalidInput("body", "no file was sent.")
    first = state.items[0]
    if refuses_whole and isinstance(first, RefusedFile) and all(isinstance(item, RefusedFile) for item in state.items):
        raise first.error
    return state.items


def _length(request: Request) -> int | None:
    """Return the announced size of the body, or None."""
    announced = request.headers.get("content-length", "")
    return int(announced) if announced.isdecimal() else None


class _UploadState(Generic[Received]):
    """State of an upload: the current file, and the results of the earlier ones."""

    def __init__(
        self,
        receive: Callable[[str], Awaitable[Incoming[Received]]],
        max_bytes: int,
        max_files: int,
        length: int | None,
    ) -> None:
        self.items: list[Received | RefusedFile] = []
        self._receive = receive
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._left = length
        self._name = ""
        self._size = 0
        self._incoming: Incoming[Received] | None = None
        self._error: AgenticRagError | None = None

    async def begin(self, name: str) -> None:
        self._name, self._size = name, 0
        if len(self.items) == self._max_files:
            raise InvalidInput("body", f"more than {self._max_files} files.")
        try:
            incoming = await self._receive(name)
            self._incoming = await incoming.__aenter__()
        except NotFound:
            raise
        except AgenticRagError as exc:
            self._error = exc

    async def write(self, data: bytes) -> None:
        self._size += len(data)
        if self._left is not None:
            self._left -= len(data)
        if self._incoming is not None:
            try:
                await self._incoming.write(data)
            except AgenticRagError as exc:
                self._error = exc
                await self.drop()
        # The file is refused, and reading the rest of the body would cost more than the other files are worth.
        if self._error is not None and self._size > self._max_bytes and not self._is_nearly_over:
            raise self._error

    async def end(self) -> None:
        if self._incoming is not None:
            try:
                self.items.append(await self._incoming.finish())
            except NotFound:
                raise
            except AgenticRagError as exc:
                self._error = exc
            await self.drop()
        if self._error is not None:
            self.refuse(self._error)
        self._name = ""

    def refuse(self, error: AgenticRagError) -> None:
        self.items.append(RefusedFile(self._name, error))
        self._error = None

    async def drop(self) -> None:
        """Close the current file and discard its temporary data."""
        if self._incoming is not None:
            await self._incoming.__aexit__()
            self._incoming = None

    @property
    def _is_nearly_over(self) -> bool:
        """Whether the rest of the body is no larger than one file, so that reading on for further files is cheap."""
        return self._left is not None and self._left <= self._max_bytes


# The multipart body


@dataclass(slots=True)
class FilePart:
    """The start of a file in a multipart body. ``name`` is the client's name for it. Never use it as a path."""

    name: str


@dataclass(slots=True)
class _Parts:
    """Collects the parser's events between two reads of the body."""

    items: list[FilePart | bytes | None] = field(default_factory=list)
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
            self.items.append(FilePart(name.decode("utf-8", "replace")))

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self.items.append(data[start:end])

    def on_part_end(self) -> None:
        if self._is_file:
            self.items.append(None)


async def read_files(request: Request) -> AsyncGenerator[FilePart | bytes | None, None]:
    """Yield each file of a multipart body: a `FilePart`, its bytes in pieces, then None.

    Other fields are skipped. Nothing is buffered, so the caller decides how large a body may be.

    Raises:
        InvalidInput: the body is not ``multipart/form-data``, is malformed, or is truncated.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise InvalidInput("body", "files are sent as multipart/form-data.")
    parts = _Parts()
    callbacks = {name: getattr(parts, name) for name in dir(parts) if name.startswith("on_")}
    open_part = False
    try:
        parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]  # a TypedDict of these names
        async for piece in request.stream():
            parser.write(piece)
            items, parts.items = parts.items, []
            for item in items:
                open_part = item is not None
                yield item
        parser.finalize()  # accepts a body that ends inside a file, hence ``open_part``
    except FormParserError as exc:
        raise InvalidInput("body", "not a valid multipart body.") from exc
    if open_part:
        raise InvalidInput("body", "the multipart body ends inside a file.")

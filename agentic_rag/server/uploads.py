"""The files of one upload, taken one after the other: each comes in or is refused by itself.

Owns what happens to the others when one cannot be taken, and how much is read for nothing. Knows no file format and
no route.
"""

from contextlib import aclosing
from dataclasses import dataclass

from starlette.requests import Request

from agentic_rag.documents.documents import Documents
from agentic_rag.documents.files import Incoming
from agentic_rag.errors import AgenticRagError, InvalidInput, NotFound
from agentic_rag.server.bodies import FilePart, files
from agentic_rag.store.documents import DocumentRecord

MAX_FILES = 100
"""Of one upload."""


@dataclass(frozen=True, slots=True)
class RefusedFile:
    """A file that was not taken, as the client called it; ``name`` is empty when the body broke between two files."""

    name: str
    error: AgenticRagError


async def receive_files(request: Request, documents: Documents, *, replace: bool) -> list[DocumentRecord | RefusedFile]:
    """Take the files of a multipart body; return what became of each, in their order.

    What cannot be read on ends with the file that is the reason: those after it are not in the answer.

    Raises:
        NotFound: there is no such domain (any more).
        AgenticRagError: no file at all could be taken; the reason of the first.
    """
    taking = _Taking(documents, request.path_params["domain"], replace, _length(request))
    try:
        async with aclosing(files(request)) as parts:
            async for part in parts:
                if isinstance(part, FilePart):
                    await taking.begin(part.name)
                elif part is not None:
                    await taking.write(part)
                else:
                    await taking.end()
    except NotFound:
        raise
    except AgenticRagError as exc:
        taking.refuse(exc)
    finally:
        await taking.drop()
    if not taking.items:
        raise InvalidInput("body", "no file was sent.")
    first = taking.items[0]
    if isinstance(first, RefusedFile) and all(isinstance(item, RefusedFile) for item in taking.items):
        raise first.error
    return taking.items


def _length(request: Request) -> int | None:
    """Return the announced size of the body."""
    announced = request.headers.get("content-length", "")
    return int(announced) if announced.isdecimal() else None


class _Taking:
    """The file that is being read, and what became of those before it."""

    def __init__(self, documents: Documents, domain_id: str, replace: bool, length: int | None) -> None:
        self.items: list[DocumentRecord | RefusedFile] = []
        self._documents = documents
        self._domain_id = domain_id
        self._replace = replace
        self._left = length
        self._name = ""
        self._size = 0
        self._incoming: Incoming | None = None
        self._error: AgenticRagError | None = None

    async def begin(self, name: str) -> None:
        self._name, self._size = name, 0
        if len(self.items) == MAX_FILES:
            raise InvalidInput("body", f"more than {MAX_FILES} files.")
        try:
            begun = await self._documents.receive(self._domain_id, name, replace=self._replace)
            self._incoming = await begun.__aenter__()
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
        if self._error is not None and self._size > self._documents.max_bytes and not self._is_nearly_over:
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
        """Leave nothing of the file that is being read but what it became."""
        if self._incoming is not None:
            await self._incoming.__aexit__()
            self._incoming = None

    @property
    def _is_nearly_over(self) -> bool:
        """Whether what is still to come is no more than one file may have: then it is read for the files in it."""
        return self._left is not None and self._left <= self._documents.max_bytes

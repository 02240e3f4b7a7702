"""Images of pages and positions of passages on pages, made by capped processes and cached up to a size limit.

Owns the queue of requested pages, the turns of domains, and the cache. Images are kept in memory only, so that nothing
of a deleted document stays on a disk. Callers check whether a user may see the document. Knows no request.
"""

import logging
import math
import time
from base64 import b64decode
from collections import Counter, OrderedDict
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import cast

import anyio
import orjson

from agentic_rag.base.errors import AgenticRagError, DocumentUnsupported, NotFound, PagesBusy, PageUnreadable
from agentic_rag.base.workers import FairQueue
from agentic_rag.documents.child_process import ChildProcess
from agentic_rag.documents.document_services import DocumentServices
from agentic_rag.documents.files import documents_of, open_document
from agentic_rag.documents.page_job import Box, Marks, PageFrame, PageJob
from agentic_rag.documents.text_positions import Range
from agentic_rag.store.documents import DocumentRecord
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats import IMAGE_ENDINGS, IMAGE_TYPES

log = logging.getLogger(__name__)

CHILD = "agentic_rag.documents.page_child"
PDF = "application/pdf"
OF_A_DOMAIN = 1
"""Pages of one domain in parallel; the other worker stays free for another domain."""
WORKERS = OF_A_DOMAIN + 1
WAITING = 64
"""Pages of one domain that may wait; a reader who scrolls through a document requests a dozen."""
SECONDS = 15.0
"""Limit of wall time and of CPU time for one page."""
MARKS_PATIENCE_SECONDS = 4.0
"""How long a request for marks waits for its turn: the passage is useful without them."""
PATIENCE_SECONDS = 30.0
"""How long a request for a page waits, including the pages before it."""
IDLE_SECONDS = 120.0
"""Seconds after which an idle process is ended."""
MEMORY_BYTES = 1024 * 2**20
"""Memory of one page's process: the file, its unpacked fonts and pictures, and 18 MB of pixels."""
CACHE_BYTES = 64 * 2**20
"""Size of the cache of images and marks: some hundred pages."""
SLOW_SECONDS = 60.0
"""How long a page that timed out is not tried again."""
RESTART_SECONDS = 1.0
"""Seconds after which a worker restarts after an internal error."""
BROKEN_BYTES = 512
"""Bytes that a cached refusal counts as."""


@dataclass(frozen=True, slots=True)
class PageImage:
    """A PNG file."""

    png: bytes


@dataclass(frozen=True, slots=True)
class PageKey:
    """Cache key: a page of a document's bytes, and the parameters of the request."""

    document: str
    sha256: str
    page: int
    width: int
    passage: str = ""
    sentences: tuple[tuple[int, int], ...] = ()
    cited: tuple[tuple[int, int], ...] = ()


_Result = PageImage | Marks | AgenticRagError


@dataclass(slots=True)
class _Wish:
    """A requested page; ``askers`` is the number of requests that wait for it."""

    key: PageKey
    record: DocumentRecord
    workspace: str
    askers: int = 0
    result: _Result | None = None
    begun: anyio.Event = field(default_factory=anyio.Event)
    done: anyio.Event = field(default_factory=anyio.Event)


class PageImages:
    """Images and marks of the pages of all domains. Its tasks live as long as the workers of ``workshop``."""

    def __init__(self, workshop: DocumentServices, *, cache_bytes: int = CACHE_BYTES, seconds: float = SECONDS) -> None:
        """``cache_bytes``: size of the cache. ``seconds``: time limit of one page."""
        self._directory = workshop.directory
        self._threads = workshop.threads
        self._seconds = seconds
        self._cache = PageCache(cache_bytes)
        self._queue: FairQueue[_Wish] = FairQueue(OF_A_DOMAIN)
        self._wishes: dict[PageKey, _Wish] = {}
        self._waiting: Counter[str] = Counter()
        for _ in range(WORKERS):
            workshop.workers.repeat("drawing pages", self._work, RESTART_SECONDS)

    async def image(self, record: DocumentRecord, page: int, width: int) -> PageImage:
        """Return a page, counted from 1, as an image about ``width`` pixels wide; narrower if it would be too large.

        Raises:
            DocumentUnsupported: the document is neither a PDF nor an image.
            NotFound: the document has no such page, or its file no longer exists.
            PageUnreadable: the page cannot be drawn.
            PagesBusy: too many pages of the domain are waiting.
        """
        return cast(PageImage, await self._ask(record, PageKey(record.id, record.sha256, page, width)))

    async def marks(
        self, record: DocumentRecord, page: int, passage: str, sentences: Sequence[Range], cited: Range | None
    ) -> Marks:
        """Return the position of a passage on a page; no boxes if the page's text does not contain the passage.

        ``sentences`` and ``cited`` are parts of the passage. Raises like `image`.
        """
        spans = tuple((span.start, span.end) for span in sentences)
        part = () if cited is None else ((cited.start, cited.end),)
        key = PageKey(record.id, record.sha256, page, 0, passage, spans, part)
        return cast(Marks, await self._ask(record, key, MARKS_PATIENCE_SECONDS))

    async def _ask(self, record: DocumentRecord, key: PageKey, patience: float = PATIENCE_SECONDS) -> PageImage | Marks:
        if record.media_type != PDF and record.media_type not in IMAGE_TYPES:
            raise DocumentUnsupported(record.name, (".pdf", *IMAGE_ENDINGS))
        result = self._cache.get(key)
        if result is None:
            result = await self._wait(record, key, patience)
        if isinstance(result, AgenticRagError):
            raise result.with_traceback(None)  # a cached error is raised often, and each raise would add its frames
        return result

    async def _wait(self, record: DocumentRecord, key: PageKey, patience: float) -> _Result:
        """Queue a page, or join a request for the same page, and return the result.

        A worker must begin within ``patience`` seconds. Raises `PagesBusy` otherwise.
        """
        workspace = (await self._directory.get(record.domain_id)).workspace
        wish = self._wishes.get(key)
        if wish is None:
            if self._waiting[record.domain_id] >= WAITING:
                raise PagesBusy(SECONDS)
            wish = _Wish(key, record, workspace)
            self._wishes[key] = wish
            self._waiting[record.domain_id] += 1
            self._queue.put(record.domain_id, wish)
        wish.askers += 1
        try:
            # A worker has to begin within ``patience``, and to finish within the longer time of all requests.
            with anyio.move_on_after(PATIENCE_SECONDS):
                with anyio.move_on_after(patience):
                    await wish.begun.wait()
                if wish.begun.is_set():
                    await wish.done.wait()
        finally:
            wish.askers -= 1
        if wish.result is None:
            raise PagesBusy(SECONDS)
        return wish.result

    async def _work(self) -> None:
        async with aclosing(ChildProcess(CHILD, self._seconds, "drawing the page")) as process:
            while True:
                wish = await self._next(process)
                domain_id = wish.record.domain_id
                try:
                    if wish.askers:  # otherwise every request for it has given up
                        wish.begun.set()
                        wish.result = await self._find(wish, process)
                        self._cache.put(wish.key, wish.result)
                finally:
                    self._forget(wish)
                    self._queue.release(domain_id)

    async def _next(self, process: ChildProcess) -> _Wish:
        """Return the next requested page; end the process if none comes within `IDLE_SECONDS`."""
        with anyio.move_on_after(IDLE_SECONDS):
            return await self._queue.get()
        await process.aclose()
        return await self._queue.get()

    def _forget(self, wish: _Wish) -> None:
        """Wake the requests that wait for a page, and remove the page from the list of waiting pages."""
        wish.begun.set()
        wish.done.set()
        self._wishes.pop(wish.key, None)
        self._waiting[wish.record.domain_id] -= 1
        if not self._waiting[wish.record.domain_id]:
            del self._waiting[wish.record.domain_id]

    async def _find(self, wish: _Wish, process: ChildProcess) -> _Result:
        """Return the page's image, its marks, or the error to raise."""
        key, record = wish.key, wish.record
        job = PageJob(
            "",
            key.sha256,
            key.page,
            key.width,
            MEMORY_BYTES,
            self._seconds,
            key.passage,
            key.sentences,
            key.cited,
            record.media_type != PDF,
        )
        began = time.monotonic()
        try:
            folder = documents_of(wish.workspace)
            with await self._threads.run(record.domain_id, open_document, folder, record.path) as file:
                await process.send(orjson.dumps(job), file)
                frame: PageFrame | None = await process.frame()
            if frame is None or await process.frame() is not None:
                raise DocumentError("DOCUMENT_BROKEN", "the reader crashed on this file")
        except DocumentError as exc:
            await process.reset()
            log.info("page %s of %s is not shown: %s", key.page, record.id, exc.code)
            if exc.code == "DOCUMENT_MISSING":
                return NotFound("file", record.name)
            return PageUnreadable(exc.code, exc.message)
        except AgenticRagError as exc:  # the folder does not answer
            return exc
        except BaseException:  # cancelled: the process would answer the next job with this page
            with anyio.CancelScope(shield=True):
                await process.reset()
            raise
        log.debug("page %s of %s took %.3f s", key.page, record.id, time.monotonic() - began)
        return _read(frame, key)


def _read(frame: PageFrame, key: PageKey) -> _Result:
    """Convert a process's answer, checking every value: an untrusted file may have taken over the process."""
    if "width" not in frame:
        return NotFound("page", str(key.page))
    try:
        if key.width:
            return PageImage(b64decode(frame["png"]))
        passage, cited = (tuple(_box(box) for box in frame[name]) for name in ("passage", "cited"))
        return Marks(float(frame["width"]), float(frame["height"]), passage, cited, bool(frame["whole"]))
    except (KeyError, TypeError, ValueError):
        return PageUnreadable("DOCUMENT_BROKEN", "the reader gave an answer that cannot be used")


def _box(numbers: Sequence[float]) -> Box:
    x, y, width, height = (min(max(float(number), 0.0), 1.0) for number in numbers)
    return Box(x, y, width, height)


class PageCache:
    """A cache of results up to a number of bytes; the least recently used entry is dropped first.

    A page that cannot be drawn is cached too, so that it costs its time only once. A timeout is cached for
    `SLOW_SECONDS` only, since the machine may have been busy. Temporary errors are not cached.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = 0
        self._entries: OrderedDict[PageKey, tuple[_Result, int, float]] = OrderedDict()

    def get(self, key: PageKey) -> _Result | None:
        """Return a cached result; None if there is none or it has expired."""
        result, _, until = self._entries.get(key, (None, 0, 0.0))
        if result is None or until < time.monotonic():
            return None
        self._entries.move_to_end(key)
        return result

    def put(self, key: PageKey, result: _Result) -> None:
        """Cache a result if its kind and size allow it."""
        until = math.inf
        if isinstance(result, AgenticRagError):
            if not isinstance(result, PageUnreadable):
                return
            until = time.monotonic() + SLOW_SECONDS if result.reason == "DOCUMENT_TIMEOUT" else until
        size = _size_of(result) + len(key.passage.encode("utf-8", "replace"))  # the key holds the passage
        if size > self._most:
            return
        _, before, _ = self._entries.pop(key, (None, 0, 0.0))
        self._entries[key] = (result, size, until)
        self.size -= before
        self.size += size
        while self.size > self._most:
            _, (_, dropped_size, _) = self._entries.popitem(last=False)
            self.size -= dropped_size


def _size_of(result: _Result) -> int:
    if isinstance(result, PageImage):
        return len(result.png) + BROKEN_BYTES
    boxes = len(result.passage) + len(result.cited) if isinstance(result, Marks) else 0
    return BROKEN_BYTES + 200 * boxes

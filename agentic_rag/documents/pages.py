"""Pages of PDFs as images, and where on them passages stand: asked of capped processes, remembered within a bound.

Owns who waits for which page, how domains take turns, and what is remembered. What was drawn lies in memory alone: of a
deleted document nothing is left on a disk, and who may not see the document is not asked for it here. Knows no request.
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
"""Pages of one domain at once; the other place is kept for another domain."""
WORKERS = OF_A_DOMAIN + 1
WAITING = 64
"""Pages of one domain that may wait; who scrolls through a document asks for a dozen."""
SECONDS = 15.0
"""What one page may take, and of the processor's time."""
MARKS_PATIENCE_SECONDS = 4.0
"""What marks are waited for until it is their turn: the passage is worth reading without them."""
PATIENCE_SECONDS = 30.0
"""What a page is waited for, others' before it included."""
IDLE_SECONDS = 120.0
"""After which a process that nobody needs is ended."""
MEMORY_BYTES = 1024 * 2**20
"""Of one page's process: the file, its fonts and pictures unpacked, and 18 MB of pixels."""
KEPT_BYTES = 64 * 2**20
"""Of images and places that are remembered: some hundred pages."""
SLOW_SECONDS = 60.0
"""How long a page that took too long is not tried again."""
RESTART_SECONDS = 1.0
"""After which a worker that met an error of ours goes on."""
BROKEN_BYTES = 512
"""What a remembered refusal counts."""


@dataclass(frozen=True, slots=True)
class PageImage:
    """A PNG file."""

    png: bytes


@dataclass(frozen=True, slots=True)
class PageKey:
    """What is remembered by: the page of these bytes, and what was asked of it."""

    document: str
    sha256: str
    page: int
    width: int
    passage: str = ""
    sentences: tuple[tuple[int, int], ...] = ()
    cited: tuple[tuple[int, int], ...] = ()


_Found = PageImage | Marks | AgenticRagError


@dataclass(slots=True)
class _Wish:
    """A page that somebody waits for; ``askers`` of 0: nobody any more."""

    key: PageKey
    record: DocumentRecord
    workspace: str
    askers: int = 0
    found: _Found | None = None
    begun: anyio.Event = field(default_factory=anyio.Event)
    done: anyio.Event = field(default_factory=anyio.Event)


class Pages:
    """Pages of the PDFs of all domains. Its tasks live as long as the workshop's workers."""

    def __init__(self, workshop: DocumentServices, *, kept_bytes: int = KEPT_BYTES, seconds: float = SECONDS) -> None:
        """``kept_bytes``: of what is remembered; ``seconds``: what one page may take."""
        self._directory = workshop.directory
        self._threads = workshop.threads
        self._seconds = seconds
        self._kept = Remembered(kept_bytes)
        self._queue: FairQueue[_Wish] = FairQueue(OF_A_DOMAIN)
        self._wishes: dict[PageKey, _Wish] = {}
        self._waiting: Counter[str] = Counter()
        for _ in range(WORKERS):
            workshop.workers.repeat("drawing pages", self._work, RESTART_SECONDS)

    async def image(self, record: DocumentRecord, page: int, width: int) -> PageImage:
        """Return a page, from 1, about ``width`` pixels wide; less where it would be too large.

        Raises:
            DocumentUnsupported: the document is no PDF and no image.
            NotFound: it has no such page, or its file is gone.
            PageUnreadable: the page cannot be drawn.
            PagesBusy: too many pages of the domain are waited for.
        """
        return cast(PageImage, await self._ask(record, PageKey(record.id, record.sha256, page, width)))

    async def marks(
        self, record: DocumentRecord, page: int, passage: str, sentences: Sequence[Range], cited: Range | None
    ) -> Marks:
        """Return where a passage stands on a page; no boxes where the page's text does not have it.

        ``sentences`` and ``cited`` are parts of the passage. Raises as `image` does.
        """
        spans = tuple((each.start, each.end) for each in sentences)
        part = () if cited is None else ((cited.start, cited.end),)
        key = PageKey(record.id, record.sha256, page, 0, passage, spans, part)
        return cast(Marks, await self._ask(record, key, MARKS_PATIENCE_SECONDS))

    async def _ask(self, record: DocumentRecord, key: PageKey, patience: float = PATIENCE_SECONDS) -> PageImage | Marks:
        if record.media_type != PDF and record.media_type not in IMAGE_TYPES:
            raise DocumentUnsupported(record.name, (".pdf", *IMAGE_ENDINGS))
        found = self._kept.get(key)
        if found is None:
            found = await self._wait(record, key, patience)
        if isinstance(found, AgenticRagError):
            raise found.with_traceback(None)
        return found

    async def _wait(self, record: DocumentRecord, key: PageKey, patience: float) -> _Found:
        """Return what a worker finds, together with whoever waits for the same; it begins within ``patience``."""
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
            with anyio.move_on_after(PATIENCE_SECONDS):
                with anyio.move_on_after(patience):
                    await wish.begun.wait()
                if wish.begun.is_set():
                    await wish.done.wait()
        finally:
            wish.askers -= 1
        if wish.found is None:
            raise PagesBusy(SECONDS)
        return wish.found

    async def _work(self) -> None:
        async with aclosing(ChildProcess(CHILD, self._seconds, "drawing the page")) as process:
            while True:
                wish = await self._next(process)
                domain_id = wish.record.domain_id
                try:
                    if wish.askers:
                        wish.begun.set()
                        wish.found = await self._find(wish, process)
                        self._kept.put(wish.key, wish.found)
                finally:
                    self._forget(wish)
                    self._queue.release(domain_id)

    async def _next(self, process: ChildProcess) -> _Wish:
        """Return what is to be done next; a process that waits for long is ended meanwhile."""
        with anyio.move_on_after(IDLE_SECONDS):
            return await self._queue.get()
        await process.aclose()
        return await self._queue.get()

    def _forget(self, wish: _Wish) -> None:
        """Let whoever waits go on, with what was found or without."""
        wish.begun.set()
        wish.done.set()
        self._wishes.pop(wish.key, None)
        self._waiting[wish.record.domain_id] -= 1
        if not self._waiting[wish.record.domain_id]:
            del self._waiting[wish.record.domain_id]

    async def _find(self, wish: _Wish, process: ChildProcess) -> _Found:
        """Return the page, its marks, or why there are none."""
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
                raise DocumentError("DOCUMENT_BROKEN", "the file made its reader crash")
        except DocumentError as exc:
            await process.reset()
            log.info("page %s of %s is not shown: %s", key.page, record.id, exc.code)
            if exc.code == "DOCUMENT_MISSING":
                return NotFound("file", record.name)
            return PageUnreadable(exc.code, exc.message)
        except AgenticRagError as exc:  # the folder does not answer
            return exc
        except BaseException:
            with anyio.CancelScope(shield=True):
                await process.reset()
            raise
        log.debug("page %s of %s took %.3f s", key.page, record.id, time.monotonic() - began)
        return _read(frame, key)


def _read(frame: PageFrame, key: PageKey) -> _Found:
    """Return what a process answered: strangers may have made it, so it is taken for no more than it has to be."""
    if "width" not in frame:
        return NotFound("page", str(key.page))
    try:
        if key.width:
            return PageImage(b64decode(frame["png"]))
        passage, cited = (tuple(_box(each) for each in frame[name]) for name in ("passage", "cited"))
        return Marks(float(frame["width"]), float(frame["height"]), passage, cited, bool(frame["whole"]))
    except (KeyError, TypeError, ValueError):
        return PageUnreadable("DOCUMENT_BROKEN", "the file made its reader answer nonsense")


def _box(numbers: Sequence[float]) -> Box:
    x, y, width, height = (min(max(float(each), 0.0), 1.0) for each in numbers)
    return Box(x, y, width, height)


class Remembered:
    """What was found last, within a number of bytes; what nobody asked for longest goes first.

    A page that cannot be drawn is remembered too, so that it costs its time once; one that took too long for a while,
    since the machine may have been busy; what passes by is not.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = 0
        self._found: OrderedDict[PageKey, tuple[_Found, int, float]] = OrderedDict()

    def get(self, key: PageKey) -> _Found | None:
        """Return what was found; None when it is not remembered (any more)."""
        found, _, until = self._found.get(key, (None, 0, 0.0))
        if found is None or until < time.monotonic():
            return None
        self._found.move_to_end(key)
        return found

    def put(self, key: PageKey, found: _Found) -> None:
        """Remember what was found, if it may be."""
        until = math.inf
        if isinstance(found, AgenticRagError):
            if not isinstance(found, PageUnreadable):
                return
            until = time.monotonic() + SLOW_SECONDS if found.reason == "DOCUMENT_TIMEOUT" else until
        size = _size_of(found) + len(key.passage.encode("utf-8", "replace"))
        if size > self._most:
            return
        _, before, _ = self._found.pop(key, (None, 0, 0.0))
        self._found[key] = (found, size, until)
        self.size -= before
        self.size += size
        while self.size > self._most:
            _, (_, gone, _) = self._found.popitem(last=False)
            self.size -= gone


def _size_of(found: _Found) -> int:
    if isinstance(found, PageImage):
        return len(found.png) + BROKEN_BYTES
    boxes = len(found.passage) + len(found.cited) if isinstance(found, Marks) else 0
    return BROKEN_BYTES + 200 * boxes

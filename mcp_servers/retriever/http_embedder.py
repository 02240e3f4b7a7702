"""An embedder that calls an HTTP endpoint compatible with OpenAI's `POST /embeddings`."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import anyio
import httpx2

from mcp_servers.retriever.embedding import check_vectors
from mcp_servers.retriever.errors import EmbedderFailed

BATCH = 64
ATTEMPTS = 3
RETRY_SECONDS = 0.5
"""Backoff before the second attempt; doubled before the third."""

TIMEOUT_SECONDS = 30.0
ANSWER_SECONDS = 60.0
"""Time limit for a complete answer, because an endpoint that sends single bytes never reaches the read timeout."""

ANSWER_BYTES = 32 * 2**20
"""Maximum number of bytes of a decompressed answer; 64 vectors of 4 096 numbers have 6 MiB."""

MAX_REASON = 200
"""Maximum number of characters of an error answer that appear in an error text."""

_RETRIED = frozenset({408, 429, 500, 502, 503, 504})


class HttpEmbedder:
    """`Embedder` that calls `{base}/embeddings`.

    `transport` is for tests and proxies. The API key never appears in `name` or in error texts.
    """

    def __init__(
        self,
        base: str,
        model: str,
        api_key: str = "",
        transport: httpx2.AsyncBaseTransport | None = None,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._url = base.rstrip("/") + "/embeddings"
        if not _is_url(self._url):  # not quoted, because the address may contain a password
            raise ValueError("must be a URL such as http://127.0.0.1:8080/v1#model")
        self._model = model
        self._retry_seconds = retry_seconds
        # The key as given and as JSON and URLs encode it: an endpoint may echo the request that it refuses.
        self._secrets = {api_key, json.dumps(api_key)[1:-1], quote(api_key, safe="")} if api_key else set[str]()
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_SECONDS, transport=transport)

    @property
    def name(self) -> str:
        return f"http:{self._model or self._url}"

    async def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        vectors: list[list[float]] = []
        for at in range(0, len(texts), BATCH):
            vectors += self._vectors(await self._post(texts[at : at + BATCH]), len(texts[at : at + BATCH]))
        if len({len(vector) for vector in vectors}) > 1:
            raise EmbedderFailed(self.name, "the endpoint returned vectors of different dimensions")
        return vectors

    async def embed_query(self, text: str) -> list[float]:
        (vector,) = await self.embed_documents([text])
        return vector

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _post(self, texts: Sequence[str]) -> Any:
        reason = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await anyio.sleep(self._retry_seconds * 2 ** (attempt - 1))
            try:
                with anyio.fail_after(ANSWER_SECONDS):
                    status, answer = await self._ask({"model": self._model, "input": list(texts)})
            except (httpx2.HTTPError, TimeoutError) as exc:
                reason = f"no answer ({type(exc).__name__})"
                continue
            if status == 200:
                return self._json(answer)
            reason = f"status {status}: {self._shorten(answer.decode('utf-8', 'replace'))}"
            if status not in _RETRIED:
                break
        raise EmbedderFailed(self.name, reason)

    async def _ask(self, question: dict[str, Any]) -> tuple[int, bytes]:
        """Return status and body. The limit applies to decompressed bytes: a megabyte of gzip may become a gigabyte."""
        answer = bytearray()
        async with self._client.stream("POST", self._url, json=question) as response:
            async for part in response.aiter_bytes():
                answer += part
                if len(answer) > ANSWER_BYTES:
                    raise EmbedderFailed(self.name, f"the endpoint's answer is longer than {ANSWER_BYTES} bytes")
        return response.status_code, bytes(answer)

    def _shorten(self, text: str) -> str:
        """Shorten an error answer for health reports and logs: one bounded line without the key."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, "…")
        printable = "".join(character if character.isprintable() else " " for character in text)
        return " ".join(printable.split())[:MAX_REASON]

    def _json(self, answer: bytes) -> Any:
        try:
            return json.loads(answer)
        except (ValueError, RecursionError) as exc:
            raise EmbedderFailed(self.name, "the endpoint's answer is not JSON") from exc

    def _vectors(self, answer: Any, count: int) -> list[list[float]]:
        try:
            rows = sorted(answer["data"], key=lambda row: row["index"])
            vectors = [[float(number) for number in row["embedding"]] for row in rows]
        except (KeyError, TypeError, ValueError, OverflowError) as exc:
            raise EmbedderFailed(self.name, "the endpoint's answer does not have the shape of /embeddings") from exc
        return check_vectors(self.name, "the endpoint", vectors, count)


def _is_url(text: str) -> bool:
    try:
        return bool(httpx2.URL(text).host)
    except httpx2.InvalidURL:
        return False

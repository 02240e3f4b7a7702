"""The protocols of embedders and rerankers, and the check of vectors before they are stored.

`embedders` creates the embedder of a setting.
"""

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from mcp_servers.retriever.errors import EmbedderFailed

MAX_LENGTH = 1e18
"""Largest length of a vector. The index stores 32-bit numbers, in which the square of a longer one is infinite."""


class Embedder(Protocol):
    """Turns texts into dense vectors. Collections record `name`: vectors of different names are not comparable."""

    @property
    def name(self) -> str: ...

    async def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector for each text, all of one dimension. Raises `ModelMissing` or `EmbedderFailed`."""

    async def embed_query(self, text: str) -> list[float]: ...

    async def aclose(self) -> None: ...


@runtime_checkable
class LimitedEmbedder(Protocol):
    """An embedder that truncates long texts. Chunks are embedded in windows of its token limit (`windows`)."""

    async def token_limit(self) -> int | None:
        """Return the number of tokens that it reads of a text; None if it exceeds every chunk or is unknown.

        Loads the model. Raises the errors of `Embedder.embed_documents`.
        """


async def token_limit(embedder: Embedder) -> int | None:
    """Return the number of tokens that an embedder reads of a text; None if it is not a `LimitedEmbedder`."""
    return await embedder.token_limit() if isinstance(embedder, LimitedEmbedder) else None


class Reranker(Protocol):
    """Scores question and passage together: slower and more precise than either leg."""

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return a score for each text, higher is better; scores of different queries are not comparable."""


def check_vectors(embedder: str, maker: str, vectors: object, count: int) -> list[list[float]]:
    """Return valid vectors for the index. Raises `EmbedderFailed`, which describes the invalid result of ``maker``."""
    try:
        checked = [[float(number) for number in vector] for vector in vectors]  # type: ignore[attr-defined]
    except (TypeError, ValueError, OverflowError) as exc:
        raise EmbedderFailed(embedder, f"{maker} returned something else than vectors") from exc
    if len(checked) != count or not all(checked):
        raise EmbedderFailed(embedder, f"{maker} returned {len(checked)} vectors for {count} texts")
    # Comparisons with NaN are false, so this rejects NaN too.
    if not all(math.hypot(*vector) <= MAX_LENGTH for vector in checked):
        raise EmbedderFailed(embedder, f"{maker} returned a vector with a value that is not a usable number")
    if len({len(vector) for vector in checked}) > 1:
        raise EmbedderFailed(embedder, f"{maker} returned vectors of different dimensions")
    return checked

"""What an embedder and a reranker are, and what vectors the index can keep.

Which one a setting means is ``embedders``'; what is embedded and where the vectors go is decided elsewhere.
"""

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from mcp_servers.retriever.errors import EmbedderFailed

MAX_LENGTH = 1e18
"""Of a vector. The index keeps 32-bit numbers: the square of a longer one would be infinite there."""


class Embedder(Protocol):
    """`name` is recorded with the vectors it makes: another name means vectors that cannot be compared."""

    @property
    def name(self) -> str: ...

    async def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector for each text, all of one dimension. Raises `ModelMissing` or `EmbedderFailed`."""

    async def embed_query(self, text: str) -> list[float]: ...

    async def aclose(self) -> None: ...


@runtime_checkable
class LimitedEmbedder(Protocol):
    """An embedder that does not read every text to its end. Chunks are embedded in windows of that size (`windows`)."""

    async def token_limit(self) -> int | None:
        """Return how many tokens of one text it reads; None where that is more than any chunk has, or unknown.

        Loads the model. Raises as `Embedder.embed_documents`.
        """


async def token_limit(embedder: Embedder) -> int | None:
    """Return how many tokens of one text an embedder reads; None for one that does not say."""
    return await embedder.token_limit() if isinstance(embedder, LimitedEmbedder) else None


class Reranker(Protocol):
    """Reads question and passage together: slow, and better than either leg."""

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """A score for each text, higher is better; scores of different queries cannot be compared."""


def check_vectors(embedder: str, maker: str, vectors: object, count: int) -> list[list[float]]:
    """Return vectors that the index can keep. Raises `EmbedderFailed`, which says what ``maker`` returned instead."""
    try:
        checked = [[float(number) for number in vector] for vector in vectors]  # type: ignore[attr-defined]
    except (TypeError, ValueError, OverflowError) as exc:
        raise EmbedderFailed(embedder, f"{maker} returned something else than vectors") from exc
    if len(checked) != count or not all(checked):
        raise EmbedderFailed(embedder, f"{maker} returned {len(checked)} vectors for {count} texts")
    # A comparison with NaN is false.
    if not all(math.hypot(*vector) <= MAX_LENGTH for vector in checked):
        raise EmbedderFailed(embedder, f"{maker} returned a vector with a value that is not a usable number")
    if len({len(vector) for vector in checked}) > 1:
        raise EmbedderFailed(embedder, f"{maker} returned vectors of different dimensions")
    return checked

"""Searches of a domain, as its settings say: which fusion, which reranker.

Owns the choice of a `Retriever` for each search, for the model's tool and the playground alike. Knows no document
and no request.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from agentic_rag.directory.collection import domain_of
from agentic_rag.directory.directory import Directory
from mcp_servers.retriever.embedding import Embedder, Reranker
from mcp_servers.retriever.fusion import FusionMethod
from mcp_servers.retriever.index import Calibration, Index
from mcp_servers.retriever.retrieval import Retrieval, Retriever


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """What an admin tries; None is the domain's setting, or any."""

    top_k: int | None = None
    threshold: float | None = None
    fusion: FusionMethod | None = None
    document: str | None = None
    file_type: str | None = None
    heading: str | None = None
    document_ids: tuple[str, ...] | None = None


class DomainSearch:
    """A `Searcher` over all domains; one `Retriever` for each pair of fusion and reranker that is in use.

    Args:
        directory: has the settings of the domains.
        make_reranker: a reranker by its model's name; loads nothing yet.
        on_retrieval: awaited with each finished search.
    """

    def __init__(
        self,
        index: Index,
        embedder: Embedder | None,
        directory: Directory,
        make_reranker: Callable[[str], Reranker],
        on_retrieval: Callable[[Retrieval], Awaitable[None]],
    ) -> None:
        self._index = index
        self._embedder = embedder
        self._directory = directory
        self._make_reranker = make_reranker
        self._on_retrieval = on_retrieval
        self._retrievers: dict[tuple[FusionMethod, str | None], Retriever] = {}

    async def search(
        self,
        collection: str,
        query: str,
        top_k: int,
        threshold: float = 0.0,
        document_ids: Sequence[str] | None = None,
        document: str | None = None,
    ) -> Retrieval:
        """Search as `Retriever.search` does, and raise what it raises."""
        ids = None if document_ids is None else tuple(document_ids)
        options = SearchOptions(document_ids=ids, document=document)
        return await self.with_options(collection, query, top_k, threshold, options)

    async def with_options(
        self, collection: str, query: str, top_k: int, threshold: float, options: SearchOptions
    ) -> Retrieval:
        """`search` with filters and another fusion.

        Raises:
            NotFound: the collection is of no domain.
        """
        settings = await self._directory.settings(domain_of(collection))
        retriever = self._retriever(options.fusion or settings.retrieval_fusion, settings.reranker)
        return await retriever.search(
            collection,
            query,
            top_k,
            threshold,
            options.document_ids,
            options.document,
            file_type=options.file_type,
            heading=options.heading,
        )

    async def calibrate(self, collection: str) -> Calibration | None:
        """Measure what the dense leg is worth, so that the first search does not have to."""
        return await self._retriever("dbsf", None).calibrate(collection)

    def _retriever(self, fusion: FusionMethod, reranker: str | None) -> Retriever:
        found = self._retrievers.get((fusion, reranker))
        if found is None:
            model = None if reranker is None else self._make_reranker(reranker)
            found = Retriever(
                self._index, self._embedder, fusion=fusion, reranker=model, on_retrieval=self._on_retrieval
            )
            self._retrievers[fusion, reranker] = found
        return found

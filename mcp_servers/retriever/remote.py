"""Client for searches on a running server, which owns the index: `POST /api/domains/{id}/documents/search`."""

from collections.abc import Sequence

import httpx2

from mcp_servers.retriever.errors import IndexUnavailable
from mcp_servers.retriever.hits import Retrieval

TIMEOUT_SECONDS = 30.0
MAX_REASON = 200


class RemoteRetriever:
    """A `Searcher` for the domain `domain` of the server at `url`.

    `token` is sent as a bearer token and never appears in error texts. The arguments `collection` and `document_ids` of
    a search are ignored, because the server derives them from domain and token.
    """

    def __init__(self, url: str, domain: str, token: str, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self._path = f"{url.rstrip('/')}/api/domains/{domain}/documents/search"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_SECONDS, transport=transport)

    async def search(
        self,
        collection: str,
        query: str,
        top_k: int,
        threshold: float = 0.0,
        document_ids: Sequence[str] | None = None,
        document: str | None = None,
        *,
        file_type: str | None = None,
        heading: str | None = None,
    ) -> Retrieval:
        """Search on the server. Raises `IndexUnavailable` if the server does not answer or refuses."""
        filters = {"document": document, "type": file_type, "heading": heading}
        body = {"query": query, "topK": top_k, "threshold": threshold, "filters": filters}
        try:
            response = await self._client.post(self._path, json=body)
            if response.status_code != 200:
                reason = f"the server answered {response.status_code}: {response.text[:MAX_REASON]}"
                raise IndexUnavailable("search", reason)
            return Retrieval.from_json(response.json(), collection)
        except httpx2.HTTPError as exc:
            raise IndexUnavailable("search", f"the server did not answer ({type(exc).__name__})") from exc
        except (KeyError, TypeError, ValueError) as exc:
            raise IndexUnavailable("search", "the server's answer is not a retrieval") from exc

    async def aclose(self) -> None:
        await self._client.aclose()

"""REST of documents: upload, states, deletion, and the search an admin tries settings with.

Owns the request models. Knows no file format.
"""

from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentic_rag.business import Business
from agentic_rag.documents.documents import Documents
from agentic_rag.documents.files import clean_name
from agentic_rag.documents.search import SearchOptions
from agentic_rag.forms import Form
from agentic_rag.server import views
from agentic_rag.server.bodies import json_form, query_form
from agentic_rag.server.replies import nothing, redacted, reply
from agentic_rag.server.uploads import RefusedFile, receive_files
from agentic_rag.store.documents import DocumentRecord, DocumentStatus


class DocumentFilter(Form):
    """``GET /api/domains/{id}/documents``"""

    status: DocumentStatus | None = None


class Upload(Form):
    """``POST /api/domains/{id}/documents?replace=true``: a document of the same name gets the new bytes"""

    replace: bool = False


class Filters(Form):
    """``document``: an id, a name or a part of one; ``type``: a file ending; ``heading``: one of the heading path."""

    document: str | None = Field(None, max_length=300)
    type: str | None = Field(None, max_length=20)
    heading: str | None = Field(None, max_length=300)


class Search(Form):
    """``POST /api/domains/{id}/documents/search``; what is left out is as the domain's settings say"""

    query: str = Field(max_length=2_000)
    top_k: int | None = Field(None, ge=1, le=50)
    threshold: float | None = Field(None, ge=0, le=1)
    fusion: Literal["dbsf", "rrf"] | None = None
    filters: Filters = Filters()

    def options(self) -> SearchOptions:
        ending = self.filters.type
        return SearchOptions(
            top_k=self.top_k,
            threshold=self.threshold,
            fusion=self.fusion,
            document=self.filters.document or None,
            file_type=ending.lower().removeprefix(".") if ending else None,
            heading=self.filters.heading or None,
        )


class ChunkPage(Form):
    """``GET /api/domains/{id}/documents/{doc}/chunks?offset=0&limit=50``"""

    offset: int = Field(0, ge=0)
    limit: int = Field(50, ge=1, le=200)


class RetrievalPage(Form):
    """``GET /api/domains/{id}/retrievals``"""

    limit: int = Field(50, ge=1, le=200)


class Reindex(Form):
    """``POST /api/domains/{id}/reindex``; ``rollback``: take the last exchange back"""

    rollback: bool = False


def document_routes(business: Business) -> list[Route]:
    """Return the routes of documents."""
    documents = business.documents

    async def upload(request: Request) -> Response:
        received = await receive_files(request, documents, replace=query_form(request, Upload).replace)
        return reply({"items": [_taken(request, item) for item in received]}, 202)

    async def list_documents(request: Request) -> Response:
        form = query_form(request, DocumentFilter)
        found = await documents.list_of(request.path_params["domain"], form.status)
        return reply({"items": [views.document(document) for document in found]})

    async def get_document(request: Request) -> Response:
        return reply(views.document(await documents.get(*_ids(request))))

    async def delete_document(request: Request) -> Response:
        await business.deletion.document(*_ids(request))
        return nothing()

    async def retry_document(request: Request) -> Response:
        return reply(views.document(await documents.retry(*_ids(request))), 202)

    async def rescan(request: Request) -> Response:
        return reply({"added": await documents.rescan(request.path_params["domain"])}, 202)

    async def search(request: Request) -> Response:
        form = await json_form(request, Search)
        found = await documents.search(request.path_params["domain"], form.query, form.options())
        return redacted(request, request.path_params["domain"], views.retrieval(found))

    async def list_chunks(request: Request) -> Response:
        form = query_form(request, ChunkPage)
        found = await documents.chunks(*_ids(request), form.offset, form.limit)
        return redacted(request, request.path_params["domain"], {"items": [views.chunk(chunk) for chunk in found]})

    base = "/api/domains/{domain}/documents"
    return [
        Route(base, upload, methods=["POST"]),
        Route(base, list_documents, methods=["GET"]),
        Route(f"{base}/search", search, methods=["POST"]),
        Route(f"{base}/rescan", rescan, methods=["POST"]),
        Route(base + "/{document}", get_document, methods=["GET"]),
        Route(base + "/{document}", delete_document, methods=["DELETE"]),
        Route(base + "/{document}/retry", retry_document, methods=["POST"]),
        Route(base + "/{document}/chunks", list_chunks, methods=["GET"]),
        *_collection_routes(documents),
    ]


def _collection_routes(documents: Documents) -> list[Route]:
    """Return the routes of a domain's whole collection: kept searches, and its making anew."""

    async def list_retrievals(request: Request) -> Response:
        form = query_form(request, RetrievalPage)
        found = await documents.retrievals(request.path_params["domain"], form.limit)
        return redacted(request, request.path_params["domain"], {"items": [views.kept_retrieval(row) for row in found]})

    async def get_retrieval(request: Request) -> Response:
        kept = await documents.retrieval(request.path_params["domain"], request.path_params["retrieval"])
        return redacted(request, request.path_params["domain"], views.kept_search(kept))

    async def reindex(request: Request) -> Response:
        form = await json_form(request, Reindex)
        row = await documents.reindex(request.path_params["domain"], rollback=form.rollback)
        return reply(views.collection(row), 202)

    async def get_reindex(request: Request) -> Response:
        return reply(views.collection(await documents.reindex_state(request.path_params["domain"])))

    base = "/api/domains/{domain}"
    return [
        Route(f"{base}/retrievals", list_retrievals, methods=["GET"]),
        Route(base + "/retrievals/{retrieval}", get_retrieval, methods=["GET"]),
        Route(f"{base}/reindex", reindex, methods=["POST"]),
        Route(f"{base}/reindex", get_reindex, methods=["GET"]),
    ]


def _ids(request: Request) -> tuple[str, str]:
    return request.path_params["domain"], request.path_params["document"]


def _taken(request: Request, item: DocumentRecord | RefusedFile) -> Any:
    """Return what became of one file of several."""
    if isinstance(item, DocumentRecord):
        return views.document(item)
    error = {"code": item.error.code, "message": str(item.error)}
    shown = {"name": clean_name(item.name) if item.name else "", "status": "refused", "error": error}
    return request.app.state.redact.of(request.path_params["domain"]).json(shown)

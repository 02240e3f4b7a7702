"""REST of documents: upload, states, deletion, and the search an admin tries settings with.

Owns the request models. Knows no file format.
"""

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentic_rag.business import Business
from agentic_rag.documents import Documents, Incoming
from agentic_rag.errors import InvalidInput
from agentic_rag.forms import Form
from agentic_rag.server import views
from agentic_rag.server.bodies import FilePart, files, json_form, query_form
from agentic_rag.server.replies import nothing, reply
from agentic_rag.store.tables import Document

MAX_FILES = 100
"""Of one upload."""


class DocumentFilter(Form):
    """``GET /api/domains/{id}/documents``"""

    status: str | None = None


class Search(Form):
    """``POST /api/domains/{id}/documents/search``"""

    query: str = Field(max_length=2_000)
    top_k: int | None = Field(None, ge=1, le=50)
    threshold: float | None = Field(None, ge=0, le=1)


def document_routes(business: Business) -> list[Route]:
    """Return the routes of documents."""
    documents = business.documents

    async def upload(request: Request) -> Response:
        received = await _receive(request, documents)
        return reply({"items": [views.document(document) for document in received]}, 202)

    async def list_documents(request: Request) -> Response:
        form = query_form(request, DocumentFilter)
        found = await documents.list_of(request.path_params["domain"], form.status)
        return reply({"items": [views.document(document) for document in found]})

    async def get_document(request: Request) -> Response:
        return reply(views.document(await documents.get(*_ids(request))))

    async def delete_document(request: Request) -> Response:
        await documents.delete(*_ids(request))
        return nothing()

    async def retry_document(request: Request) -> Response:
        return reply(views.document(await documents.retry(*_ids(request))), 202)

    async def rescan(request: Request) -> Response:
        return reply({"added": await documents.rescan(request.path_params["domain"])}, 202)

    async def search(request: Request) -> Response:
        form = await json_form(request, Search)
        found = await documents.search(request.path_params["domain"], form.query, form.top_k, form.threshold)
        return reply(views.retrieval(found))

    base = "/api/domains/{domain}/documents"
    return [
        Route(base, upload, methods=["POST"]),
        Route(base, list_documents, methods=["GET"]),
        Route(f"{base}/search", search, methods=["POST"]),
        Route(f"{base}/rescan", rescan, methods=["POST"]),
        Route(base + "/{document}", get_document, methods=["GET"]),
        Route(base + "/{document}", delete_document, methods=["DELETE"]),
        Route(base + "/{document}/retry", retry_document, methods=["POST"]),
    ]


def _ids(request: Request) -> tuple[str, str]:
    return request.path_params["domain"], request.path_params["document"]


async def _receive(request: Request, documents: Documents) -> list[Document]:
    """Take the files one after the other; those before one that is refused stay."""
    received: list[Document] = []
    incoming: Incoming | None = None
    try:
        async for item in files(request):
            if isinstance(item, FilePart):
                if len(received) == MAX_FILES:
                    raise InvalidInput("body", f"more than {MAX_FILES} files.")
                begun = await documents.receive(request.path_params["domain"], item.name)
                incoming = await begun.__aenter__()
            elif incoming is not None and item is not None:
                await incoming.write(item)
            elif incoming is not None:
                received.append(await incoming.finish())
                await incoming.__aexit__()
                incoming = None
    finally:
        if incoming is not None:
            await incoming.__aexit__()
    if not received:
        raise InvalidInput("body", "no file was sent.")
    return received

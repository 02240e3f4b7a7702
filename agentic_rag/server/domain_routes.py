"""REST of domains.

Owns the request models. Knows no rule: those are the business layer's.
"""

from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentic_rag.business import Business
from agentic_rag.errors import InvalidInput
from agentic_rag.forms import Form
from agentic_rag.server import views
from agentic_rag.server.auth import user_of
from agentic_rag.server.bodies import json_form, query_form
from agentic_rag.server.replies import nothing, reply


class NewDomain(Form):
    """``POST /api/domains``"""

    name: str
    description: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)


class DomainChange(Form):
    """``PUT`` and ``PATCH /api/domains/{id}``; what GET adds may come back and is ignored."""

    name: str | None = None
    description: str | None = None
    settings: dict[str, Any] | None = None
    version: int | None = None
    id: str | None = Field(None, exclude=True)
    document_count: int | None = Field(None, exclude=True)
    created_at: str | None = Field(None, exclude=True)
    updated_at: str | None = Field(None, exclude=True)
    changes: list[Any] | None = Field(None, exclude=True)
    warnings: list[Any] | None = Field(None, exclude=True)


class Deletion(Form):
    """``DELETE /api/domains/{id}?workspace=true``"""

    workspace: bool = False


def domain_routes(business: Business) -> list[Route]:
    """Return the routes of domains."""
    domains, directory = business.domains, business.directory

    async def list_domains(request: Request) -> Response:
        user = user_of(request.scope)
        records = [record for record in await directory.list_all() if user.sees(record.id)]
        return reply({"items": [views.domain(await domains.view(record), user) for record in records]})

    async def create_domain(request: Request) -> Response:
        form = await json_form(request, NewDomain)
        saved = await domains.create(form.name, form.description, form.settings)
        return reply(views.saved(await domains.view(saved.record), saved), 201)

    async def get_domain(request: Request) -> Response:
        record = await directory.get(request.path_params["domain"])
        return reply(views.domain(await domains.view(record), user_of(request.scope)))

    async def change_domain(request: Request) -> Response:
        form = await json_form(request, DomainChange)
        saved = await domains.update(
            request.path_params["domain"],
            name=form.name,
            description=form.description,
            settings=form.settings,
            replace_maps=request.method == "PUT",
            version=_version(request, form.version),
        )
        return reply(views.saved(await domains.view(saved.record), saved))

    async def delete_domain(request: Request) -> Response:
        form = query_form(request, Deletion)
        await business.deletion.domain(request.path_params["domain"], workspace=form.workspace)
        return nothing()

    return [
        Route("/api/domains", list_domains, methods=["GET"]),
        Route("/api/domains", create_domain, methods=["POST"]),
        Route("/api/domains/{domain}", get_domain, methods=["GET"]),
        Route("/api/domains/{domain}", change_domain, methods=["PUT", "PATCH"]),
        Route("/api/domains/{domain}", delete_domain, methods=["DELETE"]),
    ]


def _version(request: Request, given: int | None) -> int | None:
    """Return the version a change was made from, from the body or ``If-Match``."""
    header = request.headers.get("if-match")
    if given is not None or header is None or header.strip() == "*":
        return given
    try:
        return int(header.strip().removeprefix("W/").strip('"'))
    except ValueError as exc:
        raise InvalidInput("If-Match", "the version number of the domain is expected.") from exc

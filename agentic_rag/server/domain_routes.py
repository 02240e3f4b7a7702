"""REST of domains and their roles.

Owns the request models of both. Knows no rule: those are the business layer's.
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


class Deletion(Form):
    """``DELETE /api/domains/{id}?workspace=true``"""

    workspace: bool = False


def domain_routes(business: Business) -> list[Route]:
    """Return the routes of domains and roles."""
    domains, roles = business.domains, business.roles

    async def list_domains(request: Request) -> Response:
        records = await domains.list_all()
        return reply({"items": [views.domain(await domains.view(record)) for record in records]})

    async def create_domain(request: Request) -> Response:
        form = await json_form(request, NewDomain)
        record = await domains.create(form.name, form.description, form.settings)
        return reply(views.domain(await domains.view(record)), 201)

    async def get_domain(request: Request) -> Response:
        record = await domains.get(request.path_params["domain"])
        return reply(views.domain(await domains.view(record)))

    async def change_domain(request: Request) -> Response:
        form = await json_form(request, DomainChange)
        record = await domains.update(
            request.path_params["domain"],
            name=form.name,
            description=form.description,
            settings=form.settings,
            replace_maps=request.method == "PUT",
            version=_version(request, form.version),
        )
        return reply(views.domain(await domains.view(record)))

    async def delete_domain(request: Request) -> Response:
        form = query_form(request, Deletion)
        await domains.delete(request.path_params["domain"], workspace=form.workspace)
        return nothing()

    async def list_roles(request: Request) -> Response:
        found = await roles.list_of(request.path_params["domain"])
        return reply({"items": [views.role_info(info) for info in found]})

    async def check_roles(request: Request) -> Response:
        found = await roles.check(request.path_params["domain"])
        return reply({"items": [views.finding(each) for each in found]})

    async def get_role(request: Request) -> Response:
        return reply(views.role(await roles.get(request.path_params["domain"], request.path_params["role"])))

    return [
        Route("/api/domains", list_domains, methods=["GET"]),
        Route("/api/domains", create_domain, methods=["POST"]),
        Route("/api/domains/{domain}", get_domain, methods=["GET"]),
        Route("/api/domains/{domain}", change_domain, methods=["PUT", "PATCH"]),
        Route("/api/domains/{domain}", delete_domain, methods=["DELETE"]),
        Route("/api/domains/{domain}/roles", list_roles, methods=["GET"]),
        Route("/api/domains/{domain}/role-findings", check_roles, methods=["GET"]),
        Route("/api/domains/{domain}/roles/{role}", get_role, methods=["GET"]),
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

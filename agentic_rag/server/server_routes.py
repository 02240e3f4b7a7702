"""REST of a domain's secrets and of its MCP servers while they run.

Owns the request models. Knows no rule: those are the business layer's. A secret goes in and never comes out.
"""

from typing import Annotated, Any

from pydantic import Field, StringConstraints
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentic_rag.business import Business
from agentic_rag.directory.settings import VariableName
from agentic_rag.errors import InvalidInput, NotFound
from agentic_rag.forms import Form, read_form
from agentic_rag.server import views
from agentic_rag.server.auth import user_of
from agentic_rag.server.bodies import json_body, json_form
from agentic_rag.server.replies import nothing, reply


class SecretName(Form):
    """The last part of ``/api/domains/{id}/secrets/{name}``: what a placeholder can name."""

    name: VariableName


class NewSecret(Form):
    """``PUT /api/domains/{id}/secrets/{name}``: a value, or the mask of a GET, which keeps the stored one."""

    value: Annotated[str, StringConstraints(min_length=1, max_length=8_000)] | None = Field(None, repr=False)
    set: bool | None = None
    last4: str | None = None


def secret_routes(business: Business) -> list[Route]:
    """Return the routes of secrets."""
    directory, vault = business.directory, business.vault

    async def place(request: Request) -> tuple[str, str]:
        record = await directory.get(request.path_params["domain"])
        return record.id, read_form(SecretName, {"name": request.path_params["name"]}, "secret").name

    async def list_secrets(request: Request) -> Response:
        record = await directory.get(request.path_params["domain"])
        masks = await vault.masks(record.id)
        return reply({"items": [{"name": name, **mask} for name, mask in masks.items() if "." not in name]})

    async def get_secret(request: Request) -> Response:
        domain, name = await place(request)
        masks = await vault.masks(domain)
        if name not in masks:
            raise NotFound("secret", name)
        return reply({"name": name, **masks[name]})

    async def put_secret(request: Request) -> Response:
        domain, name = await place(request)
        form = await json_form(request, NewSecret)
        if form.value is not None:
            return reply({"name": name, **await vault.put(domain, name, form.value)})
        masks = await vault.masks(domain)
        if not form.set or name not in masks:
            raise InvalidInput("value", "the secret's value is required.")
        return reply({"name": name, **masks[name]})

    async def delete_secret(request: Request) -> Response:
        domain, name = await place(request)
        await vault.delete(domain, name)
        return nothing()

    path = "/api/domains/{domain}/secrets"
    return [
        Route(path, list_secrets, methods=["GET"]),
        Route(f"{path}/{{name}}", get_secret, methods=["GET"]),
        Route(f"{path}/{{name}}", put_secret, methods=["PUT"]),
        Route(f"{path}/{{name}}", delete_secret, methods=["DELETE"]),
    ]


def server_routes(business: Business) -> list[Route]:
    """Return the routes of MCP servers."""
    servers = business.servers

    async def list_servers(request: Request) -> Response:
        found = await servers.effective(request.path_params["domain"])
        return reply({"items": [each.to_json() for each in found]})

    async def test_servers(request: Request) -> Response:
        document: Any = await json_body(request)
        trial = await servers.trial(user_of(request.scope), request.path_params["domain"], document)
        return reply(
            {
                "items": [each.to_json() for each in trial.servers],
                "changes": [views.note(each) for each in trial.changes],
                "warnings": [views.note(each) for each in trial.warnings],
            }
        )

    async def restart_server(request: Request) -> Response:
        found = await servers.restart(
            user_of(request.scope), request.path_params["domain"], request.path_params["name"]
        )
        return reply(found.to_json())

    async def accept_tools(request: Request) -> Response:
        accepted = await servers.accept(request.path_params["domain"], request.path_params["name"])
        return reply({"name": request.path_params["name"], "accepted": accepted})

    path = "/api/domains/{domain}/mcp-servers"
    return [
        Route(path, list_servers, methods=["GET"]),
        Route(f"{path}/test", test_servers, methods=["POST"]),
        Route(f"{path}/{{name}}/restart", restart_server, methods=["POST"]),
        Route(f"{path}/{{name}}/accept", accept_tools, methods=["POST"]),
    ]

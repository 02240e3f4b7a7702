"""REST of roles, of memories, and of the prompt a model gets.

Owns the request models. Knows no rule: whose role or memory may be changed is the business layer's and ``rules``'.
"""

from typing import Annotated, Literal

import anyio.to_thread
import orjson
from pydantic import Field, StringConstraints, field_validator
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentic_rag.business import Business
from agentic_rag.forms import Form
from agentic_rag.roles.effective_prompt import effective_prompt
from agentic_rag.server import role_views, views
from agentic_rag.server.auth import user_of
from agentic_rag.server.bodies import json_form, query_form
from agentic_rag.server.replies import nothing, redacted, reply
from mcp_servers.promptx.dpml import MAX_CHARS, Kind
from mcp_servers.promptx.ids import is_plain
from mcp_servers.promptx.ledger import Engram
from mcp_servers.promptx.memory import MAX_CONTENT, MAX_CUES, MAX_SCHEMA
from mcp_servers.promptx.nuwa import MAX_FILES, RoleFile

MAX_IMPORT = 1_000
"""Engrams of one request."""


class NewFile(Form):
    """One file of a role: ``{id}.{kind}.md``."""

    kind: Kind
    id: str
    content: Annotated[str, StringConstraints(max_length=MAX_CHARS)]


class NewRole(Form):
    """``PUT /api/domains/{id}/roles/{role}``. Without ``files`` the template of a new role is written.

    ``replace`` false: a file that exists is a refusal.
    """

    files: tuple[NewFile, ...] | None = Field(None, min_length=1, max_length=MAX_FILES)
    replace: bool = True


class MemoryQuery(Form):
    """``GET /api/domains/{id}/memories``"""

    role: str | None = None
    q: str = Field("", max_length=2_000)
    offset: int = Field(0, ge=0, le=1_000_000)
    limit: int = Field(50, ge=1, le=100)


class OfRole(Form):
    """``?role=`` where it may be left out."""

    role: str | None = None


class WholeMemory(Form):
    """``GET /api/domains/{id}/memories/export`` and the query of ``…/import``"""

    role: str


PlainText = Annotated[str, StringConstraints(min_length=1)]


class NewEngram(Form):
    """A memory of another place, with the id and the time it has there (``createdAt`` in milliseconds)."""

    id: Annotated[PlainText, StringConstraints(max_length=100)]
    content: Annotated[PlainText, StringConstraints(max_length=MAX_CONTENT)]
    cues: tuple[PlainText, ...] = Field(min_length=2, max_length=MAX_CUES)
    type: Literal["ATOMIC", "LINK", "PATTERN"]
    strength: float = Field(ge=0, le=1)
    created_at: int = Field(ge=0, le=role_views.LATEST_MS)

    @field_validator("cues")
    @classmethod
    def _cues_fit(cls, cues: tuple[str, ...]) -> tuple[str, ...]:
        if sum(map(len, cues)) > MAX_SCHEMA or not all(map(is_plain, cues)):
            raise ValueError(f"at most {MAX_SCHEMA} characters of plain Unicode")
        return cues

    @field_validator("id", "content")
    @classmethod
    def _is_plain(cls, text: str) -> str:
        if not is_plain(text):
            raise ValueError("plain Unicode text is expected, without NUL")
        return text


class NewMemories(Form):
    """``POST /api/domains/{id}/memories/import``"""

    engrams: tuple[NewEngram, ...] = Field((), max_length=MAX_IMPORT)
    frequencies: dict[str, Annotated[int, Field(ge=0, le=2**31)]] = Field(default_factory=dict)


def role_routes(business: Business) -> list[Route]:
    """Return the routes of roles and of the prompt."""
    definitions, roles = business.definitions, business.roles

    async def list_roles(request: Request) -> Response:
        found = await roles.list_of(request.path_params["domain"])
        return reply({"items": [role_views.role_info(info) for info in found]})

    async def check_roles(request: Request) -> Response:
        found = await roles.check(request.path_params["domain"])
        return reply({"items": [views.finding(each) for each in found]})

    async def get_role(request: Request) -> Response:
        return reply(role_views.role(await roles.get(*_role(request))))

    async def put_role(request: Request) -> Response:
        form = await json_form(request, NewRole)
        domain, role = _role(request)
        files = None if form.files is None else [RoleFile(each.kind, each.id, each.content) for each in form.files]
        paths = await roles.write(domain, role, files, replace=form.replace)
        return reply({**role_views.role(await roles.get(domain, role)), "written": paths})

    async def delete_role(request: Request) -> Response:
        await roles.delete(*_role(request))
        return nothing()

    async def get_prompt(request: Request) -> Response:
        found = await effective_prompt(definitions, roles, user_of(request.scope), request.path_params["domain"])
        return reply(role_views.prompt(found))

    base = "/api/domains/{domain}"
    return [
        Route(f"{base}/roles", list_roles, methods=["GET"]),
        Route(f"{base}/role-findings", check_roles, methods=["GET"]),
        Route(f"{base}/roles/{{role}}", get_role, methods=["GET"]),
        Route(f"{base}/roles/{{role}}", put_role, methods=["PUT"]),
        Route(f"{base}/roles/{{role}}", delete_role, methods=["DELETE"]),
        Route(f"{base}/effective-prompt", get_prompt, methods=["GET"]),
    ]


def memory_routes(business: Business) -> list[Route]:
    """Return the routes of memories; whose they are follows from the caller and the domain's ``memoryScope``."""
    memories = business.memories

    async def list_memories(request: Request) -> Response:
        form = query_form(request, MemoryQuery)
        page = await memories.browse(
            user_of(request.scope),
            request.path_params["domain"],
            role=form.role,
            q=form.q,
            offset=form.offset,
            limit=form.limit,
        )
        return redacted(request, request.path_params["domain"], role_views.memory_page(page))

    async def delete_memory(request: Request) -> Response:
        form = query_form(request, OfRole)
        domain, memory = request.path_params["domain"], request.path_params["memory"]
        await memories.delete(user_of(request.scope), domain, memory, role=form.role)
        return nothing()

    async def export_memory(request: Request) -> Response:
        form = query_form(request, WholeMemory)
        found = await memories.export(user_of(request.scope), request.path_params["domain"], form.role)
        # a hundred thousand of them take a while to encode
        redact = request.app.state.redact.of(request.path_params["domain"]).json
        body = await anyio.to_thread.run_sync(lambda: orjson.dumps(redact(role_views.export(found))))
        return Response(body, media_type="application/json")

    async def import_memory(request: Request) -> Response:
        role = query_form(request, WholeMemory).role
        form = await json_form(request, NewMemories)
        engrams = [
            Engram(each.id, each.content, each.type, each.strength, each.created_at, each.cues) for each in form.engrams
        ]
        user, domain = user_of(request.scope), request.path_params["domain"]
        added = await memories.add(user, domain, role, engrams, form.frequencies)
        return reply({"added": added, "known": len(engrams) - added})

    base = "/api/domains/{domain}/memories"
    return [
        Route(base, list_memories, methods=["GET"]),
        Route(f"{base}/export", export_memory, methods=["GET"]),
        Route(f"{base}/import", import_memory, methods=["POST"]),
        Route(f"{base}/{{memory}}", delete_memory, methods=["DELETE"]),
    ]


def _role(request: Request) -> tuple[str, str]:
    return request.path_params["domain"], request.path_params["role"]

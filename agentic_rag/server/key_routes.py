"""REST of access: keys, the audit log, tickets for WebSockets.

Owns the request models. Knows no rule: those are ``access``'s and ``rules``'.
"""

from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentic_rag.access.auditing import AuditLog
from agentic_rag.access.keys import Access
from agentic_rag.errors import InvalidInput
from agentic_rag.forms import Form
from agentic_rag.server.auth import caller_of
from agentic_rag.server.bodies import json_form, query_form
from agentic_rag.server.gate import TICKET_PROTOCOL, Gate
from agentic_rag.server.replies import nothing, reply
from agentic_rag.server.tickets import TICKET_SECONDS
from agentic_rag.store.audit import AuditOutcome, AuditRecord, Verdict
from agentic_rag.store.keys import KeyRecord, KeyRole


class NewKey(Form):
    """``POST /api/keys``"""

    user: str
    role: KeyRole
    domains: list[str] = Field(default_factory=list)


class AuditQuery(Form):
    """``GET /api/audit``"""

    limit: int = Field(50, ge=1, le=200)
    before: int | None = Field(None, ge=0, le=2**62)
    actor: str | None = None
    outcome: AuditOutcome | None = None


class VerifyQuery(Form):
    """``GET /api/audit/verify``"""

    head: str | None = Field(None, pattern=r"^\d{1,18}:[0-9a-f]{64}$")


def key_routes(access: Access) -> list[Route]:
    """Return the routes of keys."""

    async def list_keys(request: Request) -> Response:
        return reply({"items": [_key(each) for each in await access.list_all()]})

    async def create_key(request: Request) -> Response:
        form = await json_form(request, NewKey)
        stored, secret = await access.create(form.user, form.role, form.domains)
        return reply({**_key(stored), "key": secret}, 201)

    async def revoke_key(request: Request) -> Response:
        await access.revoke(request.path_params["key"])
        return nothing()

    return [
        Route("/api/keys", list_keys, methods=["GET"]),
        Route("/api/keys", create_key, methods=["POST"]),
        Route("/api/keys/{key}", revoke_key, methods=["DELETE"]),
    ]


def audit_routes(audit: AuditLog) -> list[Route]:
    """Return the routes of the audit log."""

    async def list_entries(request: Request) -> Response:
        form = query_form(request, AuditQuery)
        found = await audit.page(form.limit, before=form.before, actor=form.actor, outcome=form.outcome)
        return reply({"items": [_entry(each) for each in found]})

    async def verify(request: Request) -> Response:
        return reply(_verdict(await audit.verify(query_form(request, VerifyQuery).head)))

    return [
        Route("/api/audit", list_entries, methods=["GET"]),
        Route("/api/audit/verify", verify, methods=["GET"]),
    ]


def ticket_routes(gate: Gate) -> list[Route]:
    """Return the route of tickets."""

    async def issue(request: Request) -> Response:
        if request.query_params:
            raise InvalidInput("query", "nothing is taken from here.")
        value = gate.ticket(caller_of(request.scope))
        shown = {"ticket": value, "subprotocol": TICKET_PROTOCOL + value, "expiresInSeconds": TICKET_SECONDS}
        return reply(shown, 201)

    return [Route("/api/ws-tickets", issue, methods=["POST"])]


def _key(stored: KeyRecord) -> dict[str, Any]:
    return {
        "id": stored.id,
        "userId": stored.user_id,
        "role": stored.role,
        "domains": stored.domains,
        "createdAt": stored.created_at,
        "revokedAt": stored.revoked_at,
    }


def _entry(stored: AuditRecord) -> dict[str, Any]:
    return {
        "seq": stored.seq,
        "at": stored.at,
        "actor": stored.actor,
        "action": stored.action,
        "target": stored.target,
        "outcome": stored.outcome,
        "details": stored.details,
        "count": stored.count,
        "previous": stored.previous,
        "hash": stored.hash,
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "intact": not verdict.problems,
        "rows": verdict.rows,
        "head": verdict.head,
        "problems": [{"seq": each.seq, "problem": each.what} for each in verdict.problems],
    }

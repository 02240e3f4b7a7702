"""REST routes for keys, the audit log, and tickets for WebSockets.

This module defines the forms and answers. ``access`` decides the rules.
"""

from collections.abc import Sequence

from pydantic import Field
from starlette.requests import Request

from agentic_rag.access.auditing import AuditLog
from agentic_rag.access.keys import Access
from agentic_rag.access.logins import Logins
from agentic_rag.base.errors import InvalidInput, NotFound
from agentic_rag.base.forms import Form
from agentic_rag.base.json_form import Json
from agentic_rag.directory.document_labels import Group
from agentic_rag.server.auth import TICKET_PROTOCOL, TICKET_SECONDS, Caller, Gate
from agentic_rag.server.replies import Items, Part, answer, answer_from
from agentic_rag.server.routes.logins import sign_in_local_browser
from agentic_rag.server.routing import route
from agentic_rag.store.audit import AuditOutcome
from agentic_rag.store.keys import KeyRole

MAX_GROUPS = 1_000
"""Maximum number of groups of a key."""


class NewKey(Form):
    """A key to create.

    An operator's key is valid for all domains. A key without a role permits what its user may do. The key acts for
    ``groups``, whose labels of documents the settings of each domain say.
    """

    user: str
    role: KeyRole | None = None
    domains: list[str] = Field(default_factory=list)
    groups: list[Group] = Field(default_factory=list, max_length=MAX_GROUPS)


class AuditQuery(Form):
    """Filters for rows of the audit log: the newest ones, or those before the row ``before``."""

    limit: int = Field(50, ge=1, le=200)
    before: int | None = Field(None, ge=0, le=2**62)
    actor: str | None = None
    outcome: AuditOutcome | None = None


class VerifyQuery(Form):
    """``head`` is a head noted earlier. It proves the rows up to it."""

    head: str | None = Field(None, pattern=r"^\d{1,18}:[0-9a-f]{64}$")


@answer()
class Key:
    """The stored facts of a key, without the key itself."""

    id: str
    user_id: str
    role: KeyRole | None
    domains: Sequence[str]
    groups: Sequence[str]
    created_at: str
    revoked_at: str | None


@answer()
class CreatedKey(Key):
    """A new key, shown only once. ``first``: the server needed no keys before; from now on every caller needs one."""

    key: str
    first: bool


@answer()
class AuditEntry:
    """One row of the audit log; ``hash`` covers it and ``previous``."""

    seq: int
    at: str
    actor: str
    action: str
    target: str
    outcome: AuditOutcome
    details: Json
    count: int
    previous: str
    hash: str


@answer()
class AuditProblem:
    """A row at which the chain is broken."""

    seq: int
    problem: str


@answer()
class AuditVerdict:
    """Result of checking the whole log."""

    intact: bool
    rows: int
    head: str
    problems: Sequence[AuditProblem]


@answer()
class Ticket:
    """A ticket that opens one WebSocket, offered as a subprotocol."""

    ticket: str
    subprotocol: str
    expires_in_seconds: float


class KeyRoutes:
    """Keys."""

    def __init__(self, access: Access, logins: Logins, gate: Gate) -> None:
        self._access = access
        self._logins = logins
        self._gate = gate

    @route("GET", "/api/keys")
    async def list_keys(self) -> Items[Key]:
        """List all keys, including revoked ones."""
        return Items([answer_from(Key, record) for record in await self._access.list_all()])

    @route("POST", "/api/keys", status=201, errors=[NotFound])
    async def create(self, request: Request, body: NewKey, caller: Caller) -> CreatedKey:
        """Create a key, and its user if missing. An existing user gets the rights of the key that are missing.

        The first key ends access without one; the answer then signs the local user's browser in.
        """
        first = self._access.alone
        record, secret = await self._access.create(body.user, body.role, body.domains, body.groups)
        if first:
            await sign_in_local_browser(self._gate, self._logins, request, caller)
        return answer_from(CreatedKey, record, key=secret, first=first)

    @route("DELETE", "/api/keys/{key}")
    async def revoke(self, key: str) -> None:
        """Revoke a key at once, for new requests and for open connections."""
        await self._access.revoke(key)


class AuditRoutes:
    """The audit log."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit

    @route("GET", "/api/audit")
    async def list_entries(self, query: AuditQuery) -> Part[AuditEntry]:
        """List rows, newest first."""
        rows = await self._audit.page(query.limit + 1, before=query.before, actor=query.actor, outcome=query.outcome)
        return Part([answer_from(AuditEntry, row) for row in rows[: query.limit]], len(rows) > query.limit)

    @route("GET", "/api/audit/verify")
    async def verify(self, query: VerifyQuery) -> AuditVerdict:
        """Check the whole chain and report where it is broken."""
        verdict = await self._audit.verify(query.head)
        problems = [AuditProblem(problem.seq, problem.what) for problem in verdict.problems]
        return AuditVerdict(not problems, verdict.rows, verdict.head, problems)


class TicketRoutes:
    """Tickets authenticate a browser's WebSocket, because a browser cannot set a header on it."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    @route("POST", "/api/ws-tickets", allow="user", status=201)
    async def issue(self, request: Request, caller: Caller) -> Ticket:
        """Get a ticket for one WebSocket."""
        if request.query_params:
            raise InvalidInput("query", "nothing is taken from here.")
        value = await self._gate.issue_ticket(caller.entrant)
        return Ticket(value, TICKET_PROTOCOL + value, TICKET_SECONDS)

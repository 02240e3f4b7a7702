"""REST of access: keys, the audit log, tickets for WebSockets.

Owns what these routes take and answer. Knows no rule: those are ``access``'s.
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
from agentic_rag.server.auth import TICKET_PROTOCOL, TICKET_SECONDS, Caller, Gate
from agentic_rag.server.login_routes import sign_in_local_browser
from agentic_rag.server.replies import Items, Part, answer, answer_from
from agentic_rag.server.routes import route
from agentic_rag.store.audit import AuditOutcome
from agentic_rag.store.keys import KeyRole


class NewKey(Form):
    """A key to make; an operator's is for all domains, one without a role permits what its user may do."""

    user: str
    role: KeyRole | None = None
    domains: list[str] = Field(default_factory=list)


class AuditQuery(Form):
    """Which rows: the newest, or those before the row ``before``."""

    limit: int = Field(50, ge=1, le=200)
    before: int | None = Field(None, ge=0, le=2**62)
    actor: str | None = None
    outcome: AuditOutcome | None = None


class VerifyQuery(Form):
    """``head``: one noted before, which proves the rows up to it."""

    head: str | None = Field(None, pattern=r"^\d{1,18}:[0-9a-f]{64}$")


@answer()
class Key:
    """What is known of a key; the key itself is not."""

    id: str
    user_id: str
    role: KeyRole | None
    domains: Sequence[str]
    created_at: str
    revoked_at: str | None


@answer()
class CreatedKey(Key):
    """A new key, shown this once. ``first``: the server needed no keys before; from now on every caller needs one."""

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
    """A place where the chain is broken."""

    seq: int
    problem: str


@answer()
class AuditVerdict:
    """What a check of the whole log found."""

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
        """List all keys, revoked ones too."""
        return Items([answer_from(Key, record) for record in await self._access.list_all()])

    @route("POST", "/api/keys", status=201, errors=[NotFound])
    async def create(self, request: Request, body: NewKey, caller: Caller) -> CreatedKey:
        """Make a key, and its user if there is none; an existing user gets the rights of the key that are missing.

        The first key ends access without one; the answer then signs the local user's browser in.
        """
        first = self._access.alone
        record, secret = await self._access.create(body.user, body.role, body.domains)
        if first:
            await sign_in_local_browser(self._gate, self._logins, request, caller)
        return answer_from(CreatedKey, record, key=secret, first=first)

    @route("DELETE", "/api/keys/{key}")
    async def revoke(self, key: str) -> None:
        """Revoke a key: at once for new requests and for what is open with it."""
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
        """Read the whole chain and say where it is broken."""
        verdict = await self._audit.verify(query.head)
        problems = [AuditProblem(each.seq, each.what) for each in verdict.problems]
        return AuditVerdict(not problems, verdict.rows, verdict.head, problems)


class TicketRoutes:
    """Tickets: how a browser, which can set no header on a WebSocket, shows who it is."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    @route("POST", "/api/ws-tickets", allow="user", status=201)
    async def issue(self, request: Request, caller: Caller) -> Ticket:
        """Get a ticket for one WebSocket."""
        if request.query_params:
            raise InvalidInput("query", "nothing is taken from here.")
        value = await self._gate.issue_ticket(caller.entrant)
        return Ticket(value, TICKET_PROTOCOL + value, TICKET_SECONDS)

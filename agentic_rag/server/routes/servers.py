"""REST routes for the secrets of a domain and for its running MCP servers.

This module defines the forms and answers. The business layer decides the rules. No route returns the value of a secret.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from agentic_rag.access.users import User
from agentic_rag.base.errors import (
    CommandNotAllowed,
    InvalidInput,
    NotFound,
    PackageChanged,
    PackageProblem,
    SecretLimit,
    ServerReserved,
    ServerSilent,
    ServerUnavailable,
    ToolsChanged,
    TooManyServers,
)
from agentic_rag.base.forms import Form, check_size, read_form
from agentic_rag.base.json_form import Absent, Json
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.settings import VariableName
from agentic_rag.domains.paste_check import CheckedRow, NeededApproval, NeededValue, PasteChecks, RowProblem
from agentic_rag.domains.servers import Servers
from agentic_rag.domains.vault import Mask, Vault
from agentic_rag.server.replies import Items, Redacted, answer, answer_from
from agentic_rag.server.routing import route
from agentic_rag.tools.entries.json_text import read_json_text
from agentic_rag.tools.entries.reading import Note
from agentic_rag.tools.errors import ServerElsewhere
from agentic_rag.tools.server_answers import DroppedTool
from agentic_rag.tools.status import ConnectionState, ListedTool, WaitingTool

SECRETS = "/api/domains/{domain}/secrets"
SERVERS = "/api/domains/{domain}/mcp-servers"

PASTED_VALUES = 100_000
"""Maximum items and members of a pasted document, so that a document with too many servers can still be counted."""

START_ERRORS = (
    ServerReserved,
    CommandNotAllowed,
    PackageProblem,
    PackageChanged,
    TooManyServers,
    ServerUnavailable,
    ServerSilent,
    ServerElsewhere,
)
"""Reasons why a server cannot be started."""


class SecretName(Form):
    """The last part of ``/api/domains/{id}/secrets/{name}``: a name that a placeholder can use."""

    name: VariableName


class SecretForm(Form):
    """A new value, or the mask from a GET, which keeps the stored value."""

    value: Annotated[str, StringConstraints(min_length=1, max_length=8_000)] | None = Field(None, repr=False)
    set: bool | None = None
    last4: str | None = None


@answer()
class Secret:
    """The visible part of a secret. ``last4`` is given only if the value is long enough."""

    name: str
    set: bool
    last4: Absent[str] = None


@answer()
class SignInAnswer:
    """A sign-in that an MCP server waits for.

    ``begin`` is this server's address that redirects the person's browser to ``address``. ``who`` is ``owner``, or
    ``admin`` if one account serves the whole domain. ``host`` is the site where the person signs in.
    """

    id: str
    address: str
    begin: str
    who: str
    host: str
    expires_at: str


@answer()
class ConnectionAnswer:
    """One connection to an MCP server, with the listed tools and the end of its log.

    ``dropped_tools`` are listed tools that no model gets, each with the reason. ``notes`` are hints for the admin
    although the connection works.
    """

    name: str
    state: str
    reason: str
    protocol: str
    tools: Sequence[ListedTool]
    log: Sequence[str]
    dropped_tools: Sequence[DroppedTool]
    notes: Sequence[str]
    sign_in: Absent[SignInAnswer] = None


@answer()
class ServerTrial:
    """Result of testing the servers of a pasted document, with the changes to it and its ignored parts."""

    items: Sequence[ConnectionAnswer]
    changes: Sequence[Note]
    warnings: Sequence[Note]


@answer()
class PastedServer:
    """One entry of a pasted document: its state, all its problems, and its missing inputs.

    ``status``: ``ready``, ``needs_secret``, ``needs_approval``, ``needs_sign_in``, ``change_proposed`` or
    ``not_possible``. ``entry`` is the entry as it would be stored, ``proposed`` the entry after the proposed change;
    secrets are masked in both. ``saveable``: `add` accepts the entry. ``tested``: the server was started, with the
    result in ``connection``.
    """

    key: str
    name: str
    status: str
    reason: str
    problems: Sequence[RowProblem]
    needs: Sequence[NeededValue]
    secrets: Sequence[str]
    changes: Sequence[Note]
    warnings: Sequence[Note]
    saveable: bool
    tested: bool
    approval: Absent[NeededApproval] = None
    entry: Absent[Json] = None
    proposed: Absent[Json] = None
    connection: Absent[ConnectionAnswer] = None


@answer()
class CheckedPaste:
    """The rows of a pasted document in order, with the changes to the whole document and its ignored parts."""

    items: Sequence[PastedServer]
    changes: Sequence[Note]
    warnings: Sequence[Note]


class AcceptedServers(Form):
    """The servers to save, by their names in the rows.

    ``document`` is the checked document, as JSON or as its text.
    """

    document: Any = None
    accept: Annotated[tuple[Annotated[str, StringConstraints(max_length=200)], ...], Field(max_length=100)]


@answer()
class AddedServers:
    """The saved servers, with the changes to their entries and the ignored parts."""

    names: Sequence[str]
    version: int
    changes: Sequence[Note]
    warnings: Sequence[Note]


class AcceptedList(Form):
    """Consent to a list of tools. ``fingerprint`` identifies the tools as they were shown."""

    fingerprint: Annotated[str, StringConstraints(max_length=64)]


@answer()
class PendingList:
    """The tools of a server that wait for an admin's consent, and the fingerprint of exactly these descriptions.

    ``doubled``: names that the server lists more than once. No model gets these tools.
    """

    tools: Sequence[WaitingTool]
    doubled: Sequence[str]
    fingerprint: str


@answer()
class AcceptedTools:
    """The tools of a server that turns may call from now on."""

    name: str
    accepted: Sequence[str]


class SecretRoutes:
    """Secrets of a domain."""

    def __init__(self, directory: Directory, vault: Vault) -> None:
        self._directory = directory
        self._vault = vault

    @route("GET", SECRETS)
    async def list_secrets(self, domain: str) -> Items[Secret]:
        """List the names of secrets."""
        masks = await self._vault.masks((await self._directory.get(domain)).id)
        return Items([_secret(name, mask) for name, mask in masks.items() if "." not in name])

    @route("GET", f"{SECRETS}/{{name}}")
    async def get(self, domain: str, name: str) -> Secret:
        """Show whether a secret is set."""
        domain, name = await self._place(domain, name)
        masks = await self._vault.masks(domain)
        if name not in masks:
            raise NotFound("secret", name)
        return _secret(name, masks[name])

    @route("PUT", f"{SECRETS}/{{name}}", errors=[SecretLimit])
    async def put(self, domain: str, name: str, body: SecretForm) -> Secret:
        """Set a secret."""
        domain, name = await self._place(domain, name)
        if body.value is not None:
            return _secret(name, await self._vault.put(domain, name, body.value))
        masks = await self._vault.masks(domain)
        if not body.set or name not in masks:
            raise InvalidInput("value", "the secret's value is required.")
        return _secret(name, masks[name])

    @route("DELETE", f"{SECRETS}/{{name}}")
    async def delete(self, domain: str, name: str) -> None:
        """Delete a secret."""
        domain, name = await self._place(domain, name)
        await self._vault.delete(domain, name)

    async def _place(self, domain: str, name: str) -> tuple[str, str]:
        record = await self._directory.get(domain)
        return record.id, read_form(SecretName, {"name": name}, "secret").name


class ServerRoutes:
    """MCP servers of a domain."""

    def __init__(self, servers: Servers, checks: PasteChecks) -> None:
        self._servers = servers
        self._checks = checks

    @route("GET", SERVERS)
    async def list_servers(self, domain: str) -> Items[Json]:
        """List the effective servers of a domain, each with the state of its connections."""
        return Items([server.to_json() for server in await self._servers.effective(domain)])

    @route("POST", f"{SERVERS}/check", lenient=True, max_values=PASTED_VALUES)
    async def check(self, user: User, domain: str, body: object) -> Redacted[CheckedPaste]:
        """Check a pasted document and return one row per entry with all its problems. Nothing is saved.

        The body is JSON as other clients write it, with comments and trailing commas.
        """
        checked = await self._checks.check(user, domain, body)
        rows = [_row(row) for row in checked.rows]
        return Redacted(domain, CheckedPaste(rows, checked.changes, checked.warnings))

    @route("POST", f"{SERVERS}/add", errors=[ServerReserved, CommandNotAllowed, SecretLimit])
    async def add(self, user: User, domain: str, body: AcceptedServers) -> AddedServers:
        """Save the accepted servers of a checked document, with the changes proposed for them."""
        document = body.document
        if isinstance(document, str):
            document = read_json_text(document, "document")
        check_size(document, "document", PASTED_VALUES)
        saved = await self._checks.add(user, domain, document, body.accept)
        return AddedServers(body.accept, saved.record.version, saved.changes, saved.warnings)

    @route("POST", f"{SERVERS}/test", lenient=True, errors=START_ERRORS)
    async def test(self, user: User, domain: str, body: object) -> ServerTrial:
        """Start the servers of a document without saving their entries."""
        trial = await self._servers.trial(user, domain, body)
        return ServerTrial([_connection(server) for server in trial.servers], trial.changes, trial.warnings)

    @route("POST", f"{SERVERS}/{{name}}/restart", errors=START_ERRORS)
    async def restart(self, user: User, domain: str, name: str) -> ConnectionAnswer:
        """Restart a server."""
        return _connection(await self._servers.restart(user, domain, name))

    @route("GET", f"{SERVERS}/{{name}}/pending")
    async def pending(self, domain: str, name: str) -> Redacted[PendingList]:
        """Show the tools that wait for consent, each as last accepted and as it is now."""
        return Redacted(domain, answer_from(PendingList, await self._servers.pending(domain, name)))

    @route("POST", f"{SERVERS}/{{name}}/accept", errors=[ServerReserved, ToolsChanged])
    async def accept(self, domain: str, name: str, body: AcceptedList) -> AcceptedTools:
        """Accept the waiting tools exactly as they were shown."""
        return AcceptedTools(name, await self._servers.accept(domain, name, body.fingerprint))


def _secret(name: str, mask: Mask) -> Secret:
    return Secret(name, **mask)


def _row(row: CheckedRow) -> PastedServer:
    return answer_from(
        PastedServer,
        row,
        status=str(row.status),
        secrets=[need.name for need in row.needs if need.kind == "secret"],
        tested=row.connection is not None,
        connection=None if row.connection is None else _connection(row.connection),
    )


def _connection(state: ConnectionState) -> ConnectionAnswer:
    sign_in = None if state.sign_in is None else answer_from(SignInAnswer, state.sign_in)
    return answer_from(ConnectionAnswer, state, sign_in=sign_in)

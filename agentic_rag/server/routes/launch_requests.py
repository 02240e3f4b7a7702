"""REST routes for commands that MCP servers may run: the launch catalogue, and requests for what it lacks.

An admin requests a command, and an operator decides. This module defines the forms and answers. ``tools.launch`` and
``domains.launch_requests`` decide the rules.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated

import anyio.to_thread
from pydantic import Field, StringConstraints
from starlette.requests import Request

from agentic_rag.access.auditing import AuditLog, change
from agentic_rag.access.logins import Logins
from agentic_rag.access.users import User
from agentic_rag.base.errors import (
    BodyTooLarge,
    CommandNotAllowed,
    LaunchRequestChanged,
    LaunchRequestClosed,
    LaunchRequestsFull,
    LineAllowed,
    NotFound,
    PackageProblem,
    ServerReserved,
)
from agentic_rag.base.forms import Form
from agentic_rag.base.json_form import Json
from agentic_rag.domains.launch_requests import LaunchRequests
from agentic_rag.server.auth import Caller, Gate
from agentic_rag.server.replies import Items, answer, answer_from
from agentic_rag.server.routes.logins import sign_in_local_browser
from agentic_rag.server.routing import check_announced, route
from agentic_rag.store.launch_requests import LaunchRequestRecord, RequestState
from agentic_rag.tools.launch.allowed import LaunchCatalogue, PermissionSource
from agentic_rag.tools.launch.bundles import MAX_BUNDLE_BYTES
from agentic_rag.tools.launch.catalogue import MAX_ARGUMENTS, CatalogueEntry, Package, SlotKind, template
from agentic_rag.tools.launch.facts import Facts
from agentic_rag.tools.launch.requests import LaunchGrant

CATALOGUE = "/api/launch-catalogue"
REQUESTS = "/api/launch-requests"
OF_DOMAIN = "/api/domains/{domain}/launch-requests"
SERVER = "/api/domains/{domain}/mcp-servers/{name}"
ASKING = (CommandNotAllowed, ServerReserved, LineAllowed, PackageProblem, LaunchRequestsFull, LaunchRequestChanged)

Word = Annotated[str, StringConstraints(max_length=4096)]
ToolName = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class RequestQuery(Form):
    """State of the requests to list; by default all."""

    state: RequestState | None = None


class ApprovalForm(Form):
    """An operator's permission. ``fingerprint`` identifies the request as it was shown.

    ``args`` is the template of the arguments, in which ``{path:workspace}``, ``{text}`` and ``{url}`` are slots; None
    means the proposed template. ``network``: the program may use the network. ``write``: folders in slots are writable.
    ``read_only`` lists tools without side effects, by the server's own names.
    """

    fingerprint: Annotated[str, StringConstraints(max_length=64)]
    args: Annotated[tuple[Word, ...], Field(max_length=MAX_ARGUMENTS)] | None = None
    network: bool = False
    write: bool = False
    read_only: Annotated[tuple[ToolName, ...], Field(max_length=200)] = ()


class RefusalForm(Form):
    """Reason of a refusal, shown to the admin who made the request."""

    reason: Annotated[str, StringConstraints(min_length=1, max_length=500)]


@answer(kw_only=True)
class LaunchRequest:
    """A requested command, and facts about the program that would run.

    ``entry`` is the entry to save once the command is allowed. ``${NAME}`` in it stands for a value that the domain
    sets. ``secrets`` names the secret ones.
    """

    id: str
    domain_id: str
    server: str
    state: RequestState
    reason: str
    command: str
    args: Sequence[str]
    env: Sequence[str]
    secrets: Sequence[str]
    template: Sequence[str]
    facts: Facts
    fingerprint: str
    entry: Json
    grant: LaunchGrant | None
    catalogue_id: str
    sha256: str
    requested_by: str
    requested_at: str
    decided_by: str
    decided_at: str | None


class LaunchRequestRoutes:
    """Launch requests."""

    def __init__(self, requests: LaunchRequests, logins: Logins, gate: Gate) -> None:
        self._requests = requests
        self._logins = logins
        self._gate = gate

    @route("POST", f"{SERVER}/request", status=201, errors=ASKING)
    async def request(self, user: User, domain: str, name: str, body: object) -> LaunchRequest:
        """Request a command that the catalogue lacks.

        The body is an entry, a server.json, or {} for the saved entry.
        """
        return _show(await self._requests.request(user, domain, name, body))

    @route("POST", f"{SERVER}/bundle", status=201, takes="application/zip", errors=(*ASKING, BodyTooLarge))
    async def propose_bundle(self, request: Request, user: User, domain: str, name: str) -> LaunchRequest:
        """Request the server in a bundle (.mcpb), which is the body.

        With the name ``-`` the server gets the bundle's own name.
        """
        check_announced(request, MAX_BUNDLE_BYTES)
        name = "" if name == "-" else name
        return _show(await self._requests.propose_bundle(user, domain, name, request.stream()))

    @route("GET", OF_DOMAIN)
    async def list_of_domain(self, domain: str) -> Items[LaunchRequest]:
        """List the requests of a domain, newest first, with the reasons of refusals."""
        return Items([_show(record) for record in await self._requests.of_domain(domain)])

    @route("DELETE", f"{OF_DOMAIN}/{{launch_request}}", errors=[LaunchRequestClosed])
    async def withdraw(self, domain: str, launch_request: str) -> None:
        """Withdraw an open request."""
        await self._requests.withdraw(domain, launch_request)

    @route("GET", REQUESTS)
    async def list_all(self, query: RequestQuery) -> Items[LaunchRequest]:
        """List the requests of all domains, newest first."""
        return Items([_show(record) for record in await self._requests.list_all(query.state)])

    @route("GET", f"{REQUESTS}/{{launch_request}}")
    async def get(self, launch_request: str) -> LaunchRequest:
        """Show a request and the program that would run."""
        return _show(await self._requests.get(launch_request))

    @route("POST", f"{REQUESTS}/{{launch_request}}/approve", errors=[LaunchRequestClosed, LaunchRequestChanged])
    async def approve(
        self, request: Request, user: User, caller: Caller, launch_request: str, body: ApprovalForm
    ) -> LaunchRequest:
        """Allow exactly the request that was shown.

        The server installs it in the background and updates the request's state. A program that may use the network
        ends access without keys. The answer then signs the local user's browser in.
        """
        grant = None  # without any of these, exactly what was requested is allowed
        if body.args is not None or body.network or body.write or body.read_only:
            shown = (await self._requests.get(launch_request)).template
            args = shown if body.args is None else body.args
            grant = LaunchGrant(args, body.network, body.write, body.read_only)
        approved = await self._requests.approve(user, launch_request, body.fingerprint, grant)
        if body.network:
            await sign_in_local_browser(self._gate, self._logins, request, caller)
        return _show(approved)

    @route("POST", f"{REQUESTS}/{{launch_request}}/refuse", errors=[LaunchRequestClosed])
    async def refuse(self, user: User, launch_request: str, body: RefusalForm) -> LaunchRequest:
        """Refuse a request with a reason."""
        return _show(await self._requests.refuse(user, launch_request, body.reason))


def _show(record: LaunchRequestRecord) -> LaunchRequest:
    values: Mapping[str, str] = {name: f"${{{name}}}" for name in record.env}
    entry = {"type": "stdio", "command": record.command, "args": list(record.args), "env": dict(values)}
    return answer_from(LaunchRequest, record, entry=entry)


@answer(kw_only=True)
class CatalogueLine:
    """A command that any domain may start.

    ``origin``: ``builtin``, ``operator`` (from the operator's file), or ``allowed`` (DELETE revokes it). ``arguments``
    is the template in readable form. ``env`` lists variables that may be set, ``fixed`` those that the entry sets.
    ``folders`` are additional folders that the command may read. ``files`` maps paths of the program and of the files
    on its command line to their SHA-256.
    """

    id: str
    origin: PermissionSource
    command: str
    arguments: str
    integrity: str
    env: Mapping[str, SlotKind]
    fixed: Mapping[str, str]
    network: bool
    write: bool
    folders: Sequence[str]
    read_only: Sequence[str]
    files: Mapping[str, str]


class CatalogueRoutes:
    """The launch catalogue."""

    def __init__(self, catalogue: LaunchCatalogue, audit: AuditLog) -> None:
        self._catalogue = catalogue
        self._audit = audit

    @route("GET", CATALOGUE)
    async def list_all(self) -> Items[CatalogueLine]:
        """List the commands that may run, the operator's own first."""
        by_origin = await anyio.to_thread.run_sync(self._catalogue.by_origin)
        return Items([_show_entry(entry, origin) for origin, entries in by_origin.items() for entry in entries])

    @route("DELETE", f"{CATALOGUE}/{{entry}}", errors=[NotFound])
    async def revoke(self, entry: str) -> None:
        """Revoke an allowed command, effective from the next start of a server."""
        if not await anyio.to_thread.run_sync(self._catalogue.revoke, entry):
            raise NotFound("catalogue_entry", entry)
        await self._audit.note(change("mcp.revoke", entry))


def _show_entry(entry: CatalogueEntry, origin: PermissionSource) -> CatalogueLine:
    return CatalogueLine(
        id=entry.id,
        origin=origin,
        command=shlex.join(entry.runs.line),
        arguments=template(entry),
        integrity=entry.runs.integrity if isinstance(entry.runs, Package) else "",
        env=entry.env,
        fixed=entry.fixed,
        network=entry.network,
        write=entry.write,
        folders=entry.folders,
        read_only=sorted(entry.read_only),
        files={} if isinstance(entry.runs, Package) else entry.runs.files,
    )

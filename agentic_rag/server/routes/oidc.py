"""REST routes for signing in at an OpenID provider.

This module defines the forms and answers, and the cookie that binds a sign-in to its browser. ``access.oidc.logins``
does the steps of the sign-in.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Final

import anyio.to_thread
from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse

from agentic_rag.base.errors import AgenticRagError, NotFound
from agentic_rag.base.forms import Form
from agentic_rag.base.json_form import Absent
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.server.auth import Caller, Gate, source_of
from agentic_rag.server.cookies import BEGUN, drop_cookie, make_cookie, read_cookie, set_cookie
from agentic_rag.server.replies import answer, request_id
from agentic_rag.server.root_path import root_path_of
from agentic_rag.server.routes.logins import AUTH, LoginAttempts, LogoutRedirect, keep_cookie
from agentic_rag.server.routing import route
from agentic_rag.store.users import Grant

if TYPE_CHECKING:  # importing joserfc takes 0.1 s, so only servers with a provider import it
    from agentic_rag.access.oidc.logins import ProviderLogins

OIDC = f"{AUTH}/oidc"
CALLBACK: Final = f"{OIDC}/callback"
BEGUN_SECONDS: Final = 600
BEGUN_A_SECOND: Final = 1.0
BEGUN_AT_ONCE: Final = 60.0
"""Sign-ins that one address may begin in a burst. Each one stores a row before the caller has proved anything."""


class BeginQuery(Form):
    """Parameters for beginning a sign-in.

    ``returnTo`` is the path on this server to which the browser goes after the sign-in.
    """

    return_to: str = Field("/", max_length=1_000)


class CallbackQuery(Form):
    """Parameters that the provider adds to the callback address. Others are ignored."""

    model_config = ConfigDict(extra="ignore")

    state: str = Field("", max_length=500)
    code: str = Field("", max_length=4_000)
    iss: str | None = Field(None, max_length=1_000)
    error: str = Field("", max_length=200)


class MappingQuery(Form):
    """Groups whose rights to show. ``groups`` has one group per line."""

    groups: str = Field("", max_length=10_000)


@answer()
class MappingLine:
    """Rights of a group. ``groups`` is a pattern in which ``*`` stands for any characters."""

    groups: str
    domain: str | None
    grant: Grant | None
    operator: bool


@answer()
class MappedRights:
    """Combined rights of a set of groups."""

    operator: bool
    grants: Mapping[str, Grant]


@answer(kw_only=True)
class ProviderMapping:
    """The provider's settings and the operator's mapping file.

    ``problem`` says why the mapping file cannot be used, so that nobody can sign in through the provider. ``redirect``
    is the callback address to register at the provider. ``rights`` are those of the groups in the query.
    """

    issuer: str
    client_id: str
    audience: str
    scopes: str
    groups_claim: str
    name_claim: str
    redirect: str
    lines: Sequence[MappingLine]
    problem: Absent[str] = None
    rights: Absent[MappedRights] = None


class ProviderDepartures(LogoutRedirect):
    """The logout address at an OpenID provider. ``public_url`` is this server's address; empty if unknown."""

    present = True

    def __init__(self, login: "ProviderLogins", public_url: str) -> None:
        self._login = login
        self._back = f"{public_url}/" if public_url else ""

    async def logout_url(self) -> str | None:
        return await self._login.logout_url(self._back)


class OidcRoutes:
    """Signing in at an OpenID provider. ``login`` is None if no provider is configured."""

    def __init__(self, login: "ProviderLogins | None", gate: Gate) -> None:
        self._login = login
        self._gate = gate
        self._begun = LoginAttempts(BEGUN_A_SECOND, BEGUN_AT_ONCE)

    @route("GET", f"{OIDC}/begin", allow="anyone", errors=[NotFound])
    async def begin(self, request: Request, caller: Caller, query: BeginQuery) -> RedirectResponse:
        """Redirect this browser to the provider to sign in."""
        logins, source, at = self._provider_logins(), source_of(request.scope), time.monotonic()
        try:
            self._begun.check(at, source)
            self._begun.count(at, source)
            sign_in = await logins.begin(self._redirect(request), query.return_to)
        except AgenticRagError as exc:
            return RedirectResponse(await _refused_at(request, caller, exc), status_code=303)
        secure = self._gate.is_secure(request.scope)
        # Lax, not strict: the provider's page redirects here, and the browser has to send this cookie with that
        # request.
        cookie = make_cookie(BEGUN, sign_in.browser, BEGUN_SECONDS, secure=secure, strict=False)
        set_cookie(request.scope, cookie)
        return RedirectResponse(sign_in.url, status_code=303)

    @route("GET", CALLBACK, allow="anyone", errors=[NotFound])
    async def finish(self, request: Request, caller: Caller, query: CallbackQuery) -> HTMLResponse:
        """Sign in the browser that returns from the provider, then send it to the page it asked for."""
        # Imports joserfc, which only servers with a provider need: they have imported it at their start.
        from agentic_rag.access.oidc.logins import Returned

        logins, secure = self._provider_logins(), self._gate.is_secure(request.scope)
        browser = read_cookie(request.headers, BEGUN, secure=secure) or ""
        returned = Returned(query.state, query.code, query.iss, query.error, browser)
        try:
            ended = await logins.finish(self._redirect(request), returned)
        except AgenticRagError as exc:
            place = root_path_of(request.scope) + await _refused_at(request, caller, exc)
            return _page_to(place, "Not signed in", exc.status)
        keep_cookie(self._gate, request, ended.token, ended.login)
        set_cookie(request.scope, drop_cookie(BEGUN, secure=secure))
        # A page instead of a redirect: a browser does not send a strict cookie on a navigation that another site
        # started.
        return _page_to(root_path_of(request.scope) + ended.return_to, "Signed in")

    @route("GET", f"{OIDC}/mapping", allow="operator", errors=[NotFound])
    async def mapping(self, request: Request, query: MappingQuery) -> ProviderMapping:
        """Show the provider and the rights of its groups; `groups` shows the combined rights of these groups."""
        logins = self._provider_logins()
        client = logins.client
        shown = ProviderMapping(
            issuer=client.issuer,
            client_id=client.id,
            audience=client.audience or client.id,
            scopes=client.scopes,
            groups_claim=client.groups,
            name_claim=client.name,
            redirect=self._redirect(request),
            lines=[],
        )
        try:
            lines = await anyio.to_thread.run_sync(logins.grants.lines)
            rights = await anyio.to_thread.run_sync(logins.grants.rights_of, query.groups.split("\n"))
        except BadConfiguration as exc:
            return replace(shown, problem=str(exc))
        mapping_lines = [MappingLine(line.groups, line.domain, line.grant, line.operator) for line in lines]
        mapped = MappedRights(rights.operator, rights.grants) if query.groups else None
        return replace(shown, lines=mapping_lines, rights=mapped)

    def _provider_logins(self) -> "ProviderLogins":
        if self._login is None:
            raise NotFound("provider", "oidc")
        return self._login

    def _redirect(self, request: Request) -> str:
        """Return the callback address on this server."""
        return self._gate.own_url(request.scope) + CALLBACK


async def _refused_at(request: Request, caller: Caller, refused: AgenticRagError) -> str:
    """Return the address of the page that explains a refusal in the reader's language.

    Raises:
        AgenticRagError: the refusal, if the client does not accept HTML.
    """
    if "text/html" not in request.headers.get("accept", ""):
        raise refused
    action = f"{request.method} {request.url.path}"
    await caller.note_refusal(refused, action, request.url.path, request_id(request.scope))
    return f"/#/sign-in-failed/{refused.code}"


def _page_to(path: str, words: str, status: int = 200) -> HTMLResponse:
    place = escape(path, quote=True)
    return HTMLResponse(
        f'<!doctype html><meta http-equiv="refresh" content="0; url={place}">'
        f'<title>{words}</title><a href="{place}">{words}</a>',
        status,
    )

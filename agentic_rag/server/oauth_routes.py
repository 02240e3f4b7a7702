"""Signing in at MCP servers: the addresses a person's browser sees, and who is signed in where.

Owns the cookie that binds a sign-in to the browser in which it was begun, and the plain page at its end. Knows no
rule: those are `domains.sign_ins`'.
"""

import html
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from agentic_rag.access.users import User
from agentic_rag.base.errors import AgenticRagError, InvalidInput, NotFound
from agentic_rag.directory.directory import Directory
from agentic_rag.domains.sign_in_source import SignInSource
from agentic_rag.server.auth import Caller
from agentic_rag.server.replies import Items, answer, answer_from
from agentic_rag.server.routes import route
from agentic_rag.server.server_routes import OpenSignIn

CALLBACK = "/api/oauth/callback"
BEGIN = "/api/oauth/begin/{sign_in}"
SIGN_INS = "/api/domains/{domain}/mcp-servers/{name}/sign-ins"

R = TypeVar("R", bound=Response)

COOKIE = "agentic-rag-sign-in"
COOKIE_SECONDS = 600
POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
MAX_PARAMETER = 8_000
OURS, MINE = "domain", "me"
"""Stand for the domain's own account and for the caller's in the path of a sign-in."""


@answer()
class SignedIn:
    """Who is signed in at an MCP server. ``account``: in the words of its authorization server, which may say nothing.

    ``user``: whose sign-in it is; empty: the domain's, for everybody. ``until``: when its token ends, which is renewed
    where that is possible.
    """

    user: str
    account: str
    issuer: str
    scopes: list[str]
    by: str
    since: str
    until: str | None


@answer()
class EndedSignIn:
    """``revoked``: the authorization server took the tokens back, too; here they are gone in any case."""

    revoked: bool


class OAuthRoutes:
    """Sign-ins at MCP servers."""

    def __init__(self, source: SignInSource, directory: Directory) -> None:
        self._source = source
        self._directory = directory

    @route("GET", BEGIN, allow="user", status=303, errors=[NotFound])
    async def follow(self, user: User, sign_in: str) -> Response:
        """Bind a sign-in to this browser, and lead it to the authorization server."""
        found = await self._source.sign_ins()
        address, cookie = await found.start(user, sign_in)
        return _bind(RedirectResponse(address, 303), cookie, secure=found.document_url is not None)

    @route("POST", BEGIN, allow="user", errors=[NotFound])
    async def begin(self, user: User, sign_in: str) -> Response:
        """Bind a sign-in to this browser; answer with the ``address`` to go to."""
        found = await self._source.sign_ins()
        address, cookie = await found.start(user, sign_in)
        return _bind(JSONResponse({"address": address}), cookie, secure=found.document_url is not None)

    @route("GET", CALLBACK, allow="anyone", errors=[InvalidInput])
    async def callback(self, request: Request, caller: Caller) -> HTMLResponse:
        """Complete a sign-in: here an authorization server sends the browser back to."""
        pairs = request.query_params.multi_items()
        answered = dict(pairs)
        if len(answered) != len(pairs) or any(len(text) > MAX_PARAMETER for text in answered.values()):
            return _page("The sign-in failed", "The answer is none that can be read.", 400)
        user = None if caller.is_nobody else caller.user
        try:
            found = await (await self._source.sign_ins()).complete(answered, user, request.cookies.get(COOKIE, ""))
        except AgenticRagError as exc:
            return _page("The sign-in failed", str(exc), 400)
        whom = f" as {found.account}" if found.account else ""
        words = f"“{found.server}” may be used{whom}. Waiting calls continue. You can close this page."
        return _page("Signed in", words, 200)

    @route("GET", "/client-metadata.json", allow="anyone", errors=[NotFound])
    async def document(self) -> Response:
        """Show our client metadata document, by which authorization servers know us without a registration."""
        found = (await self._source.sign_ins()).document()
        if found is None:
            raise NotFound("client_document", "client-metadata.json")
        return JSONResponse(found, headers={"cache-control": "public, max-age=3600"})

    @route("GET", SIGN_INS, allow="member")
    async def list_sign_ins(self, user: User, domain: str, name: str) -> Items[SignedIn]:
        """List who is signed in at an MCP server: oneself, for an admin everybody."""
        await self._directory.get(domain)
        found = await (await self._source.sign_ins()).accounts(user, domain, name)
        return Items(
            [
                SignedIn(
                    each.user_id,
                    each.account,
                    each.issuer,
                    each.scope.split(),
                    each.signed_in_by,
                    each.signed_in_at,
                    each.expires_at,
                )
                for each in found
            ]
        )

    @route("GET", f"{SIGN_INS}/open", allow="member")
    async def list_open(self, user: User, domain: str, name: str) -> Items[OpenSignIn]:
        """List the sign-ins at an MCP server that wait for the caller."""
        await self._directory.get(domain)
        found = await (await self._source.sign_ins()).open_for(user, domain, name)
        return Items([answer_from(OpenSignIn, each, id=each.sign_in) for each in found])

    @route("DELETE", f"{SIGN_INS}/{{owner}}", allow="member", status=200, errors=[NotFound])
    async def revoke(self, user: User, domain: str, name: str, owner: str) -> EndedSignIn:
        """End a sign-in: ``me``, ``domain`` for the one that serves everybody, or a user's id."""
        await self._directory.get(domain)
        whose = {OURS: "", MINE: user.id}.get(owner, owner)
        return EndedSignIn(await (await self._source.sign_ins()).revoke(user, domain, name, whose))


def _bind(response: R, cookie: str, *, secure: bool) -> R:
    """Return an answer that gives this browser, and no page in it, what completes the sign-in."""
    response.set_cookie(
        COOKIE, cookie, max_age=COOKIE_SECONDS, path=CALLBACK, secure=secure, httponly=True, samesite="lax"
    )
    response.headers["cache-control"] = "no-store"
    response.headers["referrer-policy"] = "no-referrer"
    return response


def _page(title: str, words: str, status: int) -> HTMLResponse:
    """Return a page that loads nothing and tells no other site where it stands: its address holds a code."""
    said = f"<h1>{html.escape(title)}</h1><p>{html.escape(words)}</p>"
    page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>{said}</html>'
    headers = {"content-security-policy": POLICY, "referrer-policy": "no-referrer", "cache-control": "no-store"}
    return HTMLResponse(page, status, headers)

"""Routes for signing in at MCP servers: the addresses for a person's browser, and the list of sign-ins.

This module defines the cookie that binds a sign-in to the browser that began it, and the plain page at the end.
`domains.sign_ins` decides the rules.
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
from agentic_rag.server.routes.servers import SignInAnswer
from agentic_rag.server.routing import route

CALLBACK = "/api/oauth/callback"
BEGIN = "/api/oauth/begin/{sign_in}"
SIGN_INS = "/api/domains/{domain}/mcp-servers/{name}/sign-ins"

R = TypeVar("R", bound=Response)

COOKIE = "agentic-rag-sign-in"
COOKIE_SECONDS = 600
POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
MAX_PARAMETER = 8_000
OURS, MINE = "domain", "me"
"""Path values that stand for the domain's own account and for the caller's account."""


@answer()
class SignedIn:
    """A sign-in at an MCP server. ``account`` is the name that the authorization server gives it, possibly empty.

    ``user`` is the owner of the sign-in; empty if it is the domain's, which all members use. ``until`` is the expiry of
    the token, which is renewed if possible.
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
    """Result of ending a sign-in. ``revoked``: the authorization server revoked the tokens, too.

    This server deletes them in any case.
    """

    revoked: bool


class OAuthRoutes:
    """Sign-ins at MCP servers."""

    def __init__(self, source: SignInSource, directory: Directory) -> None:
        self._source = source
        self._directory = directory

    @route("GET", BEGIN, allow="user", status=303, errors=[NotFound])
    async def follow(self, user: User, sign_in: str) -> Response:
        """Bind a sign-in to this browser and redirect to the authorization server."""
        sign_ins = await self._source.sign_ins()
        address, cookie = await sign_ins.start(user, sign_in)
        return _bind(RedirectResponse(address, 303), cookie, secure=sign_ins.document_url is not None)

    @route("POST", BEGIN, allow="user", errors=[NotFound])
    async def begin(self, user: User, sign_in: str) -> Response:
        """Bind a sign-in to this browser and return the ``address`` to open."""
        sign_ins = await self._source.sign_ins()
        address, cookie = await sign_ins.start(user, sign_in)
        return _bind(JSONResponse({"address": address}), cookie, secure=sign_ins.document_url is not None)

    @route("GET", CALLBACK, allow="anyone", errors=[InvalidInput])
    async def callback(self, request: Request, caller: Caller) -> HTMLResponse:
        """Complete a sign-in. The authorization server redirects the browser to this address."""
        pairs = request.query_params.multi_items()
        parameters = dict(pairs)
        # No parameter may be there twice (RFC 6749, 3.1).
        if len(parameters) != len(pairs) or any(len(text) > MAX_PARAMETER for text in parameters.values()):
            return _page("The sign-in failed", "The answer is none that can be read.", 400)
        user = None if caller.is_nobody else caller.user
        try:
            completed = await (await self._source.sign_ins()).complete(
                parameters, user, request.cookies.get(COOKIE, "")
            )
        except AgenticRagError as exc:
            # Anyone may open this address: only operators read addresses and paths of the server's own parts.
            reason = str(exc) if caller.user.operator else exc.plain
            return _page("The sign-in failed", reason, 400)
        whom = f" as {completed.account}" if completed.account else ""
        words = f"“{completed.server}” may be used{whom}. Waiting calls continue. You can close this page."
        return _page("Signed in", words, 200)

    @route("GET", "/client-metadata.json", allow="anyone", errors=[NotFound])
    async def document(self) -> Response:
        """Show our client metadata document.

        It identifies this client to authorization servers without registration.
        """
        metadata = (await self._source.sign_ins()).document()
        if metadata is None:
            raise NotFound("client_document", "client-metadata.json")
        return JSONResponse(metadata, headers={"cache-control": "public, max-age=3600"})

    @route("GET", SIGN_INS, allow="member")
    async def list_sign_ins(self, user: User, domain: str, name: str) -> Items[SignedIn]:
        """List the sign-ins at an MCP server: the caller's own, or all of them for an admin."""
        await self._directory.get(domain)
        accounts = await (await self._source.sign_ins()).accounts(user, domain, name)
        return Items(
            [
                SignedIn(
                    account.user_id,
                    account.account,
                    account.issuer,
                    account.scope.split(),
                    account.signed_in_by,
                    account.signed_in_at,
                    account.expires_at,
                )
                for account in accounts
            ]
        )

    @route("GET", f"{SIGN_INS}/open", allow="member")
    async def list_open(self, user: User, domain: str, name: str) -> Items[SignInAnswer]:
        """List the sign-ins at an MCP server that wait for the caller."""
        await self._directory.get(domain)
        open_sign_ins = await (await self._source.sign_ins()).open_for(user, domain, name)
        return Items([answer_from(SignInAnswer, sign_in, id=sign_in.sign_in) for sign_in in open_sign_ins])

    @route("DELETE", f"{SIGN_INS}/{{owner}}", allow="member", status=200, errors=[NotFound])
    async def revoke(self, user: User, domain: str, name: str, owner: str) -> EndedSignIn:
        """End a sign-in. ``owner`` is ``me``, ``domain`` for the shared account, or a user's id."""
        await self._directory.get(domain)
        whose = {OURS: "", MINE: user.id}.get(owner, owner)
        return EndedSignIn(await (await self._source.sign_ins()).revoke(user, domain, name, whose))


def _bind(response: R, cookie: str, *, secure: bool) -> R:
    """Set the cookie that completes the sign-in on a response. Scripts cannot read the cookie."""
    response.set_cookie(
        COOKIE, cookie, max_age=COOKIE_SECONDS, path=CALLBACK, secure=secure, httponly=True, samesite="lax"
    )
    response.headers["cache-control"] = "no-store"
    response.headers["referrer-policy"] = "no-referrer"
    return response


def _page(title: str, words: str, status: int) -> HTMLResponse:
    """Return a page that loads nothing and sends no referrer, because its address contains a code."""
    body = f"<h1>{html.escape(title)}</h1><p>{html.escape(words)}</p>"
    page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>{body}</html>'
    headers = {"content-security-policy": POLICY, "referrer-policy": "no-referrer", "cache-control": "no-store"}
    return HTMLResponse(page, status, headers)

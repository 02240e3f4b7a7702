"""Errors of sign-ins at MCP servers.

Owns the declarations; part of the tree in ``errors``.
"""

from agentic_rag.base.errors import AgenticRagError, ServerUnavailable


class SignInNeeded(
    ServerUnavailable,
    code="SIGN_IN_NEEDED",
    status=409,
    retryable=False,
    facts=("server", "sign_in", "who", "host", "expires_at"),
):
    """An MCP server requires a sign-in at its authorization server.

    ``sign_in``: the id of the open sign-in.
    ``address``: the complete authorization address, with the secret ``state`` in it: for the person who signs in, never
    for a model.
    ``begin``: our own address, which binds the sign-in to that person's browser and redirects there.
    ``who``: ``owner`` (the user of the turn) or ``admin`` (of the domain: one account for all users).
    ``host``: where the person will be asked.
    """

    sign_in: str
    address: str
    begin: str
    who: str
    host: str
    expires_at: str
    text = "The MCP server {self.server!r} needs a sign-in at {self.host}: {self.reason}"


class SignInProblem(AgenticRagError, code="SIGN_IN_FAILED", status=502, facts=("reason",)):
    """A sign-in at an MCP server cannot be begun or completed, or its token cannot be renewed."""

    reason: str
    text = "The sign-in failed: {self.reason}."


class NoSignIn(SignInProblem):
    """A server publishes no sign-in metadata, and the default sign-in addresses do not work."""


class SignInSilent(SignInProblem, code="SIGN_IN_UNREACHABLE", status=504, retryable=True):
    """An authorization server gave no answer, or asked to retry later: the outcome of the request is unknown."""


class GrantRefused(SignInProblem, code="SIGN_IN_REFUSED"):
    """An authorization server refused a request for good. ``error``: its code (RFC 6749, 5.2)."""

    error: str = ""

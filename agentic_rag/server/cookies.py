"""Cookies of our own page: their names, how they are read and set, and what proves that our own page sends them. Pure.

A browser sends a cookie by itself, whoever made it send the request. So it counts only where our own page asks: the
request names no other origin, the browser (where it tells) says it is of the same origin, and what changes something
brings a header that no form of another page can send (`PROOF`). A WebSocket brings no such header: it takes a ticket.
"""

from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from agentic_rag.base.errors import Forbidden

SIGN_IN: Final = "agentic-rag"
"""The name of the cookie of a browser that is signed in; on https with `HOST_PREFIX`."""
BEGUN: Final = "agentic-rag-oidc"
"""The name of the cookie of a browser that is signing in at an OpenID provider."""
HOST_PREFIX: Final = "__Host-"
"""Browsers take a cookie of such a name only over https, from its own host, for all of its paths."""
PROOF: Final = "x-requested-with"
"""A header that a form cannot send; its value does not matter."""
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
OLDER_DOOR: Final = "/api/conversation"
"""Clients of the older contract send no header of ours: JSON, which a form cannot say it sends, is their proof."""


def is_secure(scope: Scope, headers: Headers, public_host: str) -> bool:
    """Whether the browser speaks https. ``public_host``: the host (and port) of our https address, if we have one."""
    return scope.get("scheme") in ("https", "wss") or (bool(public_host) and headers.get("host", "") == public_host)


def read_cookie(headers: Headers, name: str, *, secure: bool) -> str | None:
    """Return the value of a cookie; None where there is none, or several: who set which of them nobody knows."""
    wanted = HOST_PREFIX + name if secure else name
    found = []
    for field in headers.getlist("cookie"):
        for part in field.split(";"):
            given, _, value = part.strip().partition("=")
            if given == wanted:
                found.append(value)
    return found[0] if len(found) == 1 and found[0] else None


def make_cookie(name: str, value: str, seconds: float, *, secure: bool, strict: bool = True) -> bytes:
    """Return the value of a Set-Cookie field. ``strict``: it is not sent where another site leads to us."""
    parts = [
        f"{HOST_PREFIX if secure else ''}{name}={value}",
        "Path=/",
        f"Max-Age={max(0, round(seconds))}",
        "HttpOnly",
        f"SameSite={'Strict' if strict else 'Lax'}",
    ]
    return "; ".join([*parts, "Secure"] if secure else parts).encode("ascii")


def drop_cookie(name: str, *, secure: bool) -> bytes:
    """Return the value of a Set-Cookie field that removes a cookie."""
    return make_cookie(name, "", 0, secure=secure)


def set_cookie(scope: Scope, cookie: bytes) -> None:
    """Have the answer to this request set a cookie."""
    scope["state"]["cookies"].append((b"set-cookie", cookie))


def check_own_page(scope: Scope, headers: Headers, origin: str) -> None:
    """Check that a request with a cookie comes from our own page. ``origin``: the listed other one whose page sends it.

    Raises:
        Forbidden: it does not, or nothing proves it.
    """
    site = headers.get("sec-fetch-site", "same-origin")
    if origin or site not in ("same-origin", "none"):
        raise Forbidden("A cookie is for this server's own page. Pages of other origins show a key.")
    if scope["method"] not in READING:
        check_proof(scope, headers)


def check_proof(scope: Scope, headers: Headers) -> None:
    """Check that no form of another page can have sent a request.

    Raises:
        Forbidden: one can.
    """
    is_json = headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
    older = scope["path"] == OLDER_DOOR or scope["path"].startswith(f"{OLDER_DOOR}/")
    if PROOF not in headers and not (older and (is_json or scope["method"] == "DELETE")):
        raise Forbidden("With a cookie, a request that changes something needs the header 'X-Requested-With'.")

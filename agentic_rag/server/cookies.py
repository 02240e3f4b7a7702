"""Cookies of our own page: their names, reading, setting, and the protection against cross-site requests. Pure.

A browser attaches a cookie to a request no matter which site caused the request. So a cookie is accepted only from our
own page: the request names no other origin, the browser (if it says so) reports the same origin, and a request that
changes something has a header that no form of another page can send (`PROOF`). A WebSocket cannot send such a header
and uses a ticket instead.
"""

from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from agentic_rag.base.errors import Forbidden

SIGN_IN: Final = "agentic-rag"
"""Cookie name of a signed-in browser. On https it has `HOST_PREFIX`."""
BEGUN: Final = "agentic-rag-oidc"
"""Cookie name of a browser that is signing in at an OpenID provider."""
HOST_PREFIX: Final = "__Host-"
"""Browsers accept a cookie with this prefix only over https, from its own host, and for all its paths."""
PROOF: Final = "x-requested-with"
"""A header that a form cannot send. Its value does not matter."""
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
OLDER_DOOR: Final = "/api/conversation"
"""Path of the older contract, whose clients do not send our header.

JSON proves their origin, as forms cannot send it.
"""


def is_secure(scope: Scope, headers: Headers, public_host: str) -> bool:
    """Whether the browser uses https.

    ``public_host`` is the host (and port) of our https address, or empty.
    """
    return scope.get("scheme") in ("https", "wss") or (bool(public_host) and headers.get("host", "") == public_host)


def read_cookie(headers: Headers, name: str, *, secure: bool) -> str | None:
    """Return the value of a cookie.

    None if it is missing or duplicated, as it is unknown who set which.
    """
    full_name = HOST_PREFIX + name if secure else name
    values = []
    for field in headers.getlist("cookie"):
        for part in field.split(";"):
            cookie_name, _, value = part.strip().partition("=")
            if cookie_name == full_name:
                values.append(value)
    return values[0] if len(values) == 1 and values[0] else None


def make_cookie(name: str, value: str, seconds: float, *, secure: bool, strict: bool = True) -> bytes:
    """Return a Set-Cookie value. ``strict``: the browser does not send the cookie when another site links to us."""
    parts = [
        f"{HOST_PREFIX if secure else ''}{name}={value}",
        "Path=/",
        f"Max-Age={max(0, round(seconds))}",
        "HttpOnly",
        f"SameSite={'Strict' if strict else 'Lax'}",
    ]
    return "; ".join([*parts, "Secure"] if secure else parts).encode("ascii")


def drop_cookie(name: str, *, secure: bool) -> bytes:
    """Return a Set-Cookie value that removes a cookie."""
    return make_cookie(name, "", 0, secure=secure)


def set_cookie(scope: Scope, cookie: bytes) -> None:
    """Set a cookie on the answer to this request."""
    scope["state"]["cookies"].append((b"set-cookie", cookie))


def check_own_page(scope: Scope, headers: Headers, origin: str) -> None:
    """Check that our own page sent a request with a cookie.

    ``origin`` is the listed other origin that sent it, or empty.

    Raises:
        Forbidden: another page sent it, or the proof is missing.
    """
    site = headers.get("sec-fetch-site", "same-origin")
    if origin or site not in ("same-origin", "none"):
        raise Forbidden("A cookie is for this server's own page. Pages of other origins show a key.")
    if scope["method"] not in READING:
        check_proof(scope, headers)


def check_proof(scope: Scope, headers: Headers) -> None:
    """Check that no form of another page can have sent a request.

    Raises:
        Forbidden: a form could have sent it.
    """
    is_json = headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
    older = scope["path"] == OLDER_DOOR or scope["path"].startswith(f"{OLDER_DOOR}/")
    if PROOF not in headers and not (older and (is_json or scope["method"] == "DELETE")):
        raise Forbidden("With a cookie, a request that changes something needs the header 'X-Requested-With'.")

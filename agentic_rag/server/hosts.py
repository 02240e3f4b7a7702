"""Check the Host and Origin of requests, and build the CORS headers for pages of other origins. Pure.

A page of a foreign site can make a browser send requests to this server, either under our name (its Origin differs) or
under its own name that resolves to our address (its Host differs). Both are refused before any other check. Exceptions
are the origins that the operator has listed. For exactly these, the answer's headers allow the browser to read answers
and to send credentials (https://fetch.spec.whatwg.org/#http-cors-protocol).
"""

import ipaddress
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from agentic_rag.base.errors import Forbidden
from agentic_rag.base.settings import Settings


class Hosts:
    """The host names of a server, and the origins that may use it.

    Args:
        loopback: the server listens on loopback only. Otherwise every IP address is accepted as Host, because a page
            that rebinds DNS has a name.
        names: further host names, for example that of a reverse proxy.
        origins: other origins whose pages may use the server, as written in the setting; see `normal_origin`.
    """

    def __init__(
        self,
        *,
        loopback: bool = True,
        names: frozenset[str] = frozenset(),
        origins: frozenset[str] = frozenset(),
    ) -> None:
        self._loopback = loopback
        self._names = frozenset(name.lower() for name in names)
        self._origins = frozenset(map(normal_origin, origins))

    @property
    def shares(self) -> bool:
        """Whether pages of other origins may use this server, so that its answers differ by origin."""
        return bool(self._origins)

    def check(self, headers: Headers) -> str:
        """Check the Host and Origin of a request, and return the listed origin that sends it.

        Returns an empty string for our own page and for requests that no page sends. Behind a proxy that changes the
        Host, our own page is listed. Its browser tells that it is ours, in a header that no page can set.

        Raises:
            Forbidden: the Host is not this server, or the Origin is another site that is not listed.
        """
        hosts = headers.getlist("host")
        if len(hosts) > 1:
            raise Forbidden(f"The request names {len(hosts)} hosts; one of them is not this server.")
        host = hosts[0] if hosts else ""
        if not self._own(_hostname(f"//{host}")):
            raise Forbidden(f"Host {host[:200]!r} is not this server. {self._advice}")
        # Our own page has the host and port to which its requests go.
        origins = [origin for origin in headers.getlist("origin") if _netloc(origin) != host.lower()]
        if len(origins) == 1 and origins[0] in self._origins:
            return "" if headers.get("sec-fetch-site") == "same-origin" else origins[0]
        for origin in origins:  # the refusal names the first one
            raise Forbidden(f"Origin {origin[:200]!r} may not use this server. {ORIGIN_ADVICE}")
        return ""

    @property
    def _advice(self) -> str:
        if self._loopback and not self._names:
            return "Use http://127.0.0.1 or http://localhost."
        return "Its names are set by AGENTIC_RAG_ALLOWED_HOSTS."

    def _own(self, name: str) -> bool:
        if is_loopback(name) or name.lower() in self._names:
            return True
        return not self._loopback and _is_address(name)


Field = tuple[bytes, bytes]
"""A header field as ASGI represents it."""

ORIGIN_ADVICE: Final = "Pages of other origins are let in by AGENTIC_RAG_ALLOWED_ORIGINS."

ORIGIN_HINT: Final = b"add-this-origin-to-AGENTIC_RAG_ALLOWED_ORIGINS"
"""Sent as the allowed origin to a refused page of another one. It equals no origin, and browsers print it."""

PREFLIGHT_SECONDS: Final = 600
"""How long a browser may cache the answer to a preflight request."""

METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE"
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_NAMES = re.compile(r"[\w!#$%&'*+.^`|~-]+( *, *[\w!#$%&'*+.^`|~-]+)*", re.ASCII)
"""A comma-separated list of header field names (RFC 9110), as a browser sends it."""
_READABLE = frozenset(
    {"cache-control", "content-language", "content-length", "content-type", "expires", "last-modified", "pragma"}
)
"""Header fields that a page may always read from an answer shared with it."""
_UNSHARED = frozenset({"set-cookie", "vary"})
VARY: Final[Field] = (b"vary", b"origin")


def normal_origin(origin: str) -> str:
    """Return an origin as browsers write it: lowercase, without a trailing slash and the scheme's default port."""
    text = origin.strip().lower().rstrip("/")
    return text.removesuffix(_DEFAULT_PORTS.get(text.partition("://")[0], ""))


def is_preflight(method: str, headers: Headers) -> bool:
    """Return True for a CORS preflight request."""
    return method == "OPTIONS" and "access-control-request-method" in headers


def preflight_fields(headers: Headers) -> list[Field]:
    """Return the headers that answer a listed origin's preflight: all our methods, and the header fields it asks for.

    The caller adds `shared_fields`. The actual request is authorised later, with its credentials.
    """
    fields = [
        (b"access-control-allow-methods", METHODS.encode()),
        (b"access-control-max-age", str(PREFLIGHT_SECONDS).encode()),
        (b"vary", b"access-control-request-method, access-control-request-headers"),
    ]
    requested = headers.get("access-control-request-headers", "")
    if _NAMES.fullmatch(requested):
        fields.append((b"access-control-allow-headers", requested.encode()))
    return fields


def shared_fields(origin: str, answer: Iterable[Field]) -> list[Field]:
    """Return the headers that let a page of a listed origin read an answer and its non-standard header fields."""
    names = {name.decode("latin-1").lower() for name, _ in answer} - _READABLE - _UNSHARED
    readable = sorted(name for name in names if not name.startswith("access-control-"))
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-allow-credentials", b"true"),
        (b"access-control-expose-headers", ", ".join(readable).encode("latin-1")),
    ]


def is_loopback(host: str) -> bool:
    """Return True if a host name or address (without port and brackets) is this machine's loopback."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def url_of(host: str, port: int) -> str:
    """Return the URL of a server at a host name or address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _hostname(url: str) -> str:
    """Return the host name of a URL; empty if the URL has more than host and port, or is invalid."""
    try:
        parts = urlsplit(url)
        odd = parts.username is not None or parts.path or parts.query or parts.fragment
        return "" if odd else parts.hostname or ""
    except ValueError:
        return ""


def _netloc(origin: str) -> str:
    """Return the host and port of an origin; empty if it is not an http or https origin, such as ``null``."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return ""
    return parts.netloc.lower() if parts.scheme in ("http", "https") else ""


def hosts_of(settings: Settings) -> Hosts:
    """Return the host names and origins that a server with these settings accepts."""
    public = urlsplit(settings.public_url).hostname
    names = frozenset(name.strip() for name in settings.allowed_hosts.split(",") if name.strip())
    names |= frozenset([public] if public else [])
    origins = frozenset(origin for origin in settings.allowed_origins.split(",") if origin.strip())
    return Hosts(loopback=is_loopback(settings.host), names=names, origins=origins)

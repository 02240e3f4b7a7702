"""Which names this server answers to, whose pages may use it, and what their browsers are told of that (CORS). Pure.

A page of a foreign site can make a browser send requests here, under our name (its Origin differs) or under a name
of its own that resolves to our address (its Host differs). Both are refused before anything else is looked at, but for
pages of origins that the operator has listed: their browsers are told, for exactly that origin, that they may read the
answers and send credentials (https://fetch.spec.whatwg.org/#http-cors-protocol).
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
    """The names of one server.

    Args:
        loopback: it listens on loopback only; else every address is its own (a rebinding page has a name).
        names: further names, for example those of the proxy in front of it.
        origins: whose pages may use it besides its own, as a setting has them; see `normal_origin`.
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
        """Check the Host and Origin of a request; return the listed origin whose page sends it.

        Empty: it is our own page's, or no page's.

        Raises:
            Forbidden: it was meant for another server, or comes from another site's page.
        """
        given = headers.getlist("host")
        if len(given) > 1:
            raise Forbidden(f"The request names {len(given)} hosts; one of them is not this server.")
        host = given[0] if given else ""
        if not self._own(_hostname(f"//{host}")):
            raise Forbidden(f"Host {host[:200]!r} is not this server. {self._advice}")
        origins = [origin for origin in headers.getlist("origin") if _netloc(origin) != host.lower()]
        if len(origins) == 1 and origins[0] in self._origins:
            return origins[0]
        for origin in origins:
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
"""A header field as ASGI has it."""

ORIGIN_ADVICE: Final = "Pages of other origins are let in by AGENTIC_RAG_ALLOWED_ORIGINS."

ORIGIN_HINT: Final = b"add-this-origin-to-AGENTIC_RAG_ALLOWED_ORIGINS"
"""Sent as the allowed origin in a refused preflight. It equals no origin, and browsers print it in their console."""

PREFLIGHT_SECONDS: Final = 600
"""How long a browser need not ask again whether a page may send a request."""

METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE"
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_NAMES = re.compile(r"[\w!#$%&'*+.^`|~-]+( *, *[\w!#$%&'*+.^`|~-]+)*", re.ASCII)
"""Names of header fields (RFC 9110), as a browser lists them."""
_READABLE = frozenset(
    {"cache-control", "content-language", "content-length", "content-type", "expires", "last-modified", "pragma"}
)
"""Fields that a page may read of any answer that is shared with it."""
_UNSHARED = frozenset({"set-cookie", "vary"})
VARY: Final[Field] = (b"vary", b"origin")


def normal_origin(origin: str) -> str:
    """Return an origin as browsers write it: in small letters, without a slash at its end and the scheme's own port."""
    text = origin.strip().lower().rstrip("/")
    return text.removesuffix(_DEFAULT_PORTS.get(text.partition("://")[0], ""))


def is_preflight(method: str, headers: Headers) -> bool:
    """Whether a browser asks whether a page may send a request, before it does."""
    return method == "OPTIONS" and "access-control-request-method" in headers


def preflight_fields(headers: Headers) -> list[Field]:
    """Return what a browser is told that asks for a listed origin: any method of ours, and the fields it names.

    `shared_fields` come besides. What a request may do is decided when it comes, with its credentials.
    """
    fields = [
        (b"access-control-allow-methods", METHODS.encode()),
        (b"access-control-max-age", str(PREFLIGHT_SECONDS).encode()),
        (b"vary", b"access-control-request-method, access-control-request-headers"),
    ]
    wanted = headers.get("access-control-request-headers", "")
    if _NAMES.fullmatch(wanted):
        fields.append((b"access-control-allow-headers", wanted.encode()))
    return fields


def shared_fields(origin: str, answer: Iterable[Field]) -> list[Field]:
    """Return what lets a page of a listed origin read an answer, with those of its fields that no standard lets it."""
    names = {name.decode("latin-1").lower() for name, _ in answer} - _READABLE - _UNSHARED
    readable = sorted(name for name in names if not name.startswith("access-control-"))
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-allow-credentials", b"true"),
        (b"access-control-expose-headers", ", ".join(readable).encode("latin-1")),
    ]


def is_loopback(host: str) -> bool:
    """Whether a host name or address (without port and brackets) means this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def url_of(host: str, port: int) -> str:
    """Return the URL under which a server is reached at a host name or address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _hostname(url: str) -> str:
    """Return the name of an address, or nothing when it is no address at all."""
    try:
        parts = urlsplit(url)
        odd = parts.username is not None or parts.path or parts.query or parts.fragment
        return "" if odd else parts.hostname or ""
    except ValueError:
        return ""


def _netloc(origin: str) -> str:
    """Return the host and port of an origin, or nothing when it is none (``null`` is one of these)."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return ""
    return parts.netloc.lower() if parts.scheme in ("http", "https") else ""


def hosts_of(settings: Settings) -> Hosts:
    """Return the names that a server with these settings answers to."""
    public = urlsplit(settings.public_url).hostname
    names = frozenset(name.strip() for name in settings.allowed_hosts.split(",") if name.strip())
    names |= frozenset([public] if public else [])
    origins = frozenset(origin for origin in settings.allowed_origins.split(",") if origin.strip())
    return Hosts(loopback=is_loopback(settings.host), names=names, origins=origins)

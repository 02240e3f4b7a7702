"""Which names this server answers to, and whose pages may use it. Pure.

A page of a foreign site can make a browser send requests here, under our name (its Origin differs) or under a name
of its own that resolves to our address (its Host differs). Both are refused before anything else is looked at.
"""

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from agentic_rag.errors import Forbidden


class Hosts:
    """The names of one server.

    Args:
        loopback: it listens on loopback only; else every address is its own (a rebinding page has a name).
        names: further names, for example those of the proxy in front of it.
    """

    def __init__(self, *, loopback: bool = True, names: frozenset[str] = frozenset()) -> None:
        self._loopback = loopback
        self._names = frozenset(name.lower() for name in names)

    def check(self, headers: Headers) -> None:
        """Check the Host and Origin of a request.

        Raises:
            Forbidden: it was meant for another server, or comes from another site's page.
        """
        given = headers.getlist("host")
        if len(given) > 1:
            raise Forbidden(f"The request names {len(given)} hosts; one of them is not this server.")
        host = given[0] if given else ""
        if not self._own(_hostname(f"//{host}")):
            raise Forbidden(f"Host {host[:200]!r} is not this server. {self._advice}")
        for origin in headers.getlist("origin"):
            if _netloc(origin) != host.lower():
                raise Forbidden(f"Origin {origin[:200]!r} may not use this server.")

    @property
    def _advice(self) -> str:
        if self._loopback and not self._names:
            return "Use http://127.0.0.1 or http://localhost."
        return "Its names are set by AGENTIC_RAG_ALLOWED_HOSTS."

    def _own(self, name: str) -> bool:
        if is_loopback(name) or name.lower() in self._names:
            return True
        return not self._loopback and _is_address(name)


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

"""Rules for the addresses of users' servers. Pure: checks an address, resolves no name.

Owns the allowed schemes, hosts and headers of an entry, the reasons for which an IP address is refused, and the
operator's list of exempt hosts. `CheckedBackend` resolves names and the many spellings of numbers first, so that the
check always sees the IP address that is about to be connected to.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from agentic_rag.base.errors import CommandNotAllowed, InvalidInput
from agentic_rag.tools.entries.entry import HttpTarget

_OWN_HEADERS = frozenset(
    ("host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "cookie", "expect")
)
"""Headers that belong to the connection itself; an entry must not set them."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""RFC 6052: the last 32 bits are the IPv4 address that is reached."""

_COMPATIBLE = ipaddress.IPv6Network("::/96")
"""RFC 4291, 2.5.5.1: deprecated, but some networks still route these addresses."""

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All addresses that IANA assigns to networks. The library's tables of exceptions are older than some assignments."""

_REFUSED = tuple(
    (ipaddress.ip_network(network), why)
    for network, why in (
        ("192.0.0.0/24", "a protocol's own"),
        ("2001::/23", "a protocol's own"),
        ("3fff::/20", "documentation"),
        ("168.63.129.16/32", "a cloud's metadata service"),
        ("100.100.100.200/32", "a cloud's metadata service"),
        ("fd00:ec2::254/128", "a cloud's metadata service"),
        ("192.88.99.0/24", "a tunnel"),
        ("64:ff9b:1::/48", "a local translation prefix"),
        ("fec0::/10", "site-local"),
    )
)


def address_problem(address: Address) -> str:
    """Return why an address is refused, or empty text if the address is public."""
    for network, why in _REFUSED:
        if address.version == network.version and address in network:
            return why
    if isinstance(address, ipaddress.IPv6Address):
        # ``::ffff:127.0.0.1`` reaches this machine, although the IPv6 address itself is not loopback.
        inner = _inner_address(address)
        if inner is not None:
            return address_problem(inner)
        if address not in _GLOBAL_UNICAST and address.is_global:
            return "not a public address"
    for flag in ("loopback", "unspecified", "link_local", "multicast", "private", "reserved"):
        if getattr(address, f"is_{flag}"):
            return flag.replace("_", "-")
    return "" if address.is_global else "not a public address"


def _inner_address(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 one leads to: mapped, 6to4, NAT64 or compatible."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def parse_hosts(text: str) -> frozenset[tuple[str, int]]:
    """Return ``host:port`` pairs, separated by commas; IPv6 in brackets. The text was validated when it was read.

    ``host:*`` is every port of a host: `ANY_PORT`.
    """
    pairs = (part.strip().rpartition(":") for part in text.split(",") if part.strip())
    return frozenset((host.strip("[]").lower(), ANY_PORT if port == "*" else int(port)) for host, _, port in pairs)


ANY_PORT = 0
"""Stands for every port of a host in the operator's list."""


def is_listed(hosts: frozenset[tuple[str, int]], host: str, port: int) -> bool:
    """Return whether the operator listed a host with this port, or with all of them."""
    return not hosts.isdisjoint(((host.lower(), port), (host.lower(), ANY_PORT)))


@dataclass(frozen=True, slots=True)
class HttpEndpoint:
    """An address exactly as it is connected to.

    ``exempt``: host and port pairs whose IP address is not checked. ``unchecked``: no address is checked.
    ``url_secrets``: the secrets that ``url`` contains, by name.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    exempt: frozenset[tuple[str, int]] = frozenset()
    unchecked: bool = False
    url_secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """Addresses that may be connected to. ``exempt`` and ``unchecked`` are those of `HttpEndpoint`."""

    exempt: frozenset[tuple[str, int]] = frozenset()
    unchecked: bool = False

    def problem(self, url: str) -> str:
        """Return why an address from an untrusted source is refused, or empty text if its spelling is acceptable."""
        try:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as exc:
            return f"it is no address: {exc}"
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return "it is no https:// address"
        if parts.username is not None or parts.password is not None:
            return "a name stands before its host, which makes it look like another one's"
        if parts.scheme != "https" and not self.unchecked and not is_listed(self.exempt, parts.hostname, port):
            return "it is not https"
        return ""


class AddressRules(Protocol):
    """Provides the current rules for addresses that users name."""

    @property
    def reach(self) -> AddressPolicy:
        """The addresses that may be connected to."""
        ...


def endpoint_of(
    target: HttpTarget[str], path: str, hosts: frozenset[tuple[str, int]], *, unchecked: bool
) -> HttpEndpoint:
    """Return the address of an entry in the form for connecting; ``path`` is the entry's.

    Raises:
        CommandNotAllowed: Not https, and the operator did not list the host.
        InvalidInput: Not a web address, or a header that an entry must not set.
    """
    try:
        parts = urlsplit(target.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as exc:
        raise InvalidInput(f"{path}.url", f"this is no address: {exc}.") from exc
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(f"{path}.url", "an http:// or https:// address is needed.")
    if parts.username or parts.password:
        raise InvalidInput(f"{path}.url", "a name or password does not belong in an address; use headers.")
    if parts.scheme != "https" and not unchecked and not is_listed(hosts, parts.hostname, port):
        remedy = f"The operator can list {parts.hostname}:{port} in AGENTIC_RAG_MCP_HOSTS."
        raise CommandNotAllowed(f"{path}.url", "https is needed.", remedy)
    for name, text in target.headers.items():
        lower = name.lower()
        # A line break would begin another header.
        plain = name.isascii() and text.isascii() and text.isprintable() and name.replace("-", "").isalnum()
        if not plain or lower in _OWN_HEADERS or lower.startswith(("mcp-", "proxy-")):
            raise InvalidInput(f"{path}.headers.{name}", "this header cannot be set here.")
    return HttpEndpoint(target.url, target.headers, hosts, unchecked, target.url_secrets)

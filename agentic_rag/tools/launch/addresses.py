"""Which addresses a user's server may have. Pure: looks at an address, resolves no name.

Owns the reasons for which an IP address is refused, and the operator's list of exempt hosts. The question is
always asked of the address that is about to be connected to: names, and the many spellings of a number, are
resolved before.
"""

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""RFC 6052: the last 32 bits are the IPv4 address that is reached."""

_COMPATIBLE = ipaddress.IPv6Network("::/96")
"""RFC 4291, 2.5.5.1: deprecated, and still routed by some."""

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All that is handed out to networks (IANA); the library's tables of exceptions are older than some of them."""

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
    """Return why an address is refused, empty if it is a public one."""
    for network, why in _REFUSED:
        if address.version == network.version and address in network:
            return why
    if isinstance(address, ipaddress.IPv6Address):
        inner = _embedded(address)
        if inner is not None:
            return address_problem(inner)
        if address not in _GLOBAL_UNICAST and address.is_global:
            return "not a public address"
    for flag in ("loopback", "unspecified", "link_local", "multicast", "private", "reserved"):
        if getattr(address, f"is_{flag}"):
            return flag.replace("_", "-")
    return "" if address.is_global else "not a public address"


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 one leads to: mapped, 6to4, NAT64 or compatible."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def parse_hosts(text: str) -> frozenset[tuple[str, int]]:
    """Return ``host:port`` pairs, separated by commas; IPv6 in brackets. The text was checked when it was read."""
    pairs = (part.strip().rpartition(":") for part in text.split(",") if part.strip())
    return frozenset((host.strip("[]").lower(), int(port)) for host, _, port in pairs)

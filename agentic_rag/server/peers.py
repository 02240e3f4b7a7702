"""Whose process is at the other end of a connection from this machine.

Owns the look into the system's table of connections. Knows no request and no right: the guard decides what a user of
this machine may do. Only Linux tells (``/proc/net/tcp``); elsewhere nobody is known.
"""

import ipaddress
import sys
from pathlib import Path

Address = tuple[str, int]
"""Host and port."""

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_UID, _INODE = 7, 9
"""Fields of a row that begin after its number."""


def system_tells() -> bool:
    """Whether this system tells whose a connection is."""
    return TABLES[0].exists()


def uid_of(peer: Address, own: Address) -> int | None:
    """Return the user whose socket ``peer`` is, connected to our ``own``; None when the system does not tell.

    A socket that its process has closed already is nobody's.
    """
    for table in TABLES:
        try:
            rows = table.read_bytes()
            wanted = f" {_text_of(peer, table.name)} {_text_of(own, table.name)} ".encode()
        except (OSError, ValueError):
            continue
        at = rows.find(wanted)
        if at >= 0:
            fields = rows[rows.rfind(b"\n", 0, at) + 1 : rows.find(b"\n", at)].split()
            return int(fields[_UID]) if fields[_INODE] != b"0" else None
    return None


def _text_of(address: Address, table: str) -> str:
    """Return an address as the table writes it: words of 32 bits in the machine's order, and the port."""
    host = ipaddress.ip_address(address[0].partition("%")[0])
    if table == "tcp6" and host.version == 4:
        host = ipaddress.IPv6Address(f"::ffff:{host}")
    if table == "tcp" and isinstance(host, ipaddress.IPv6Address):
        if host.ipv4_mapped is None:
            raise ValueError
        host = host.ipv4_mapped
    words = [host.packed[at : at + 4] for at in range(0, len(host.packed), 4)]
    text = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{text}:{address[1]:04X}"

"""Whose process is at the other end of a connection from this machine.

Owns the question to the system. Knows no request and no right: the guard decides what a user of this machine may do.
Only Linux tells: for one connection (``sock_diag``, netlink 4), or, where that is not there, in a table of all
(``/proc/net/tcp``), whose reading takes longer the more there are. Elsewhere nobody is known.
"""

import functools
import ipaddress
import os
import socket
import struct
import sys
from pathlib import Path

Address = tuple[str, int]
"""Host and port."""

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_UID, _INODE = 7, 9
"""Fields of a row that begin after its number."""

_SOCK_DIAG, _BY_FAMILY, _ERROR, _REQUEST = 4, 20, 2, 1
_LISTENS = 10
_HEADER, _WISH, _PLACES = struct.Struct("=IHHII"), struct.Struct("=BBBBI"), struct.Struct("!HH16s16s")
_REST = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
"""Of a socket's name: no interface, no cookie."""


def system_tells() -> bool:
    """Whether this system tells whose a connection is."""
    return TABLES[0].exists()


def uid_of(peer: Address, own: Address) -> int | None:
    """Return the user whose socket ``peer`` is, connected to our ``own``; None when the system does not tell.

    A socket that its process has closed already is nobody's.
    """
    return ask_system(peer, own) if _answers() else look_up(peer, own)


@functools.cache
def _answers() -> bool:
    """Whether the system answers for one connection: asked once, of a connection of our own."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as own, socket.create_connection(own.getsockname()) as made:
            return ask_system(made.getsockname(), own.getsockname()) == os.geteuid()
    except OSError:
        return False


def ask_system(peer: Address, own: Address) -> int | None:
    """As `uid_of`, by a question about this connection: 0.1 ms, however many there are."""
    try:
        hosts = [_plain(address) for address in (peer, own)]
        family = socket.AF_INET if hosts[0].version == 4 else socket.AF_INET6
        names = _PLACES.pack(peer[1], own[1], *(host.packed.ljust(16, b"\0") for host in hosts)) + _REST
        wish = _WISH.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + names
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as system:
            system.setblocking(False)  # the answer is there when the question was taken
            system.send(_HEADER.pack(_HEADER.size + len(wish), _BY_FAMILY, _REQUEST, 1, 0) + wish)
            answer = system.recv(8192)
        if _HEADER.unpack_from(answer)[1] != _BY_FAMILY or answer[17] == _LISTENS:
            return None
        uid, inode = struct.unpack_from("=II", answer, 80)
    except (AttributeError, OSError, ValueError, struct.error):
        return None
    return int(uid) if inode else None


def _plain(address: Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    host = ipaddress.ip_address(address[0].partition("%")[0])
    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    return mapped or host


def look_up(peer: Address, own: Address) -> int | None:
    """As `uid_of`, from the tables of all connections."""
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

"""The bytes of a bundle: a zip whose members are stored as they are, in order, without times and owners.

Owns the form, written here and not by a library so that the same members are the same bytes on every machine and with
every version of Python, and so that the size is known before the first byte is sent. Pure.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_UTF8 = 0x0800
_DATE = 0x0021
"""The first of January 1980, the earliest there is."""
_UNIX = 3 << 8
_MODE = 0o100644 << 16
_MAX32, _MAX16 = 0xFFFFFFFF, 0xFFFF


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member whose bytes were counted. ``crc``: CRC-32."""

    path: str
    size: int
    crc: int

    @property
    def head(self) -> bytes:
        """What stands before its bytes."""
        name = self.path.encode()
        extra = struct.pack("<2H2Q", 1, 16, self.size, self.size) if self.size >= _MAX32 else b""
        size = min(self.size, _MAX32)
        version = 45 if extra else 20
        fields = (version, _UTF8, 0, 0, _DATE, self.crc, size, size, len(name), len(extra))
        return _LOCAL.pack(b"PK\3\4", *fields) + name + extra

    def entry(self, offset: int) -> bytes:
        """Return its line of the directory. ``offset``: where it begins."""
        name = self.path.encode()
        large = [*([self.size, self.size] if self.size >= _MAX32 else []), *([offset] if offset >= _MAX32 else [])]
        extra = struct.pack(f"<2H{len(large)}Q", 1, 8 * len(large), *large) if large else b""
        size, version = min(self.size, _MAX32), 45 if large else 20
        fields = (_UNIX | version, version, _UTF8, 0, 0, _DATE, self.crc, size, size, len(name), len(extra), 0, 0, 0)
        return _CENTRAL.pack(b"PK\1\2", *fields, _MODE, min(offset, _MAX32)) + name + extra


def directory_of(members: Sequence[StoredMember]) -> bytes:
    """Return what stands behind all members."""
    lines, offset = [], 0
    for member in members:
        lines.append(member.entry(offset))
        offset += len(member.head) + member.size
    whole = b"".join(lines)
    count = len(members)
    end = b""
    if count >= _MAX16 or offset >= _MAX32 or len(whole) >= _MAX32:
        end = _END64.pack(b"PK\6\6", 44, _UNIX | 45, 45, 0, 0, count, count, len(whole), offset)
        end += _LOCATOR.pack(b"PK\6\7", 0, offset + len(whole), 1)
    shown = min(count, _MAX16)
    return whole + end + _END.pack(b"PK\5\6", 0, 0, shown, shown, min(len(whole), _MAX32), min(offset, _MAX32), 0)


def size_of(members: Sequence[StoredMember], directory: bytes) -> int:
    """Return how many bytes the whole file has."""
    return sum(len(member.head) + member.size for member in members) + len(directory)

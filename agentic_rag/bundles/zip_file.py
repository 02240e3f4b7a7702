"""The bytes of a bundle: a zip with uncompressed members, in order, without times and owners. Pure.

The format is written here instead of by a library. The same members thus give the same bytes on every machine and with
every version of Python, and the size is known before the first byte is sent.
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
"""1 January 1980, the earliest possible date."""
_UNIX = 3 << 8
_MODE = 0o100644 << 16
_MAX32, _MAX16 = 0xFFFFFFFF, 0xFFFF


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A measured member. ``crc``: CRC-32."""

    path: str
    size: int
    crc: int

    @property
    def head(self) -> bytes:
        """The local header before the member's bytes."""
        name = self.path.encode()
        extra = struct.pack("<2H2Q", 1, 16, self.size, self.size) if self.size >= _MAX32 else b""
        size = min(self.size, _MAX32)
        version = 45 if extra else 20
        fields = (version, _UTF8, 0, 0, _DATE, self.crc, size, size, len(name), len(extra))
        return _LOCAL.pack(b"PK\3\4", *fields) + name + extra

    def entry(self, offset: int) -> bytes:
        """Return the member's entry in the directory. ``offset``: the position of its local header."""
        name = self.path.encode()
        large = [*([self.size, self.size] if self.size >= _MAX32 else []), *([offset] if offset >= _MAX32 else [])]
        extra = struct.pack(f"<2H{len(large)}Q", 1, 8 * len(large), *large) if large else b""
        size, version = min(self.size, _MAX32), 45 if large else 20
        fields = (_UNIX | version, version, _UTF8, 0, 0, _DATE, self.crc, size, size, len(name), len(extra), 0, 0, 0)
        return _CENTRAL.pack(b"PK\1\2", *fields, _MODE, min(offset, _MAX32)) + name + extra


def directory_of(members: Sequence[StoredMember]) -> bytes:
    """Return the directory after all members."""
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
    """Return the size of the whole file in bytes."""
    return sum(len(member.head) + member.size for member in members) + len(directory)

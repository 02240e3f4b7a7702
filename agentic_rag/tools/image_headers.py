"""Images by their first bytes: kind and size in pixels, without decoding them. Pure.

Owns the limits for images in requests to models. Texts about images for other readers use the same limits.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

MAX_SIDE: Final = 8_000
"""Longest side in pixels that the Messages API accepts."""
MANY, MANY_SIDE, MOST = 20, 2_000, 600
"""In a request with more than `MANY` images, no side may exceed `MANY_SIDE` pixels; `MOST` is the maximum of images."""
PIXELS_PER_TOKEN: Final = 750
MAX_TOKENS: Final = 4_784
"""The most tokens that one image costs: the service scales larger images down."""
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of a JPEG's frame header, which contains its size."""

MARKERS: Final = 2_000
"""Maximum number of markers read of a JPEG. Real files have some dozens; a hostile server may send millions."""


@dataclass(frozen=True, slots=True)
class Picture:
    """An image: its media type and its size in pixels."""

    media_type: str
    width: int
    height: int

    @property
    def is_large(self) -> bool:
        """Whether the image is too large for a request with more than `MANY` images."""
        return max(self.width, self.height) > MANY_SIDE

    @property
    def tokens(self) -> int:
        return min(MAX_TOKENS, -(-self.width * self.height // PIXELS_PER_TOKEN))


def count_beyond(pictures: Collection[Picture]) -> int:
    """Return by how many images a request exceeds its limit."""
    large = any(picture.is_large for picture in pictures)
    return max(0, len(pictures) - (MANY if large else MOST))


def read_picture(data: bytes) -> Picture | None:
    """Return kind and size of an image by its content, or None without a complete PNG, JPEG, GIF or WebP header."""
    size: tuple[int, int] | None = None
    kind = ""
    if data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) >= 24:
        kind, size = "png", (int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big"))
    elif data.startswith((b"GIF87a", b"GIF89a")) and len(data) >= 10:
        kind, size = "gif", (int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little"))
    elif data.startswith(b"\xff\xd8\xff"):
        kind, size = "jpeg", _jpeg_size(data)
    elif data.startswith(b"RIFF") and data[8:12] == b"WEBP" and len(data) >= 30:
        kind, size = "webp", _webp_size(data)
    return Picture(f"image/{kind}", *size) if size is not None and min(size) > 0 else None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    place = 2
    for _ in range(MARKERS):
        if place + 9 > len(data) or data[place] != 0xFF:
            break
        marker = data[place + 1]
        if marker in _FRAMES:
            height, width = (int.from_bytes(data[place + at : place + at + 2], "big") for at in (5, 7))
            return width, height
        alone = marker in (0x01, 0xFF) or 0xD0 <= marker <= 0xD8
        place += (1 if marker == 0xFF else 2) if alone else 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    kind = data[12:16]
    if kind == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    return None

"""Read the console's files from the package.

This module defines which file a path names, its media type, its entity tag (a hash of its content), and the security
headers. It knows no route. A file that has changed on disk is read again, so that developers of the page only need to
reload.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "web"
INDEX: Final = "index.html"

MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}
"""Media types by file ending. Files with other endings are not served."""

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "connect-src 'self'",
        "font-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types console",
    )
)
"""The ``Content-Security-Policy``: no inline code, no foreign resources, and HTML only through one named policy."""

HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}
"""Headers of every file. With ``no-cache`` a browser stores the file but revalidates it on each use."""

_PATH = re.compile(r"(?:[a-z0-9][a-z0-9-]*/){0,4}[a-z0-9][a-z0-9-]*\.[a-z]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class WebFile:
    """A file to send. ``tag`` is its entity tag, including the quotes."""

    data: bytes
    media_type: str
    tag: str


class WebFiles:
    """The files of one folder, cached in memory after their first use."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._kept: dict[str, tuple[tuple[int, int], WebFile]] = {}

    def find(self, path: str) -> WebFile | None:
        """Return the file at a path below the folder, or None if there is none. Reads the disk."""
        ending = path[path.rfind(".") :]
        if not _PATH.fullmatch(path) or ending not in MEDIA_TYPES:
            return None
        try:
            found = (self._folder / path).stat()
            version = (found.st_mtime_ns, found.st_size)
            kept = self._kept.get(path)
            if kept is not None and kept[0] == version:
                return kept[1]
            data = (self._folder / path).read_bytes()
        except OSError:
            return None
        file = WebFile(data, MEDIA_TYPES[ending], f'"{hashlib.sha256(data).hexdigest()[:32]}"')
        self._kept[path] = version, file
        return file

"""The files of the console: read from the package, named by their content.

Owns which file a path names, its media type, its entity tag and the headers under which a browser runs it. Knows no
route. A file is read again when it has changed on disk, so that whoever works on the page reloads and sees it.
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
"""What is served, by its ending; a file of another kind is none of the page's."""

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
"""The ``Content-Security-Policy``: nothing inline, nothing from elsewhere, HTML only by way of one named policy."""

HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}
"""Of every file. ``no-cache``: a browser keeps it, and asks each time whether it is still the same."""

_PATH = re.compile(r"(?:[a-z0-9][a-z0-9-]*/){0,4}[a-z0-9][a-z0-9-]*\.[a-z]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class WebFile:
    """A file as it is sent. ``tag``: its entity tag, with the quotes."""

    data: bytes
    media_type: str
    tag: str


class WebFiles:
    """The files of one folder, kept in memory once they were asked for."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._kept: dict[str, tuple[tuple[int, int], WebFile]] = {}

    def find(self, path: str) -> WebFile | None:
        """Return the file of a path below the folder; None: there is none. Reads the disk."""
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

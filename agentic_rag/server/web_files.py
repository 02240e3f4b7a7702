"""Read the console's files from the package.

Decides which file a path names, its media type, its entity tag and the headers under which a browser runs it. Knows no
route. A changed file is read again at the next load of the page, so that its authors see their change.

The page names its files below a version, a hash of all of them (``/web/4f2a…/app.js``). A browser keeps these for a
year without asking. The same files without a version, or below an old one, are sent with ``no-cache``.

The page is sent in the reader's language and theme, so that a browser draws it before any script has run.
"""

import base64
import gzip
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "web"
INDEX: Final = "index.html"
REFERENCE: Final = "reference.html"

LANGUAGES: Final = {"en": "en", "zh": "zh-CN"}
"""The console's languages, and their tags in HTML. The first is the default."""
THEMES: Final = ("light", "dark")
_ROOT_TAG: Final = b'<html lang="en">'

MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
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
        "frame-src 'self'",
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
    "permissions-policy": "camera=(), microphone=(self), geolocation=(), payment=(), usb=()",
}
"""Headers of every file. With ``no-cache`` a browser stores the file but revalidates it on each use."""

IMMUTABLE: Final = "public, max-age=31536000, immutable"
"""The ``Cache-Control`` of a file below its present version."""

DIAGRAM_FRAME: Final = "diagram.html"
"""The frame that draws diagrams: a page without an origin. Its scripts are inside it, so that it loads nothing."""

DIAGRAM_POLICY: Final = (
    "sandbox allow-scripts; default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)

_SCRIPT = re.compile(rb'<script src="([a-z/-]+\.js)"></script>')
_PATH = re.compile(r"(?:[a-z0-9][a-z0-9-]*/){0,4}[a-z0-9][a-z0-9-]*\.[a-z0-9]+", re.ASCII)
_VERSIONED = re.compile(r"([0-9a-f]{16})/(.+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class WebFile:
    """A file as it is sent.

    Attributes:
        data: its bytes.
        packed: the same, compressed with gzip; None for a file that is compressed already.
        tag: its entity tag, with the quotes.
        headers: those under which a browser uses it.
    """

    data: bytes
    packed: bytes | None
    media_type: str
    tag: str
    headers: dict[str, str]


class WebFiles:
    """The files of one folder, kept in memory after the first request."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._cache: dict[str, tuple[tuple[object, ...], WebFile]] = {}
        self._version: tuple[object, str] = (None, "")
        self._pages: dict[tuple[str, str], tuple[str, WebFile]] = {}

    def page(self, language: str, theme: str) -> WebFile | None:
        """Return the page in a language of `LANGUAGES` and a theme, or the system's theme if empty. Reads the disk."""
        page = self.find(INDEX)
        if page is None or (language == "en" and not theme):
            return page
        cached = self._pages.get((language, theme))
        if cached is not None and cached[0] == page.tag:
            return cached[1]
        chosen = f' data-theme="{theme}"' if theme else ""
        data = page.data.replace(_ROOT_TAG, f'<html lang="{LANGUAGES[language]}"{chosen}>'.encode())
        own = replace(page, data=data, packed=_pack(data), tag=_tag_of(data))
        self._pages[language, theme] = page.tag, own
        return own

    def find_cached(self, path: str) -> WebFile | None:
        """Return a file below the present version if it was sent before. Does not read the disk."""
        versioned = _VERSIONED.fullmatch(path)
        if versioned is None or versioned[1] != self._version[1]:
            return None
        stamps, file = self._cache.get(f"True:{versioned[2]}", ((), None))
        return file if stamps[1:] == (versioned[1],) else None

    def pack(self) -> None:
        """Read and compress the console's own files, so that the first visitor does not wait for it."""
        for name in (entry[0] for entry in self._entries()):
            if not name.startswith("vendor/"):
                self.find(name if name == INDEX else f"{self._version[1] or self.version()}/{name}")

    def find(self, path: str) -> WebFile | None:
        """Return the file of a path below the folder, or None. Reads the disk."""
        versioned = _VERSIONED.fullmatch(path)
        version, name = versioned.groups() if versioned else ("", path)
        ending = name[name.rfind(".") :]
        if not _PATH.fullmatch(name) or ending not in MEDIA_TYPES:
            return None
        try:
            stamp = self._stamp(self._folder / name)
            if name in (INDEX, DIAGRAM_FRAME):
                present = self.version()  # looks at all files; requests for the page's parts do not
            else:
                present = (self._version[1] or self.version()) if version else ""
        except OSError:
            return None
        key = f"{version == present}:{name}"
        cached = self._cache.get(key)
        if cached is not None and cached[0] == (stamp, present):
            return cached[1]
        data = (self._folder / name).read_bytes()
        if name == INDEX:
            data = data.replace(b'"/web/', f'"web/{present}/'.encode())
        headers = {**HEADERS}
        if name == DIAGRAM_FRAME:
            data, policy = self._with_scripts(data)
            headers |= {"content-security-policy": policy, "x-frame-options": "SAMEORIGIN"}
        if version and version == present:
            headers["cache-control"] = IMMUTABLE
        packed = None if ending == ".woff2" else _pack(data)
        file = WebFile(data, packed, MEDIA_TYPES[ending], _tag_of(data), headers)
        self._cache[key] = (stamp, present), file
        return file

    def version(self) -> str:
        """Return the hash of all files, which changes with each of them. Reads them again only after a change."""
        entries = sorted(self._entries())
        if self._version[0] != entries:
            digest = hashlib.sha256()
            for name, *_ in entries:
                digest.update(f"{name}\n".encode())
                digest.update(hashlib.sha256((self._folder / name).read_bytes()).digest())
            self._version = entries, digest.hexdigest()[:16]
        return self._version[1]

    def _entries(self, below: str = "") -> Iterator[tuple[str, int, int]]:
        """Yield name, time of change and size of each file. Each load of the page does this, so it must be fast."""
        with os.scandir(self._folder / below) as entries:
            for entry in entries:
                if entry.is_dir():
                    yield from self._entries(f"{below}{entry.name}/")
                elif entry.name[entry.name.rfind(".") :] in MEDIA_TYPES:
                    stat = entry.stat()
                    yield f"{below}{entry.name}", stat.st_mtime_ns, stat.st_size

    def _with_scripts(self, page: bytes) -> tuple[bytes, str]:
        """Return a page with its scripts inside it, and the policy that lets exactly these run."""
        hashes: list[str] = []

        def inline(match: re.Match[bytes]) -> bytes:
            script = (self._folder / match[1].decode()).read_bytes()
            # Inside the page, the first text would end the element, and the second would begin a comment.
            script = script.replace(b"</script", b"<\\/script").replace(b"<!--", b"<\\!--")
            hashes.append(f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'")
            return b"<script>" + script + b"</script>"

        page = _SCRIPT.sub(inline, page)
        return page, DIAGRAM_POLICY.format(scripts=" ".join(hashes))

    @staticmethod
    def _stamp(path: Path) -> tuple[int, int]:
        status = path.stat()
        return status.st_mtime_ns, status.st_size


_packed_by_tag: dict[str, bytes] = {}
"""Compressed contents. All instances share them, because the best level takes 0.2 s of CPU for all files."""


def _pack(data: bytes) -> bytes:
    tag = _tag_of(data)
    packed = _packed_by_tag.get(tag)
    if packed is None:
        packed = _packed_by_tag[tag] = gzip.compress(data, 9, mtime=0)
    return packed


def _tag_of(data: bytes) -> str:
    return f'"{hashlib.sha256(data).hexdigest()[:32]}"'

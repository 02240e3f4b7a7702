"""File names as data: what of a client's name is kept, and what it says of the file's kind.

Pure. A name never decides where a file lies; the folder does.
"""

import unicodedata
from collections.abc import Iterator
from pathlib import PurePosixPath

MEDIA_TYPES = {
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".txt": "text/plain",
    ".text": "text/plain",
    ".log": "text/plain",
    ".rst": "text/x-rst",
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".htm": "text/html",
    ".html": "text/html",
    ".xhtml": "application/xhtml+xml",
    ".pdf": "application/pdf",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
"""Our own: the standard library's map differs from host to host."""

MAX_BYTES = 200
"""Of UTF-8: file systems take 255, and a number may be added."""


def clean_name(name: str) -> str:
    """Return the last component of a name without control, format and separator characters; never empty."""
    last = unicodedata.normalize("NFC", name).replace("\\", "/").rsplit("/", 1)[-1]
    kept = "".join(" " if c in ':*?"<>|' else c for c in last if unicodedata.category(c)[0] != "C")
    kept = " ".join(kept.split()).strip(". ")
    stem, suffix = split_name(kept)
    room = MAX_BYTES - len(suffix.encode())
    return (stem.encode()[:room].decode(errors="ignore").rstrip() or "document") + suffix


def split_name(name: str) -> tuple[str, str]:
    """Return the name without its ending, and the ending with its dot (empty when there is none)."""
    suffix = PurePosixPath(name).suffix
    if not suffix or len(suffix.encode()) > MAX_BYTES // 4:
        return name, ""
    return name.removesuffix(suffix), suffix


def numbered(name: str) -> Iterator[str]:
    """Yield the name, then ``name (2)``, ``name (3)`` … before its ending."""
    yield name
    stem, suffix = split_name(name)
    number = 2
    while True:
        yield f"{stem} ({number}){suffix}"
        number += 1


def media_type(name: str) -> str:
    """Return the media type that the ending stands for."""
    return MEDIA_TYPES.get(split_name(name)[1].lower(), "application/octet-stream")

"""Formats: which files can be read, and the reader of each; one module for each family of ours.

A reader raises `DocumentError` for what it recognises (encrypted, scanned, too many pages) and lets its library's
exceptions through; `parsing.parse` maps those. Libraries are imported when a file needs them. Installed packages add
formats by entry points (see `extensions`); one of theirs goes before one of ours with the same ending.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path, PurePath
from typing import Protocol, cast

from mcp_servers.retriever.document import ParsedDocument, ParseLimits
from mcp_servers.retriever.errors import DocumentError, ExtensionBroken
from mcp_servers.retriever.extensions import FORMATS, OCR_HINT, describe, find_extensions, has_ocr, load_extension

log = logging.getLogger(__name__)

Reader = Callable[..., ParsedDocument]
"""Takes a path and `ParseLimits`, and `scans.Scans` too if its format takes scans."""


class DocumentFormat(Protocol):
    """What an entry point of ``agentic_rag.document_formats`` names: an object, or a module with these two names.

    It is loaded in the server and again in each reading process, so that it imports heavy libraries in `read` alone.
    """

    @property
    def media_types(self) -> Mapping[str, str]:
        """Media types by file name ending, in lower case with the dot: ``{".epub": "application/epub+zip"}``."""
        ...

    def read(self, path: Path, limits: ParseLimits) -> ParsedDocument:
        """Read the file at ``path``, whose name does not tell its format. Blocks, in a process with capped memory.

        The path is that of an open descriptor: it can be opened, but not resolved, and in the sandbox it is all of
        the data folder that is there.

        Raises:
            DocumentError: the file cannot be read, in words for its uploader. Whatever else is raised fails the
                document as ``DOCUMENT_BROKEN``.
        """
        ...


@dataclass(frozen=True, slots=True)
class Format:
    """How files of one ending are read.

    ``extension`` names the installed package that adds the format, and is empty for ours. ``takes_scans``: pages may be
    images that OCR reads.
    """

    media_type: str
    load: Callable[[], Reader]
    extension: str = ""
    takes_scans: bool = False


def _import_reader(name: str) -> Reader:
    module, function = name.split(":")
    return cast(Reader, getattr(import_module(f"{__name__}.{module}"), function))


def _same(reader: Reader) -> Reader:
    return reader


_OFFICE = "application/vnd.openxmlformats-officedocument"

_OURS = {
    "markdown:read_markdown": {".md": "text/markdown", ".markdown": "text/markdown"},
    "text:read_text": {".txt": "text/plain", ".text": "text/plain", ".log": "text/plain", ".rst": "text/x-rst"},
    "html:read_html": {".html": "text/html", ".htm": "text/html", ".xhtml": "application/xhtml+xml"},
    "pdf:read_pdf": {".pdf": "application/pdf"},
    "word:read_docx": {".docx": f"{_OFFICE}.wordprocessingml.document"},
    "slides:read_pptx": {".pptx": f"{_OFFICE}.presentationml.presentation"},
    "sheets:read_xlsx": {".xlsx": f"{_OFFICE}.spreadsheetml.sheet"},
    "sheets:read_csv": {".csv": "text/csv", ".tsv": "text/tab-separated-values"},
}
"""Media types by ending, for each reader. Our own table: the standard library's differs from host to host."""


_SCANNED = {"pdf:read_pdf", "ocr:read_image"}
"""Readers that take what OCR read."""

_IMAGES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".tif": "image/tiff",
    ".tiff": "image/tiff",
    ".webp": "image/webp",
}
"""Read with the extra ``ocr`` alone."""


@cache
def all_formats() -> Mapping[str, Format]:
    """Return the formats by file name ending. An extension that cannot be used is logged and left out."""
    ours = {**_OURS, "ocr:read_image": _IMAGES} if has_ocr() else _OURS
    formats = {
        suffix: Format(media_type, partial(_import_reader, reader), takes_scans=reader in _SCANNED)
        for reader, media_types in ours.items()
        for suffix, media_type in media_types.items()
    }
    for entry in find_extensions(FORMATS):
        try:
            extension: DocumentFormat = load_extension(entry)
            reader = extension.read
            for suffix, media_type in extension.media_types.items():
                if not (suffix.startswith(".") and suffix == suffix.lower() and "/" in media_type):
                    raise ValueError(f"{suffix!r}: {media_type!r} is no file name ending with its media type")
                formats[suffix] = Format(media_type, partial(_same, reader), describe(entry))
        except ExtensionBroken as exc:
            log.warning("%s; files of its format cannot be read", exc)
        except (AttributeError, TypeError, ValueError) as exc:
            log.warning("%s; files of its format cannot be read", ExtensionBroken(describe(entry), str(exc)))
    return formats


def suffixes() -> tuple[str, ...]:
    """Return the file name endings that can be ingested, sorted, in lower case with their dot."""
    return tuple(sorted(all_formats()))


def media_type(name: str) -> str:
    """Return the media type that a file name's ending stands for."""
    known = all_formats().get(PurePath(name).suffix.lower())
    return known.media_type if known else "application/octet-stream"


def format_of(name: str) -> Format:
    """Return the format of a file called ``name``. Raises `DocumentError` DOCUMENT_UNSUPPORTED."""
    suffix = PurePath(name).suffix.lower()
    if suffix not in all_formats():
        if suffix in _IMAGES:
            raise DocumentError("DOCUMENT_UNSUPPORTED", f"{suffix!r}: images are read with OCR; {OCR_HINT}")
        what = f"files ending in {suffix!r}" if suffix else "files without an ending"
        known = " ".join(suffixes())
        raise DocumentError("DOCUMENT_UNSUPPORTED", f"{what} are not supported; supported are {known}")
    return all_formats()[suffix]

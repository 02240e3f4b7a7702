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
from importlib.util import find_spec
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
_OPEN = "application/vnd.oasis.opendocument"

_OURS = {
    "markdown:read_markdown": {".md": "text/markdown", ".markdown": "text/markdown"},
    "text:read_text": {".txt": "text/plain", ".text": "text/plain", ".rst": "text/x-rst"},
    "html:read_html": {".html": "text/html", ".htm": "text/html", ".xhtml": "application/xhtml+xml"},
    "pdf:read_pdf": {".pdf": "application/pdf"},
    "word:read_docx": {".docx": f"{_OFFICE}.wordprocessingml.document"},
    "slides:read_pptx": {".pptx": f"{_OFFICE}.presentationml.presentation"},
    "sheets:read_xlsx": {".xlsx": f"{_OFFICE}.spreadsheetml.sheet"},
    "sheets:read_csv": {".csv": "text/csv"},
    "sheets:read_tsv": {".tsv": "text/tab-separated-values", ".tab": "text/tab-separated-values"},
    "sheets:read_xls": {".xls": "application/vnd.ms-excel"},
    "opendocument:read_odt": {".odt": f"{_OPEN}.text"},
    "opendocument:read_ods": {".ods": f"{_OPEN}.spreadsheet"},
    "opendocument:read_odp": {".odp": f"{_OPEN}.presentation"},
    "rtf:read_rtf": {".rtf": "application/rtf"},
    "book:read_epub": {".epub": "application/epub+zip"},
    "mail:read_eml": {".eml": "message/rfc822"},
    "mail:read_mht": {".mht": "multipart/related", ".mhtml": "multipart/related"},
    "data:read_json": {".json": "application/json"},
    "data:read_xml": {".xml": "application/xml", ".xsd": "application/xml", ".xsl": "application/xml"},
    "text:read_lines": {
        ".log": "text/plain",
        **dict.fromkeys((".yaml", ".yml"), "application/yaml"),
        ".toml": "application/toml",
        **dict.fromkeys((".jsonl", ".ndjson"), "application/x-ndjson"),
        **dict.fromkeys((".ini", ".cfg", ".conf", ".properties"), "text/plain"),
        ".py": "text/x-python",
        **dict.fromkeys((".js", ".mjs", ".cjs", ".jsx"), "text/javascript"),
        **dict.fromkeys((".ts", ".tsx"), "text/x-typescript"),
        ".css": "text/css",
        **dict.fromkeys((".c", ".h"), "text/x-c"),
        **dict.fromkeys((".cc", ".cpp", ".hpp"), "text/x-c++"),
        ".cs": "text/x-csharp",
        ".java": "text/x-java",
        ".kt": "text/x-kotlin",
        ".go": "text/x-go",
        ".rs": "text/x-rust",
        ".rb": "text/x-ruby",
        ".php": "text/x-php",
        ".pl": "text/x-perl",
        ".lua": "text/x-lua",
        ".swift": "text/x-swift",
        ".scala": "text/x-scala",
        ".r": "text/x-r",
        ".sql": "application/sql",
        **dict.fromkeys((".sh", ".bash"), "text/x-sh"),
        **dict.fromkeys((".bat", ".cmd", ".ps1"), "text/plain"),
        ".tex": "text/x-tex",
        ".adoc": "text/x-asciidoc",
        ".org": "text/x-org",
        **dict.fromkeys((".diff", ".patch"), "text/x-diff"),
        ".proto": "text/x-protobuf",
        ".ics": "text/calendar",
        ".vcf": "text/vcard",
        **dict.fromkeys((".srt", ".vtt"), "text/vtt"),
    },
}
"""Media types by ending, for each reader. The one list of our formats, for the server, the command line, the page and
the docs. The standard library's table of media types differs from host to host."""

EXTRAS: Mapping[str, tuple[str, str]] = {".xls": ("python_calamine", "legacy")}
"""Formats that need an extra: the module it brings, and its name."""

SAVE_INSTEAD: Mapping[str, str] = {
    **dict.fromkeys((".doc", ".dot", ".wps"), "open it in a word processor and save it as .docx"),
    **dict.fromkeys((".docm", ".dotx", ".dotm"), "open it in a word processor and save it as .docx"),
    **dict.fromkeys((".ppt", ".pps", ".pot", ".pptm", ".ppsx", ".potx"), "open it in PowerPoint and save it as .pptx"),
    **dict.fromkeys((".xlsm", ".xlsb", ".xltx", ".xlt"), "open it in a spreadsheet program and save it as .xlsx"),
    ".xls": "open it in a spreadsheet program and save it as .xlsx, or ask the operator for the extra `legacy`",
    ".msg": "open it in Outlook and save it as .eml, or drag it into a mail program that does",
    **dict.fromkeys((".pst", ".mbox"), "save the mails you need as .eml"),
    **dict.fromkeys((".pages", ".key", ".numbers"), "export it as .docx, .pptx, .xlsx or .pdf"),
    **dict.fromkeys((".mobi", ".azw3"), "convert it to .epub"),
    **dict.fromkeys((".zip", ".7z", ".rar", ".gz"), "unpack it and upload the files in it"),
}
"""What to do with files that are not read, by their ending."""


def our_formats() -> Mapping[str, Mapping[str, str]]:
    """Return the media types by ending of each reader of ours, named as module:function, without what packages add."""
    return _OURS


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

IMAGE_ENDINGS = tuple(_IMAGES)
IMAGE_TYPES = frozenset(_IMAGES.values())


@cache
def all_formats() -> Mapping[str, Format]:
    """Return the formats by file name ending. An extension that cannot be used is logged and left out."""
    ours = {**_OURS, "ocr:read_image": _IMAGES} if has_ocr() else _OURS
    formats = {
        suffix: Format(media_type, partial(_import_reader, reader), takes_scans=reader in _SCANNED)
        for reader, media_types in ours.items()
        for suffix, media_type in media_types.items()
        if suffix not in EXTRAS or find_spec(EXTRAS[suffix][0]) is not None
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


def why_unread(name: str) -> str:
    """Return why no file called ``name`` is read, and what to do instead; empty if one is read."""
    suffix = PurePath(name).suffix.lower()
    if suffix in all_formats():
        return ""
    if suffix in _IMAGES:
        return f"{suffix!r}: images are read with OCR; {OCR_HINT}"
    if suffix in SAVE_INSTEAD:
        return f"files ending in {suffix!r} are not read: {SAVE_INSTEAD[suffix]}"
    return f"files ending in {suffix[:20]!r} are not read" if suffix else "files without an ending are not read"


def format_of(name: str) -> Format:
    """Return the format of a file called ``name``. Raises `DocumentError` DOCUMENT_UNSUPPORTED."""
    suffix = PurePath(name).suffix.lower()
    if suffix not in all_formats():
        known = "" if suffix in SAVE_INSTEAD or suffix in _IMAGES else f"; supported are {' '.join(suffixes())}"
        raise DocumentError("DOCUMENT_UNSUPPORTED", f"{why_unread(name)}{known}")
    return all_formats()[suffix]

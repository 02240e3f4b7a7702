"""Registry of the file formats and their readers; each family of built-in formats has a module.

A reader raises `DocumentError` for problems that it recognises (encrypted, scanned, too many pages). Exceptions of its
library pass through, and `parsing.parse` maps them. Libraries are imported when a file needs them. Installed packages
add formats by entry points (see `extensions`), which take precedence over built-in formats with the same ending.
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
"""A function that takes a path and `ParseLimits`, and also `scans.Scans` if its format takes scans."""


class DocumentFormat(Protocol):
    """The object of an ``agentic_rag.document_formats`` entry point: an object or a module with these two names.

    The entry point is loaded in the server and in each reading process, so import heavy libraries only inside `read`.
    """

    @property
    def media_types(self) -> Mapping[str, str]:
        """Media types by file name ending, in lower case with the dot: ``{".epub": "application/epub+zip"}``."""
        ...

    def read(self, path: Path, limits: ParseLimits) -> ParsedDocument:
        """Read the file at ``path``, whose name has no ending. May block; runs in a process with limited memory.

        The path is that of an open descriptor: it can be opened, but not resolved. In the sandbox, no other file of the
        data folder is visible.

        Raises:
            DocumentError: the file cannot be read; the message is for the uploader. Any other exception fails the
                document as ``DOCUMENT_BROKEN``.
        """
        ...


@dataclass(frozen=True, slots=True)
class Format:
    """The media type and the reader of one file name ending.

    ``extension`` names the installed package that adds the format, and is empty for built-in formats. ``takes_scans``
    means that pages may be images, which OCR reads.
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
"""Media types by ending, for each reader: the only list of built-in formats, for the server, the command line, the page
and the docs. The standard library's table of media types differs between hosts."""

EXTRAS: Mapping[str, tuple[str, str]] = {".xls": ("python_calamine", "legacy")}
"""Formats that need an extra: the module that the extra installs, and the name of the extra."""

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
"""Advice for files that are not supported, by their ending."""


def our_formats() -> Mapping[str, Mapping[str, str]]:
    """Return the media types by ending of each built-in reader (module:function), without those of extensions."""
    return _OURS


_SCANNED = {"pdf:read_pdf", "ocr:read_image"}
"""Readers that take the results of OCR."""

_IMAGES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".tif": "image/tiff",
    ".tiff": "image/tiff",
    ".webp": "image/webp",
}
"""Images, which need the extra ``ocr``."""

IMAGE_ENDINGS = tuple(_IMAGES)
IMAGE_TYPES = frozenset(_IMAGES.values())


@cache
def all_formats() -> Mapping[str, Format]:
    """Return the formats by file name ending. A broken extension is logged and left out."""
    readers = {**_OURS, "ocr:read_image": _IMAGES} if has_ocr() else _OURS
    formats = {
        suffix: Format(media_type, partial(_import_reader, reader), takes_scans=reader in _SCANNED)
        for reader, media_types in readers.items()
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
                # An extension may read an ending in place of the built-in reader.
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
    """Return the media type for a file name's ending."""
    supported = all_formats().get(PurePath(name).suffix.lower())
    return supported.media_type if supported else "application/octet-stream"


def why_unread(name: str) -> str:
    """Return the reason why a file called ``name`` is not supported, with advice, or "" if it is supported."""
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
        hint = "" if suffix in SAVE_INSTEAD or suffix in _IMAGES else f"; supported are {' '.join(suffixes())}"
        raise DocumentError("DOCUMENT_UNSUPPORTED", f"{why_unread(name)}{hint}")
    return all_formats()[suffix]

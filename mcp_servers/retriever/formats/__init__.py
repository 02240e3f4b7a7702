"""Readers, one module for each family of formats: a file to a `ParsedDocument`.

A reader raises `DocumentError` for what it recognises (encrypted, scanned, too many pages) and lets its library's
exceptions through; `parsing.parse` maps those. Libraries are imported when a file needs them.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path, PurePath
from typing import cast

from mcp_servers.retriever.document import ParsedDocument, ParseLimits
from mcp_servers.retriever.errors import DocumentError

Reader = Callable[[Path, ParseLimits], ParsedDocument]

_READERS = {
    ".md": "markdown:read_markdown",
    ".markdown": "markdown:read_markdown",
    ".txt": "text:read_text",
    ".text": "text:read_text",
    ".log": "text:read_text",
    ".rst": "text:read_text",
    ".html": "html:read_html",
    ".htm": "html:read_html",
    ".xhtml": "html:read_html",
    ".pdf": "pdf:read_pdf",
    ".docx": "word:read_docx",
    ".pptx": "slides:read_pptx",
    ".xlsx": "sheets:read_xlsx",
    ".csv": "sheets:read_csv",
    ".tsv": "sheets:read_csv",
}

SUFFIXES = frozenset(_READERS)
"""File name endings that can be ingested, in lower case with their dot."""


def reader_for(name: str) -> Reader:
    """The reader for a file called `name`. Raises `DocumentError` DOCUMENT_UNSUPPORTED."""
    suffix = PurePath(name).suffix.lower()
    if suffix not in _READERS:
        known = " ".join(sorted(SUFFIXES))
        what = f"files ending in {suffix!r}" if suffix else "files without an ending"
        raise DocumentError("DOCUMENT_UNSUPPORTED", f"{what} are not supported; supported are {known}")
    module, function = _READERS[suffix].split(":")
    return cast(Reader, getattr(import_module(f"{__name__}.{module}"), function))

"""Parsing of one file into a `ParsedDocument`, with its limits and the errors of third-party readers.

`parse` blocks and does not sandbox: callers run it on users' files in a separate process with limited memory and time.
The readers are in `formats`. The module knows nothing of chunks or the index.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mcp_servers.retriever.document import ParsedDocument, ParseLimits
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.extensions import OCR_HINT, has_ocr
from mcp_servers.retriever.formats import format_of
from mcp_servers.retriever.formats.scans import Scans, ScansWanted

DEFAULT_LIMITS = ParseLimits()
MAX_NOTES = 30
"""Maximum number of notes of one document; the last one replaces the rest by their number."""
MAX_NOTE_CHARACTERS = 400
MAX_DETAIL = 1_000
DAMAGED = "the file is damaged, or its form is one that the reader does not know"
NO_SCANS = Scans()


def parse(path: Path, name: str, limits: ParseLimits = DEFAULT_LIMITS, scans: Scans = NO_SCANS) -> ParsedDocument:
    """Read the file at `path`, whose format follows from the ending of `name`, the uploader's name for it. Blocks.

    ``scans`` has the pages that OCR has read already.

    Raises:
        ScansWanted: OCR is to read further pages first.
        DocumentError: the file cannot be read. Any exception of a format library becomes ``DOCUMENT_BROKEN`` with
            `DAMAGED`; its own words are in ``detail`` only.
        MemoryError: the file needs more memory than the process has.
    """
    document_format = format_of(name)
    size = path.stat().st_size
    if size == 0:
        raise DocumentError("DOCUMENT_EMPTY", "the file is empty")
    if size > limits.max_bytes:
        raise DocumentError("DOCUMENT_TOO_LARGE", f"the file has {_mib(size)}; the limit is {_mib(limits.max_bytes)}")
    try:
        reader = document_format.load()
        parsed = reader(path, limits, scans) if document_format.takes_scans else reader(path, limits)
        if not isinstance(parsed, ParsedDocument):
            raise TypeError(f"{type(parsed).__name__} is no ParsedDocument")
    except (DocumentError, MemoryError):
        raise
    except Exception as exc:  # third-party readers raise anything on broken files: this is the one boundary
        detail = f"{type(exc).__name__}: {exc}"[:MAX_DETAIL]
        reason = f"the reader {document_format.extension} failed ({detail})" if document_format.extension else DAMAGED
        raise DocumentError("DOCUMENT_BROKEN", reason, detail) from exc
    if scans.wanted and parsed.unread_scans:
        raise ScansWanted(parsed.unread_scans, parsed.pages or len(parsed.unread_scans))
    if not any(block.text.strip() for block in parsed.blocks):
        if parsed.unread_scans:
            missing = f"no text layer on {len(parsed.unread_scans)} of {parsed.pages} pages"
            hint = "" if has_ocr() else f"; {OCR_HINT}"
            raise DocumentError("DOCUMENT_SCANNED", f"scanned PDF: {missing}{hint}")
        reasons = "; ".join(_bound_notes(parsed.notes)[:3])
        raise DocumentError("DOCUMENT_EMPTY", f"the file holds no text{f' ({reasons})' if reasons else ''}")
    characters = sum(len(block.text) for block in parsed.blocks)
    if characters > limits.max_characters:
        message = f"the file holds {characters:,} characters; the limit is {limits.max_characters:,}"
        raise DocumentError("DOCUMENT_TOO_LARGE", message)
    blocks = tuple(
        block if (text := _as_unicode(block.text)) is block.text else replace(block, text=text)
        for block in parsed.blocks
    )
    return replace(parsed, blocks=blocks, notes=_bound_notes(parsed.notes))


def _as_unicode(text: str) -> str:
    """Return a text with a replacement character for each lone surrogate, which neither JSON nor a database accepts."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _bound_notes(notes: Sequence[str]) -> tuple[str, ...]:
    """Return notes without repetitions, limited in number and length."""
    lines = list(dict.fromkeys(" ".join(_as_unicode(note).split())[:MAX_NOTE_CHARACTERS] for note in notes))
    if len(lines) <= MAX_NOTES:
        return tuple(lines)
    return (*lines[: MAX_NOTES - 1], f"and {len(lines) - MAX_NOTES + 1} more notes")


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"

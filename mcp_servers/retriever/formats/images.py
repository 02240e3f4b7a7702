"""Images as documents: PNG, JPEG, TIFF and WebP. OCR reads each image, or each frame of a TIFF, as a page."""

from pathlib import Path

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.layout import Page, lay_out
from mcp_servers.retriever.formats.ocr import MAX_IMAGE_PIXELS, open_image
from mcp_servers.retriever.formats.scans import Scans, lay_out_scan

NO_TEXT = "no text was found on the image"


def read_image(path: Path, limits: ParseLimits, scans: Scans = Scans()) -> ParsedDocument:  # noqa: B008 (frozen)
    """Return the text of an image; pages that OCR has still to read are in ``unread_scans``.

    Raises:
        DocumentError: the file is no image, has too many pixels or frames, or OCR found no text.
    """
    image = open_image(path.read_bytes())
    count = int(getattr(image, "n_frames", 1))
    if count > limits.max_pages:
        raise DocumentError("DOCUMENT_TOO_LARGE", f"the image has {count} frames; the limit is {limits.max_pages}")
    width, height = image.size
    if width * height > MAX_IMAGE_PIXELS:
        shown = f"the image has {width:,} × {height:,} pixels; the limit is {MAX_IMAGE_PIXELS / 1e6:.0f} million"
        raise DocumentError("DOCUMENT_TOO_LARGE", shown)
    unread = tuple(number for number in range(1, count + 1) if number not in scans.pages)
    failed = [scan for scan in scans.pages.values() if scan.error]
    pages = [lay_out_scan(scans.pages[number]) if number in scans.pages else Page(()) for number in range(1, count + 1)]
    blocks: list[Block] = lay_out(pages).blocks
    if not blocks and not unread:
        raise DocumentError("DOCUMENT_EMPTY", failed[0].error or NO_TEXT if failed else NO_TEXT)
    notes = [f"page {scan.page} was not read: {scan.error}" for scan in failed[:20]]
    if blocks:
        notes.insert(0, "read from a scan by OCR")
    return ParsedDocument(tuple(blocks), count, tuple(notes), unread_scans=unread)

"""One page of a PDF, processed by PDFium: drawn as an image, or searched for the position of a passage.

Owns the size of an image and the form of a position: fractions of the page's width and height, from its upper left
corner. The input is untrusted, so this module runs in a capped process only (`page_child`). No script, form or link of
a document is run or followed.
"""

import ctypes
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pypdfium2
import pypdfium2.raw as pdfium

from agentic_rag.documents.page_job import Box, Marks
from agentic_rag.documents.text_positions import Range, locate
from mcp_servers.retriever.errors import DocumentError

MAX_PIXELS = 6_000_000
"""Maximum pixels of an image; a larger page is drawn smaller. A4 at 2 000 pixels has 5.7 million."""
MAX_CHARACTERS = 200_000
"""Maximum characters of a page's text layer that are searched; a dense page has 10 000."""
MAX_BOXES = 200
"""Maximum boxes of one passage: lines, and parts of lines in other fonts."""
COMPRESSION = 4
"""Compression level, of 9: a page of text takes a third of the time of the usual 6 and 5 % more bytes."""

_GRID = 1_000_000
"""PDFium returns positions on an image in whole pixels; this image size is never drawn."""
_WHITE = (255, 255, 255, 255)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A page as a PNG file; sizes in pixels."""

    png: bytes
    width: int
    height: int


def size_of(page: pypdfium2.PdfPage) -> tuple[float, float]:
    """Return width and height in points, as the page is shown. Raises `DocumentError` for a page without a size."""
    width, height = page.get_size()
    if not (math.isfinite(width) and math.isfinite(height) and width > 0 and height > 0):
        raise DocumentError("DOCUMENT_BROKEN", "the page has no size")
    return width, height


def pixels_of(size: tuple[float, float], width: int) -> tuple[int, int]:
    """Return the size of an image ``width`` pixels wide; smaller if it would exceed `MAX_PIXELS`."""
    ratio = size[1] / size[0]
    if width * width * ratio > MAX_PIXELS:
        exact = math.sqrt(MAX_PIXELS / ratio)
        return max(1, int(exact)), max(1, min(MAX_PIXELS, int(exact * ratio)))
    return width, max(1, round(width * ratio))


def draw(page: pypdfium2.PdfPage, width: int) -> Drawing:
    """Draw a page with its annotations on white."""
    across, down = pixels_of(size_of(page), width)
    bitmap = pypdfium2.PdfBitmap.new_native(across, down, pdfium.FPDFBitmap_BGR, rev_byteorder=True)
    bitmap.fill_rect(_WHITE, 0, 0, across, down)
    flags = pdfium.FPDF_ANNOT | pdfium.FPDF_REVERSE_BYTE_ORDER
    pdfium.FPDF_RenderPageBitmap(bitmap, page, 0, 0, across, down, 0, flags)
    return Drawing(encode_png(bytes(bitmap.buffer), across, down), across, down)


def encode_png(pixels: bytes, width: int, height: int) -> bytes:
    """Return a PNG of RGB pixels, three bytes each, without padding between rows; greyscale if there is no colour."""
    depth, kind = 3, 2
    grey = pixels[0::3]
    if grey == pixels[1::3] == pixels[2::3]:  # true for most pages; saves two thirds of the bytes and half the time
        pixels, depth, kind = grey, 1, 0
    view, size = memoryview(pixels), depth * width
    packer = zlib.compressobj(COMPRESSION)
    data = bytearray()
    for row in range(height):
        data += packer.compress(b"\0")  # filter type 0: the row unchanged
        data += packer.compress(view[row * size : (row + 1) * size])
    data += packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _part(b"IHDR", head) + _part(b"IDAT", bytes(data)) + _part(b"IEND", b"")


def _part(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def mark(page: pypdfium2.PdfPage, passage: str, sentences: Sequence[Range], cited: Range | None) -> Marks:
    """Return the position of a passage on a page, by the page's text layer; no boxes if the layer lacks the passage."""
    width, height = size_of(page)
    text_page = page.get_textpage()
    try:
        located = locate(_characters(text_page), passage, sentences, cited)
        return Marks(
            width,
            height,
            tuple(_boxes(page, text_page, located.passage)),
            tuple(_boxes(page, text_page, located.cited)),
            located.whole,
        )
    finally:
        text_page.close()


def _characters(text_page: pypdfium2.PdfTextPage) -> str:
    """Return one character for each that PDFium counts, so that indices in this text are PDFium's indices."""
    count = min(pdfium.FPDFText_CountChars(text_page), MAX_CHARACTERS)
    codes = (pdfium.FPDFText_GetUnicode(text_page, at) for at in range(count))
    return "".join(chr(code) if 0 < code < 0x110000 else "\ufffe" for code in codes)


def _boxes(page: pypdfium2.PdfPage, text_page: pypdfium2.PdfTextPage, ranges: Sequence[Range]) -> Iterator[Box]:
    left = MAX_BOXES
    for start, end in ranges:
        count = min(pdfium.FPDFText_CountRects(text_page, start, end - start), left)
        left -= count
        for index in range(count):
            box = _share(page, text_page.get_rect(index))
            if box is not None:
                yield box


def _share(page: pypdfium2.PdfPage, rectangle: tuple[float, float, float, float]) -> Box | None:
    """Convert a rectangle in the page's own units to fractions of the shown page; None if it is outside."""
    first, other = _point(page, rectangle[0], rectangle[1]), _point(page, rectangle[2], rectangle[3])
    (left, right), (top, bottom) = sorted((first[0], other[0])), sorted((first[1], other[1]))
    left, right, top, bottom = (min(max(edge, 0.0), 1.0) for edge in (left, right, top, bottom))
    if right <= left or bottom <= top:
        return None
    return Box(round(left, 5), round(top, 5), round(right - left, 5), round(bottom - top, 5))


def _point(page: pypdfium2.PdfPage, x: float, y: float) -> tuple[float, float]:
    across, down = ctypes.c_int(), ctypes.c_int()
    pdfium.FPDF_PageToDevice(page, 0, 0, _GRID, _GRID, 0, x, y, across, down)
    return across.value / _GRID, down.value / _GRID

"""Scanned pages and images: OCR by RapidOCR to lines of text with their boxes. Needs the extra ``ocr``.

The models are part of RapidOCR's wheel, so nothing is downloaded. The recogniser runs in one thread, in a process with
limited memory and time.
"""

import io
import math
import warnings
from pathlib import Path
from typing import Any

import pypdfium2

from mcp_servers.retriever.document import Block, ParsedDocument, ParseLimits
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.layout import Page, lay_out
from mcp_servers.retriever.formats.scans import BY_MODEL, Corners, ScanLine, ScanPage, Scans, lay_out_scan

DPI = 150
MAX_PIXELS = 6_000_000
"""Maximum number of pixels of a page's image; A4 at 150 dpi has 2.2 million."""
MAX_SIDE = 3_000
"""Maximum number of pixels of an image's longer side."""
MAX_IMAGE_PIXELS = 120_000_000
"""Maximum number of pixels of an image file, before scaling."""
SIDE_LENGTH = 1_600
"""Pixels of the longer side of the image in which text is detected."""
NO_TEXT = "no text was found on the image"

UNCERTAIN = 0.8
"""Score below which a page is also read upside down."""

SAMPLE = 5
"""Lines whose direction decides whether a page is upside down."""


class Recogniser:
    """Reads pages. Loading takes some 2 s of processor time; a page about 4 s and 0.6 GB."""

    def __init__(self) -> None:
        # All of these are of the extra `ocr`, also in the functions below. Files can be checked without it.
        import cv2
        from rapidocr import RapidOCR

        cv2.setNumThreads(1)
        self._engine: Any = RapidOCR(
            params={
                "EngineConfig.onnxruntime.intra_op_num_threads": 1,
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
                "Rec.rec_batch_num": 1,
                "Global.max_side_len": SIDE_LENGTH,
                "Global.log_level": "error",
            }
        )

    def read_pdf_page(self, document: pypdfium2.PdfDocument, number: int) -> ScanPage:
        """Read a page of a PDF, from 1."""
        page = document[number - 1]
        width, height = page.get_size()
        if not (math.isfinite(width) and math.isfinite(height) and width > 0 and height > 0):
            raise DocumentError("DOCUMENT_BROKEN", "the page has no size")
        scale = min(DPI / 72, MAX_SIDE / max(width, height), math.sqrt(MAX_PIXELS / (width * height)))
        pixels = page.render(scale=scale, rev_byteorder=False).to_numpy()
        return self._read(pixels[:, :, :3], number, width, height)

    def read_image(self, data: bytes, number: int) -> ScanPage:
        """Read an image, or a frame of a TIFF, from 1. Raises `DocumentError` if it is too large."""
        import numpy

        picture = load_picture(open_image(data), number, MAX_SIDE)
        width, height = picture.size
        picture.thumbnail((MAX_SIDE, MAX_SIDE))
        pixels = numpy.ascontiguousarray(numpy.asarray(picture)[:, :, ::-1])  # BGR, as PDFium renders pages, too
        return self._read(pixels, number, width * 72 / DPI, height * 72 / DPI)

    def _read(self, pixels: Any, number: int, width: float, height: float) -> ScanPage:
        """Read an image in the direction of its text.

        The direction classifier decides for the page and not for each line, because it takes some upright lines for
        upside down.
        """
        import numpy

        output = self._read_upright(pixels)
        turns = 0
        if _is_sideways(output):
            pixels = numpy.ascontiguousarray(numpy.rot90(pixels))
            output = self._read_upright(pixels)
            turns = 1
        if output.boxes is not None and (_certainty(output) < UNCERTAIN or self._is_upside_down(pixels, output)):
            turned = self._read_upright(numpy.ascontiguousarray(numpy.rot90(pixels, 2)))
            if _certainty(turned) > _certainty(output):
                output = turned
                turns += 2
        if output.boxes is None:
            return ScanPage(number, width, height, 0, ())
        across, down = pixels.shape[1], pixels.shape[0]
        lines = []
        for box, text, score in zip(output.boxes, output.txts, output.scores, strict=True):
            points = [(float(x) / across, float(y) / down) for x, y in box]
            if turns >= 2:
                points = [(1 - x, 1 - y) for x, y in points]
            if turns % 2:  # back to the shown page, which was turned counterclockwise
                points = [(1 - y, x) for x, y in points]
            shown = " ".join(text.split())
            if shown:
                lines.append(ScanLine(shown, round(float(score), 3), _corners(points)))
        # turning the image counterclockwise made the text upright: on the page it runs downwards, turned by 90
        return ScanPage(number, width, height, (0, 90, 180, 270)[turns], tuple(lines))

    def _read_upright(self, pixels: Any) -> Any:
        return self._engine(pixels, use_det=True, use_cls=False, use_rec=True)

    def _is_upside_down(self, pixels: Any, output: Any) -> bool:
        """Return whether the direction classifier turns most of the longest lines around."""
        boxes = sorted(output.boxes, key=lambda box: -abs(float(box[1][0] - box[0][0])))[:SAMPLE]
        turned = 0
        for box in boxes:
            left, top = (max(0, int(min(point[axis] for point in box))) for axis in (0, 1))
            right, bottom = (int(max(point[axis] for point in box)) + 1 for axis in (0, 1))
            classified = self._engine(pixels[top:bottom, left:right], use_det=False, use_cls=True, use_rec=False)
            labels = getattr(classified, "cls_res", None) or []
            turned += any(label == "180" and score > 0.9 for label, score in labels)
        return turned * 2 > len(boxes)


def _certainty(output: Any) -> float:
    """Return the mean score of the characters of a result, or 0 without any."""
    if output.boxes is None:
        return 0.0
    characters = sum(map(len, output.txts))
    scores = [len(text) * float(score) for text, score in zip(output.txts, output.scores, strict=True)]
    return sum(scores) / max(characters, 1)


def _is_sideways(output: Any) -> bool:
    """Return whether most of the text is in boxes much higher than wide, that is, in turned lines."""
    if output.boxes is None:
        return False
    tall = wide = 0
    for box, text in zip(output.boxes, output.txts, strict=True):
        across, down = math.dist(box[0], box[1]), math.dist(box[0], box[3])
        horizontal = abs(float(box[1][0] - box[0][0])) >= abs(float(box[1][1] - box[0][1]))
        extent_x, extent_y = (across, down) if horizontal else (down, across)
        if extent_y > 1.5 * extent_x and not _is_east_asian(text):
            tall += len(text)
        else:
            wide += len(text)
    return tall > wide


def _is_east_asian(text: str) -> bool:
    """Return whether a text may be written vertically."""
    return sum(character >= "\u2e80" for character in text) * 2 > len(text)


def _corners(points: list[tuple[float, float]]) -> Corners:
    (a, b), (c, d), (e, f), (g, h) = [(round(min(max(x, 0), 1), 5), round(min(max(y, 0), 1), 5)) for x, y in points]
    return a, b, c, d, e, f, g, h


def open_image(data: bytes) -> Any:
    """Open an image without decoding it. Raises `DocumentError` if the file is not an image."""
    from PIL import Image, UnidentifiedImageError

    Image.MAX_IMAGE_PIXELS = None  # our own limits are checked before decoding
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "TIFF", "WEBP"))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as exc:
        raise DocumentError("DOCUMENT_BROKEN", "the file is no readable PNG, JPEG, TIFF or WebP image") from exc


def load_picture(image: Any, number: int, side: int) -> Any:
    """Return a frame of an opened image, from 1, upright and in RGB.

    ``side`` is the fewest pixels of the longer side, if the image has them; a JPEG is decoded at a smaller size.

    Raises:
        DocumentError: there is no such frame, or it has too many pixels.
    """
    try:
        image.seek(number - 1)
    except EOFError:
        raise DocumentError("DOCUMENT_BROKEN", f"the image has no page {number}") from None
    _check_size(image)
    image.draft("RGB", (side, side))
    return _upright(image)


def count_frames(image: Any) -> int:
    """Return the number of pages of an opened image: a TIFF may have several."""
    return int(getattr(image, "n_frames", 1))


def _check_size(image: Any) -> None:
    width, height = image.size
    if width * height > MAX_IMAGE_PIXELS:
        shown = f"the image has {width:,} × {height:,} pixels; the limit is {MAX_IMAGE_PIXELS / 1e6:.0f} million"
        raise DocumentError("DOCUMENT_TOO_LARGE", shown)


def _upright(image: Any) -> Any:
    """Return the image in RGB on white, turned by its camera orientation."""
    from PIL import Image, ImageOps

    picture = ImageOps.exif_transpose(image)
    if picture.mode in ("RGBA", "LA", "P", "PA"):
        picture = picture.convert("RGBA")
        ground = Image.new("RGBA", picture.size, "white")
        ground.alpha_composite(picture)
        picture = ground
    if picture.mode in ("I;16", "I", "F"):
        picture = picture.point(lambda value: value / 256).convert("L")
    return picture.convert("RGB")


def read_image(path: Path, limits: ParseLimits, scans: Scans = Scans()) -> ParsedDocument:  # noqa: B008 (frozen)
    """Return the text of an image; pages that OCR has still to read are in ``unread_scans``.

    Raises:
        DocumentError: the file is not an image, has too many pixels or frames, or OCR found no text.
    """
    image = open_image(path.read_bytes())
    count = count_frames(image)
    if count > limits.max_pages:
        raise DocumentError("DOCUMENT_TOO_LARGE", f"the image has {count} frames; the limit is {limits.max_pages}")
    _check_size(image)
    unread = tuple(number for number in range(1, count + 1) if number not in scans.pages)
    failed = [scan for scan in scans.pages.values() if scan.error]
    pages = [lay_out_scan(scans.pages[number]) if number in scans.pages else Page(()) for number in range(1, count + 1)]
    blocks: list[Block] = lay_out(pages).blocks
    if not blocks and not unread:
        raise DocumentError("DOCUMENT_EMPTY", failed[0].error or NO_TEXT if failed else NO_TEXT)
    notes = [
        f"page {scan.page} was {'only read in part' if scan.lines else 'not read'}: {scan.error}"
        for scan in failed[:20]
    ]
    if blocks:
        by_model = any(scan.reader == BY_MODEL for scan in scans.pages.values())
        notes.insert(0, f"read from a scan by {'the model' if by_model else 'OCR'}")
    return ParsedDocument(tuple(blocks), count, tuple(notes), unread_scans=unread)

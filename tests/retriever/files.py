"""Files of every format, made at run time."""

import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import docx
import openpyxl
import pptx
from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.cidfonts import UnicodeCIDFont
from reportlab.pdfgen.canvas import Canvas

pdfmetrics.registerFont(UnicodeCIDFont("STSong-Light"))

Line = tuple[int, str]
"""Font size and text. A size of 0 is a gap between paragraphs."""


def pdf(path: Path, pages: Sequence[Sequence[Line]], password: str = "", font: str = "Helvetica") -> Path:
    """A page without lines gets a drawing, like a page from a scanner."""
    encryption = StandardEncryption(password, ownerPassword=password) if password else None
    canvas = Canvas(str(path), encrypt=encryption)
    for lines in pages:
        top = 800
        for size, text in lines:
            if size:
                canvas.setFont(font, size)
                canvas.drawString(60, top, text)
            top -= int(size * 1.2) if size else 20
        if not lines:
            canvas.rect(60, 60, 400, 600)
        canvas.showPage()
    canvas.save()
    return path


def word(path: Path) -> Path:
    document = docx.Document()
    document.add_heading("Policy", 0)
    document.add_heading("Leave", 1)
    document.add_paragraph("Staff get twenty-five days.")
    document.add_paragraph("on full pay", style="List Bullet")
    document.add_paragraph("once a year", style="List Bullet")
    table = document.add_table(3, 2)
    for row, cells in zip(table.rows, [("grade", "days"), ("junior", "25"), ("total", "")], strict=True):
        for cell, text in zip(row.cells, cells, strict=True):
            cell.text = text
    table.cell(2, 0).merge(table.cell(2, 1))
    document.add_paragraph("病假需要医生证明。")
    document.save(str(path))
    return path


def slides(path: Path) -> Path:
    presentation = pptx.Presentation()
    for title, body in (("Roadmap", "First step\nSecond step"), ("Risks", "None known")):
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = body
    slide.notes_slide.notes_text_frame.text = "Ask the board."
    presentation.save(str(path))
    return path


def workbook(path: Path, rows: int = 60) -> Path:
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.title = "Rates"
    sheet.append([])
    sheet.append(["city", "rate", None])
    for number in range(rows):
        sheet.append([f"City number {number}", number * 1.5, None])
    book.create_sheet("Blank")
    book.save(path)
    return path


def package(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:  # some members are bombs
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def white_png(width: int, height: int) -> bytes:
    """Return a white PNG image with one bit for each pixel.

    It is written without Pillow, which takes five seconds of CPU for 900 million pixels.
    """
    row = b"\0" + b"\xff" * ((width + 7) // 8)  # each row begins with its filter
    packer = zlib.compressobj(1)
    rows = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n"
    for kind, data in chunks:
        png += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return png


def zeros(mebibytes: int) -> bytes:
    return bytes(mebibytes * 2**20)

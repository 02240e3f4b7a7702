"""OCR: lines, tables and directions of scanned pages, and the treatment of noise."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

from mcp_servers.retriever.document import ParseLimits
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.ocr import Recogniser, read_image
from mcp_servers.retriever.formats.scans import ScanPage, Scans

pytestmark = pytest.mark.skipif(find_spec("rapidocr") is None, reason="needs the extra ocr")

ROWS = [("Article", "Stock", "Price"), ("Pump", "", "12.50"), ("Valve", "40", "")]


@pytest.fixture(scope="module")
def recogniser() -> Recogniser:
    return Recogniser()


def draw_table() -> Image.Image:
    image = Image.new("RGB", (640, 300), "white")
    font = ImageFont.load_default(24)
    for row, cells in enumerate(ROWS):
        for column, cell in enumerate(cells):
            ImageDraw.Draw(image).text((40 + 220 * column, 50 + 50 * row), cell, fill="black", font=font)
    return image


def blocks_of(recogniser: Recogniser, path: Path, image: Image.Image) -> list[str]:
    image.save(path)
    page = recogniser.read_image(path.read_bytes(), 1)
    assert ScanPage.from_json(page.to_json()) == page
    parsed = read_image(path, ParseLimits(), Scans({1: page}))
    assert all(block.scanned for block in parsed.blocks)
    return [block.text for block in parsed.blocks]


@pytest.mark.parametrize("turn", [0, 180, 270])
def test_a_scanned_table_keeps_its_empty_cells_in_every_direction(
    recogniser: Recogniser, tmp_path: Path, turn: int
) -> None:
    image = draw_table().rotate(-turn - 1, expand=True, fillcolor="white")
    expected = "Article | Stock | Price\nPump |  | 12.50\nValve | 40 |"
    assert blocks_of(recogniser, tmp_path / "a.png", image) == [expected]


def test_noise_contains_no_text(recogniser: Recogniser, tmp_path: Path) -> None:
    with pytest.raises(DocumentError) as exc_info:
        blocks_of(recogniser, tmp_path / "a.png", Image.effect_noise((400, 400), 90))
    assert (exc_info.value.code, exc_info.value.message) == ("DOCUMENT_EMPTY", "no text was found on the image")

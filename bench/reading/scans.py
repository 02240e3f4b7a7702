"""Measure OCR on twenty generated scans: the shares of characters read, and of lines marked at the right place.

Run `python -m bench.reading.scans`; needs the extra `ocr`. Each scan is a page of 150 dpi with noise and a skew of up
to 1°, ten in English and ten in Chinese. A language without a font on this machine is skipped by name.
"""

import io
import math
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pypdfium2
from PIL import Image, ImageDraw, ImageFont

from agentic_rag.documents.scan_reading import marks_on_scan
from agentic_rag.documents.text_positions import Range
from mcp_servers.retriever.document import ParseLimits
from mcp_servers.retriever.formats.ocr import Recogniser
from mcp_servers.retriever.formats.pdf import read_pdf
from mcp_servers.retriever.formats.scans import Scans

PAGE = 1240, 1754
DPI = 150
LINES = 14
MARGIN = 110
FONTS = {
    "English": ["DejaVuSerif.ttf", "LiberationSerif-Regular.ttf", "Vera.ttf"],
    "Chinese": ["wqy-zenhei.ttc", "NotoSansCJK-Regular.ttc", "NotoSerifCJK-Regular.ttc", "uming.ttc", "PingFang.ttc"],
}
ENGLISH = (
    "the keeper signs list berth crane harbour opens before winter when ropes are counted and every boat pays its "
    "fee on Monday at 07:30 while divers check pumps valves lamps north pier of store number 14 costs 12.50 crowns"
)
CHINESE = (
    "码头 每天 早上 七点 开放 船长 需要 登记 船只 名称 和 到达 时间 仓库 管理员 检查 水泵 阀门 缆绳 数量 冬季 之前 "
    "所有 设备 必须 清点 费用 按照 吨位 计算 超过 30 天 另外 收取 12.5 元 潜水员 在 北侧 工作 请 保持 距离"
)


@dataclass(frozen=True)
class Scan:
    """A scanned page: its lines, its image, and the centre of each line as shares of the image's size."""

    name: str
    lines: list[str]
    image: Image.Image
    centres: list[tuple[float, float]]


def font_of(language: str) -> str | None:
    """Return the first usable font of a language, by its name or from the fonts that reportlab ships."""
    import reportlab

    folder = Path(reportlab.__file__).parent / "fonts"
    for name in FONTS[language]:
        for path in (name, str(folder / name)):
            try:
                ImageFont.truetype(path, 20)
            except OSError:
                continue
            return path
    return None


def lines_of(chance: random.Random, language: str) -> list[str]:
    """Return the lines of a page; no two are the same."""
    lines = []
    for number in range(1, LINES + 1):
        if language == "English":
            words = chance.choices(ENGLISH.split(), k=chance.randint(7, 10))
            lines.append(f"Rule {number}: {' '.join(words)}.")
        else:
            lines.append(f"第{number}条:{''.join(chance.choices(CHINESE.split(), k=chance.randint(7, 10)))}。")
    return lines


def drawn(name: str, lines: list[str], font: str, chance: random.Random) -> Scan:
    """Draw the lines in grey on grey paper, turn the page by up to 1°, and add noise as a scanner does."""
    size = chance.randint(25, 30)
    face = ImageFont.truetype(font, size)
    image = Image.new("L", PAGE, chance.randint(235, 250))
    draw = ImageDraw.Draw(image)
    angle = chance.choice((-1, 1)) * chance.uniform(0.6, 1.0)
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    centres = []
    shown = [_fitting(line, face) for line in lines]
    for number, line in enumerate(shown):
        x, y = MARGIN, 140 + number * 3.4 * size
        left, top, right, bottom = draw.textbbox((x, y), line, font=face)
        draw.text((x, y), line, fill=chance.randint(10, 60), font=face)
        across, down = (left + right) / 2 - PAGE[0] / 2, (top + bottom) / 2 - PAGE[1] / 2
        turned = across * cos + down * sin, down * cos - across * sin  # counterclockwise, with y downwards
        centres.append((turned[0] / PAGE[0] + 0.5, turned[1] / PAGE[1] + 0.5))
    image = image.rotate(angle, resample=Image.Resampling.BICUBIC, fillcolor=245)
    noise = Image.effect_noise(PAGE, 40)
    return Scan(name, shown, Image.blend(image, noise, 0.15), centres)


def _fitting(line: str, face: ImageFont.FreeTypeFont) -> str:
    """Return a line without the last words or characters that exceed the page's margin."""
    while face.getlength(line) > PAGE[0] - 2 * MARGIN:
        line = line.rpartition(" ")[0] or line[:-1]
    return line


def scans(languages: dict[str, str]) -> Iterator[Scan]:
    """Yield ten scans for each language and its font."""
    for language, font in languages.items():
        for seed in range(10):
            chance = random.Random(f"{language} {seed}")
            yield drawn(f"{language} {seed}", lines_of(chance, language), font, chance)


def as_pdf(image: Image.Image) -> bytes:
    """Return a PDF with the image as JPEG, as scanners make them."""
    file = io.BytesIO()
    image.save(file, "PDF", resolution=DPI, quality=75)
    return file.getvalue()


def edits(one: str, other: str) -> int:
    """Return the least number of characters to insert, delete or replace (Levenshtein)."""
    row = list(range(len(other) + 1))
    for at, character in enumerate(one, 1):
        before, row[0] = row[0], at
        for to, wanted in enumerate(other, 1):
            before, row[to] = row[to], min(row[to] + 1, row[to - 1] + 1, before + (character != wanted))
    return row[-1]


def comparable(text: str) -> str:
    """Return a text without white space, with full-width punctuation replaced by half-width punctuation."""
    return "".join(text.split()).translate(str.maketrans(":,。()", ":,.()"))


def score(scan: Scan, recogniser: Recogniser, folder: Path) -> tuple[int, int, int]:
    """Return the number of characters in the scan, of wrong characters, and of lines marked at the right place."""
    path = folder / "scan.pdf"
    path.write_bytes(as_pdf(scan.image))
    with pypdfium2.PdfDocument(path.read_bytes()) as document:
        page = recogniser.read_pdf_page(document, 1)
    parsed = read_pdf(path, ParseLimits(), Scans({1: page}))
    wanted = comparable("".join(scan.lines))
    wrong = edits(comparable(parsed.text), wanted)
    marked = 0
    for line, (x, y) in zip(scan.lines, scan.centres, strict=True):
        boxes = marks_on_scan(page.to_json(), line, [Range(0, len(line))], Range(0, len(line))).cited
        if len(boxes) == 1:
            (box,) = boxes
            near = abs(box.y + box.height / 2 - y) < 0.4 * box.height
            marked += near and box.height < 0.06 and box.x <= x <= box.x + box.width
    return len(wanted), wrong, marked


def main() -> int:
    """Print a line for each scan and the totals. The exit code is 1 below 98 % of characters or 95 % of lines."""
    languages = {}
    for language in FONTS:
        if font := font_of(language):
            languages[language] = font
        else:
            print(f"{language}: skipped, no font of {', '.join(FONTS[language])}")
    recogniser = Recogniser()
    count = characters = wrong = lines = marked = 0
    seconds = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for scan in scans(languages):
            start = time.process_time()
            length, errors, right = score(scan, recogniser, Path(folder))
            seconds += time.process_time() - start
            print(f"{scan.name:12} {errors:3} of {length} characters wrong, {right} of {len(scan.lines)} lines marked")
            count, characters, wrong = count + 1, characters + length, wrong + errors
            lines, marked = lines + len(scan.lines), marked + right
    if not count:
        return 1
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform != "darwin" else 2**30)
    print(
        f"{1 - wrong / characters:.2%} of {characters} characters right, {marked / lines:.1%} of {lines} lines marked"
    )
    print(f"{seconds / count:.1f} CPU seconds a page, {memory:.2f} GB at most")
    return 0 if wrong <= 0.02 * characters and marked >= 0.95 * lines else 1


if __name__ == "__main__":
    sys.exit(main())
